// Times whole steps of a model on the GPU, by batch and context: what the
// engine waits for at each token. Weights are a checkpoint's, or random ones of
// a preset; the cache is filled at random.

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/output_file.h"
#include "base/status_macros.h"
#include "bench/cuda/launch_timer.h"
#include "bench/cuda/step_timeline.h"
#include "bench/measure.h"
#include "bench/step_batches.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/cuda/cuda_device.h"
#include "engine/cuda/cuda_executor.h"
#include "engine/models/decoder.h"
#include "engine/models/emit.h"
#include "engine/models/registry.h"
#include "kernels/linear_attn/step/linear_deferred_plan.h"
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
  int64_t prompt_count = 1;
  bool beside = false;
  std::vector<int64_t> saved = {};
  int repeats = 32;
  std::string kv_dtype = "bfloat16";
  bool operations = false;
  bool graphs = true;
  std::string json;
  std::string timeline;
};

// Limit on the tokens of all sequences of a step: what its cache may hold.
constexpr int64_t kMaxTokens = int64_t{32} * 32768;

int HostThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1,
                    16);
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
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
  if (!CloseWritten(out)) {
    return absl::DataLossError(absl::StrCat("cannot write all of ", path));
  }
  return absl::OkStatus();
}

// One model on the device, and the steps of it that are measured.
class StepBench {
 public:
  explicit StepBench(const Flags& flags) : flags_(flags) {}

  absl::Status Run();

 private:
  // As the engine runs steps of decoding: each is launched while the one before
  // runs, whose tokens it is fed. From the end of one to that of the next.
  struct Ahead {
    double ms = 0;
    double idle_us = 0;  // of the device
  };

  // Writes a checkpoint of the preset's shapes and random weights to `folder`.
  absl::Status WriteRandom(const std::string& folder) const;
  // Loads what is in `folder`, and fills its cache at random.
  absl::Status Load(const std::string& folder);

  // Milliseconds of a step by itself, and of the CPU until all of it is
  // launched.
  struct Alone {
    double ms = 0;
    double launch_ms = 0;
  };
  // Gives the steps their samples, and runs them one after the other. Times are
  // means over the steps of each one's median.
  absl::StatusOr<Alone> Measure(std::vector<StepBatch>& steps, int repeats);
  absl::StatusOr<Ahead> MeasureAhead(const std::vector<StepBatch>& steps);
  // Bytes of states that a generated token reads and writes.
  double StateTraffic() const;
  // Whether there are too many tokens to decode; says so.
  bool LeavesOut(const char* what, int64_t batch, int64_t context) const;
  // Runs `step` once more, by itself, under the timeline.
  absl::Status Trace(const StepBatch& step, int64_t batch, int64_t context,
                     int64_t prompt, double ms);
  void Report(const char* what, int64_t batch, int64_t context, double ms,
              double bytes);

  absl::Status Decode(int64_t batch, int64_t context);
  // Measures a step with a prompt, alone or alongside `batch` sequences.
  absl::Status Prefill(int64_t batch, int64_t context, int64_t prompt);
  // Measures saving a sequence in the host's memory and restoring it.
  absl::Status Saved(int64_t tokens);
  absl::Status WriteFiles() const;

  int64_t Pages(int64_t tokens) const {
    return (tokens + kPageTokens - 1) / kPageTokens;
  }

  const Flags flags_;
  std::unique_ptr<StepTimeline> timeline_;  // or null
  double bandwidth_ = 0;                    // of a copy, bytes a second
  std::unique_ptr<LaunchTimer> timer_;      // with --operations; outlives:
  std::unique_ptr<Decoder> decoder_;
  int64_t decode_pages_ = 1;  // of the cache, for what decodes
  int64_t token_bytes_ = 0;   // of the cache
  double state_bytes_ = 0;    // of a sequence
  // States of linear attention are written once for each ring of tokens
  // (kernels/linear_attn/step); those of gated delta rules with each token.
  bool deferred_ = false;
  double weight_bytes_ = 0;  // that each step reads
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json timelines_ = nlohmann::ordered_json::array();
};

