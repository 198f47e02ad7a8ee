#ifndef RECURVE_ENGINE_CHECKPOINT_CHECKPOINT_H_
#define RECURVE_ENGINE_CHECKPOINT_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor_view.h"
#include "engine/checkpoint/json_reader.h"
#include "engine/checkpoint/safetensors.h"

namespace recurve {

// A model directory: config.json, an optional generation_config.json, and the
// weights, either in model.safetensors or in the shards that
// model.safetensors.index.json lists.
//
// Open checks that the files agree: the index and the shards name the same
// tensors. Interpreting them is up to the model.
//
// Views live as long as this object or the one it was moved to. Thread safety:
// immutable once open.
class Checkpoint {
 public:
  static absl::StatusOr<Checkpoint> Open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const JsonObject& config() const { return config_; }
  const std::optional<JsonObject>& generation_config() const {
    return generation_config_;
  }

  // Sorted, with those that cannot be read.
  std::vector<std::string> names() const;
  bool Has(const std::string& name) const;

  // A tensor of a type that cannot be read; null for all others.
  const SafetensorsFile::Other* FindOther(const std::string& name) const;

  // Any type that can be read, any shape; NotFound if there is no such tensor,
  // InvalidArgument if it cannot be read.
  absl::StatusOr<TensorView> Tensor(const std::string& name) const;
  // Exactly this shape, and float32, float16 or bfloat16.
  absl::StatusOr<TensorView> Tensor(
      const std::string& name,
      const std::vector<int64_t>& expected_shape) const;

  // Path of the file that holds a tensor; for an unknown name, of the file that
  // lists the tensors.
  std::string FileOf(const std::string& name) const;

  // An error that names tensors missing from `used`: a part of the model that
  // would not be computed.
  absl::Status CheckAllUsed(const std::set<std::string>& used) const;

 private:
  Checkpoint(std::string dir, JsonObject config)
      : dir_(std::move(dir)), config_(std::move(config)) {}

  absl::Status OpenWeights();
  absl::Status OpenShards(const std::string& index_path);
  absl::Status AddFile(const std::string& path);
  // The tensor; null if there is none or it cannot be read.
  const TensorView* Find(const std::string& name) const;
  // Why that is.
  absl::Status NotRead(const std::string& name,
                       const std::string& expected) const;

  std::string dir_;
  JsonObject config_;
  std::optional<JsonObject> generation_config_;
  std::string listing_;  // path of model.safetensors or of the index
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> file_of_;  // tensor -> index in files_
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_CHECKPOINT_H_
