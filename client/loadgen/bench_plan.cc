#include "client/loadgen/bench_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/parse.h"
#include "client/loadgen/bench_flag_errors.h"
#include "client/loadgen/bench_sharing.h"
#include "client/loadgen/bench_sweep.h"
#include "client/loadgen/bench_trace.h"
#include "client/loadgen/bench_tree.h"

namespace recurve {
namespace {

constexpr uint64_t kDefaultRequests = 64;
constexpr absl::Duration kDefaultStepDuration = absl::Seconds(20);
constexpr uint32_t kDefaultConcurrency = 16;
// For an open loop without --max-concurrency, and for the branches of a closed
// one.
constexpr uint32_t kMostStreams = 10000;
constexpr size_t kMostCacheKeyBytes = 256;  // the proto's limit
constexpr uint32_t kOpenLoopConnections = 16;
// How many streams every server should accept on one connection: the minimum
// that HTTP/2 recommends.
constexpr uint32_t kStreamsPerConnection = 100;

absl::Status CheckPositive(absl::string_view flag,
                           const std::optional<double>& value) {
  if (!value.has_value() || (std::isfinite(*value) && *value > 0)) {
    return absl::OkStatus();
  }
  return RefuseFlag(flag, absl::StrCat(*value, " is not a number above 0"));
}

absl::Status SetWorkload(const BenchFlags& flags, WorkloadConfig* workload) {
  // Written so that NaN fails too.
  if (!(flags.cancel_fraction >= 0 && flags.cancel_fraction <= 1)) {
    return RefuseFlag("--cancel-fraction",
                      absl::StrCat(flags.cancel_fraction, " is not in 0 to 1"));
  }
  RECURVE_ASSIGN_OR_RETURN(
      workload->prompt_tokens,
      ParseLengthsFlag("--prompt-tokens",
                       flags.prompt_tokens.value_or("64:256")));
  RECURVE_ASSIGN_OR_RETURN(
      workload->output_tokens,
      ParseLengthsFlag("--output-tokens",
                       flags.output_tokens.value_or("16:128")));
  RECURVE_RETURN_IF_ERROR(SetSharing(flags, workload));
  if (!flags.trace_path.empty()) {
    if (flags.prompt_tokens.has_value() || flags.output_tokens.has_value()) {
      return RefuseFlag("--prompt-tokens and --output-tokens",
                        "not together with --trace, which has the lengths");
    }
    auto trace = ReadTrace(flags.trace_path);
    if (!trace.ok()) return NameFlag("--trace", trace.status());
    workload->trace =
        std::make_shared<const std::vector<TraceEntry>>(*std::move(trace));
  }
  workload->ignore_eos = !flags.no_ignore_eos;
  workload->cancel_fraction = flags.cancel_fraction;
  workload->temperature = flags.temperature;
  workload->seed = flags.seed;
  if (!IsProtobufString(flags.cache_key)) {
    return RefuseFlag("--cache-key", "the text is not valid UTF-8");
  }
  if (flags.cache_key.size() > kMostCacheKeyBytes) {
    return RefuseFlag("--cache-key",
                      absl::StrCat(flags.cache_key.size(), " bytes are above ",
                                   kMostCacheKeyBytes));
  }
  workload->cache_key = flags.cache_key;
  return absl::OkStatus();
}

// Checks that at most one flag selects the kind of load.
absl::Status CheckMode(const BenchFlags& flags) {
  std::vector<std::string> modes;
  if (flags.concurrency.has_value()) modes.push_back("--concurrency");
  if (flags.rate.has_value()) modes.push_back("--rate");
  if (!flags.trace_path.empty()) modes.push_back("--trace");
  if (!flags.sweep_rates.empty()) modes.push_back("--sweep-rates");
  if (!flags.sweep_concurrency.empty()) modes.push_back("--sweep-concurrency");
  if (modes.size() > 1) {
    return RefuseFlag(
        modes[0],
        absl::StrCat("not together with ", modes[1],
                     flags.concurrency.has_value()
                         ? "; --max-concurrency bounds the streams of --rate, "
                           "--trace and --sweep-rates"
                         : ""));
  }
  const bool by_rate = flags.rate.has_value() || !flags.sweep_rates.empty();
  if (!by_rate && !flags.arrivals.empty()) {
    return RefuseFlag("--arrivals", "needs --rate or --sweep-rates");
  }
  if (!by_rate && flags.burstiness.has_value()) {
    return RefuseFlag("--burstiness", "needs --rate or --sweep-rates");
  }
  if (flags.burstiness.has_value() && !flags.arrivals.empty() &&
      flags.arrivals != "bursty") {
    return RefuseFlag(
        "--burstiness",
        absl::StrCat("not together with --arrivals ", flags.arrivals));
  }
  if (!by_rate && flags.trace_path.empty() &&
      flags.max_concurrency.has_value()) {
    return RefuseFlag(
        "--max-concurrency",
        "needs --rate, --trace or --sweep-rates; a closed loop has "
        "--concurrency");
  }
  if (flags.trace_path.empty() && flags.trace_speed.has_value()) {
    return RefuseFlag("--trace-speed", "needs --trace");
  }
  if (flags.sweep_rates.empty() && flags.sweep_refine.has_value()) {
    return RefuseFlag("--sweep-refine", "needs --sweep-rates");
  }
  return absl::OkStatus();
}

absl::Status SetArrivals(const BenchFlags& flags, BenchPlan* plan) {
  RECURVE_RETURN_IF_ERROR(CheckPositive("--rate", flags.rate));
  RECURVE_RETURN_IF_ERROR(CheckPositive("--trace-speed", flags.trace_speed));
  if (flags.burstiness.has_value() &&
      !(*flags.burstiness >= 0.01 && *flags.burstiness <= 1000)) {
    return RefuseFlag("--burstiness", absl::StrCat(*flags.burstiness,
                                                   " is not in 0.01 to 1000"));
  }
  if (!flags.sweep_rates.empty()) {
    auto rates = ParseRates(flags.sweep_rates);
    if (!rates.ok()) return NameFlag("--sweep-rates", rates.status());
    plan->sweep_rates = *std::move(rates);
    plan->sweep_refine = flags.sweep_refine.value_or(0);
  }
  if (!flags.sweep_concurrency.empty()) {
    auto streams = ParseConcurrencies(flags.sweep_concurrency);
    if (!streams.ok()) return NameFlag("--sweep-concurrency", streams.status());
    plan->sweep_concurrency = *std::move(streams);
  }
  const bool open = flags.rate.has_value() || !plan->sweep_rates.empty() ||
                    plan->workload.trace != nullptr;
  if (!open) return absl::OkStatus();
  ArrivalConfig arrivals;
  arrivals.rate = flags.rate.value_or(0);
  arrivals.constant = flags.arrivals == "constant";
  // Bursts that clearly differ from a Poisson process: twice its variation of
  // the gaps.
  arrivals.burstiness =
      flags.burstiness.value_or(flags.arrivals == "bursty" ? 0.25 : 1);
  arrivals.seed = flags.seed;
  arrivals.trace = plan->workload.trace;
  arrivals.trace_speed = flags.trace_speed.value_or(1);
  plan->options.arrivals = std::move(arrivals);
  return absl::OkStatus();
}

// Called after SetArrivals.
absl::Status SetLimits(const BenchFlags& flags, BenchPlan* plan) {
  BenchOptions* const options = &plan->options;
  if (flags.num_requests == uint64_t{0} || flags.max_errors < 1) {
    return RefuseFlag(flags.max_errors < 1 ? "--max-errors" : "--num-requests",
                      "0 is below the least, 1");
  }
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
  if (flags.think_time_seconds.has_value()) {
    RECURVE_ASSIGN_OR_RETURN(
        options->think_time,
        SecondsFromZero("--think-time", *flags.think_time_seconds));
  }
  if (flags.num_requests.has_value()) {
    options->num_requests = *flags.num_requests;
  } else if (plan->workload.trace != nullptr) {
    // The whole trace, up to --duration.
    options->num_requests = plan->workload.trace->size();
  } else if (!flags.duration_seconds.has_value()) {
    if (plan->is_sweep()) {
      options->start_for = kDefaultStepDuration;
    } else {
      options->num_requests = kDefaultRequests;
    }
  }
  return absl::OkStatus();
}

absl::Status SetStreams(const BenchFlags& flags, BenchPlan* plan) {
  std::optional<uint64_t> most_open;
  if (plan->options.arrivals.has_value()) {
    plan->max_concurrency = flags.max_concurrency;
    plan->options.concurrency = flags.max_concurrency.value_or(kMostStreams);
    most_open = flags.max_concurrency;
  } else {
    plan->options.concurrency =
        plan->sweep_concurrency.empty()
            ? flags.concurrency.value_or(kDefaultConcurrency)
            : plan->sweep_concurrency.back();
    plan->max_concurrency = plan->options.concurrency;
    const uint64_t leaves = RequestTree::CountLeaves(
        plan->workload.branches, plan->workload.branch_levels);
    most_open = leaves * plan->options.concurrency;
    if (leaves > 1 && *most_open > kMostStreams) {
      return RefuseFlag(
          plan->sweep_concurrency.empty() ? "--concurrency"
                                          : "--sweep-concurrency",
          absl::StrCat(plan->options.concurrency, " trees of ", leaves,
                       " branches at a time are ", *most_open,
                       " streams, above ", kMostStreams));
    }
  }
  plan->connections = flags.connections;
  if (plan->connections == 0) {
    plan->connections =
        most_open.has_value()
            ? (*most_open + kStreamsPerConnection - 1) / kStreamsPerConnection
            : kOpenLoopConnections;
  }
  return absl::OkStatus();
}

absl::Status SetVerify(const BenchFlags& flags, BenchPlan* plan) {
  if (flags.verify.empty()) return absl::OkStatus();
  if (flags.verify == "all") {
    plan->verify = std::numeric_limits<uint64_t>::max();
    return absl::OkStatus();
  }
  const bool digits =
      flags.verify.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || !absl::SimpleAtoi(flags.verify, &plan->verify) ||
      plan->verify < 1) {
    return RefuseFlag("--verify", absl::StrCat("'", flags.verify,
                                               "' is not all or a number of "
                                               "requests of 1 or more"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BenchPlan> MakeBenchPlan(const BenchFlags& flags) {
  BenchPlan plan;
  RECURVE_RETURN_IF_ERROR(CheckMode(flags));
  RECURVE_RETURN_IF_ERROR(SetWorkload(flags, &plan.workload));
  RECURVE_RETURN_IF_ERROR(SetArrivals(flags, &plan));
  RECURVE_RETURN_IF_ERROR(SetLimits(flags, &plan));
  RECURVE_RETURN_IF_ERROR(SetStreams(flags, &plan));
  RECURVE_RETURN_IF_ERROR(SetVerify(flags, &plan));
  auto level = ParseServiceLevel(flags.goodput);
  if (!level.ok()) return NameFlag("--goodput", level.status());
  plan.service_level = *level;
  for (const auto& [flag, path] :
       {std::make_pair("--requests-jsonl", flags.requests_path),
        std::make_pair("--html", flags.html_path)}) {
    if (path == "-") {
      return RefuseFlag(flag,
                        "needs the name of a file; standard output is for the "
                        "report");
    }
  }
  plan.warmup = flags.warmup;
  return plan;
}

}  // namespace recurve
