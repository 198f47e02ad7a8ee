#ifndef RECURVE_ENGINE_LOADING_PLACEMENT_H_
#define RECURVE_ENGINE_LOADING_PLACEMENT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/loading/model_options.h"
#include "engine/models/config.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// Where a model runs, and in what its memory is held.
struct Placement {
  bool cuda = false;
  std::string description;  // what was chosen, and why, for people
  int64_t free_bytes = 0;   // of the GPU
  bool integrated = false;  // its memory is the host's
  bool hopper = false;      // TpaDevice::hopper
  std::optional<DType> weight_dtype;
  DType kv_dtype = DType::kFloat32;
  TpaPageOrder page_order = TpaPageOrder::kPlain;
};

// What follows from the options alone. InvalidArgument names the option and
// what is supported; FailedPrecondition where a GPU is asked for and there is
// none.
absl::StatusOr<Placement> Place(const ModelOptions& options);

// What depends on the model too. InvalidArgument for one that the GPU does not
// take.
absl::Status PlaceModel(const ModelDefinition& model,
                        const ModelOptions& options, Placement* placement);

// That no weight is lost where matrices are held in a narrower type than they
// are stored in. Vectors are held in float32. Reads all such weights.
absl::Status CheckWeightRange(const Checkpoint& checkpoint,
                              const ModelDefinition& model,
                              const Placement& placement);

}  // namespace recurve

#endif  // RECURVE_ENGINE_LOADING_PLACEMENT_H_