absl::Status StepBench::WriteRandom(const std::string& folder) const {
  const int64_t longest = std::max(
      *std::max_element(flags_.contexts.begin(), flags_.contexts.end()),
      flags_.prompts.empty()
          ? int64_t{0}
          : *std::max_element(flags_.prompts.begin(), flags_.prompts.end()));
  RECURVE_ASSIGN_OR_RETURN(const CheckpointPlan plan,
                           PlanPreset(flags_.preset, {flags_.layers, longest}));
  RandomCheckpointOptions options;
  options.num_threads = HostThreads();
  const auto started = Clock::now();
  RECURVE_ASSIGN_OR_RETURN(
      const WrittenCheckpoint written,
      WriteRandomCheckpoint(plan, folder, options, [](int64_t, int64_t) {}));
  std::printf("%s: %lld random bytes written in %.1f s\n",
              flags_.preset.c_str(), static_cast<long long>(written.bytes),
              SecondsSince(started));
  return absl::OkStatus();
}

absl::Status StepBench::Load(const std::string& folder) {
  const auto checkpoint = Checkpoint::Open(folder);
  RECURVE_RETURN_IF_ERROR(checkpoint.status());
  RECURVE_ASSIGN_OR_RETURN(const ModelDefinition model, ReadModel(*checkpoint));
  RECURVE_RETURN_IF_ERROR(CheckGpu(model));

  CudaExecutor::Options options;
  options.max_sequences =
      *std::max_element(flags_.batches.begin(), flags_.batches.end());
  const int64_t batched = options.max_sequences;
  options.max_tokens = batched;
  if (!flags_.prompts.empty()) {
    options.max_sequences =
        std::max(batched, flags_.prompt_count + (flags_.beside ? batched : 0));
  }
  options.max_pages = 1;
  for (const int64_t context : flags_.contexts) {
    options.max_pages = std::max(options.max_pages, Pages(context));
    for (const int64_t batch : flags_.batches) {
      if (batch * context <= kMaxTokens) {
        decode_pages_ = std::max(decode_pages_, batch * Pages(context));
      }
    }
  }
  int64_t prompt_pages = 0;
  for (const int64_t prompt : flags_.prompts) {
    options.max_tokens =
        std::max(options.max_tokens,
                 flags_.prompt_count * prompt + (flags_.beside ? batched : 0));
    options.max_pages = std::max(options.max_pages, Pages(prompt));
    prompt_pages = std::max(prompt_pages, flags_.prompt_count * Pages(prompt));
  }
  int64_t longest_saved = 0;
  for (const int64_t tokens : flags_.saved) {
    longest_saved = std::max(longest_saved, tokens);
  }
  options.graphs = flags_.graphs && !flags_.operations;
  RECURVE_ASSIGN_OR_RETURN(const CudaDevice found, FindCudaDevice());
  Device device;
  device.gpu = true;
  device.hopper = found.hopper;
  device.multiprocessors = found.multiprocessors;
  RECURVE_ASSIGN_OR_RETURN(device.pages, ParseDType(flags_.kv_dtype));
  Program program = Emit(model);
  Plan plan = Lower(program, device);
  token_bytes_ = plan.page_bytes / kPageTokens;
  state_bytes_ = static_cast<double>(plan.slot_bytes);
  const CacheSpec spec = {0, 0, plan.page_bytes, plan.slot_bytes};
  deferred_ = plan.chunk_multiple > 1 &&
              std::any_of(program.states.begin(), program.states.end(),
                          [](const StateSource& s) { return s.with_chunks; });
  const auto started = Clock::now();
  RECURVE_ASSIGN_OR_RETURN(
      std::unique_ptr<CudaExecutor> executor,
      CudaExecutor::Create(std::move(program), std::move(plan), options,
                           std::make_unique<ThreadPool>(HostThreads())));
  CudaExecutor* const cuda = executor.get();
  if (flags_.operations) {
    timer_ = std::make_unique<LaunchTimer>(cuda->stream());
    cuda->SetProbe(timer_.get());
  }
  RECURVE_ASSIGN_OR_RETURN(
      decoder_,
      Decoder::Load(model, std::move(executor),
                    static_cast<int32_t>(std::max(decode_pages_ + prompt_pages,
                                                  Pages(longest_saved))),
                    static_cast<int32_t>(options.max_sequences),
                    longest_saved == 0 ? 0
                                       : HostBlocksFor(longest_saved, spec) *
                                             HostBlockBytes(spec)));
  const double seconds = SecondsSince(started);
  const ModelInfo& info = decoder_->info();
  std::printf("%lld bytes of %s weights loaded in %.2f s; copies %.0f GB/s\n",
              static_cast<long long>(info.weight_bytes),
              info.weight_dtype.c_str(), seconds, bandwidth_ * 1e-9);

  // A step reads a few rows of the embedding. (A head that is tied to it is
  // loaded as a matrix of its own.)
  weight_bytes_ = static_cast<double>(info.weight_bytes) -
                  static_cast<double>(model.embedding.num_elements() *
                                      SizeOf(model.embedding.dtype));
  return cuda->FillCacheAtRandom();
}

