// Times whole steps of a model on the GPU, by batch and context: what the
// engine waits for at each token. Weights are a checkpoint's, or random ones of
// a preset; the cache is filled at random.

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/cuda/step_timeline.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/cuda_backend.h"
#include "engine/cuda_device.h"
#include "engine/cuda_model_limits.h"
#include "engine/decoder.h"
#include "engine/models/registry.h"
#include "kv_cache/cache_spec.h"
#include "nlohmann/json.hpp"
#include "tools/recurve_model/presets.h"
#include "tools/recurve_model/random_checkpoint.h"

namespace recurve {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string model;
  std::string preset = "t6-xl";
  std::optional<int64_t> layers;
  std::vector<int64_t> batches = {1, 8, 32, 128, 256};
  std::vector<int64_t> contexts = {2048};
  std::vector<int64_t> prompts = {};
  int repeats = 30;
  std::string kv_dtype = "bfloat16";
  bool operations = false;
  bool graphs = true;
  std::string json;
  std::string timeline;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Forwards to a CudaBackend and measures each operation on the stream. The
// stream is held until all of a step is on it, so that what the host takes to
// put it there does not count. A step must be short enough for the stream's
// queue: take a model of few layers.
class TimedBackend : public Backend {
 public:
  explicit TimedBackend(std::unique_ptr<CudaBackend> backend)
      : backend_(std::move(backend)) {
    cudaStreamCreateWithFlags(&gate_stream_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&gate_, cudaEventDisableTiming);
  }

  CudaBackend& cuda() { return *backend_; }
  // Microseconds of each operation of the steps since Clear(), by name.
  const std::map<std::string, std::vector<double>>& times() const {
    return times_;
  }
  void Clear() { times_.clear(); }
  // Another batch comes: nothing is held for two steps.
  void Restart() { steps_ = 0; }

  absl::string_view name() const override { return backend_->name(); }
  absl::string_view weight_dtype() const override {
    return backend_->weight_dtype();
  }
  absl::string_view state_dtype() const override {
    return backend_->state_dtype();
  }
  absl::string_view kv_dtype() const override { return backend_->kv_dtype(); }
  int64_t chunk_multiple() const override { return backend_->chunk_multiple(); }
  int64_t column_multiple() const override {
    return backend_->column_multiple();
  }
  absl::StatusOr<MatrixId> LoadMatrix(
      absl::Span<const MatrixPart> parts) override {
    RECURVE_ASSIGN_OR_RETURN(const MatrixId id, backend_->LoadMatrix(parts));
    int64_t outputs = 0;
    for (const MatrixPart& part : parts) outputs += part.rows();
    shapes_.push_back(
        absl::StrCat("[", outputs, ", ", parts[0].tensor.shape.back(), "]"));
    return id;
  }
  absl::StatusOr<VectorId> LoadVector(absl::Span<const float> values) override {
    return backend_->LoadVector(values);
  }
  absl::StatusOr<TableId> LoadEmbedding(const TensorView& table) override {
    return backend_->LoadEmbedding(table);
  }
  absl::StatusOr<PositionId> LoadPosition(
      const PositionConfig& config) override {
    return backend_->LoadPosition(config);
  }
  uint64_t weight_bytes() const override { return backend_->weight_bytes(); }
  TpaCacheId AddTpaCache(const TpaShape& shape) override {
    return backend_->AddTpaCache(shape);
  }
  StateId AddState(int64_t num_heads, int64_t key_dim,
                   int64_t value_dim) override {
    return backend_->AddState(num_heads, key_dim, value_dim);
  }
  int64_t page_bytes() const override { return backend_->page_bytes(); }
  int64_t slot_bytes() const override { return backend_->slot_bytes(); }
  absl::Status AllocateCache(int32_t num_pages, int32_t num_slots) override {
    return backend_->AllocateCache(num_pages, num_slots);
  }
  absl::StatusOr<Activations> AllocateActivations(int64_t cols) override {
    return backend_->AllocateActivations(cols);
  }

