#ifndef RECURVE_CLIENT_LOADGEN_BENCH_PROGRESS_H_
#define RECURVE_CLIENT_LOADGEN_BENCH_PROGRESS_H_

#include <cstdio>
#include <string>

#include "client/loadgen/bench_runner.h"
#include "client/loadgen/bench_view.h"

namespace recurve {

// Shows the progress of a bench: on a terminal a few lines that are rewritten
// (see LiveView), elsewhere a new line every five seconds.
// Thread safety: none.
class ProgressLine {
 public:
  // `total` is the target of "done", in words: "64", or "?".
  ProgressLine(std::FILE* out, bool is_terminal, std::string total);

  // Writes if an update is due.
  void Update(const BenchProgress& progress);

  // Removes the lines that are being rewritten.
  void Finish();

 private:
  std::string ToFirstLine() const;

  std::FILE* const out_;
  const bool is_terminal_;
  const std::string total_;
  LiveView view_;
  double last_seconds_ = 0;
  size_t lines_open_ = 0;
};

// "12.5 s: 40/64 done, 16 running, 1234 tokens/s, 0 errors"
std::string FormatProgress(const BenchProgress& progress,
                           const std::string& total);

}  // namespace recurve

#endif  // RECURVE_CLIENT_LOADGEN_BENCH_PROGRESS_H_
