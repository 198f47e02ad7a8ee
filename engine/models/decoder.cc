#include "engine/models/decoder.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kv_cache/cache_spec.h"

namespace recurve {

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Load(
    const ModelDefinition& model, std::unique_ptr<Executor> executor,
    int32_t num_pages, int32_t num_slots, int64_t swap_bytes,
    bool swap_required, int64_t prefix_cache_bytes) {
  auto decoder = std::unique_ptr<Decoder>(new Decoder(std::move(executor)));
  Executor& device = *decoder->executor_;
  const Plan& plan = device.plan();
  RECURVE_RETURN_IF_ERROR(device.Load());
  RECURVE_RETURN_IF_ERROR(device.AllocateCache(num_pages, num_slots));
  CacheSpec& spec = decoder->cache_spec_;
  spec = {num_pages, num_slots, plan.page_bytes, plan.slot_bytes};
  if (const int64_t bytes = HostBlockBytes(spec); bytes > 0) {
    spec.num_host_blocks = static_cast<int32_t>(
        std::min<int64_t>(swap_bytes / bytes, int64_t{1} << 30));
    if (spec.num_host_blocks < HostBlocksFor(1, spec)) {
      if (swap_bytes > 0 && swap_required) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--swap-bytes is ", swap_bytes,
            "; one sequence of this model takes ",
            HostBlocksFor(1, spec) * bytes, " at least (0 saves none)"));
      }
      spec.num_host_blocks = 0;
    }
    const auto more = static_cast<int32_t>(
        std::min<int64_t>(prefix_cache_bytes / bytes, int64_t{1} << 29));
    absl::Status status = absl::ResourceExhaustedError("");
    if (more >= HostBlocksFor(1, spec)) {
      status = device.AllocateHost(spec.num_host_blocks + more, bytes);
      if (status.ok()) {
        spec.num_host_blocks += more;
      } else if (!absl::IsResourceExhausted(status)) {
        return status;
      }
    }
    if (!status.ok() && spec.num_host_blocks > 0) {
      status = device.AllocateHost(spec.num_host_blocks, bytes);
      if (absl::IsResourceExhausted(status) && !swap_required) {
        spec.num_host_blocks = 0;
      } else if (!status.ok()) {
        return status;
      }
    }
  }

  ModelInfo& info = decoder->info_;
  info.family = model.family;
  info.variant = model.variant;
  info.remarks = model.remarks;
  info.parameters = model.parameters;
  info.num_layers = static_cast<int64_t>(model.layers.size());
  info.hidden_size = model.hidden_size;
  info.vocab_size = model.vocab_size;
  for (const LayerDefinition& layer : model.layers)
    info.mixers.emplace_back(layer.mixer->name());
  info.max_position_embeddings = model.max_position_embeddings;
  info.tokenizer = model.tokenizer;
  info.bos_token_id = model.bos_token_id;
  info.eos_token_ids = model.eos_token_ids;
  if (model.eos_by_tokenizer) info.eos_file_of_tokenizer = model.eos_file;
  info.device = std::string(device.name());
  info.weight_dtype = device.weight_dtype();
  info.state_dtype = std::string(device.state_dtype());
  info.kv_dtype = std::string(device.kv_dtype());
  info.weight_bytes = static_cast<uint64_t>(plan.weight_bytes);
  info.chunk_multiple = plan.chunk_multiple;
  info.whole_prompts = plan.whole_prompts;
  info.kinds_differ = plan.device.gpu;
  return decoder;
}

absl::Status Decoder::Run(const StepBatch& batch, StepOutput* output) {
  RECURVE_RETURN_IF_ERROR(Launch(batch));
  return Wait(output);
}

absl::Status Decoder::WarmUp() {
  for (const StepBatch& step : executor_->WarmUpSteps()) {
    StepOutput output;
    RECURVE_RETURN_IF_ERROR(Run(step, &output));
  }
  return absl::OkStatus();
}

absl::Status Decoder::Launch(const StepBatch& batch) {
  if (batch.runs.empty() && !batch.tokens.empty()) {
    return absl::InternalError("a step whose runs were not cut (CutRuns)");
  }
  return executor_->Begin(batch);
}

}  // namespace recurve
