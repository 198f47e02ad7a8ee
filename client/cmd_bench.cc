#include "client/cmd_bench.h"

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/bench_progress.h"
#include "client/bench_report.h"
#include "client/command.h"
#include "client/interrupt.h"
#include "client/parse.h"
#include "client/proto_json.h"
#include "client/recurve_client.h"

namespace recurve {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kDefaultRequests = 64;
// Warm-up requests are others than the measured ones.
constexpr uint64_t kFirstWarmupIndex = uint64_t{1} << 40;
// How many streams a server is sure to take on one connection: the least that
// HTTP/2 recommends.
constexpr uint32_t kStreamsPerConnection = 100;
constexpr absl::Duration kInfoTimeout = absl::Seconds(10);

// Passes an interrupt on to the run under way and to later ones.
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
  }

 private:
  Mutex mu_;
  BenchRunner* runner_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

struct Session {
  std::vector<std::unique_ptr<RecurveClient>> clients;
  v1::ModelInfo model;
  v1::ServerInfo server;
  RunSwitch run_switch;
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

// Makes every connection, before anything is timed.
absl::Status Connect(Session* session) {
  CallOptions call;
  call.timeout = kInfoTimeout;
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

// Whether nothing failed; says on stderr what did.
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

ordered_json Configuration(const BenchFlags& flags, const BenchPlan& plan) {
  const WorkloadConfig& workload = plan.workload;
  const auto optional = [](const auto& value) {
    return value.has_value() ? ordered_json(*value) : ordered_json();
  };
  ordered_json config;
  config["server"] = flags.server.address;
  config["concurrency"] = plan.options.concurrency;
  config["connections"] = plan.connections;
  config["num_requests"] =
      plan.options.num_requests == std::numeric_limits<uint64_t>::max()
          ? ordered_json()
          : ordered_json(plan.options.num_requests);
  config["duration_seconds"] = optional(flags.duration_seconds);
  config["timeout_seconds"] = optional(flags.timeout_seconds);
  config["max_errors"] = plan.options.max_failures;
  config["warmup"] = plan.warmup;
  config["prompt_tokens"] = {workload.prompt_tokens.min,
                             workload.prompt_tokens.max};
  config["output_tokens"] = {workload.output_tokens.min,
                             workload.output_tokens.max};
  config["ignore_eos"] = workload.ignore_eos;
  config["cancel_fraction"] = workload.cancel_fraction;
  config["temperature"] = optional(workload.temperature);
  config["seed"] = workload.seed;
  config["client_version"] = RECURVE_VERSION;
  return config;
}

absl::Status WriteFile(const std::string& path,
                       const std::function<void(std::FILE*)>& write) {
  std::FILE* const file = path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat("'", path, "' cannot be opened for writing"));
  }
  write(file);
  bool ok = std::fflush(file) == 0 && std::ferror(file) == 0;
  if (file != stdout) ok = std::fclose(file) == 0 && ok;
  if (ok) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", path, "' cannot be written"));
}

absl::Status WriteResults(const BenchFlags& flags, const BenchPlan& plan,
                          const Session& session, const BenchResult& result) {
  ordered_json report = MakeReport(result);
  if (flags.json_path != "-") {
    absl::PrintF("%s: model %s (%s) on %s, %d streams\n\n%s",
                 flags.server.address, session.model.name(),
                 session.model.family(), session.server.device(),
                 plan.options.concurrency, FormatReport(report));
    std::fflush(stdout);
  }
  report["config"] = Configuration(flags, plan);
  report["model"] = ProtoToJson(session.model);
  report["server"] = ProtoToJson(session.server);
  if (!flags.json_path.empty()) {
    RECURVE_RETURN_IF_ERROR(WriteFile(flags.json_path, [&](std::FILE* file) {
      absl::FPrintF(file, "%s\n", report.dump(2));
    }));
  }
  if (!flags.requests_path.empty()) {
    RECURVE_RETURN_IF_ERROR(
        WriteFile(flags.requests_path, [&](std::FILE* file) {
          for (const RequestRecord& record : result.records) {
            absl::FPrintF(file, "%s\n", FormatRecord(record));
          }
        }));
  }
  return absl::OkStatus();
}

