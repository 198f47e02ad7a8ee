#include "client/loadgen/bench_progress.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace recurve {
namespace {

constexpr double kTerminalSeconds = 0.25;
constexpr double kLogSeconds = 5;

}  // namespace

ProgressLine::ProgressLine(std::FILE* out, bool is_terminal, std::string total)
    : out_(out),
      is_terminal_(is_terminal),
      total_(std::move(total)),
      view_(total_) {}

void ProgressLine::Update(const BenchProgress& progress) {
  const double interval = is_terminal_ ? kTerminalSeconds : kLogSeconds;
  if (progress.elapsed_seconds - last_seconds_ < interval) return;
  last_seconds_ = progress.elapsed_seconds;
  if (!is_terminal_) {
    std::fprintf(out_, "%s\n", FormatProgress(progress, total_).c_str());
  } else {
    const std::vector<std::string> lines = view_.Lines(progress);
    std::string text = ToFirstLine();
    // "\033[K" clears the rest of a longer previous line.
    for (const std::string& line : lines) {
      absl::StrAppend(&text, line, "\033[K\n");
    }
    std::fputs(text.c_str(), out_);
    lines_open_ = lines.size();
  }
  std::fflush(out_);
}

std::string ProgressLine::ToFirstLine() const {
  return lines_open_ == 0 ? "" : absl::StrCat("\033[", lines_open_, "A\r");
}

void ProgressLine::Finish() {
  if (lines_open_ == 0) return;
  // "\033[J" clears from there to the end of the screen.
  std::fprintf(out_, "%s\033[J", ToFirstLine().c_str());
  std::fflush(out_);
  lines_open_ = 0;
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
