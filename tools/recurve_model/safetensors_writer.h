#ifndef RECURVE_TOOLS_RECURVE_MODEL_SAFETENSORS_WRITER_H_
#define RECURVE_TOOLS_RECURVE_MODEL_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"

namespace recurve {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;

  int64_t bytes() const;
};

// One file of weights: some of the tensors, in order.
struct Shard {
  std::string file;             // name within the folder
  std::vector<size_t> tensors;  // indices
  int64_t payload_bytes = 0;
};

// Fills files in order, none beyond `shard_bytes` of payload unless a single
// tensor is larger: model.safetensors, or model-00001-of-00003.safetensors …
// REQUIRES: shard_bytes > 0.
std::vector<Shard> PlanShards(const std::vector<TensorSpec>& tensors,
                              int64_t shard_bytes);

// The bytes before the payload: length and JSON, padded to eight bytes.
std::string SafetensorsHeader(const std::vector<TensorSpec>& tensors,
                              const Shard& shard);

// model.safetensors.index.json.
std::string SafetensorsIndex(const std::vector<TensorSpec>& tensors,
                             const std::vector<Shard>& shards);

// Writes elements [first, first + count) of tensor number `tensor`, in their
// stored form, to `out`. Called from several threads concurrently.
using TensorSource =
    std::function<void(size_t tensor, int64_t first, int64_t count, char* out)>;

// Called periodically with the payload bytes written so far.
using WriteProgress = std::function<void(int64_t bytes)>;

// Writes the shards, and the index if there is more than one, into the folder
// `dir` with a few blocks of memory. After an error the files written are
// removed again.
absl::Status WriteSafetensors(const std::string& dir,
                              const std::vector<TensorSpec>& tensors,
                              const std::vector<Shard>& shards,
                              const TensorSource& source, int num_threads,
                              const WriteProgress& progress);

// Replaces or creates a file. The error names path and cause.
absl::Status WriteWholeFile(const std::string& path,
                            const std::string& content);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_SAFETENSORS_WRITER_H_
