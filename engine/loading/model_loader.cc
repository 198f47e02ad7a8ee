#include "engine/loading/model_loader.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/cpu/cpu_executor.h"
#include "engine/loading/chunk_plan.h"
#include "engine/loading/placement.h"
#include "engine/loading/special_tokens.h"
#include "engine/models/decoder.h"
#include "engine/models/emit.h"
#include "engine/models/registry.h"
#include "engine/program/plan.h"
#include "engine/tokenizer/load_tokenizer.h"
#include "engine/tokenizer/sentencepiece_tokenizer.h"
#ifdef RECURVE_HAVE_CUDA
#include "engine/cuda/cuda_executor.h"
#endif

namespace recurve {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

absl::StatusOr<std::unique_ptr<ThreadPool>> MakeThreads(
    const ModelOptions& options) {
  const int threads = NumThreads(options);
  absl::StatusOr<std::unique_ptr<ThreadPool>> pool =
      ThreadPool::Create(threads);
  if (pool.ok()) return pool;
  return absl::Status(
      pool.status().code(),
      absl::StrCat("--num-threads is ", threads,
                   options.num_threads > 0 ? "; " : " by default; ",
                   pool.status().message()));
}

absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(
    Program program, Plan plan, const Capacity& capacity,
    const EngineOptions& engine, std::unique_ptr<ThreadPool> threads) {
#ifdef RECURVE_HAVE_CUDA
  if (plan.device.gpu) {
    return CudaExecutor::Create(std::move(program), std::move(plan),
                                CudaOptions(capacity, engine),
                                std::move(threads));
  }
#else
  (void)capacity;
#endif
  return std::make_unique<CpuExecutor>(std::move(program), std::move(plan),
                                       engine.max_num_batched_tokens,
                                       std::move(threads));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizer(
    const std::string& path, const std::string& kind, const NamedTokens& named,
    const ModelDefinition& model) {
  TokenizerChoice choice;
  choice.kind = kind == "auto" ? model.tokenizer : kind;
  choice.kind_name = kind == "auto"
                         ? absl::StrCat(path, "/config.json: tokenizer")
                         : "--tokenizer";
  choice.vocab_size = static_cast<int32_t>(model.vocab_size);
  choice.bos = model.bos_token_id;
  choice.add_bos = named.add_bos;
  if (named.bos) choice.bos_token = named.bos->text;
  if (!model.eos_token_ids.empty()) choice.eos = model.eos_token_ids.front();
  choice.eos_file = model.eos_file;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(path, choice);
  if (tokenizer.ok() || kind != "auto") return tokenizer;
  return absl::Status(
      tokenizer.status().code(),
      absl::StrCat(tokenizer.status().message(),
                   " (--tokenizer chooses another file, or none)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModelTokenizer(
    const std::string& path, const std::string& kind, ModelDefinition* model) {
  NamedTokens named = ReadNamedTokens(path);
  for (std::string& problem : named.problems) {
    model->remarks.push_back(std::move(problem));
  }
  std::unique_ptr<Tokenizer> tokenizer;
  if (kind != "none") {
    RECURVE_ASSIGN_OR_RETURN(tokenizer,
                             ReadTokenizer(path, kind, named, *model));
  }
  RECURVE_RETURN_IF_ERROR(CheckEndOfText(named, tokenizer.get()));
  // "sentencepiece" takes the token before a text from the model.
  if (tokenizer != nullptr && tokenizer->name() == kSentencePieceKind &&
      named.add_bos.value_or(false) && named.bos && !model->bos_token_id) {
    model->bos_token_id = tokenizer->FindToken(named.bos->text);
    if (model->bos_token_id) {
      RECURVE_ASSIGN_OR_RETURN(tokenizer,
                               ReadTokenizer(path, kind, named, *model));
    }
  }
  model->tokenizer = tokenizer != nullptr ? std::string(tokenizer->name()) : "";
  CompareBeginOfSequence(named, tokenizer.get(), model);
  CompareAddedTokens(named, tokenizer.get(), model);
  CompleteEndOfSequence(named, tokenizer.get(), model);
  return tokenizer;
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
        DefaultBatchedTokens(placement.device.gpu, engine->max_num_seqs);
  }
  EngineOptions checked = *engine;  // the model determines what 0 means
  if (checked.max_chunk_tokens == 0)
    checked.max_chunk_tokens = checked.max_num_batched_tokens;
  RECURVE_RETURN_IF_ERROR(checked.Validate());
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
  if (options.prefix_cache_bytes < 0 ||
      options.prefix_cache_bytes > (int64_t{1} << 50)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prefix-cache-bytes is ", options.prefix_cache_bytes,
                     "; expected 0 to ", int64_t{1} << 50));
  }
  RECURVE_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                           Checkpoint::Open(options.path));
  RECURVE_ASSIGN_OR_RETURN(ModelDefinition model,
                           ReadModelShape(checkpoint, options.family));
  RECURVE_RETURN_IF_ERROR(PlaceModel(model, options, &placement));
  Program program = Emit(model);
  Plan plan = Lower(program, placement.device);
  RECURVE_RETURN_IF_ERROR(PlanChunks(plan, engine));
  LoadedModel loaded;
  loaded.ignored_keys = model.ignored_keys;
  loaded.device = placement.description;
  RECURVE_ASSIGN_OR_RETURN(
      loaded.capacity,
      PlanMemory(model, program, plan, options, placement, engine));
  RECURVE_ASSIGN_OR_RETURN(std::unique_ptr<ThreadPool> threads,
                           MakeThreads(options));
  if (on_planned != nullptr) on_planned(loaded.device, loaded.capacity);
  // These read all weights, as does loading.
  RECURVE_RETURN_IF_ERROR(CheckMatrices(checkpoint, model));
  RECURVE_RETURN_IF_ERROR(CheckWeightRange(checkpoint, model, placement));
  RECURVE_ASSIGN_OR_RETURN(
      loaded.tokenizer,
      LoadModelTokenizer(options.path, options.tokenizer, &model));
  if (loaded.capacity.prefix_cache_bytes > 0) {
    RECURVE_ASSIGN_OR_RETURN(
        loaded.fingerprint, FingerprintOf(checkpoint, model, placement.device));
  }
  const auto started = std::chrono::steady_clock::now();
  try {  // weights, activations and cache may exceed the machine's memory
    RECURVE_ASSIGN_OR_RETURN(
        std::unique_ptr<Executor> executor,
        MakeExecutor(std::move(program), std::move(plan), loaded.capacity,
                     *engine, std::move(threads)));
    RECURVE_ASSIGN_OR_RETURN(
        std::unique_ptr<Decoder> decoder,
        Decoder::Load(model, std::move(executor),
                      static_cast<int32_t>(loaded.capacity.num_pages),
                      static_cast<int32_t>(loaded.capacity.num_slots),
                      loaded.capacity.swap_bytes, options.swap_bytes_required,
                      loaded.capacity.prefix_cache_bytes));
    engine->prefix_cache = loaded.capacity.prefix_cache_bytes > 0;
    engine->preemption_bytes = loaded.capacity.swap_bytes;
    const int64_t shared = loaded.capacity.prefix_cache_bytes;
    engine->state_bytes = engine->state_bytes == 0
                              ? shared / 2
                              : std::min(engine->state_bytes, shared);
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