  absl::Status BeginStep(const StepBatch& batch) override {
    spans_.clear();
    // First steps allocate, which waits for the stream.
    if (++steps_ > 2) {
      {
        const std::lock_guard lock(mu_);
        held_ = true;
      }
      cudaLaunchHostFunc(gate_stream_, &TimedBackend::Hold, this);
      cudaEventRecord(gate_, gate_stream_);
      cudaStreamWaitEvent(backend_->stream(), gate_);
    }
    absl::Status status;
    Timed("begin (copy, tables, schedules)",
          [&] { status = backend_->BeginStep(batch); });
    return status;
  }
  void Embed(TableId table, float scale, Activations out) override {
    Timed("embed", [&] { backend_->Embed(table, scale, out); });
  }
  void Fill(VectorId values, Activations out) override {
    Timed("fill", [&] { backend_->Fill(values, out); });
  }
  void Norm(Activations in, const NormArgs& norm, Activations out) override {
    Timed("norm", [&] { backend_->Norm(in, norm, out); });
  }
  void Project(Activations in, MatrixId matrix, Activations out,
               bool add) override {
    Timed(absl::StrCat("project ", shapes_[matrix.value]),
          [&] { backend_->Project(in, matrix, out, add); });
  }
  void Glu(Activations in, Activation activation, Activations out) override {
    Timed("glu", [&] { backend_->Glu(in, activation, out); });
  }
  void ChannelMixer(const ChannelMixerArgs& args) override {
    Timed("channel mixer (norm, gate and up, down)",
          [&] { backend_->ChannelMixer(args); });
  }
  void Tpa(const TpaArgs& args) override {
    Timed("tpa (append, attend)", [&] { backend_->Tpa(args); });
  }
  void ExpandFactors(const ExpandArgs& args) override {
    Timed("expand factors", [&] { backend_->ExpandFactors(args); });
  }
  void LinearAttention(const LinearAttentionArgs& args) override {
    Timed("linear attention", [&] { backend_->LinearAttention(args); });
  }
  void GatedNorm(const GatedNormArgs& args) override {
    Timed("gated norm", [&] { backend_->GatedNorm(args); });
  }
  void Head(Activations in, const NormArgs& norm, MatrixId head) override {
    {
      const std::lock_guard lock(mu_);
      held_ = false;
    }
    changed_.notify_all();
    Timed("head (norm, logits, tokens to the host)",
          [&] { backend_->Head(in, norm, head); });
  }
  absl::Status EndStep(StepOutput* output) override {
    RECURVE_RETURN_IF_ERROR(backend_->EndStep(output));
    cudaStreamSynchronize(backend_->stream());
    for (const Span& span : spans_) {
      float ms = 0;
      cudaEventElapsedTime(&ms, span.begin, span.end);
      times_[span.name].push_back(1e3 * ms);
      free_.push_back(span.begin);
      free_.push_back(span.end);
    }
    return absl::OkStatus();
  }

  absl::Status ClearPage(int32_t page) override {
    return backend_->ClearPage(page);
  }
  absl::Status ClearSlot(int32_t slot) override {
    return backend_->ClearSlot(slot);
  }

 private:
  struct Span {
    std::string name;
    cudaEvent_t begin, end;
  };

  static void Hold(void* self) {
    auto* const backend = static_cast<TimedBackend*>(self);
    std::unique_lock lock(backend->mu_);
    backend->changed_.wait(lock, [backend] { return !backend->held_; });
  }
  cudaEvent_t NewEvent() {
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      cudaEventCreate(&event);
    } else {
      event = free_.back();
      free_.pop_back();
    }
    cudaEventRecord(event, backend_->stream());
    return event;
  }
  template <typename Body>
  void Timed(std::string name, Body&& body) {
    const cudaEvent_t begin = NewEvent();
    body();
    spans_.push_back({std::move(name), begin, NewEvent()});
  }

