#ifndef RECURVE_ENGINE_LOADING_FINGERPRINT_H_
#define RECURVE_ENGINE_LOADING_FINGERPRINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/models/model_definition.h"
#include "engine/program/device.h"

namespace recurve {

// What decides the bits of a sequence's state, apart from its tokens and
// arithmetic.h. Two servers with equal ones may exchange states.
struct Fingerprint {
  std::string model;   // 32 hexadecimal digits
  std::string device;  // "cpu AVX2", or "cuda 9.0, 132 multiprocessors"
};

// Reads all weights.
absl::StatusOr<Fingerprint> FingerprintOf(const Checkpoint& checkpoint,
                                          const ModelDefinition& model,
                                          const Device& device);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_FINGERPRINT_H_
