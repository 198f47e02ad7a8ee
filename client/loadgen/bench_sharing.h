#ifndef RECURVE_CLIENT_LOADGEN_BENCH_SHARING_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_SHARING_H_

#include <string>

#include "absl/status/status.h"
#include "client/loadgen/bench_plan.h"
#include "client/loadgen/bench_workload.h"

namespace recurve {

// What the prompts of a load have in common:
//   random         nothing
//   prefixes       each has the prefix of its group
//   conversations  each turn goes on from the turn before
//   agents         all trees have one prefix; branches go on from their
//                  parent's context

// The value of --workload. Without it: conversations with --turns, else random.
std::string WorkloadName(const BenchFlags& flags);

// Sets prefix groups, turns and branches. REQUIRES: prompt_tokens is set.
// InvalidArgument names the flag, its value and the limit or the flag that it
// needs.
absl::Status SetSharing(const BenchFlags& flags, WorkloadConfig* workload);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_SHARING_H_