double StepBench::StateTraffic() const {
  return (deferred_ ? 1.0 + 1.0 / kLinearRing : 2.0) * state_bytes_;
}

absl::StatusOr<StepBench::Alone> StepBench::Measure(
    std::vector<StepBatch>& steps, int repeats) {
  for (StepBatch& step : steps) {
    for (size_t i = 0; i < step.logit_rows.size(); ++i)
      step.samples.push_back({static_cast<int32_t>(i), &Greedy(), {}, {}, 0});
  }
  std::vector<std::vector<double>> times(steps.size());
  std::vector<double> launches;
  StepOutput output;
  if (timer_ != nullptr) timer_->Restart();
  for (int i = 0; i < repeats + 3; ++i) {
    if (timer_ != nullptr && i == 3) timer_->Clear();
    const auto begin = Clock::now();
    RECURVE_RETURN_IF_ERROR(decoder_->Launch(steps[i % steps.size()]));
    const double launched = SecondsSince(begin);
    RECURVE_RETURN_IF_ERROR(decoder_->Wait(&output));
    const double took = SecondsSince(begin);
    if (timer_ != nullptr) timer_->Collect();
    if (i < 3) continue;
    times[i % steps.size()].push_back(1e3 * took);
    launches.push_back(1e3 * launched);
  }
  for (const auto& sample : output.samples)
    RECURVE_RETURN_IF_ERROR(sample.status());
  return Alone{MeanOfMedians(times), Median(launches)};
}

absl::StatusOr<StepBench::Ahead> StepBench::MeasureAhead(
    const std::vector<StepBatch>& steps) {
  std::vector<StepBatch> fed = steps;
  for (StepBatch& step : fed) {
    for (size_t i = 0; i < step.samples.size(); ++i) {
      step.fed.push_back({step.logit_rows[i], static_cast<int32_t>(i)});
    }
  }
  std::vector<std::vector<double>> times(fed.size());
  std::vector<double> idle;
  StepOutput output;
  RECURVE_RETURN_IF_ERROR(decoder_->Launch(steps.back()));
  auto done = Clock::now();
  for (int i = 0; i < flags_.repeats + 3; ++i) {
    RECURVE_RETURN_IF_ERROR(decoder_->Launch(fed[i % fed.size()]));
    RECURVE_RETURN_IF_ERROR(decoder_->Wait(&output));
    const auto begun = std::exchange(done, Clock::now());
    if (i < 3) continue;
    // What ended was launched in the round before.
    times[(i + fed.size() - 1) % fed.size()].push_back(
        1e3 * std::chrono::duration<double>(done - begun).count());
    idle.push_back(1e6 * output.device_idle_seconds);
  }
  RECURVE_RETURN_IF_ERROR(decoder_->Wait(&output));
  return Ahead{MeanOfMedians(times), Median(idle)};
}

