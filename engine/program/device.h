#ifndef RECURVE_ENGINE_PROGRAM_DEVICE_H_
#define RECURVE_ENGINE_PROGRAM_DEVICE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "base/dtype.h"

namespace recurve {

// What a plan depends on: properties of the device, and the types that were
// chosen for it.
struct Device {
  bool gpu = false;
  // A GPU of compute capability 9.0, whose kernels fuse norms, gates and chains
  // of products.
  bool hopper = false;
  int64_t multiprocessors = 0;
  std::string compute_capability;  // "9.0"

  // Type of the weights; absent: as they are stored.
  std::optional<DType> weights;
  DType pages = DType::kFloat32;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_DEVICE_H_
