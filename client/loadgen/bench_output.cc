#include "client/loadgen/bench_output.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/output_file.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/loadgen/bench_html.h"
#include "client/loadgen/bench_latency.h"
#include "client/loadgen/bench_report.h"
#include "client/loadgen/bench_sharing.h"
#include "client/loadgen/bench_sweep.h"

namespace recurve {
namespace {

using nlohmann::ordered_json;

template <typename T>
ordered_json OrNull(const std::optional<T>& value) {
  return value.has_value() ? ordered_json(*value) : ordered_json();
}

ordered_json OrNull(const std::string& value) {
  return value.empty() ? ordered_json() : ordered_json(value);
}

ordered_json Configuration(const BenchFlags& flags, const BenchPlan& plan) {
  const WorkloadConfig& workload = plan.workload;
  const auto range = [](const LengthDistribution& lengths) {
    return ordered_json({lengths.min(), lengths.max()});
  };
  const std::optional<ArrivalConfig>& arrivals = plan.options.arrivals;
  ordered_json config;
  config["server"] = flags.server.address;
  config["concurrency"] = arrivals.has_value() || plan.is_sweep()
                              ? ordered_json()
                              : ordered_json(plan.options.concurrency);
  config["rate"] = OrNull(flags.rate);
  config["arrivals"] = !arrivals.has_value()        ? ordered_json()
                       : arrivals->trace != nullptr ? ordered_json("trace")
                       : arrivals->constant         ? ordered_json("constant")
                       : arrivals->burstiness == 1  ? ordered_json("poisson")
                                                    : ordered_json("bursty");
  config["burstiness"] = OrNull(flags.burstiness);
  config["max_concurrency"] = OrNull(flags.max_concurrency);
  config["trace"] = OrNull(flags.trace_path);
  config["trace_speed"] = OrNull(flags.trace_speed);
  config["sweep_rates"] = OrNull(flags.sweep_rates);
  config["sweep_concurrency"] = OrNull(flags.sweep_concurrency);
  config["sweep_refine"] = OrNull(flags.sweep_refine);
  config["connections"] = plan.connections;
  config["num_requests"] =
      plan.options.num_requests == std::numeric_limits<uint64_t>::max()
          ? ordered_json()
          : ordered_json(plan.options.num_requests);
  config["duration_seconds"] =
      plan.options.start_for == absl::InfiniteDuration()
          ? ordered_json()
          : ordered_json(absl::ToDoubleSeconds(plan.options.start_for));
  config["timeout_seconds"] = OrNull(flags.timeout_seconds);
  config["max_errors"] = plan.options.max_failures;
  config["warmup"] = plan.warmup;
  if (workload.trace == nullptr) {
    config["prompt_tokens"] = range(workload.prompt_tokens);
    config["prompt_tokens_distribution"] = workload.prompt_tokens.text();
    config["output_tokens"] = range(workload.output_tokens);
    config["output_tokens_distribution"] = workload.output_tokens.text();
  }
  config["turns_distribution"] = workload.turns.text();
  config["turn_tokens_distribution"] =
      workload.turns.max() == 1 && workload.branch_levels == 0
          ? ordered_json()
          : ordered_json(workload.turn_tokens.text());
  config["workload"] = WorkloadName(flags);
  config["prefix_groups"] = workload.prefix_groups;
  config["prefix_tokens_distribution"] =
      workload.prefix_groups == 0 ? ordered_json()
                                  : ordered_json(workload.prefix_tokens.text());
  config["branches"] = workload.branches;
  config["branch_levels"] = workload.branch_levels;
  config["snapshot_prefix"] = workload.snapshot_prefix;
  config["cache_key"] = workload.cache_key;
  config["think_time_seconds"] = OrNull(flags.think_time_seconds);
  config["ignore_eos"] = workload.ignore_eos;
  config["cancel_fraction"] = workload.cancel_fraction;
  config["temperature"] = OrNull(workload.temperature);
  config["seed"] = workload.seed;
  config["goodput"] = flags.goodput;
  config["verify"] = OrNull(flags.verify);
  config["client_version"] = RECURVE_VERSION;
  return config;
}

absl::Status WriteFile(const std::string& path,
                       const std::function<void(std::FILE*)>& write) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat("'", path, "' cannot be opened for writing"));
  }
  write(file);
  if (CloseWritten(file)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("'", path, "' cannot be written"));
}

