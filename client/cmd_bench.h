#ifndef RECURVE_CLIENT_CMD_BENCH_H_
#define RECURVE_CLIENT_CMD_BENCH_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/bench_runner.h"
#include "client/bench_workload.h"
#include "client/command.h"

namespace recurve {

// The flags of `recurve-client bench`; what the user left out is empty.
struct BenchFlags {
  ServerFlags server;
  uint32_t concurrency = 16;
  uint32_t connections = 0;  // 0: one for each 100 streams
  std::optional<uint64_t> num_requests;
  std::optional<double> duration_seconds;
  std::optional<double> timeout_seconds;
  uint64_t max_errors = 1000;
  uint64_t warmup = 0;
  std::string prompt_tokens = "64:256";
  std::string output_tokens = "16:128";
  bool no_ignore_eos = false;
  uint64_t seed = 0;
  double cancel_fraction = 0;
  std::optional<float> temperature;
  std::string json_path;
  std::string requests_path;
};

struct BenchPlan {
  WorkloadConfig workload;
  BenchOptions options;
  uint64_t warmup = 0;
  uint32_t connections = 1;
};

// InvalidArgument names the flag.
absl::StatusOr<BenchPlan> MakeBenchPlan(const BenchFlags& flags);

}  // namespace recurve

#endif  // RECURVE_CLIENT_CMD_BENCH_H_
