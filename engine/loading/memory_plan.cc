#include "engine/loading/memory_plan.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/loading/host_memory.h"
#include "kv_cache/cache_spec.h"

namespace recurve {
namespace {

// Default size of the KV cache.
constexpr int64_t kDefaultPoolBytes = int64_t{1} << 30;
// SamplingScratch, per token of the vocabulary.
constexpr int64_t kSamplingScratchBytes =
    sizeof(float) + sizeof(uint32_t) + 2 * sizeof(uint64_t);

// Sets engine->max_model_len.
absl::StatusOr<Capacity> PlanCapacity(const ModelDefinition& model,
                                      const Plan& plan,
                                      const ModelOptions& options,
                                      int64_t pool_bytes,
                                      EngineOptions* engine) {
  Capacity capacity;
  capacity.num_slots = engine->max_num_seqs;
  capacity.cache_bytes_per_token = plan.page_bytes / kPageTokens;
  capacity.state_bytes_per_sequence = plan.slot_bytes;
  const int64_t supported = model.max_position_embeddings;
  if (engine->max_model_len < 0 || engine->max_model_len > supported) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-model-len is ", engine->max_model_len,
                     "; the model supports 1 to ", supported));
  }
  const int64_t by_default =
      model.default_model_len > 0 ? model.default_model_len : supported;
  const int64_t wanted =
      engine->max_model_len > 0 ? engine->max_model_len : by_default;
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
  if (plan.whole_prompts) {
    capacity.max_whole_tokens =
        std::min(engine->max_chunk_tokens, capacity.max_model_len);
    capacity.sure_whole_tokens =
        std::min(capacity.max_whole_tokens,
                 RoomForWholePrompt(engine->max_num_batched_tokens,
                                    engine->max_num_seqs));
  }
  return capacity;
}

// A server's GPU memory, in bytes, known before any weight is loaded: all but
// what libraries and graphs take.
struct GpuNeeds {
  int64_t weights = 0;
  int64_t cache = 0;
  int64_t state = 0;
  int64_t saved = 0;  // slots on their way to the host
  int64_t attention = 0;
  int64_t sampling = 0;
  int64_t activations = 0;

  int64_t all() const {
    return weights + cache + state + saved + attention + sampling + activations;
  }
};

// Including the padding page and slot.
int64_t CacheBytes(const Capacity& capacity) {
  return (capacity.num_pages + 1) * kPageTokens *
         capacity.cache_bytes_per_token;
}
int64_t StateBytes(const Capacity& capacity) {
  return (capacity.num_slots + 1) * capacity.state_bytes_per_sequence;
}

absl::StatusOr<GpuNeeds> PlanGpu(const Program& program, const Plan& plan,
                                 const Capacity& capacity,
                                 const EngineOptions& engine) {
  GpuNeeds needs;
#ifdef RECURVE_HAVE_CUDA
  RECURVE_ASSIGN_OR_RETURN(const CudaExecutor::Workspaces workspaces,
                           CudaExecutor::PlanWorkspaces(
                               program, plan, CudaOptions(capacity, engine)));
  needs.attention = workspaces.attention;
  needs.sampling = workspaces.sampling;
  needs.activations = workspaces.activations;
  needs.saved =
      CudaSwap::NumStagedSlots(static_cast<int32_t>(capacity.num_slots)) *
      capacity.state_bytes_per_sequence;
#else
  (void)program;
  (void)engine;
#endif
  needs.weights = plan.weight_bytes;
  needs.cache = CacheBytes(capacity);
  needs.state = StateBytes(capacity);
  return needs;
}

// Size limit of the KV cache.
absl::StatusOr<int64_t> PoolBytes(const ModelDefinition& model,
                                  const Program& program, const Plan& plan,
                                  const ModelOptions& options,
                                  const Placement& placement,
                                  const EngineOptions& engine) {
  if (options.kv_pool_bytes > 0) return options.kv_pool_bytes;
  if (!plan.device.gpu || placement.integrated) return kDefaultPoolBytes;
  // Attention's workspace grows with the longest sequence, which the cache may
  // limit: an upper bound, as if the cache had the whole GPU.
  EngineOptions most = engine;
  RECURVE_ASSIGN_OR_RETURN(
      const Capacity capacity,
      PlanCapacity(model, plan, options,
                   std::max(placement.free_bytes, kDefaultPoolBytes), &most));
  const absl::StatusOr<GpuNeeds> needs = PlanGpu(program, plan, capacity, most);
  // The GPU may support shorter sequences only.
  if (!needs.ok()) return kDefaultPoolBytes;
  return DefaultGpuPoolBytes(placement.free_bytes, needs->all() - needs->cache);
}

