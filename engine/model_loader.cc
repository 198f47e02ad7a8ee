#include "engine/model_loader.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/checkpoint/check_finite.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/cpu_backend.h"
#include "engine/decoder.h"
#include "engine/host_memory.h"
#include "engine/models/registry.h"
#include "engine/tokenizer/load_tokenizer.h"
#include "kv_cache/cache_spec.h"
#ifdef RECURVE_HAVE_CUDA
#include "engine/cuda_backend.h"
#include "engine/cuda_device.h"
#include "engine/cuda_model_limits.h"
#include "engine/cuda_sampler.h"
#endif

namespace recurve {
namespace {

// Of the factor cache, if nobody says.
constexpr int64_t kDefaultPoolBytes = int64_t{1} << 30;

absl::Status CheckChoice(absl::string_view option, absl::string_view value,
                         const std::vector<std::string>& choices,
                         absl::string_view context) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", option, " is ", value, "; ", context,
                   " supports: ", absl::StrJoin(choices, ", ")));
}

// Where a model runs, and in what its memory is held.
struct Placement {
  bool cuda = false;
  std::string description;
  int64_t free_bytes = 0;   // of the GPU
  bool integrated = false;  // its memory is the host's
  std::optional<DType> weight_dtype;
  DType kv_dtype = DType::kFloat32;
  TpaPageOrder page_order = TpaPageOrder::kPlain;
};

// Chooses the device. Not to find a GPU is an error only if one is asked for.
absl::Status ChooseDevice(const std::string& device, Placement* placement) {
#ifdef RECURVE_HAVE_CUDA
  RECURVE_RETURN_IF_ERROR(CheckChoice("device", device, {"auto", "cpu", "cuda"},
                                      "this version of the server"));
  if (device == "cpu") {
    placement->description = "cpu, by --device cpu";
    return absl::OkStatus();
  }
  const absl::StatusOr<CudaDevice> found = FindCudaDevice();
  if (!found.ok()) {
    if (device == "cuda") {
      return absl::FailedPreconditionError(
          absl::StrCat("--device is cuda; ", found.status().message()));
    }
    placement->description =
        absl::StrCat("cpu, by --device auto: ", found.status().message());
    return absl::OkStatus();
  }
  placement->cuda = true;
  placement->free_bytes = found->free_bytes;
  placement->integrated = found->integrated;
  placement->description = absl::StrCat(
      "cuda, by --device ", device, ": ", found->name, ", ", found->free_bytes,
      " of ", found->total_bytes, " bytes free");
#else
  RECURVE_RETURN_IF_ERROR(CheckChoice("device", device, {"auto", "cpu"},
                                      "this build, which is without CUDA,"));
  placement->description =
      absl::StrCat("cpu, by --device ", device, ": this build is without CUDA");
#endif
  return absl::OkStatus();
}

absl::StatusOr<Placement> Place(const ModelOptions& options) {
  Placement placement;
  RECURVE_RETURN_IF_ERROR(ChooseDevice(options.device, &placement));
  const std::string where =
      placement.cuda ? "the GPU"
                     : absl::StrCat("the CPU (", placement.description, ")");
  const std::vector<std::string> dtypes =
      placement.cuda
          ? std::vector<std::string>{"auto", "float32", "bfloat16", "float16"}
          : std::vector<std::string>{"auto", "float32", "bfloat16"};
  const std::vector<std::string> kv_dtypes =
      placement.cuda ? std::vector<std::string>{"auto", "bfloat16", "float16"}
                     : std::vector<std::string>{"auto", "float32"};
  RECURVE_RETURN_IF_ERROR(CheckChoice("dtype", options.dtype, dtypes, where));
  RECURVE_RETURN_IF_ERROR(CheckChoice("state-dtype", options.state_dtype,
                                      {"auto", "float32"}, where));
  RECURVE_RETURN_IF_ERROR(
      CheckChoice("kv-dtype", options.kv_dtype, kv_dtypes, where));
  if (!options.exact) {
    return absl::InvalidArgumentError(
        "--exact is off; only on is supported: every kernel has one order of "
        "sums for any batch, which costs little (docs/exactness.md)");
  }
  if (options.dtype != "auto") {
    RECURVE_ASSIGN_OR_RETURN(placement.weight_dtype, ParseDType(options.dtype));
  }
  if (placement.cuda) placement.page_order = TpaPageOrder::kOctets;
  return placement;
}

