#include "client/loadgen/bench_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/cli/parse.h"

namespace recurve {
namespace {

// Thirty years, well within the runner's clock, which counts nanoseconds.
constexpr double kMaxTraceSeconds = 1e9;

// The error in the line; empty if it is an entry.
std::string ParseEntry(absl::string_view line, TraceEntry* entry) {
  const auto json = nlohmann::json::parse(line.begin(), line.end(), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object()) return "is not a JSON object";
  const auto timestamp = json.find("timestamp");
  if (timestamp == json.end() || !timestamp->is_number() ||
      !std::isfinite(timestamp->get<double>())) {
    return "'timestamp' is not a number of seconds";
  }
  entry->seconds = timestamp->get<double>();
  const auto count = [&](const char* key, uint32_t* value) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned()) return false;
    const uint64_t number = found->get<uint64_t>();
    *value = static_cast<uint32_t>(number);
    return number >= 1 && number <= std::numeric_limits<uint32_t>::max();
  };
  constexpr char kNotACount[] = " is not a whole number of 1 or more";
  if (!count("prompt_tokens", &entry->prompt_tokens)) {
    return absl::StrCat("'prompt_tokens'", kNotACount);
  }
  if (!count("output_tokens", &entry->output_tokens)) {
    return absl::StrCat("'output_tokens'", kNotACount);
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<TraceEntry>> ParseTrace(absl::string_view text) {
  std::vector<TraceEntry> trace;
  uint64_t line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    TraceEntry entry;
    const std::string error = ParseEntry(line, &entry);
    if (!error.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", line_number, " ", error));
    }
    trace.push_back(entry);
  }
  if (trace.empty()) {
    return absl::InvalidArgumentError(
        "has no requests; expected lines like {\"timestamp\": 0.5, "
        "\"prompt_tokens\": 100, \"output_tokens\": 20}");
  }
  std::stable_sort(trace.begin(), trace.end(),
                   [](const TraceEntry& a, const TraceEntry& b) {
                     return a.seconds < b.seconds;
                   });
  const double origin = trace.front().seconds;
  const double last = trace.back().seconds;
  if (last - origin > kMaxTraceSeconds) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "has timestamps from %g to %g; expected at most %g seconds between "
        "them",
        origin, last, kMaxTraceSeconds));
  }
  for (TraceEntry& entry : trace) entry.seconds -= origin;
  return trace;
}

absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path) {
  RECURVE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  auto trace = ParseTrace(text);
  if (trace.ok()) return trace;
  return absl::InvalidArgumentError(
      absl::StrCat("'", path, "' ", trace.status().message()));
}

}  // namespace recurve