  std::unique_ptr<CudaBackend> backend_;
  std::vector<std::string> shapes_;
  std::vector<Span> spans_;
  std::vector<cudaEvent_t> free_;
  std::map<std::string, std::vector<double>> times_;
  cudaStream_t gate_stream_ = nullptr;
  cudaEvent_t gate_ = nullptr;
  std::mutex mu_;
  std::condition_variable changed_;
  bool held_ = false;
  int steps_ = 0;
};

// Bytes a second of a large copy on the device, read and written.
double CopyBytesPerSecond() {
  constexpr size_t kBytes = size_t{2} << 30;
  char* data = nullptr;
  if (cudaMalloc(reinterpret_cast<void**>(&data), 2 * kBytes) != cudaSuccess)
    return 0;
  cudaMemset(data, 1, 2 * kBytes);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    cudaEventRecord(begin);
    cudaMemcpyAsync(data + kBytes, data, kBytes, cudaMemcpyDeviceToDevice);
    cudaEventRecord(end);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    times.push_back(ms * 1e-3);
  }
  cudaFree(data);
  return 2.0 * kBytes / Median(times);
}

// Sequences of `context` tokens, of which the last `count` are of this step.
StepBatch MakeBatch(int64_t batch, int64_t context, int64_t count,
                    bool generated, int64_t vocab, bool pages) {
  StepBatch step;
  step.wants_logits = false;
  const int64_t per = (context + kPageTokens - 1) / kPageTokens;
  step.page_table_stride = pages ? per : 0;
  step.query_start.push_back(0);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = context - count; t < context; ++t) {
      step.tokens.push_back(
          static_cast<int32_t>((b * 7919 + t * 104729) % vocab));
      step.positions.push_back(t);
      step.row_sequence.push_back(static_cast<int32_t>(b));
      step.kinds.push_back(generated ? TokenKind::kStep : TokenKind::kPrompt);
    }
    step.query_start.push_back(static_cast<int32_t>(step.tokens.size()));
    for (int64_t p = 0; p < step.page_table_stride; ++p)
      step.page_table.push_back(static_cast<int32_t>(1 + b * per + p));
    step.slots.push_back(static_cast<int32_t>(b + 1));
    step.logit_rows.push_back(step.query_start.back() - 1);
  }
  return step;
}

const SamplingParams& Greedy() {
  static const auto* const params = new SamplingParams;
  return *params;
}

