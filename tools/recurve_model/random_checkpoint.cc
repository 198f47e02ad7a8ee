#include "tools/recurve_model/random_checkpoint.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/recurve_model/random_values.h"
#include "tools/recurve_model/safetensors_writer.h"

namespace recurve {
namespace {

absl::Status FileError(const std::error_code& error, absl::string_view what,
                       const std::string& path) {
  return absl::ErrnoToStatus(error.value(), absl::StrCat(what, " ", path));
}

absl::Status PrepareFolder(const std::string& dir, int64_t needed) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return FileError(error, "cannot create the folder", dir);
  const bool empty = std::filesystem::is_empty(dir, error);
  if (error) return FileError(error, "cannot look into", dir);
  if (!empty) {
    return absl::FailedPreconditionError(absl::StrCat(
        dir, " is not empty; expected a folder to be made, or an empty one"));
  }
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (error) return FileError(error, "cannot ask for the free space of", dir);
  if (space.available < static_cast<uint64_t>(needed)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(dir, " has room for ",
                     ExactBytes(static_cast<int64_t>(space.available)),
                     "; the weights need ", ExactBytes(needed)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WrittenCheckpoint> WriteRandomCheckpoint(
    const CheckpointPlan& plan, const std::string& dir,
    const RandomCheckpointOptions& options, const RandomProgress& progress) {
  std::vector<TensorSpec> specs;
  std::vector<RandomValues> values;
  int64_t total = 0;
  for (const PlannedTensor& tensor : plan.tensors) {
    specs.push_back({tensor.name, options.dtype, tensor.shape});
    values.emplace_back(options.seed, tensor.name, tensor.mean,
                        tensor.deviation);
    total += specs.back().bytes();
  }
  const std::vector<Shard> shards = PlanShards(specs, options.shard_bytes);
  constexpr int64_t kHeadersAndConfig = 16 << 20;
  RECURVE_RETURN_IF_ERROR(PrepareFolder(dir, total + kHeadersAndConfig));
  RECURVE_RETURN_IF_ERROR(WriteSafetensors(
      dir, specs, shards,
      [&](size_t tensor, int64_t first, int64_t count, char* out) {
        values[tensor].Fill(options.dtype, first, count, out);
      },
      options.num_threads,
      [&](int64_t done) {
        if (progress) progress(done, total);
      }));
  nlohmann::ordered_json config = plan.config;
  config["torch_dtype"] = std::string(Name(options.dtype));
  RECURVE_RETURN_IF_ERROR(
      WriteWholeFile(absl::StrCat(dir, "/config.json"), config.dump(1) + "\n"));
  return WrittenCheckpoint{static_cast<int64_t>(shards.size()), total};
}

}  // namespace recurve