// That no weight is lost where matrices are held in a narrower type than they
// are stored in. Vectors are held in float32.
absl::Status CheckWeightRange(const Checkpoint& checkpoint,
                              const Placement& placement) {
  if (!placement.weight_dtype || *placement.weight_dtype == DType::kFloat32)
    return absl::OkStatus();
  for (const std::string& name : checkpoint.names()) {
    RECURVE_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Tensor(name));
    if (tensor.shape.size() != 2 || tensor.dtype == *placement.weight_dtype)
      continue;
    const absl::Status status = CheckFiniteAs(*placement.weight_dtype, tensor,
                                              name, checkpoint.FileOf(name));
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dtype is ", Name(*placement.weight_dtype), ": ",
                       status.message()));
    }
  }
  return absl::OkStatus();
}

// What depends on the model too.
absl::Status PlaceModel(const ModelDefinition& model,
                        const ModelOptions& options, Placement* placement) {
  if (!placement->cuda) return absl::OkStatus();
#ifdef RECURVE_HAVE_CUDA
  RECURVE_RETURN_IF_ERROR(CheckCudaModel(model));
#endif
  if (options.kv_dtype != "auto") {
    RECURVE_ASSIGN_OR_RETURN(placement->kv_dtype, ParseDType(options.kv_dtype));
  } else {
    const DType weights =
        placement->weight_dtype.value_or(model.embedding.dtype);
    placement->kv_dtype =
        weights == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat16;
  }
  return absl::OkStatus();
}

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
  return capacity;
}

#ifdef RECURVE_HAVE_CUDA
CudaBackend::Options CudaOptions(const Placement& placement,
                                 const Capacity& capacity,
                                 const EngineOptions& engine) {
  CudaBackend::Options options;
  options.weight_dtype = placement.weight_dtype;
  options.kv_dtype = placement.kv_dtype;
  options.max_tokens = engine.max_num_batched_tokens;
  options.max_sequences = engine.max_num_seqs;
  options.max_pages =
      capacity.cache_bytes_per_token == 0
          ? 0
          : (capacity.max_model_len + kPageTokens - 1) / kPageTokens;
  return options;
}
#endif

// Bytes of the GPU that a server surely takes, known before any weight is
// loaded.
struct GpuNeeds {
  int64_t weights = 0;
  int64_t cache = 0;
  int64_t state = 0;
  int64_t attention = 0;
  int64_t sampling = 0;
  int64_t activations = 0;  // about; not in all()

  int64_t all() const { return weights + cache + state + attention + sampling; }
};

// Of an element of a matrix in memory: as it is stored, or as was chosen; the
// CPU holds what is stored as float16 as float32.
int64_t HeldSize(DType stored, const Placement& placement) {
  const bool widened = !placement.cuda && stored == DType::kFloat16;
  return static_cast<int64_t>(SizeOf(
      placement.weight_dtype.value_or(widened ? DType::kFloat32 : stored)));
}

// All that is no matrix is float32.
absl::StatusOr<int64_t> WeightBytes(const Checkpoint& checkpoint,
                                    const ModelDefinition& model,
                                    const Placement& placement) {
  const auto held = [&](const TensorView& tensor) {
    return tensor.num_elements() *
           (tensor.shape.size() == 2
                ? HeldSize(tensor.dtype, placement)
                : static_cast<int64_t>(SizeOf(DType::kFloat32)));
  };
  // A head that is the embedding is loaded as a matrix of its own.
  int64_t bytes =
      model.head.data == model.embedding.data ? held(model.embedding) : 0;
  for (const std::string& name : checkpoint.names()) {
    RECURVE_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Tensor(name));
    bytes += held(tensor);
  }
  if (!placement.cuda) {
    // The CPU leaves the embedding as it is stored where that takes less.
    const TensorView& table = model.embedding;
    const int64_t chosen = HeldSize(table.dtype, placement);
    const auto stored = static_cast<int64_t>(SizeOf(table.dtype));
    bytes -= table.num_elements() * (chosen - std::min(chosen, stored));
  }
  return bytes;
}

// With the page and the slot of padding.
int64_t CacheBytes(const Capacity& capacity) {
  return (capacity.num_pages + 1) * kPageTokens *
         capacity.cache_bytes_per_token;
}
int64_t StateBytes(const Capacity& capacity) {
  return (capacity.num_slots + 1) * capacity.state_bytes_per_sequence;
}