std::string Table(const BenchPlan& plan, const std::vector<BenchStep>& steps) {
  if (!plan.is_sweep()) return FormatReport(steps.front().report);
  std::string text = FormatSweep(steps);
  for (const BenchStep& step : steps) {
    const std::string interruption = FormatInterruption(
        step.report, absl::StrCat(" at ", StepLabel(step.options)));
    if (!interruption.empty()) absl::StrAppend(&text, "\n", interruption);
  }
  if (!plan.sweep_rates.empty()) {
    for (const BenchStep& step : steps) {
      const std::string label = StepLabel(step.options);
      if (IsSaturated(step)) {
        absl::StrAppend(&text, "\nSaturated at ", label, ": ",
                        step.report["saturation_reason"].get<std::string>(),
                        ".");
      } else if (const std::string* reason = UnknownReason(step)) {
        absl::StrAppend(&text, "\nUnknown whether saturated at ", label, ": ",
                        *reason, ".");
      }
    }
    const std::optional<double> best = MaxSustainedRate(PointsOf(steps));
    const bool saturated = std::any_of(steps.begin(), steps.end(), IsSaturated);
    absl::StrAppend(
        &text, "\nHighest rate sustained: ",
        !best.has_value() ? "none"
        : saturated
            ? absl::StrFormat("%.6g requests/s", *best)
            : absl::StrFormat("at least %.6g requests/s (no step saturated)",
                              *best),
        ".\n");
  }
  return absl::StrCat(text, "\n", kLatencyDefinitions);
}

}  // namespace

ordered_json MakeBenchJson(const BenchFlags& flags, const BenchPlan& plan,
                           const v1::ModelInfo& model,
                           const v1::ServerInfo& server,
                           const std::vector<BenchStep>& steps) {
  ordered_json report;
  if (!plan.is_sweep()) {
    report = steps.front().report;
  } else if (!plan.sweep_rates.empty()) {
    report["sweep"] = "rate";
    report["max_sustained_rate"] = OrNull(MaxSustainedRate(PointsOf(steps)));
  } else {
    report["sweep"] = "concurrency";
  }
  if (plan.is_sweep()) {
    report["steps"] = ordered_json::array();
    for (const BenchStep& step : steps) {
      report["steps"].push_back(step.report);
      report["steps"].back()["first_index"] = step.first_index;
    }
  }
  report["date"] =
      absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::UTCTimeZone());
  report["backend"] = "recurve-grpc";
  report["model_id"] = model.name();
  report["config"] = Configuration(flags, plan);
  report["model"] = ProtoToJson(model);
  report["server"] = ProtoToJson(server);
  return report;
}

namespace {

// The path with symbolic links resolved, even to files that do not exist yet;
// empty if it cannot be resolved.
std::filesystem::path WhereItIs(std::filesystem::path path) {
  std::error_code error;
  path = std::filesystem::absolute(path, error);
  constexpr int kMostLinks = 40;  // the system's own limit
  for (int i = 0; i < kMostLinks && !std::filesystem::exists(path, error) &&
                  std::filesystem::is_symlink(path, error);
       ++i) {
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  }
  return std::filesystem::weakly_canonical(path, error);
}

// Regardless of the spelling; "-" and the empty path are not files. Two writers
// to one pipe or device lose nothing.
bool IsSameFile(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty() || a == "-" || b == "-") return false;
  if (a == b) return true;
  std::error_code error;
  if (std::filesystem::exists(a, error) && std::filesystem::exists(b, error)) {
    return std::filesystem::is_regular_file(a, error) &&
           std::filesystem::equivalent(a, b, error);
  }
  const std::filesystem::path where = WhereItIs(a);
  return !where.empty() && where == WhereItIs(b);
}

