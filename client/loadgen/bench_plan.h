#ifndef RECURVE_CLIENT_LOADGEN_BENCH_PLAN_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_PLAN_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/command.h"
#include "client/loadgen/bench_goodput.h"
#include "client/loadgen/bench_runner.h"
#include "client/loadgen/bench_workload.h"

namespace recurve {

// The flags of `recurve-client bench`; omitted flags are empty.
struct BenchFlags {
  ServerFlags server;
  // Load.
  std::optional<uint32_t> concurrency;
  std::optional<double> rate;
  std::string arrivals;  // "", "constant", "poisson" or "bursty"
  std::optional<double> burstiness;
  std::optional<uint32_t> max_concurrency;
  std::string trace_path;
  std::optional<double> trace_speed;
  std::string sweep_rates;
  std::string sweep_concurrency;
  std::optional<uint32_t> sweep_refine;
  uint32_t connections = 0;  // 0: as many as the streams need
  std::optional<uint64_t> num_requests;
  std::optional<double> duration_seconds;
  std::optional<double> timeout_seconds;
  uint64_t max_errors = 1000;
  uint64_t warmup = 0;
  // Requests.
  std::optional<std::string> prompt_tokens;
  std::optional<std::string> output_tokens;
  std::string workload;  // "", "random", "prefixes", "conversations", "agents"
  std::string turns;
  std::string turn_tokens;
  std::optional<uint32_t> prefix_groups;
  std::string prefix_tokens;
  std::optional<uint32_t> branches;
  std::optional<uint32_t> branch_levels;
  bool snapshot_prefix = false;
  std::string cache_key;
  std::optional<double> think_time_seconds;
  bool no_ignore_eos = false;
  uint64_t seed = 0;
  double cancel_fraction = 0;
  std::optional<float> temperature;
  // Judgement and output.
  std::vector<std::string> goodput;
  std::string verify;  // "", "all" or a number
  std::string json_path;
  std::string requests_path;
  std::string html_path;
  bool explain = false;
};

struct BenchPlan {
  WorkloadConfig workload;
  // For each run; a sweep sets the rate or the concurrency itself.
  BenchOptions options;
  // The limit on streams, if any.
  std::optional<uint32_t> max_concurrency;
  uint64_t warmup = 0;
  uint32_t connections = 1;
  // In a sweep, one of the two is not empty.
  std::vector<double> sweep_rates;
  std::vector<uint32_t> sweep_concurrency;
  uint32_t sweep_refine = 0;
  ServiceLevel service_level;
  // How many requests of each run to repeat alone.
  uint64_t verify = 0;

  bool is_sweep() const {
    return !sweep_rates.empty() || !sweep_concurrency.empty();
  }
};

// Reads the files that flags name. InvalidArgument or NotFound; the message
// names the flag.
absl::StatusOr<BenchPlan> MakeBenchPlan(const BenchFlags& flags);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_PLAN_H_
