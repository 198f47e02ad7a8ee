#ifndef RECURVE_TOOLS_RECURVE_MODEL_RANDOM_CHECKPOINT_H_
#define RECURVE_TOOLS_RECURVE_MODEL_RANDOM_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "tools/recurve_model/checkpoint_plan.h"

namespace recurve {

struct RandomCheckpointOptions {
  DType dtype = DType::kBFloat16;  // for all tensors
  uint64_t seed = 0;
  int64_t shard_bytes = int64_t{4} << 30;  // payload of one file
  int num_threads = 1;
};

struct WrittenCheckpoint {
  int64_t files = 0;  // files with weights
  int64_t bytes = 0;  // bytes of weights
};

// Bytes of weights written so far, and the total.
using RandomProgress = std::function<void(int64_t done, int64_t total)>;

// Writes the checkpoint into the folder `dir`, which must be empty or not exist
// yet. The same plan, type and seed give the same bytes everywhere; a tensor's
// values do not depend on the other tensors or the sharding. config.json is
// written last: without it a folder is no checkpoint.
//
// FailedPrecondition when the folder is not empty, ResourceExhausted when the
// disk lacks space.
absl::StatusOr<WrittenCheckpoint> WriteRandomCheckpoint(
    const CheckpointPlan& plan, const std::string& dir,
    const RandomCheckpointOptions& options, const RandomProgress& progress);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_RANDOM_CHECKPOINT_H_