// The files that a run reads, by flag.
std::vector<std::pair<const char*, std::string>> InputFiles(
    const BenchFlags& flags) {
  std::vector<std::pair<const char*, std::string>> files = {
      {"--trace", flags.trace_path}};
  constexpr absl::string_view kFile = "file:";
  const auto add = [&](const char* flag, absl::string_view lengths) {
    if (absl::ConsumePrefix(&lengths, kFile)) {
      files.emplace_back(flag, std::string(lengths));
    }
  };
  add("--prompt-tokens", flags.prompt_tokens.value_or(""));
  add("--output-tokens", flags.output_tokens.value_or(""));
  add("--turns", flags.turns);
  add("--turn-tokens", flags.turn_tokens);
  add("--prefix-tokens", flags.prefix_tokens);
  files.emplace_back("--tls-ca", flags.server.tls.ca);
  files.emplace_back("--tls-cert", flags.server.tls.cert);
  files.emplace_back("--tls-key", flags.server.tls.key);
  return files;
}

}  // namespace

absl::Status CheckBenchFiles(const BenchFlags& flags) {
  const std::pair<const char*, const std::string*> files[] = {
      {"--json", &flags.json_path},
      {"--requests-jsonl", &flags.requests_path},
      {"--html", &flags.html_path}};
  for (const auto& [flag, path] : files) {
    if (path->empty() || *path == "-") continue;
    for (const auto& [other, taken] : files) {
      if (taken == path) break;
      if (!IsSameFile(*taken, *path)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": '", *path, "' is the file of ", other));
    }
    for (const auto& [input, read] : InputFiles(flags)) {
      if (!IsSameFile(read, *path)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          flag, ": '", *path, "' is read by ", input, " and would be lost"));
    }
    const std::string why = WhyNotWritable(*path);
    if (why.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": '", *path, "' cannot be opened for writing: ", why));
  }
  return absl::OkStatus();
}

bool WritesToPipe(const BenchFlags& flags) {
  return flags.json_path == "-" || IsPipeOrDevice(flags.json_path) ||
         IsPipeOrDevice(flags.requests_path) || IsPipeOrDevice(flags.html_path);
}

absl::Status WriteBench(const BenchFlags& flags, const BenchPlan& plan,
                        const v1::ModelInfo& model,
                        const v1::ServerInfo& server,
                        const std::vector<BenchStep>& steps) {
  const ordered_json report = MakeBenchJson(flags, plan, model, server, steps);
  const std::string json =
      report.dump(2, ' ', false, ordered_json::error_handler_t::replace);
  absl::Status status;
  if (!flags.json_path.empty() && flags.json_path != "-") {
    status.Update(WriteFile(flags.json_path, [&](std::FILE* file) {
      absl::FPrintF(file, "%s\n", json);
    }));
  }
  if (!flags.requests_path.empty()) {
    status.Update(WriteFile(flags.requests_path, [&](std::FILE* file) {
      for (const BenchStep& step : steps) {
        for (const RequestRecord& record : step.result.records) {
          absl::FPrintF(file, "%s\n", FormatRecord(record));
        }
      }
    }));
  }
  if (!flags.html_path.empty()) {
    status.Update(WriteFile(flags.html_path, [&](std::FILE* file) {
      absl::FPrintF(file, "%s", MakeHtmlReport(report, steps));
    }));
  }
  // Last, because its reader may be gone.
  if (flags.json_path == "-") {
    absl::PrintF("%s\n", json);
  } else {
    absl::PrintF("%s: model %s (%s) on %s, %s\n\n%s", flags.server.address,
                 model.name(), model.family(), server.device(),
                 plan.is_sweep() ? absl::StrCat(steps.size(), " steps")
                                 : StepLabel(steps.front().options),
                 Table(plan, steps));
  }
  status.Update(FlushStdout());
  return status;
}

}  // namespace recurve
