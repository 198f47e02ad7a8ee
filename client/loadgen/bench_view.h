#ifndef RECURVE_CLIENT_LOADGEN_BENCH_VIEW_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_VIEW_H_

#include <deque>
#include <string>
#include <vector>

#include "client/loadgen/bench_runner.h"

namespace recurve {

// What a terminal shows while a bench runs: a few lines of the same number
// every time.
// Thread safety: none.
class LiveView {
 public:
  // `total` is what "done" counts up to, in words: "64", or "?".
  explicit LiveView(std::string total);

  // Lines without newlines, each at most 79 characters wide. Rates are since
  // the call before; latencies of the last requests that completed.
  std::vector<std::string> Lines(const BenchProgress& progress);

 private:
  const std::string total_;
  double last_seconds_ = 0;
  uint64_t last_tokens_ = 0;
  std::deque<double> rates_;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_VIEW_H_
