#ifndef RECURVE_ENGINE_PROGRAM_POSITION_H_
#define RECURVE_ENGINE_PROGRAM_POSITION_H_

#include <vector>

#include "kernels/lrpe/lrpe.h"

namespace recurve {

// Position encoding of queries and keys.
struct PositionConfig {
  LrpeType type = LrpeType::kNone;
  // [LrpeAngles(type, head_dim)] radians a position; a negative angle rotates
  // backwards, 0 leaves a pair of features unchanged.
  std::vector<double> theta;

  // Angles as one float32 product, and the following steps in float32
  // (LrpeFloat32TableParams): for models whose weights expect the rounding.
  bool float32_angles = false;
  bool bfloat16_tables = false;
  float log_decay = 0;

  bool operator==(const PositionConfig&) const = default;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_POSITION_H_