absl::StatusOr<GpuNeeds> PlanGpu(const Checkpoint& checkpoint,
                                 const ModelDefinition& model,
                                 const Placement& placement,
                                 const Capacity& capacity,
                                 const EngineOptions& engine) {
  GpuNeeds needs;
#ifdef RECURVE_HAVE_CUDA
  std::vector<TpaShape> shapes;
  bool whole_prompts = false;
  for (const LayerDefinition& layer : model.layers) {
    if (const auto* tpa = std::get_if<TpaLayer>(&layer.mixer)) {
      shapes.push_back(tpa->config.shape);
    } else if (!std::get<LinearLayer>(layer.mixer).config.causal) {
      whole_prompts = true;
    }
  }
  const CudaBackend::Options options = CudaOptions(placement, capacity, engine);
  RECURVE_ASSIGN_OR_RETURN(needs.attention,
                           CudaBackend::AttentionBytes(options, shapes));
  needs.sampling = CudaBackend::SamplingBytes(
      options, model.vocab_size,
      std::max(model.hidden_size, model.intermediate_size));
  // Twice the residual; what a mixer of tokens works in, or the gate, the
  // features and both in one; and what is rounded.
  needs.activations = CudaBackend::ActivationBytes(
      options, std::max(16 * model.hidden_size,
                        4 * model.hidden_size + 4 * model.intermediate_size));
  if (whole_prompts) needs.activations += CudaBackend::LinearBytes();
#else
  (void)engine;
#endif
  RECURVE_ASSIGN_OR_RETURN(needs.weights,
                           WeightBytes(checkpoint, model, placement));
  needs.cache = CacheBytes(capacity);
  needs.state = StateBytes(capacity);
  return needs;
}

// What the factor cache may take.
absl::StatusOr<int64_t> PoolBytes(const Checkpoint& checkpoint,
                                  const ModelDefinition& model,
                                  const ModelOptions& options,
                                  const Placement& placement,
                                  const EngineOptions& engine) {
  if (options.kv_pool_bytes > 0) return options.kv_pool_bytes;
  if (!placement.cuda || placement.integrated) return kDefaultPoolBytes;
  // What attention works in grows with the longest sequence, which the cache
  // may limit: at most as if all of the GPU were the cache's.
  EngineOptions most = engine;
  RECURVE_ASSIGN_OR_RETURN(
      const Capacity capacity,
      PlanCapacity(model, options,
                   std::max(placement.free_bytes, kDefaultPoolBytes), placement,
                   &most));
  const absl::StatusOr<GpuNeeds> needs =
      PlanGpu(checkpoint, model, placement, capacity, most);
  // The GPU may not take sequences as long as that, but shorter ones.
  if (!needs.ok()) return kDefaultPoolBytes;
  return DefaultGpuPoolBytes(placement.free_bytes,
                             needs->all() - needs->cache + needs->activations);
}

absl::Status CheckMemoryOfHost(const ModelOptions& options,
                               const Capacity& capacity, int64_t pool_bytes) {
  const std::optional<HostMemory> memory = AvailableHostMemory();
  if (!memory) return absl::OkStatus();
  HostNeeds needs;
  needs.weights = capacity.weight_bytes;
  needs.cache = capacity.cache_bytes;
  needs.state = capacity.state_bytes;
  needs.num_pages = capacity.num_pages;
  needs.num_slots = capacity.num_slots;
  needs.cache_option =
      options.kv_pages > 0
          ? absl::StrCat("--kv-pages is ", options.kv_pages)
          : absl::StrCat("--kv-pool-bytes is ", pool_bytes,
                         options.kv_pool_bytes > 0 ? "" : " by default");
  return CheckHostMemory(needs, *memory);
}

// Before any weight is loaded: what surely does not fit is refused.
absl::Status CheckMemory(const Checkpoint& checkpoint,
                         const ModelDefinition& model,
                         const ModelOptions& options,
                         const Placement& placement, const Capacity& capacity,
                         int64_t pool_bytes, const EngineOptions& engine) {
  if (!placement.cuda) {
    return CheckMemoryOfHost(options, capacity, pool_bytes);
  }
  RECURVE_ASSIGN_OR_RETURN(
      const GpuNeeds needs,
      PlanGpu(checkpoint, model, placement, capacity, engine));
  if (needs.all() <= placement.free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the GPU has ", placement.free_bytes, " bytes free; needed are ",
      needs.weights, " for weights, ", needs.cache, " for ", capacity.num_pages,
      " pages of the factor cache, ", needs.state, " for the state of ",
      capacity.num_slots, " sequences, ", needs.attention,
      " for attention and ", needs.sampling,
      " for sampling (lower --kv-pool-bytes or --kv-pages, --max-num-seqs, "
      "--max-model-len or --max-num-batched-tokens)"));
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(
    const Placement& placement, const Capacity& capacity, int num_threads,
    const EngineOptions& engine) {
#ifdef RECURVE_HAVE_CUDA
  if (placement.cuda) {
    CudaBackend::Options options = CudaOptions(placement, capacity, engine);
    options.num_threads = num_threads;
    return CudaBackend::Create(options);
  }
#else
  (void)capacity;
#endif
  CpuBackend::Options options;
  options.weight_dtype = placement.weight_dtype;
  options.num_threads = num_threads;
  options.max_tokens = engine.max_num_batched_tokens;
  return std::make_unique<CpuBackend>(options);
}

}  // namespace

