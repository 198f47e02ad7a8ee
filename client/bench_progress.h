#ifndef RECURVE_CLIENT_BENCH_PROGRESS_H_
#define RECURVE_CLIENT_BENCH_PROGRESS_H_

#include <cstdio>
#include <string>

#include "client/bench_runner.h"

namespace recurve {

// Shows how a bench goes: on a terminal one line that is rewritten, elsewhere a
// new line every five seconds.
// Thread safety: none.
class ProgressLine {
 public:
  // `total` is what "done" counts up to, in words: "64", or "?".
  ProgressLine(std::FILE* out, bool is_terminal, std::string total);

  // Writes if it is time to.
  void Update(const BenchProgress& progress);

  // Ends a line that is being rewritten.
  void Finish();

 private:
  std::FILE* const out_;
  const bool is_terminal_;
  const std::string total_;
  double last_seconds_ = 0;
  bool line_open_ = false;
};

// "12.5 s: 40/64 done, 16 running, 1234 tokens/s, 0 errors"
std::string FormatProgress(const BenchProgress& progress,
                           const std::string& total);

}  // namespace recurve

#endif  // RECURVE_CLIENT_BENCH_PROGRESS_H_
