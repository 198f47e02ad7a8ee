#ifndef RECURVE_ENGINE_LOADING_PLACEMENT_H_
#define RECURVE_ENGINE_LOADING_PLACEMENT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/loading/model_options.h"
#include "engine/models/model_definition.h"
#include "engine/program/device.h"

namespace recurve {

// The device of a model and the types of its memory.
struct Placement {
  Device device;            // with the types chosen
  std::string description;  // the device chosen, and why, in words
  int64_t free_bytes = 0;   // on the GPU
  bool integrated = false;  // shares its memory with the host
};

// The placement that follows from the options alone. InvalidArgument names the
// option and what is supported; FailedPrecondition if a GPU is requested and
// there is none.
absl::StatusOr<Placement> Place(const ModelOptions& options);

// Completes the placement for the model. InvalidArgument if the GPU does not
// support it.
absl::Status PlaceModel(const ModelDefinition& model,
                        const ModelOptions& options, Placement* placement);

// Checks that no weight overflows if matrices are loaded in a narrower type
// than they are stored in. Vectors are loaded in float32. Reads all such
// weights.
absl::Status CheckWeightRange(const Checkpoint& checkpoint,
                              const ModelDefinition& model,
                              const Placement& placement);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_PLACEMENT_H_
