#include "client/bench_progress.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace recurve {
namespace {

constexpr double kTerminalSeconds = 0.25;
constexpr double kLogSeconds = 5;

}  // namespace

ProgressLine::ProgressLine(std::FILE* out, bool is_terminal, std::string total)
    : out_(out), is_terminal_(is_terminal), total_(std::move(total)) {}

void ProgressLine::Update(const BenchProgress& progress) {
  const double interval = is_terminal_ ? kTerminalSeconds : kLogSeconds;
  if (progress.elapsed_seconds - last_seconds_ < interval) return;
  last_seconds_ = progress.elapsed_seconds;
  const std::string line = FormatProgress(progress, total_);
  // "\033[K" clears what a longer line before left behind.
  std::fprintf(out_, is_terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
  std::fflush(out_);
  line_open_ = is_terminal_;
}

void ProgressLine::Finish() {
  if (line_open_) std::fputc('\n', out_);
  line_open_ = false;
}

std::string FormatProgress(const BenchProgress& progress,
                           const std::string& total) {
  const double rate = progress.elapsed_seconds > 0
                          ? static_cast<double>(progress.output_tokens) /
                                progress.elapsed_seconds
                          : 0;
  return absl::StrFormat(
      "%.1f s: %d/%s done, %d running, %.0f tokens/s, %d errors",
      progress.elapsed_seconds, progress.ended, total, progress.running, rate,
      progress.failed);
}

}  // namespace recurve