int64_t DefaultGpuPoolBytes(int64_t free_bytes, int64_t others) {
  const int64_t reserve = (int64_t{1} << 30) + free_bytes / 16;
  return std::max(free_bytes - others - reserve, kDefaultPoolBytes);
}

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
                                      EngineOptions* engine,
                                      const PlanListener& on_planned) {
  RECURVE_ASSIGN_OR_RETURN(Placement placement, Place(options));
  if (options.num_threads < 0 || options.num_threads > 1024) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--num-threads is ", options.num_threads, "; expected 0 to 1024"));
  }
  if (engine->max_num_batched_tokens == 0) {
    engine->max_num_batched_tokens =
        DefaultBatchedTokens(placement.cuda, engine->max_num_seqs);
  }
  if (engine->max_chunk_tokens == 0)
    engine->max_chunk_tokens = engine->max_num_batched_tokens;
  RECURVE_RETURN_IF_ERROR(engine->Validate());
  if (options.kv_pages < 0 || options.kv_pages > (1 << 30)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--kv-pages is ", options.kv_pages, "; expected 0 to ", 1 << 30));
  }
  if (options.kv_pool_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--kv-pool-bytes is ", options.kv_pool_bytes, "; expected 0 or more"));
  }
  if (options.swap_bytes < 0 || options.swap_bytes > (int64_t{1} << 50)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--swap-bytes is ", options.swap_bytes, "; expected 0 to ",
                     int64_t{1} << 50));
  }
  RECURVE_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                           Checkpoint::Open(options.path));
  RECURVE_ASSIGN_OR_RETURN(ModelDefinition model,
                           ReadModelShape(checkpoint, options.family));
  RECURVE_RETURN_IF_ERROR(PlaceModel(model, options, &placement));
  LoadedModel loaded;
  loaded.device = placement.description;
  RECURVE_ASSIGN_OR_RETURN(
      const int64_t pool_bytes,
      PoolBytes(checkpoint, model, options, placement, *engine));
  RECURVE_ASSIGN_OR_RETURN(
      loaded.capacity,
      PlanCapacity(model, options, pool_bytes, placement, engine));
  RECURVE_ASSIGN_OR_RETURN(loaded.capacity.weight_bytes,
                           WeightBytes(checkpoint, model, placement));
  loaded.capacity.cache_bytes = CacheBytes(loaded.capacity);
  loaded.capacity.state_bytes = StateBytes(loaded.capacity);
  RECURVE_RETURN_IF_ERROR(CheckMemory(checkpoint, model, options, placement,
                                      loaded.capacity, pool_bytes, *engine));
  if (on_planned != nullptr) on_planned(loaded.device, loaded.capacity);
  // These read all weights, as loading does.
  RECURVE_RETURN_IF_ERROR(CheckMatrices(checkpoint, model));
  RECURVE_RETURN_IF_ERROR(CheckWeightRange(checkpoint, placement));
  RECURVE_ASSIGN_OR_RETURN(
      loaded.tokenizer,
      LoadModelTokenizer(options.path, options.tokenizer, model));
  model.tokenizer =
      loaded.tokenizer ? std::string(loaded.tokenizer->name()) : "";
  const int num_threads =
      options.num_threads > 0
          ? options.num_threads
          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto started = std::chrono::steady_clock::now();
  try {  // weights, activations and cache may be more than the machine has
    RECURVE_ASSIGN_OR_RETURN(
        std::unique_ptr<Backend> backend,
        MakeBackend(placement, loaded.capacity, num_threads, *engine));
    RECURVE_ASSIGN_OR_RETURN(
        std::unique_ptr<Decoder> decoder,
        Decoder::Load(model, std::move(backend),
                      static_cast<int32_t>(loaded.capacity.num_pages),
                      static_cast<int32_t>(loaded.capacity.num_slots),
                      options.swap_bytes, options.swap_bytes_required));
    loaded.load_seconds = SecondsSince(started);
    const auto warm_up = std::chrono::steady_clock::now();
    RECURVE_RETURN_IF_ERROR(decoder->WarmUp());
    loaded.warm_up_seconds = SecondsSince(warm_up);
    loaded.runner = std::move(decoder);
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
