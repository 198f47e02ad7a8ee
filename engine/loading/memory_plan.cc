#include "engine/loading/memory_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/loading/host_memory.h"
#include "engine/models/decoder.h"
#include "kv_cache/cache_spec.h"

namespace recurve {
namespace {

// Default size of the factor cache.
constexpr int64_t kDefaultPoolBytes = int64_t{1} << 30;
// SamplingScratch, per token of the vocabulary.
constexpr int64_t kSamplingScratchBytes =
    sizeof(float) + sizeof(uint32_t) + 2 * sizeof(uint64_t);

// Sets engine->max_model_len.
absl::StatusOr<Capacity> PlanCapacity(const ModelDefinition& model,
                                      const ModelOptions& options,
                                      int64_t pool_bytes,
                                      const Placement& placement,
                                      EngineOptions* engine) {
  Capacity capacity;
  capacity.num_slots = engine->max_num_seqs;
  capacity.cache_bytes_per_token = CacheBytesPerToken(
      model, SizeOf(placement.kv_dtype), placement.page_order);
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
  capacity.supported_model_len = supported;
  if (capacity.cache_bytes_per_token > 0) {
    const int64_t pages_per_sequence = (wanted + kPageTokens - 1) / kPageTokens;
    const int64_t page_bytes = capacity.cache_bytes_per_token * kPageTokens;
    capacity.num_pages =
        options.kv_pages > 0
            ? options.kv_pages
            : std::min(pool_bytes / page_bytes,
                       pages_per_sequence * capacity.num_slots);
    if (capacity.num_pages < 1 || capacity.num_pages > (1 << 30)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--kv-pool-bytes is ", pool_bytes, " and --kv-pages ",
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
  if (HasWholePrompts(model)) {
    capacity.max_whole_tokens =
        std::min(engine->max_chunk_tokens, capacity.max_model_len);
    capacity.sure_whole_tokens =
        std::min(capacity.max_whole_tokens,
                 RoomForWholePrompt(engine->max_num_batched_tokens,
                                    engine->max_num_seqs));
  }
  return capacity;
}

// Lower bounds of a server's GPU memory, in bytes, known before any weight is
// loaded.
struct GpuNeeds {
  int64_t weights = 0;
  int64_t cache = 0;
  int64_t state = 0;
  int64_t attention = 0;
  int64_t sampling = 0;
  int64_t activations = 0;  // approximate; not in all()

  int64_t all() const { return weights + cache + state + attention + sampling; }
};

// Bytes of a matrix element in memory: of its stored type, or of the chosen
// one; the CPU loads float16 as float32.
int64_t HeldSize(DType stored, const Placement& placement) {
  const bool widened = !placement.cuda && stored == DType::kFloat16;
  return static_cast<int64_t>(SizeOf(
      placement.weight_dtype.value_or(widened ? DType::kFloat32 : stored)));
}

// Including the padding page and slot.
int64_t CacheBytes(const Capacity& capacity) {
  return (capacity.num_pages + 1) * kPageTokens *
         capacity.cache_bytes_per_token;
}
int64_t StateBytes(const Capacity& capacity) {
  return (capacity.num_slots + 1) * capacity.state_bytes_per_sequence;
}

#ifdef RECURVE_HAVE_CUDA
std::vector<TpaShape> TpaShapes(const ModelDefinition& model) {
  std::vector<TpaShape> shapes;
  for (const LayerDefinition& layer : model.layers) {
    if (const auto* tpa = std::get_if<TpaLayer>(&layer.mixer)) {
      shapes.push_back(tpa->config.shape);
    }
  }
  return shapes;
}
#endif

absl::StatusOr<GpuNeeds> PlanGpu(const Checkpoint& checkpoint,
                                 const ModelDefinition& model,
                                 const Placement& placement,
                                 const Capacity& capacity,
                                 const EngineOptions& engine) {
  GpuNeeds needs;
#ifdef RECURVE_HAVE_CUDA
  const CudaBackend::Options options =
      CudaOptions(model, placement, capacity, engine);
  RECURVE_ASSIGN_OR_RETURN(
      needs.attention, CudaBackend::AttentionBytes(options, TpaShapes(model)));
  needs.sampling = CudaBackend::SamplingBytes(options);
  // Twice the residual; the larger of a token mixer's workspace and the gate,
  // features and their product; and the rounded rows.
  needs.activations = CudaBackend::ActivationBytes(
      options, std::max(16 * model.hidden_size,
                        4 * model.hidden_size + 4 * model.intermediate_size));
  if (HasWholePrompts(model)) needs.activations += CudaBackend::LinearBytes();
#else
  (void)engine;
#endif
  RECURVE_ASSIGN_OR_RETURN(needs.weights,
                           WeightBytes(checkpoint, model, placement));
  needs.cache = CacheBytes(capacity);
  needs.state = StateBytes(capacity);
  return needs;
}

// Size limit of the factor cache.
absl::StatusOr<int64_t> PoolBytes(const Checkpoint& checkpoint,
                                  const ModelDefinition& model,
                                  const ModelOptions& options,
                                  const Placement& placement,
                                  const EngineOptions& engine) {
  if (options.kv_pool_bytes > 0) return options.kv_pool_bytes;
  if (!placement.cuda || placement.integrated) return kDefaultPoolBytes;
  // Attention's workspace grows with the longest sequence, which the cache may
  // limit: an upper bound, as if the cache had the whole GPU.
  EngineOptions most = engine;
  RECURVE_ASSIGN_OR_RETURN(
      const Capacity capacity,
      PlanCapacity(model, options,
                   std::max(placement.free_bytes, kDefaultPoolBytes), placement,
                   &most));
  const absl::StatusOr<GpuNeeds> needs =
      PlanGpu(checkpoint, model, placement, capacity, most);
  // The GPU may support shorter sequences only.
  if (!needs.ok()) return kDefaultPoolBytes;
  return DefaultGpuPoolBytes(placement.free_bytes,
                             needs->all() - needs->cache + needs->activations);
}

// For a model on the CPU.
HostNeeds NeedsOfHost(const ModelDefinition& model, const ModelOptions& options,
                      const Capacity& capacity, int64_t pool_bytes) {
  HostNeeds needs;
  needs.weights = capacity.weight_bytes;
  needs.cache = capacity.cache_bytes;
  needs.state = capacity.state_bytes;
  // Logits, and each thread's sampling scratch.
  needs.sampling = model.vocab_size *
                   (static_cast<int64_t>(sizeof(float)) * capacity.num_slots +
                    kSamplingScratchBytes * NumThreads(options));
  needs.num_pages = capacity.num_pages;
  needs.num_slots = capacity.num_slots;
  needs.cache_option =
      options.kv_pages > 0
          ? absl::StrCat("--kv-pages is ", options.kv_pages)
          : absl::StrCat("--kv-pool-bytes is ", pool_bytes,
                         options.kv_pool_bytes > 0 ? "" : " by default");
  return needs;
}

// Checks the host memory of the model, then what is left to save sequences in.
absl::Status PlanHostMemory(const HostNeeds& needs, const ModelOptions& options,
                            Capacity* capacity) {
  capacity->swap_bytes = options.swap_bytes;
  const std::optional<HostMemory> memory = AvailableHostMemory();
  if (!memory) return absl::OkStatus();
  RECURVE_RETURN_IF_ERROR(CheckHostMemory(needs, *memory));
  absl::Status swap = CheckSwapMemory(options.swap_bytes, needs.all(), *memory);
  if (!swap.ok() && options.swap_bytes_required) return swap;
  if (!swap.ok()) capacity->swap_bytes = 0;
  return absl::OkStatus();
}

absl::Status CheckGpuMemory(const Checkpoint& checkpoint,
                            const ModelDefinition& model,
                            const Placement& placement,
                            const Capacity& capacity,
                            const EngineOptions& engine) {
  RECURVE_ASSIGN_OR_RETURN(
      const GpuNeeds needs,
      PlanGpu(checkpoint, model, placement, capacity, engine));
  if (needs.all() <= placement.free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "out of GPU memory: ", needs.all(), " bytes needed, ",
      placement.free_bytes, " free: ", needs.weights, " for weights, ",
      needs.cache, " for ", capacity.num_pages, " pages of the factor cache, ",
      needs.state, " for the state of ", capacity.num_slots, " sequences, ",
      needs.attention, " for attention and ", needs.sampling,
      " for sampling (lower --kv-pool-bytes or --kv-pages, --max-num-seqs, "
      "--max-model-len or --max-num-batched-tokens)"));
}

}  // namespace

#ifdef RECURVE_HAVE_CUDA
CudaBackend::Options CudaOptions(const ModelDefinition& model,
                                 const Placement& placement,
                                 const Capacity& capacity,
                                 const EngineOptions& engine) {
  CudaBackend::Options options;
  options.weight_dtype = placement.weight_dtype;
  options.kv_dtype = placement.kv_dtype;
  options.hidden_size = model.hidden_size;
  options.vocab_size = model.vocab_size;
  options.max_tokens = engine.max_num_batched_tokens;
  options.max_sequences = engine.max_num_seqs;
  options.max_pages =
      capacity.cache_bytes_per_token == 0
          ? 0
          : (capacity.max_model_len + kPageTokens - 1) / kPageTokens;
  return options;
}
#endif

absl::StatusOr<int64_t> WeightBytes(const Checkpoint& checkpoint,
                                    const ModelDefinition& model,
                                    const Placement& placement) {
  const auto held = [&](const TensorView& tensor) {
    return tensor.num_elements() *
           (tensor.shape.size() == 2
                ? HeldSize(tensor.dtype, placement)
                : static_cast<int64_t>(SizeOf(DType::kFloat32)));
  };
  // A tied head is loaded as a separate matrix.
  int64_t bytes =
      model.head.data == model.embedding.data ? held(model.embedding) : 0;
  for (const std::string& name : model.tensors) {
    RECURVE_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Tensor(name));
    bytes += held(tensor);
  }
  if (!placement.cuda) {
    // The CPU keeps the embedding in its stored type if that is smaller.
    const TensorView& table = model.embedding;
    const int64_t chosen = HeldSize(table.dtype, placement);
    const auto stored = static_cast<int64_t>(SizeOf(table.dtype));
    bytes -= table.num_elements() * (chosen - std::min(chosen, stored));
  }
  return bytes;
}

int64_t DefaultGpuPoolBytes(int64_t free_bytes, int64_t others) {
  const int64_t reserve = (int64_t{1} << 30) + free_bytes / 16;
  return std::max(free_bytes - others - reserve, kDefaultPoolBytes);
}

absl::StatusOr<Capacity> PlanMemory(const Checkpoint& checkpoint,
                                    const ModelDefinition& model,
                                    const ModelOptions& options,
                                    const Placement& placement,
                                    EngineOptions* engine) {
  RECURVE_ASSIGN_OR_RETURN(
      const int64_t pool_bytes,
      PoolBytes(checkpoint, model, options, placement, *engine));
  RECURVE_ASSIGN_OR_RETURN(
      Capacity capacity,
      PlanCapacity(model, options, pool_bytes, placement, engine));
  RECURVE_ASSIGN_OR_RETURN(capacity.weight_bytes,
                           WeightBytes(checkpoint, model, placement));
  capacity.cache_bytes = CacheBytes(capacity);
  capacity.state_bytes = StateBytes(capacity);
  HostNeeds of_host;
  if (placement.cuda) {
    RECURVE_RETURN_IF_ERROR(
        CheckGpuMemory(checkpoint, model, placement, capacity, *engine));
    if (placement.integrated) of_host.weights = capacity.bytes();
  } else {
    of_host = NeedsOfHost(model, options, capacity, pool_bytes);
  }
  RECURVE_RETURN_IF_ERROR(PlanHostMemory(of_host, options, &capacity));
  return capacity;
}

}  // namespace recurve
