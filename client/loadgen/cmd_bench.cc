#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/lib/recurve_client.h"
#include "client/loadgen/bench_cache.h"
#include "client/loadgen/bench_metrics.h"
#include "client/loadgen/bench_output.h"
#include "client/loadgen/bench_plan.h"
#include "client/loadgen/bench_progress.h"
#include "client/loadgen/bench_report.h"
#include "client/loadgen/bench_step.h"
#include "client/loadgen/bench_sweep.h"
#include "client/loadgen/bench_verify.h"

namespace recurve {
namespace {

// Warm-up requests differ from the measured ones.
constexpr uint64_t kFirstWarmupIndex = uint64_t{1} << 40;
// Streams in the warm-up of an open loop.
constexpr uint32_t kWarmupStreams = 16;
constexpr absl::Duration kInfoTimeout = absl::Seconds(10);
// The user is warned if the 99th percentile of send lags in an open loop
// exceeds this.
constexpr double kLateMilliseconds = 50;

// Forwards an interrupt to the current run and to later ones.
class RunSwitch {
 public:
  void Set(BenchRunner* runner) {
    MutexLock lock(&mu_);
    runner_ = runner;
    if (stopped_ && runner_ != nullptr) runner_->Stop();
  }
  void Stop() {
    MutexLock lock(&mu_);
    stopped_ = true;
    if (runner_ != nullptr) runner_->Stop();
    canceller_.Cancel();
  }
  bool stopped() {
    MutexLock lock(&mu_);
    return stopped_;
  }
  // Cancelled by Stop; for calls outside a runner.
  Canceller* canceller() { return &canceller_; }

