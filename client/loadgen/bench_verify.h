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
  // The ones that hit the prefix cache under load.
  uint64_t hits = 0;
  // One line each: which request, and where it differs.
  std::vector<std::string> mismatches;
};

// Repeats requests of a run cold and compares the tokens exactly: all tokens of
// a completed request, the received ones of a cancelled request. Cold means one
// at a time with no other load, and each with a cache_key that no other request
// has, so that the server computes its whole prompt. Takes `limit` of them:
// those that hit the prefix cache first, then the others, both spread evenly
// over the run; failed requests and those without tokens are excluded.
//
// Returns the error of the first request that failed, and FailedPrecondition if
// the server took tokens of a repeated prompt from its cache. `call` applies to
// each.
absl::StatusOr<VerifyResult> VerifyAlone(RecurveClient* client,
                                         const Workload& workload,
                                         const BenchResult& result,
                                         uint64_t limit,
                                         const CallOptions& call);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_VERIFY_H_
