#ifndef RECURVE_CLIENT_LOADGEN_BENCH_VIEW_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_VIEW_H_

#include <deque>
#include <string>
#include <vector>

#include "client/loadgen/bench_runner.h"

namespace recurve {

// The live display of a bench on a terminal: a constant number of lines.
// Thread safety: none.
class LiveView {
 public:
  // `total` is the target of "done", in words: "64", or "?".
  explicit LiveView(std::string total);

  // Lines without newlines, each at most 79 characters wide. Rates are since
  // the previous call; latencies are those of the most recently completed
  // requests.
  std::vector<std::string> Lines(const BenchProgress& progress);

 private:
  const std::string total_;
  double last_seconds_ = 0;
  uint64_t last_tokens_ = 0;
  std::deque<double> rates_;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_VIEW_H_