// Runs warm-up and bench. The exit status, or the error to report.
absl::StatusOr<int> Measure(const BenchFlags& flags, const BenchPlan& plan,
                            Session* session) {
  RECURVE_RETURN_IF_ERROR(Connect(session));
  RECURVE_ASSIGN_OR_RETURN(const Workload workload,
                           Workload::Create(plan.workload, session->model));
  if (plan.warmup > 0) {
    WorkloadConfig config = plan.workload;
    config.cancel_fraction = 0;
    RECURVE_ASSIGN_OR_RETURN(const Workload warmup,
                             Workload::Create(config, session->model));
    BenchOptions options = plan.options;
    options.num_requests = plan.warmup;
    options.start_for = absl::InfiniteDuration();
    const BenchResult result =
        RunOnce(warmup, options, kFirstWarmupIndex,
                absl::StrCat(plan.warmup, " warm-up"), session);
    if (!ReportFailures("warm-up requests", result)) return kExitFailure;
    if (result.stopped) return kExitInterrupted;
  }
  const bool counted =
      plan.options.num_requests != std::numeric_limits<uint64_t>::max();
  const BenchResult result =
      RunOnce(workload, plan.options, 0,
              counted ? absl::StrCat(plan.options.num_requests) : "?", session);
  RECURVE_RETURN_IF_ERROR(WriteResults(flags, plan, *session, result));
  const bool clean = ReportFailures("requests", result);
  if (result.stopped) return kExitInterrupted;
  return clean ? kExitOk : kExitFailure;
}

int Run(const BenchFlags& flags) {
  const auto plan = MakeBenchPlan(flags);
  if (!plan.ok()) return ReportUsage(plan.status().message());
  Session session;
  const absl::Status created = CreateClients(flags, *plan, &session);
  if (!created.ok()) return ReportUsage(created.message());
  const Interrupt interrupt([&] { session.run_switch.Stop(); });
  const absl::StatusOr<int> exit_code = Measure(flags, *plan, &session);
  if (!exit_code.ok()) return ReportError(exit_code.status());
  return *exit_code;
}

absl::Status SetLengths(const BenchFlags& flags, WorkloadConfig* workload) {
  const auto parse = [](absl::string_view flag, const std::string& text,
                        CountRange* range) {
    const auto parsed = ParseCountRange(text);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": ", parsed.status().message()));
    }
    *range = *parsed;
    return absl::OkStatus();
  };
  RECURVE_RETURN_IF_ERROR(
      parse("--prompt-tokens", flags.prompt_tokens, &workload->prompt_tokens));
  return parse("--output-tokens", flags.output_tokens,
               &workload->output_tokens);
}

absl::Status SetLimits(const BenchFlags& flags, BenchOptions* options) {
  options->concurrency = flags.concurrency;
  options->max_failures = flags.max_errors;
  if (flags.duration_seconds.has_value()) {
    RECURVE_ASSIGN_OR_RETURN(
        options->start_for,
        PositiveSeconds("--duration", *flags.duration_seconds));
  }
  if (flags.timeout_seconds.has_value()) {
    RECURVE_ASSIGN_OR_RETURN(
        options->request_timeout,
        PositiveSeconds("--timeout", *flags.timeout_seconds));
  }
  if (flags.num_requests.has_value()) {
    options->num_requests = *flags.num_requests;
  } else if (!flags.duration_seconds.has_value()) {
    options->num_requests = kDefaultRequests;
  }
  return absl::OkStatus();
}