absl::Status StepBench::Trace(const StepBatch& step, int64_t batch,
                              int64_t context, int64_t prompt, double ms) {
  RECURVE_RETURN_IF_ERROR(timeline_->Take().status());
  StepOutput output;
  RECURVE_RETURN_IF_ERROR(decoder_->Run(step, &output));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<StepTimeline::Span> spans,
                           timeline_->Take());
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const StepTimeline::Span& span : spans) {
    all.push_back(
        {span.name, span.begin_ns, span.end_ns, span.blocks, span.threads});
  }
  timelines_.push_back({{"batch", batch},
                        {"context", context},
                        {"prompt", prompt},
                        {"prompt_count", prompt > 0 ? flags_.prompt_count : 0},
                        {"traced_ms", ms},
                        {"spans", std::move(all)}});
  return absl::OkStatus();
}

void StepBench::Report(const char* what, int64_t batch, int64_t context,
                       double ms, double bytes) {
  const double floor = 1e3 * bytes / bandwidth_;
  std::printf(
      "%-7s batch %4lld  context %6lld  %9.3f ms   floor %8.3f ms "
      "(%.2f of it)\n",
      what, static_cast<long long>(batch), static_cast<long long>(context), ms,
      floor, ms / floor);
  std::fflush(stdout);
  results_.push_back({{"what", what},
                      {"batch", batch},
                      {"context", context},
                      {"ms", ms},
                      {"bytes", bytes},
                      {"floor_ms", floor}});
  if (timer_ == nullptr) return;
  double sum = 0;
  const auto steps = static_cast<double>(timer_->times().at("embed").size());
  for (const auto& [name, times] : timer_->times()) {
    double total = 0;
    for (double us : times) total += us;
    std::printf("    %-45s %5.1f x %8.2f us\n", name.c_str(),
                static_cast<double>(times.size()) / steps, Median(times));
    sum += total / steps;
  }
  std::printf("    %-45s %17.2f us a step\n", "sum", sum);
}

bool StepBench::LeavesOut(const char* what, int64_t batch,
                          int64_t context) const {
  if (batch * context <= kMaxTokens) return false;
  std::printf("%-7s batch %4lld  context %6lld  left out: above %lld tokens\n",
              what, static_cast<long long>(batch),
              static_cast<long long>(context),
              static_cast<long long>(kMaxTokens));
  return true;
}

absl::Status StepBench::Decode(int64_t batch, int64_t context) {
  if (LeavesOut("decode", batch, context)) return absl::OkStatus();
  // As in the server, rows are at all places of a ring of tokens.
  std::vector<StepBatch> steps;
  for (int64_t phase = 0; phase < kLinearRing; ++phase) {
    steps.push_back(MakeBatch(batch, context, 1, true,
                              decoder_->info().vocab_size, token_bytes_ > 0));
    for (int64_t b = 0; b < batch; ++b) {
      steps.back().positions[b] -= (batch - b + phase) % kLinearRing;
    }
  }
  RECURVE_ASSIGN_OR_RETURN(const Alone alone, Measure(steps, flags_.repeats));
  if (timeline_ != nullptr) {
    RECURVE_RETURN_IF_ERROR(Trace(steps[0], batch, context, 0, alone.ms));
  }
  Report("decode", batch, context, alone.ms,
         weight_bytes_ + static_cast<double>(batch) *
                             (static_cast<double>(context * token_bytes_) +
                              StateTraffic()));
  if (timer_ != nullptr) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(const Ahead ahead, MeasureAhead(steps));
  std::printf("        launched ahead: %10.3f ms   device idle %6.1f us\n",
              ahead.ms, ahead.idle_us);
  results_.back()["ms_ahead"] = ahead.ms;
  results_.back()["device_idle_us"] = ahead.idle_us;
  return absl::OkStatus();
}