 private:
  Canceller canceller_;
  Mutex mu_;
  BenchRunner* runner_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

struct Session {
  std::vector<std::unique_ptr<RecurveClient>> clients;
  v1::ModelInfo model;
  v1::ServerInfo server;
  RunSwitch run_switch;
  // Active while requests are measured. Declared after run_switch, which it
  // stops.
  std::unique_ptr<const Interrupt> interrupt;
};

absl::Status CreateClients(const BenchFlags& flags, const BenchPlan& plan,
                           Session* session) {
  ClientOptions options = MakeClientOptions(flags.server);
  options.own_connection = true;
  for (uint32_t i = 0; i < plan.connections; ++i) {
    RECURVE_ASSIGN_OR_RETURN(
        auto client, RecurveClient::Create(flags.server.address, options));
    session->clients.push_back(std::move(client));
  }
  return absl::OkStatus();
}

// Opens every connection before anything is timed.
absl::Status Connect(Session* session) {
  CallOptions call;
  call.timeout = kInfoTimeout;
  call.canceller = session->run_switch.canceller();
  for (const auto& client : session->clients) {
    RECURVE_ASSIGN_OR_RETURN(session->server, client->GetServerInfo(call));
  }
  RECURVE_ASSIGN_OR_RETURN(session->model,
                           session->clients.front()->GetModelInfo(call));
  return absl::OkStatus();
}

BenchResult RunOnce(const Workload& workload, const BenchOptions& options,
                    uint64_t first_index, const std::string& total,
                    Session* session) {
  std::vector<RecurveClient*> clients;
  for (const auto& client : session->clients) clients.push_back(client.get());
  BenchRunner runner(clients, &workload, options);
  session->run_switch.Set(&runner);
  ProgressLine progress(stderr, isatty(STDERR_FILENO) == 1, total);
  BenchResult result = runner.Run(
      first_index, [&](const BenchProgress& now) { progress.Update(now); });
  progress.Finish();
  session->run_switch.Set(nullptr);
  return result;
}

// Whether no request failed; reports failures on stderr.
bool ReportFailures(const char* phase, const BenchResult& result) {
  const auto errors = CountErrors(result);
  for (const auto& [code, entry] : errors) {
    const std::string name = absl::StatusCodeToString(code);
    ReportError(absl::Status(
        code, absl::StrCat(entry.first, " ", phase,
                           " failed, the first with: ", entry.second)));
  }
  return errors.empty();
}

// The exit status if the bench is to end after the warm-up.
absl::StatusOr<std::optional<int>> WarmUp(const BenchPlan& plan,
                                          Session* session) {
  if (plan.warmup == 0) return std::nullopt;
  WorkloadConfig config = plan.workload;
  config.cancel_fraction = 0;
  RECURVE_ASSIGN_OR_RETURN(const Workload workload,
                           Workload::Create(config, session->model));
  BenchOptions options = plan.options;
  if (options.arrivals.has_value()) {
    options.arrivals.reset();
    options.concurrency = std::min(options.concurrency, kWarmupStreams);
  }
  options.num_requests = plan.warmup;
  options.start_for = absl::InfiniteDuration();
  const BenchResult result =
      RunOnce(workload, options, kFirstWarmupIndex,
              absl::StrCat(plan.warmup, " warm-up"), session);
  if (!ReportFailures("warm-up requests", result)) return kExitFailure;
  if (result.stopped) return kExitInterrupted;
  return std::nullopt;
}

// Announces the current step on stderr, in a bench of several steps.
void Announce(const BenchPlan& plan, const std::string& what) {
  if (plan.is_sweep() || plan.verify > 0) {
    absl::FPrintF(stderr, "%s\n", what);
  }
}

// Whether every token of the repetition is equal.
bool Verify(const BenchPlan& plan, const Workload& workload, BenchStep* step,
            Session* session) {
  if (plan.verify == 0 || session->run_switch.stopped()) return true;
  Announce(plan, "verifying: requests are sent again, one at a time, cold");
  CallOptions call;
  call.timeout = plan.options.request_timeout;
  call.canceller = session->run_switch.canceller();
  const auto verified = VerifyAlone(session->clients.front().get(), workload,
                                    step->result, plan.verify, call);
  if (!verified.ok()) {
    // The measured results are kept.
    if (!session->run_switch.stopped()) ReportError(verified.status());
    return session->run_switch.stopped();
  }
  step->report["verified"] = verified->checked;
  step->report["verified_hits"] = verified->hits;
  step->report["verify_mismatches"] = verified->mismatches.size();
  if (verified->mismatches.empty()) return true;
  ReportError(absl::DataLossError(absl::StrCat(
      verified->mismatches.size(), " of ", verified->checked,
      " verified requests have other tokens under load than alone and without "
      "the prefix cache, the first: ",
      verified->mismatches.front())));
  return false;
}

struct Measured {
  std::vector<BenchStep> steps;
  bool clean = true;
  bool stopped = false;
};

// Runs one step and adds it. Returns whether a sweep may continue.
bool MeasureStep(const BenchPlan& plan, const Workload& workload,
                 BenchStep step, Session* session, Measured* measured) {
  Announce(plan, StepLabel(step.options));
  const bool counted =
      step.options.num_requests != std::numeric_limits<uint64_t>::max();
  step.result =
      RunOnce(workload, step.options, step.first_index,
              counted ? absl::StrCat(step.options.num_requests) : "?", session);
  step.report = MakeReport(step.result, ContextOf(plan, step.options));
  if (step.result.gave_up) {
    ReportUsage(absl::StrCat(
        StepLabel(step.options), ": nothing more was sent after ",
        step.options.max_failures, " failed requests (--max-errors)"));
  }
  measured->stopped = step.result.stopped;
  if (!plan.sweep_rates.empty()) SetVerdict(Judge(step.result), &step);
  const bool saturated = IsSaturated(step);
  const bool nothing_failed = ReportFailures("requests", step.result);
  // In a sweep over rates the server may refuse or delay excess load: the
  // verdict is unknown if anything else failed.
  const bool good = plan.sweep_rates.empty() ? nothing_failed
                                             : UnknownReason(step) == nullptr;
  if (!good) measured->clean = false;
  if (!Verify(plan, workload, &step, session)) measured->clean = false;
  measured->stopped = measured->stopped || session->run_switch.stopped();
  measured->steps.push_back(std::move(step));
  return !measured->stopped && !saturated && measured->clean;
}

// Measures rates between the highest sustained and the lowest saturated one.
void Refine(const BenchPlan& plan, const Workload& workload, Session* session,
            Measured* measured) {
  for (uint32_t i = 0; i < plan.sweep_refine; ++i) {
    const std::optional<double> rate = RateBetween(PointsOf(measured->steps));
    if (!rate.has_value() || measured->stopped || !measured->clean) break;
    MeasureStep(plan, workload, RateStep(plan, *rate, measured->steps.size()),
                session, measured);
  }
  std::stable_sort(
      measured->steps.begin(), measured->steps.end(),
      [](const BenchStep& a, const BenchStep& b) { return a.rate < b.rate; });
}

// Warns if the client could not keep its own schedule.
void WarnIfLate(const BenchPlan& plan, const Measured& measured) {
  if (!plan.options.arrivals.has_value() || plan.max_concurrency.has_value()) {
    return;
  }
  for (const BenchStep& step : measured.steps) {
    const auto& lag = step.report["p99_send_lag_ms"];
    if (lag.is_null() || lag.get<double>() < kLateMilliseconds) continue;
    ReportUsage(absl::StrFormat(
        "warning: at %s the client sent late (p99 %.0f ms): it was the "
        "bottleneck, and its figures are not the server's",
        StepLabel(step.options), lag.get<double>()));
  }
}

// Runs warm-up and bench. The exit status, or the error to report.
absl::StatusOr<int> Measure(const BenchFlags& flags, const BenchPlan& plan,
                            Session* session) {
  RECURVE_RETURN_IF_ERROR(Connect(session));
  RECURVE_ASSIGN_OR_RETURN(const Workload workload,
                           Workload::Create(plan.workload, session->model));
  RECURVE_ASSIGN_OR_RETURN(const std::optional<int> ended,
                           WarmUp(plan, session));
  if (ended.has_value()) return *ended;
  Measured measured;
  for (BenchStep& step : PlanSteps(plan)) {
    if (!MeasureStep(plan, workload, std::move(step), session, &measured)) {
      break;
    }
  }
  if (!plan.sweep_rates.empty()) {
    Refine(plan, workload, session, &measured);
  }
  // From here on a signal ends the program, because the report's reader may be
  // gone. Files are written completely.
  if (WritesToPipe(flags)) session->interrupt.reset();
  RECURVE_RETURN_IF_ERROR(
      WriteBench(flags, plan, session->model, session->server, measured.steps));
  WarnIfLate(plan, measured);
  if (measured.stopped) return kExitInterrupted;
  return measured.clean ? kExitOk : kExitFailure;
}

int Run(const BenchFlags& flags) {
  if (flags.explain) {
    absl::PrintF("%s", ExplainMetrics());
    return kExitOk;
  }
  auto plan = MakeBenchPlan(flags);
  if (!plan.ok()) return ReportUsage(plan.status().message());
  const absl::Status files = CheckBenchFiles(flags);
  if (!files.ok()) return ReportUsage(files.message());
  // Nothing of an earlier run with the same seed is a hit.
  if (flags.cache_key.empty()) {
    plan->workload.cache_key = UniqueCacheKey("run");
  }
  Session session;
  const absl::Status created = CreateClients(flags, *plan, &session);
  if (!created.ok()) return ReportNoClient(created);
  session.interrupt =
      std::make_unique<const Interrupt>([&] { session.run_switch.Stop(); });
  const absl::StatusOr<int> exit_code = Measure(flags, *plan, &session);
  if (exit_code.ok()) return *exit_code;
  ReportError(exit_code.status());
  return session.run_switch.stopped() ? kExitInterrupted : kExitFailure;
}

void AddLoadFlags(CLI::App* command, BenchFlags* flags) {
  command
      ->add_option("--concurrency", flags->concurrency,
                   "Closed loop: streams open at a time [16]")
      ->check(CLI::Range(1, 10000));
  command->add_option("--rate,--request-rate", flags->rate,
                      "Open loop: requests a second, whatever the server does");
  command
      ->add_option("--arrivals", flags->arrivals,
                   "Gaps between the requests of an open loop [poisson]")
      ->check(CLI::IsMember({"constant", "poisson", "bursty"}));
  command->add_option("--burstiness", flags->burstiness,
                      "Shape of gamma distributed gaps: 1 is poisson, less is "
                      "burstier [0.25 with --arrivals bursty]");
  command
      ->add_option("--max-concurrency", flags->max_concurrency,
                   "Bound on the streams of an open loop; what is due beyond "
                   "is sent late [none]")
      ->check(CLI::Range(1, 10000));
  command->add_option("--trace", flags->trace_path,
                      "Open loop: replay times and lengths of this JSONL file");
  command->add_option("--trace-speed", flags->trace_speed,
                      "Replay this many times as fast [1]");
  command->add_option("--sweep-rates", flags->sweep_rates,
                      "Open loops at these rates, 1,2,5 or 1:64 (doubling), "
                      "until one saturates the server");
  command
      ->add_option(
          "--sweep-refine", flags->sweep_refine,
          "Number of additional rates between sustained and saturated [0]")
      ->check(CLI::Range(0, 20));
  command->add_option("--sweep-concurrency", flags->sweep_concurrency,
                      "Closed loops with these streams, 1,2,5 or 1:64");
  command
      ->add_option("--connections", flags->connections,
                   "Connections that they share; 0: one for each 100 streams, "
                   "16 for an open loop without a bound")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command
      ->add_option("--num-requests", flags->num_requests,
                   "Requests to send (of conversations and trees: how many "
                   "to start) [64; no "
                   "limit with --duration or in a sweep; a trace's]")
      ->transform(Decimal());
  command->add_option("--duration", flags->duration_seconds,
                      "Start requests for this many seconds [none; 20 for each "
                      "step of a sweep]");
  command->add_option("--timeout", flags->timeout_seconds,
                      "Deadline of each request in seconds");
  command
      ->add_option("--max-errors", flags->max_errors,
                   "Start no more requests after this many have failed")
      ->transform(Decimal())
      ->capture_default_str();
  command
      ->add_option("--warmup", flags->warmup,
                   "Requests sent before the measured ones")
      ->transform(Decimal())
      ->capture_default_str();
}

void AddWorkloadFlags(CLI::App* command, BenchFlags* flags) {
  command
      ->add_option("--workload", flags->workload,
                   "What prompts share: random (nothing), prefixes (of "
                   "groups), conversations (of turns), agents (trees of "
                   "branches) [random; conversations with --turns]")
      ->check(CLI::IsMember({"random", "prefixes", "conversations", "agents"}));
  command->add_option("--prompt-tokens", flags->prompt_tokens,
                      "Prompt lengths: N, MIN:MAX (uniform), "
                      "normal:MEAN:STD:MIN:MAX, lognormal:MEDIAN:SIGMA:MIN:MAX,"
                      " zipf:S:MIN:MAX or file:PATH; without the prefix, if "
                      "any [64:256]");
  command->add_option("--output-tokens", flags->output_tokens,
                      "Output lengths, in the same forms [16:128]");
  command->add_option("--turns", flags->turns,
                      "Requests of a conversation, or of each branch, in the "
                      "same forms; each goes on from the output of the one "
                      "before [1; 4 of conversations, 2 of agents]");
  command->add_option("--turn-tokens", flags->turn_tokens,
                      "New tokens in the prompt of a later turn, in the same "
                      "forms [as --prompt-tokens]");
  command
      ->add_option("--prefix-groups", flags->prefix_groups,
                   "With prefixes: request i is of group i modulo this [8]")
      ->check(CLI::Range(1, 1000000));
  command->add_option("--prefix-tokens", flags->prefix_tokens,
                      "With prefixes and agents: tokens of a shared prefix, in "
                      "the same forms [256]");
  command
      ->add_option("--branches", flags->branches,
                   "With agents: branches that go on from the end of one [2]")
      ->check(CLI::Range(2, 64));
  command
      ->add_option("--branch-levels", flags->branch_levels,
                   "With agents: how often branches part again [2]")
      ->check(CLI::Range(1, 16));
  command->add_flag("--snapshot-prefix", flags->snapshot_prefix,
                    "With prefixes and agents: requests name the end of what "
                    "they share, where the server is to keep a snapshot");
  command->add_option("--cache-key", flags->cache_key,
                      "The prefix cache's key [a new one for each run]");
  command->add_option("--think-time", flags->think_time_seconds,
                      "Seconds between two turns [0]");
  command->add_flag("--no-ignore-eos", flags->no_ignore_eos,
                    "Let the model end a request before its output length");
  command
      ->add_option("--cancel-fraction", flags->cancel_fraction,
                   "Share of requests (of conversations: their last) to cancel "
                   "midway, 0 to 1")
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature,
                      "Sample, with a seed for each request");
  command
      ->add_option("--seed", flags->seed, "Seed of lengths, prompts and gaps")
      ->transform(Decimal())
      ->capture_default_str();
}

void AddOutputFlags(CLI::App* command, BenchFlags* flags) {
  command->add_option("--goodput", flags->goodput,
                      "Limits that a good request keeps, in milliseconds: "
                      "ttft:MS tpot:MS e2el:MS");
  command->add_flag("--verify{all}", flags->verify,
                    "Send requests again alone, without the prefix cache's "
                    "help, and compare their tokens; "
                    "--verify=N: N of them");
  command->add_option("--json", flags->json_path,
                      "Write the report as JSON to this file; -: to standard "
                      "output, in place of the table");
  command->add_option("--html", flags->html_path,
                      "Write the report with plots to this file");
  command->add_option("--requests-jsonl", flags->requests_path,
                      "Write one line of JSON for each request to this file");
  command->add_flag("--explain", flags->explain,
                    "Say what each figure of the report means, and end");
}

}  // namespace

void RegisterBench(CLI::App* app, int* exit_code) {
  CLI::App* const command = app->add_subcommand(
      "bench", "Load a server with many streams and measure it");
  const auto flags = std::make_shared<BenchFlags>();
  AddServerFlags(command, &flags->server);
  AddLoadFlags(command, flags.get());
  AddWorkloadFlags(command, flags.get());
  AddOutputFlags(command, flags.get());
  for (CLI::Option* const option : command->get_options()) {
    option->check(NotEmpty());
  }
  command->footer(absl::StrCat(
      "Closed loop: as one request ends, the next is sent. Open loop: requests "
      "are sent when\nthey are due. Prompts are random ids that depend on "
      "--seed and the request's number only,\nexcept for what they share "
      "(--workload).\n\n",
      kLatencyDefinitions,
      "\nExit status 0 when every request completed or was cancelled as "
      "planned, and every\nverified one had the same tokens. In a sweep over "
      "rates, what the server refused\nor was late with does not count, unless "
      "a step reaches --max-errors before it saturates\nthe server."));
  command->callback([flags, exit_code] { *exit_code = Run(*flags); });
}

}  // namespace recurve