absl::Status WriteJson(const std::string& path,
                       const nlohmann::ordered_json& json, int indent) {
  std::FILE* const out = std::fopen(path.c_str(), "w");
  if (out == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", path));
  std::fputs((json.dump(indent) + "\n").c_str(), out);
  std::fclose(out);
  return absl::OkStatus();
}

absl::Status Run(const Flags& flags) {
  std::unique_ptr<StepTimeline> timeline;
  if (!flags.timeline.empty()) {
    RECURVE_ASSIGN_OR_RETURN(timeline, StepTimeline::Create());
  }
  RECURVE_RETURN_IF_ERROR(FindCudaDevice().status());
  std::string folder = flags.model;
  const bool temporary = folder.empty();
  const auto remove = absl::MakeCleanup([&] {
    std::error_code ignored;  // it is a temporary folder
    if (temporary) std::filesystem::remove_all(folder, ignored);
  });
  if (temporary) {
    folder = std::filesystem::temp_directory_path() /
             absl::StrCat("recurve-step-bench-", getpid());
    const int64_t longest = std::max(
        *std::max_element(flags.contexts.begin(), flags.contexts.end()),
        flags.prompts.empty()
            ? int64_t{0}
            : *std::max_element(flags.prompts.begin(), flags.prompts.end()));
    RECURVE_ASSIGN_OR_RETURN(const CheckpointPlan plan,
                             PlanPreset(flags.preset, {flags.layers, longest}));
    RandomCheckpointOptions options;
    options.num_threads = std::clamp(
        static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
    const auto started = Clock::now();
    RECURVE_ASSIGN_OR_RETURN(
        const WrittenCheckpoint written,
        WriteRandomCheckpoint(plan, folder, options, [](int64_t, int64_t) {}));
    std::printf("%s: %lld random bytes written in %.1f s\n",
                flags.preset.c_str(), static_cast<long long>(written.bytes),
                std::chrono::duration<double>(Clock::now() - started).count());
  }
  const auto checkpoint = Checkpoint::Open(folder);
  RECURVE_RETURN_IF_ERROR(checkpoint.status());
  RECURVE_ASSIGN_OR_RETURN(const ModelDefinition model, ReadModel(*checkpoint));
  RECURVE_RETURN_IF_ERROR(CheckCudaModel(model));

  const double bandwidth = CopyBytesPerSecond();
  const int64_t most =
      *std::max_element(flags.batches.begin(), flags.batches.end());
  int64_t max_tokens = most;
  int64_t max_pages = 1;
  int64_t all_pages = 1;
  for (const int64_t context : flags.contexts) {
    const int64_t pages = (context + kPageTokens - 1) / kPageTokens;
    max_pages = std::max(max_pages, pages);
    for (const int64_t batch : flags.batches)
      if (batch * context <= int64_t{32} * 32768)
        all_pages = std::max(all_pages, batch * pages);
  }
  for (const int64_t prompt : flags.prompts) {
    max_tokens = std::max(max_tokens, prompt);
    max_pages = std::max(max_pages, (prompt + kPageTokens - 1) / kPageTokens);
    all_pages = std::max(all_pages, max_pages);
  }
  CudaBackend::Options options;
  RECURVE_ASSIGN_OR_RETURN(options.kv_dtype, ParseDType(flags.kv_dtype));
  options.max_tokens = max_tokens;
  options.max_sequences = most;
  options.max_pages = max_pages;
  options.graphs = flags.graphs && !flags.operations;
  options.num_threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
  const auto started = Clock::now();
  RECURVE_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> cuda,
                           CudaBackend::Create(options));
  CudaBackend* const device = cuda.get();
  TimedBackend* timed = nullptr;
  std::unique_ptr<Backend> backend = std::move(cuda);
  if (flags.operations) {
    auto wrapped = std::make_unique<TimedBackend>(std::unique_ptr<CudaBackend>(
        static_cast<CudaBackend*>(backend.release())));
    timed = wrapped.get();
    backend = std::move(wrapped);
  }
  RECURVE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Decoder> decoder,
      Decoder::Load(model, std::move(backend), static_cast<int32_t>(all_pages),
                    static_cast<int32_t>(most)));
  const double load =
      std::chrono::duration<double>(Clock::now() - started).count();
  const ModelInfo& info = decoder->info();
  std::printf("%lld bytes of %s weights loaded in %.2f s; copies %.0f GB/s\n",
              static_cast<long long>(info.weight_bytes),
              info.weight_dtype.c_str(), load, bandwidth * 1e-9);
  RECURVE_RETURN_IF_ERROR(device->FillCacheAtRandom());

  const int64_t token_bytes =
      CacheBytesPerToken(model, 2, TpaPageOrder::kOctets);
  const int64_t state_bytes = StateBytesPerSequence(model);
  // Of an embedding that is not also the head, a step reads a few rows.
  const bool tied = model.embedding.data == model.head.data;
  const double weight_bytes =
      static_cast<double>(info.weight_bytes) -
      static_cast<double>(model.embedding.num_elements() *
                          SizeOf(model.embedding.dtype));
  (void)tied;  // a tied head is loaded as a matrix of its own
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  nlohmann::ordered_json timelines = nlohmann::ordered_json::array();

  const auto measure = [&](StepBatch& step,
                           int repeats) -> absl::StatusOr<double> {
    for (size_t i = 0; i < step.logit_rows.size(); ++i)
      step.samples.push_back({static_cast<int32_t>(i), &Greedy(), {}, {}, 0});
    std::vector<double> times;
    StepOutput output;
    if (timed != nullptr) timed->Restart();
    for (int i = 0; i < repeats + 3; ++i) {
      if (timed != nullptr && i == 3) timed->Clear();
      const auto begin = Clock::now();
      RECURVE_RETURN_IF_ERROR(decoder->Run(step, &output));
      if (i >= 3) {
        times.push_back(
            1e3 * std::chrono::duration<double>(Clock::now() - begin).count());
      }
    }
    for (const auto& sample : output.samples)
      RECURVE_RETURN_IF_ERROR(sample.status());
    return Median(times);
  };
  // As the engine runs steps of decoding: each is launched while the one before
  // runs, whose tokens it is fed. From the end of one to that of the next.
  struct Ahead {
    double ms = 0;
    double idle_us = 0;  // of the device
  };
  const auto measure_ahead = [&](const StepBatch& step,
                                 int repeats) -> absl::StatusOr<Ahead> {
    StepBatch fed = step;
    for (size_t i = 0; i < fed.samples.size(); ++i) {
      fed.fed.push_back({step.logit_rows[i], static_cast<int32_t>(i)});
    }
    std::vector<double> times;
    std::vector<double> idle;
    StepOutput output;
    RECURVE_RETURN_IF_ERROR(decoder->Launch(step));
    auto done = Clock::now();
    for (int i = 0; i < repeats + 3; ++i) {
      RECURVE_RETURN_IF_ERROR(decoder->Launch(fed));
      RECURVE_RETURN_IF_ERROR(decoder->Wait(&output));
      const auto begun = std::exchange(done, Clock::now());
      if (i < 3) continue;
      times.push_back(1e3 *
                      std::chrono::duration<double>(done - begun).count());
      idle.push_back(1e6 * output.device_idle_seconds);
    }
    RECURVE_RETURN_IF_ERROR(decoder->Wait(&output));
    return Ahead{Median(times), Median(idle)};
  };
  const auto report = [&](const char* what, int64_t batch, int64_t context,
                          double ms, double bytes) {
    const double floor = 1e3 * bytes / bandwidth;
    std::printf(
        "%-7s batch %4lld  context %6lld  %9.3f ms   floor %8.3f ms "
        "(%.2f of it)\n",
        what, static_cast<long long>(batch), static_cast<long long>(context),
        ms, floor, ms / floor);
    std::fflush(stdout);
    results.push_back({{"what", what},
                       {"batch", batch},
                       {"context", context},
                       {"ms", ms},
                       {"bytes", bytes},
                       {"floor_ms", floor}});
    if (timed == nullptr) return;
    double sum = 0;
    const auto all_steps = timed->times().at("embed").size();
    for (const auto& [name, times] : timed->times()) {
      double total = 0;
      for (double us : times) total += us;
      std::printf("    %-45s %5.1f x %8.2f us\n", name.c_str(),
                  static_cast<double>(times.size()) / all_steps, Median(times));
      sum += total / static_cast<double>(all_steps);
    }
    std::printf("    %-45s %17.2f us a step\n", "sum", sum);
  };
  for (const int64_t context : flags.contexts) {
    for (const int64_t batch : flags.batches) {
      if (batch * ((context + kPageTokens - 1) / kPageTokens) > all_pages)
        continue;
      StepBatch step =
          MakeBatch(batch, context, 1, true, info.vocab_size, token_bytes > 0);
      RECURVE_ASSIGN_OR_RETURN(const double ms, measure(step, flags.repeats));
      if (timeline != nullptr) {
        // One more step, by itself.
        RECURVE_RETURN_IF_ERROR(timeline->Take().status());
        StepOutput output;
        RECURVE_RETURN_IF_ERROR(decoder->Run(step, &output));
        RECURVE_ASSIGN_OR_RETURN(const std::vector<StepTimeline::Span> spans,
                                 timeline->Take());
        nlohmann::ordered_json all = nlohmann::ordered_json::array();
        for (const StepTimeline::Span& span : spans) {
          all.push_back({span.name, span.begin_ns, span.end_ns, span.blocks,
                         span.threads});
        }
        timelines.push_back({{"batch", batch},
                             {"context", context},
                             {"traced_ms", ms},
                             {"spans", std::move(all)}});
      }
      report("decode", batch, context, ms,
             weight_bytes + static_cast<double>(batch) *
                                (static_cast<double>(context * token_bytes) +
                                 2.0 * static_cast<double>(state_bytes)));
      if (timed != nullptr) continue;
      RECURVE_ASSIGN_OR_RETURN(const Ahead ahead,
                               measure_ahead(step, flags.repeats));
      std::printf("        launched ahead: %10.3f ms   device idle %6.1f us\n",
                  ahead.ms, ahead.idle_us);
      results.back()["ms_ahead"] = ahead.ms;
      results.back()["device_idle_us"] = ahead.idle_us;
    }
  }
  for (const int64_t prompt : flags.prompts) {
    StepBatch step =
        MakeBatch(1, prompt, prompt, false, info.vocab_size, token_bytes > 0);
    RECURVE_ASSIGN_OR_RETURN(const double ms, measure(step, 3));
    report("prefill", 1, prompt, ms, weight_bytes);
  }
  if (!flags.json.empty()) {
    nlohmann::ordered_json file;
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    file["device"] = properties.name;
    file["model"] = temporary ? flags.preset : flags.model;
    file["layers"] = info.num_layers;
    file["weights"] = info.weight_dtype;
    file["factors"] = info.kv_dtype;
    file["copy_gb_per_s"] = bandwidth * 1e-9;
    file["steps"] = results;
    RECURVE_RETURN_IF_ERROR(WriteJson(flags.json, file, 1));
  }
  if (timeline != nullptr) {
    nlohmann::ordered_json file;
    file["model"] = temporary ? flags.preset : flags.model;
    file["layers"] = info.num_layers;
    file["span"] = {"name", "begin_ns", "end_ns", "blocks", "threads"};
    file["steps"] = timelines;
    RECURVE_RETURN_IF_ERROR(WriteJson(flags.timeline, file, -1));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace recurve

int main(int argc, char** argv) {
  recurve::Flags flags;
  CLI::App app("Times whole steps of a model on the GPU.",
               "recurve-step-bench");
  app.add_option("--model", flags.model,
                 "Folder of a checkpoint, instead of --preset");
  app.add_option("--preset", flags.preset,
                 "Random weights of this preset of recurve-model")
      ->capture_default_str();
  app.add_option("--layers", flags.layers, "Instead of the preset's");
  app.add_option("--batch", flags.batches, "Sequences, some numbers")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--context", flags.contexts, "Tokens of each")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--prompt", flags.prompts,
                 "Also one prompt of so many tokens in one step")
      ->delimiter(',');
  app.add_option("--repeats", flags.repeats, "Steps measured of each")
      ->capture_default_str();
  app.add_option("--kv-dtype", flags.kv_dtype, "bfloat16 or float16")
      ->capture_default_str();
  app.add_flag("--operations", flags.operations,
               "Also the time of each operation, without graphs; for models of "
               "a few layers");
  app.add_flag("!--no-graphs", flags.graphs, "Launch each kernel by itself");
  app.add_option("--json", flags.json, "Write the results there");
  app.add_option("--timeline", flags.timeline,
                 "Write there when each kernel of a decode step ran, of each "
                 "batch and context (needs CUPTI; bench/plot_timeline.py draws "
                 "it); steps are slower so");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = recurve::Run(flags);
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "recurve-step-bench: %s\n",
               std::string(status.message()).c_str());
  return EXIT_FAILURE;
}
