#include "engine/model_loader.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/cpu_backend.h"
#include "engine/decoder.h"
#include "engine/models/registry.h"
#include "engine/tokenizer/load_tokenizer.h"
#include "kv_cache/cache_spec.h"

namespace recurve {
namespace {

absl::Status CheckChoice(absl::string_view option, absl::string_view value,
                         const std::vector<std::string>& choices,
                         absl::string_view context) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", option, " is ", value, "; ", context,
                   " supports: ", absl::StrJoin(choices, ", ")));
}

absl::Status CheckDevice(const ModelOptions& options) {
  RECURVE_RETURN_IF_ERROR(CheckChoice("device", options.device, {"auto", "cpu"},
                                      "this version of the server"));
  RECURVE_RETURN_IF_ERROR(CheckChoice(
      "dtype", options.dtype, {"auto", "float32", "bfloat16"}, "the CPU"));
  RECURVE_RETURN_IF_ERROR(CheckChoice("state-dtype", options.state_dtype,
                                      {"auto", "float32"}, "the CPU"));
  return CheckChoice("kv-dtype", options.kv_dtype, {"auto", "float32"},
                     "the CPU");
}

absl::StatusOr<Capacity> PlanCapacity(const ModelDefinition& model,
                                      const ModelOptions& options,
                                      EngineOptions* engine) {
  Capacity capacity;
  capacity.num_slots = engine->max_num_seqs;
  capacity.cache_bytes_per_token =
      CacheBytesPerToken(model, SizeOf(DType::kFloat32));
  capacity.state_bytes_per_sequence = StateBytesPerSequence(model);
  const int64_t supported = model.max_position_embeddings;
  if (engine->max_model_len < 0 || engine->max_model_len > supported) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-model-len is ", engine->max_model_len,
                     "; the model supports 1 to ", supported));
  }
  const int64_t wanted =
      engine->max_model_len > 0 ? engine->max_model_len : supported;
  capacity.max_model_len = wanted;
  if (capacity.cache_bytes_per_token > 0) {
    const int64_t pages_per_sequence = (wanted + kPageTokens - 1) / kPageTokens;
    const int64_t page_bytes = capacity.cache_bytes_per_token * kPageTokens;
    capacity.num_pages =
        options.kv_pages > 0
            ? options.kv_pages
            : std::min(options.kv_pool_bytes / page_bytes,
                       pages_per_sequence * capacity.num_slots);
    if (capacity.num_pages < 1 || capacity.num_pages > (1 << 30)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--kv-pool-bytes is ", options.kv_pool_bytes, " and --kv-pages ",
          options.kv_pages, ", which makes ", capacity.num_pages, " pages of ",
          page_bytes, " bytes; expected 1 to ", 1 << 30));
    }
    const int64_t room = capacity.num_pages * kPageTokens;
    if (wanted > room) {
      if (engine->max_model_len > 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("--max-model-len is ", wanted, "; a cache of ",
                         capacity.num_pages, " pages holds ", room,
                         " tokens (raise --kv-pool-bytes or --kv-pages)"));
      }
      capacity.max_model_len = room;
      capacity.max_model_len_reduced = true;
    }
  }
  engine->max_model_len = capacity.max_model_len;
  return capacity;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModelTokenizer(
    const std::string& path, const std::string& kind,
    const ModelDefinition& model) {
  if (kind == "none") return nullptr;
  std::optional<int32_t> eos;
  if (!model.eos_token_ids.empty()) eos = model.eos_token_ids.front();
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(
      path, kind == "auto" ? model.tokenizer : kind,
      static_cast<int32_t>(model.vocab_size), model.bos_token_id, eos);
  if (tokenizer.ok() || kind != "auto") return tokenizer;
  return absl::Status(
      tokenizer.status().code(),
      absl::StrCat(tokenizer.status().message(),
                   " (--tokenizer chooses another file, or none)"));
}

absl::StatusOr<LoadedModel> LoadModel(const ModelOptions& options,
                                      EngineOptions* engine) {
  RECURVE_RETURN_IF_ERROR(CheckDevice(options));
  if (options.num_threads < 0 || options.num_threads > 1024) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--num-threads is ", options.num_threads, "; expected 0 to 1024"));
  }
  RECURVE_RETURN_IF_ERROR(engine->Validate());
  if (options.kv_pages < 0 || options.kv_pages > (1 << 30)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--kv-pages is ", options.kv_pages, "; expected 0 to ", 1 << 30));
  }
  RECURVE_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                           Checkpoint::Open(options.path));
  RECURVE_ASSIGN_OR_RETURN(ModelDefinition model,
                           ReadModel(checkpoint, options.family));
  LoadedModel loaded;
  RECURVE_ASSIGN_OR_RETURN(loaded.capacity,
                           PlanCapacity(model, options, engine));
  RECURVE_ASSIGN_OR_RETURN(
      loaded.tokenizer,
      LoadModelTokenizer(options.path, options.tokenizer, model));
  model.tokenizer =
      loaded.tokenizer ? std::string(loaded.tokenizer->name()) : "";
  CpuBackend::Options backend;
  if (options.dtype != "auto") {
    RECURVE_ASSIGN_OR_RETURN(backend.weight_dtype, ParseDType(options.dtype));
  }
  backend.num_threads =
      options.num_threads > 0
          ? options.num_threads
          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  backend.max_tokens = engine->max_num_batched_tokens;
  try {  // weights, activations and cache may be more than the machine has
    RECURVE_ASSIGN_OR_RETURN(
        loaded.runner,
        Decoder::Load(model, std::make_unique<CpuBackend>(backend),
                      static_cast<int32_t>(loaded.capacity.num_pages),
                      static_cast<int32_t>(loaded.capacity.num_slots)));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "not enough memory for the model with ", loaded.capacity.num_pages,
        " cache pages, ", loaded.capacity.num_slots, " state slots and ",
        engine->max_num_batched_tokens,
        " tokens a step (lower --kv-pool-bytes or --kv-pages, --max-num-seqs, "
        "--max-num-batched-tokens)"));
  }
  return loaded;
}

}  // namespace recurve
