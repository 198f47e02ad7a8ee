#ifndef RECURVE_CLIENT_LOADGEN_BENCH_VERIFY_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_VERIFY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/loadgen/bench_runner.h"

namespace recurve {

struct VerifyResult {
  uint64_t checked = 0;
  // One line each: which request, and where it differs.
  std::vector<std::string> mismatches;
};

// Repeats requests of a run, one at a time with no other load, and compares the
// tokens exactly: all tokens of a completed request, the received ones of a
// cancelled request. Takes `limit` of them, spread evenly over the run; failed
// requests and those without tokens are excluded.
//
// Returns the error of the first request that failed. `call` applies to each.
absl::StatusOr<VerifyResult> VerifyAlone(RecurveClient* client,
                                         const Workload& workload,
                                         const BenchResult& result,
                                         uint64_t limit,
                                         const CallOptions& call);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_VERIFY_H_