// For a model on the CPU.
HostNeeds NeedsOfHost(const ModelDefinition& model, const Plan& plan,
                      const ModelOptions& options, const EngineOptions& engine,
                      const Capacity& capacity, int64_t pool_bytes) {
  HostNeeds needs;
  needs.weights = capacity.weight_bytes;
  needs.cache = capacity.cache_bytes;
  needs.state = capacity.state_bytes;
  // Logits, and each thread's sampling scratch.
  needs.sampling = model.vocab_size *
                   (static_cast<int64_t>(sizeof(float)) * capacity.num_slots +
                    kSamplingScratchBytes * NumThreads(options));
  needs.activations = plan.row_bytes() * engine.max_num_batched_tokens;
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
                            bool gpu, Capacity* capacity) {
  capacity->swap_bytes = options.swap_bytes;
  capacity->prefix_cache_bytes = options.prefix_cache_bytes;
  const std::optional<HostMemory> memory = AvailableHostMemory();
  if (!memory) return absl::OkStatus();
  RECURVE_RETURN_IF_ERROR(CheckHostMemory(needs, *memory));
  absl::Status swap = CheckSwapMemory(options.swap_bytes, needs.all(), *memory);
  if (!swap.ok() && options.swap_bytes_required) return swap;
  if (!swap.ok()) capacity->swap_bytes = 0;
  const int64_t left = memory->available - needs.all() - capacity->swap_bytes;
  if (options.prefix_cache_auto) {
    capacity->prefix_cache_bytes = std::max<int64_t>(left, 0) / 4;
    if (gpu) {
      capacity->prefix_cache_bytes =
          std::min(capacity->prefix_cache_bytes, kMostAutoPinnedBytes);
    }
    return absl::OkStatus();
  }
  if (options.prefix_cache_bytes > std::max<int64_t>(left, 0)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("--prefix-cache-bytes is ", options.prefix_cache_bytes,
                     "; the host has ", std::max<int64_t>(left, 0),
                     " bytes left (0 keeps no snapshots of prompts)"));
  }
  return absl::OkStatus();
}

absl::Status CheckGpuMemory(const Program& program, const Plan& plan,
                            const Placement& placement,
                            const Capacity& capacity,
                            const EngineOptions& engine) {
  RECURVE_ASSIGN_OR_RETURN(const GpuNeeds needs,
                           PlanGpu(program, plan, capacity, engine));
  if (needs.all() <= placement.free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "out of GPU memory: ", needs.all(), " bytes needed, ",
      placement.free_bytes, " free: ", needs.weights, " for weights, ",
      needs.cache, " for ", capacity.num_pages, " pages of the KV cache, ",
      needs.state, " for the state of ", capacity.num_slots, " sequences, ",
      needs.saved, " for copies of it, ", needs.attention, " for attention, ",
      needs.sampling, " for sampling and ", needs.activations,
      " for activations (lower --kv-pool-bytes or --kv-pages, --max-num-seqs, "
      "--max-model-len or --max-num-batched-tokens)"));
}

}  // namespace

#ifdef RECURVE_HAVE_CUDA
CudaExecutor::Options CudaOptions(const Capacity& capacity,
                                  const EngineOptions& engine) {
  CudaExecutor::Options options;
  options.max_tokens = engine.max_num_batched_tokens;
  options.max_sequences = engine.max_num_seqs;
  options.max_pages =
      capacity.cache_bytes_per_token == 0
          ? 0
          : (capacity.max_model_len + kPageTokens - 1) / kPageTokens;
  return options;
}
#endif

int64_t DefaultGpuPoolBytes(int64_t free_bytes, int64_t others) {
  const int64_t reserve = (int64_t{1} << 30) + free_bytes / 16;
  return std::max(free_bytes - others - reserve, kDefaultPoolBytes);
}

absl::StatusOr<Capacity> PlanMemory(const ModelDefinition& model,
                                    const Program& program, const Plan& plan,
                                    const ModelOptions& options,
                                    const Placement& placement,
                                    EngineOptions* engine) {
  RECURVE_ASSIGN_OR_RETURN(
      const int64_t pool_bytes,
      PoolBytes(model, program, plan, options, placement, *engine));
  RECURVE_ASSIGN_OR_RETURN(Capacity capacity, PlanCapacity(model, plan, options,
                                                           pool_bytes, engine));
  capacity.weight_bytes = plan.weight_bytes;
  capacity.cache_bytes = CacheBytes(capacity);
  capacity.state_bytes = StateBytes(capacity);
  HostNeeds of_host;
  if (plan.device.gpu) {
    RECURVE_RETURN_IF_ERROR(
        CheckGpuMemory(program, plan, placement, capacity, *engine));
    if (placement.integrated) of_host.weights = capacity.bytes();
  } else {
    of_host = NeedsOfHost(model, plan, options, *engine, capacity, pool_bytes);
  }
  RECURVE_RETURN_IF_ERROR(
      PlanHostMemory(of_host, options, plan.device.gpu, &capacity));
  return capacity;
}

}  // namespace recurve