absl::Status StepBench::Prefill(int64_t batch, int64_t context,
                                int64_t prompt) {
  const int64_t count = flags_.prompt_count;
  if (LeavesOut("alongside", batch, context)) return absl::OkStatus();
  const int64_t vocab = decoder_->info().vocab_size;
  std::vector<StepBatch> one;
  one.push_back(batch == 0 ? MakeBatch(count, prompt, prompt, false, vocab,
                                       token_bytes_ > 0)
                           : WithPrompts(MakeBatch(batch, context, 1, true,
                                                   vocab, token_bytes_ > 0),
                                         count, prompt, vocab));
  RECURVE_ASSIGN_OR_RETURN(const Alone alone,
                           Measure(one, std::min(flags_.repeats, 9)));
  if (timeline_ != nullptr) {
    RECURVE_RETURN_IF_ERROR(Trace(one[0], batch, context, prompt, alone.ms));
  }
  Report(batch == 0 ? "prefill" : "alongside", std::max<int64_t>(batch, 1),
         batch == 0 ? prompt : context, alone.ms,
         weight_bytes_ + static_cast<double>(batch) *
                             (static_cast<double>(context * token_bytes_) +
                              StateTraffic()));
  results_.back()["prompt"] = prompt;
  results_.back()["prompts"] = count;
  results_.back()["launch_ms"] = alone.launch_ms;
  std::printf("        %lld x %lld tokens; launching takes %.3f ms\n",
              static_cast<long long>(count), static_cast<long long>(prompt),
              alone.launch_ms);
  return absl::OkStatus();
}

absl::Status StepBench::Saved(int64_t tokens) {
  RECURVE_ASSIGN_OR_RETURN(
      const SavedTimes times,
      MeasureSaved(decoder_->storage(), decoder_->cache_spec(), tokens,
                   flags_.repeats));
  std::printf(
      "saved   %6lld tokens, %lld bytes: save %.3f ms, restore %.3f ms, "
      "one copy %.3f ms (%.2f of it)\n",
      static_cast<long long>(tokens), static_cast<long long>(times.bytes),
      times.save_ms, times.restore_ms, times.copy_ms,
      times.restore_ms / times.copy_ms);
  results_.push_back({{"what", "saved"},
                      {"tokens", tokens},
                      {"bytes", times.bytes},
                      {"save_ms", times.save_ms},
                      {"ms", times.restore_ms},
                      {"floor_ms", times.copy_ms}});
  return absl::OkStatus();
}

absl::Status StepBench::WriteFiles() const {
  const ModelInfo& info = decoder_->info();
  const std::string model = flags_.model.empty() ? flags_.preset : flags_.model;
  if (!flags_.json.empty()) {
    nlohmann::ordered_json file;
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    file["device"] = properties.name;
    file["model"] = model;
    file["layers"] = info.num_layers;
    file["weights"] = info.weight_dtype;
    file["factors"] = info.kv_dtype;
    file["copy_gb_per_s"] = bandwidth_ * 1e-9;
    file["steps"] = results_;
    RECURVE_RETURN_IF_ERROR(WriteJson(flags_.json, file, 1));
  }
  if (timeline_ == nullptr) return absl::OkStatus();
  nlohmann::ordered_json file;
  file["model"] = model;
  file["layers"] = info.num_layers;
  file["span"] = {"name", "begin_ns", "end_ns", "blocks", "threads"};
  file["steps"] = timelines_;
  return WriteJson(flags_.timeline, file, -1);
}