void AddLoadFlags(CLI::App* command, BenchFlags* flags) {
  command
      ->add_option("--concurrency", flags->concurrency,
                   "Streams open at a time")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command
      ->add_option("--connections", flags->connections,
                   "Connections that they share; 0: one for each 100 streams")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command
      ->add_option("--num-requests", flags->num_requests,
                   "Requests to send [64, or no limit with --duration]")
      ->check(Decimal());
  command->add_option("--duration", flags->duration_seconds,
                      "Start requests for so many seconds");
  command->add_option("--timeout", flags->timeout_seconds,
                      "Deadline of each request in seconds");
  command
      ->add_option("--max-errors", flags->max_errors,
                   "Start nothing more after so many failed requests")
      ->check(Decimal())
      ->capture_default_str();
  command
      ->add_option("--warmup", flags->warmup,
                   "Requests sent before the measured ones")
      ->check(Decimal())
      ->capture_default_str();
}

void AddWorkloadFlags(CLI::App* command, BenchFlags* flags) {
  command
      ->add_option("--prompt-tokens", flags->prompt_tokens,
                   "Prompt lengths: N, or uniform in MIN:MAX")
      ->capture_default_str();
  command
      ->add_option("--output-tokens", flags->output_tokens,
                   "Output lengths: N, or uniform in MIN:MAX")
      ->capture_default_str();
  command->add_flag("--no-ignore-eos", flags->no_ignore_eos,
                    "Let the model end a request before its output length");
  command
      ->add_option("--cancel-fraction", flags->cancel_fraction,
                   "Share of requests to cancel midway, 0 to 1")
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature,
                      "Sample, with a seed for each request");
  command->add_option("--seed", flags->seed, "Seed of lengths and prompts")
      ->check(Decimal())
      ->capture_default_str();
}

}  // namespace

absl::StatusOr<BenchPlan> MakeBenchPlan(const BenchFlags& flags) {
  BenchPlan plan;
  RECURVE_RETURN_IF_ERROR(SetLengths(flags, &plan.workload));
  RECURVE_RETURN_IF_ERROR(SetLimits(flags, &plan.options));
  // Written so that NaN fails too.
  if (!(flags.cancel_fraction >= 0 && flags.cancel_fraction <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--cancel-fraction: ", flags.cancel_fraction, " is not in 0 to 1"));
  }
  if (plan.options.num_requests < 1 || flags.max_errors < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.max_errors < 1 ? "--max-errors" : "--num-requests",
                     ": 0 is below the least, 1"));
  }
  if (flags.requests_path == "-") {
    return absl::InvalidArgumentError(
        "--requests-jsonl: needs the name of a file; standard output is for "
        "the report");
  }
  plan.workload.ignore_eos = !flags.no_ignore_eos;
  plan.workload.cancel_fraction = flags.cancel_fraction;
  plan.workload.temperature = flags.temperature;
  plan.workload.seed = flags.seed;
  plan.warmup = flags.warmup;
  plan.connections = flags.connections > 0
                         ? flags.connections
                         : (flags.concurrency + kStreamsPerConnection - 1) /
                               kStreamsPerConnection;
  return plan;
}

void RegisterBench(CLI::App* app, int* exit_code) {
  CLI::App* const command = app->add_subcommand(
      "bench", "Load a server with many streams and measure it");
  const auto flags = std::make_shared<BenchFlags>();
  AddServerFlags(command, &flags->server);
  AddLoadFlags(command, flags.get());
  AddWorkloadFlags(command, flags.get());
  command->add_option("--json", flags->json_path,
                      "Write the report as JSON to this file; -: to standard "
                      "output, in place of the table");
  command->add_option("--requests-jsonl", flags->requests_path,
                      "Write one line of JSON for each request to this file");
  command->footer(absl::StrCat(
      "Closed loop: as one request ends, the next is sent. Prompts are random "
      "ids that\ndepend on --seed and the request's number only.\n\n",
      kLatencyDefinitions,
      "\nExit status 0 when every request completed or was cancelled as "
      "planned."));
  command->callback([flags, exit_code] { *exit_code = Run(*flags); });
}

}  // namespace recurve
