#ifndef RECURVE_CLIENT_LOADGEN_BENCH_TRACE_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// One request of a recorded load.
struct TraceEntry {
  double seconds = 0;  // since the first request
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
};

// Reads lines of JSON, one object for each request:
//   {"timestamp": 12.25, "prompt_tokens": 310, "output_tokens": 42}
// The timestamp is in seconds from any origin; lines may be in any order and
// may have other keys. The result is sorted by time, begins at 0 and has at
// least one entry. InvalidArgument names the line and the key.
absl::StatusOr<std::vector<TraceEntry>> ParseTrace(absl::string_view text);

// ParseTrace of a file; "-" is standard input.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_TRACE_H_