absl::Status StepBench::Run() {
  for (const std::string& path : {flags_.json, flags_.timeline}) {
    if (path.empty()) continue;
    const std::string why = WhyNotWritable(path);
    if (!why.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot write ", path, ": ", why));
    }
  }
  if (!flags_.timeline.empty()) {
    RECURVE_ASSIGN_OR_RETURN(timeline_, StepTimeline::Create());
  }
  RECURVE_RETURN_IF_ERROR(FindCudaDevice().status());
  std::string folder = flags_.model;
  const bool temporary = folder.empty();
  const auto remove = absl::MakeCleanup([&] {
    std::error_code ignored;  // it is a temporary folder
    if (temporary) std::filesystem::remove_all(folder, ignored);
  });
  if (temporary) {
    folder = std::filesystem::temp_directory_path() /
             absl::StrCat("recurve-step-bench-", getpid());
    RECURVE_RETURN_IF_ERROR(WriteRandom(folder));
  }
  bandwidth_ = CopyBytesPerSecond();
  RECURVE_RETURN_IF_ERROR(Load(folder));
  for (const int64_t context : flags_.contexts) {
    for (const int64_t batch : flags_.batches) {
      RECURVE_RETURN_IF_ERROR(Decode(batch, context));
    }
  }
  for (const int64_t prompt : flags_.prompts) {
    RECURVE_RETURN_IF_ERROR(Prefill(0, 0, prompt));
    if (!flags_.beside) continue;
    for (const int64_t context : flags_.contexts) {
      for (const int64_t batch : flags_.batches)
        RECURVE_RETURN_IF_ERROR(Prefill(batch, context, prompt));
    }
  }
  for (const int64_t tokens : flags_.saved) {
    RECURVE_RETURN_IF_ERROR(Saved(tokens));
  }
  return WriteFiles();
}

}  // namespace
}  // namespace recurve

int main(int argc, char** argv) {
  recurve::Flags flags;
  CLI::App app("Times whole steps of a model on the GPU.",
               "recurve-step-bench");
  const CLI::Range count(int64_t{1}, recurve::kMaxTokens);
  CLI::Option* const model = app.add_option(
      "--model", flags.model, "Folder of a checkpoint, instead of --preset");
  app.add_option("--preset", flags.preset,
                 "Random weights of this preset of recurve-model")
      ->capture_default_str()
      ->excludes(model);
  app.add_option("--layers", flags.layers, "Instead of the preset's")
      ->check(count)
      ->excludes(model);
  app.add_option("--batch", flags.batches, "Sequences, some numbers")
      ->delimiter(',')
      ->check(count)
      ->capture_default_str();
  app.add_option("--context", flags.contexts, "Tokens of each")
      ->delimiter(',')
      ->check(count)
      ->capture_default_str();
  CLI::Option* const prompt =
      app.add_option("--prompt", flags.prompts,
                     "Also one prompt of this many tokens in one step")
          ->delimiter(',')
          ->check(count);
  app.add_option("--prompt-count", flags.prompt_count,
                 "Put this many such prompts in the step instead")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->needs(prompt);
  app.add_flag("--beside", flags.beside,
               "Also each such prompt in a step alongside each batch")
      ->needs(prompt);
  app.add_option("--saved", flags.saved,
                 "Also a sequence of this many tokens that is saved in the "
                 "host's memory and restored")
      ->delimiter(',')
      ->check(count);
  app.add_option("--repeats", flags.repeats, "Steps measured of each")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--kv-dtype", flags.kv_dtype, "bfloat16 or float16")
      ->capture_default_str();
  app.add_flag("--operations", flags.operations,
               "Also the time of each operation, without graphs; for models of "
               "a few layers");
  app.add_flag("!--no-graphs", flags.graphs, "Launch each kernel by itself");
  app.add_option("--json", flags.json, "Write the results there");
  app.add_option(
      "--timeline", flags.timeline,
      "Write there when each kernel of a step ran, of each "
      "batch, context and prompt (needs CUPTI; bench/plot_timeline.py draws "
      "it); steps are slower so");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = recurve::StepBench(flags).Run();
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "recurve-step-bench: %s\n",
               std::string(status.message()).c_str());
  return EXIT_FAILURE;
}
