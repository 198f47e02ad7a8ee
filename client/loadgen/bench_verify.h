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

// Sends requests of a run again, one at a time, with nothing else sent beside
// them, and compares the tokens exactly: of a completed request all of them, of
// a cancelled one those that came. Takes `limit` of them, spread evenly over
// the run; failed requests and those without tokens are left out.
//
// The error is that of the first request that failed. `call` is for each of
// them.
absl::StatusOr<VerifyResult> VerifyAlone(RecurveClient* client,
                                         const Workload& workload,
                                         const BenchResult& result,
                                         uint64_t limit,
                                         const CallOptions& call);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_VERIFY_H_
