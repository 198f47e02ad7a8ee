#include "client/loadgen/bench_goodput.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace recurve {

absl::StatusOr<ServiceLevel> ParseServiceLevel(
    const std::vector<std::string>& items) {
  ServiceLevel level;
  for (const std::string& item : items) {
    const size_t colon = item.find(':');
    const std::string name = item.substr(0, colon);
    std::optional<double>* const limit = name == "ttft"   ? &level.ttft_ms
                                         : name == "tpot" ? &level.tpot_ms
                                         : name == "e2el" ? &level.e2el_ms
                                                          : nullptr;
    double value = 0;
    if (limit == nullptr || colon == std::string::npos ||
        !absl::SimpleAtod(item.substr(colon + 1), &value) ||
        !std::isfinite(value) || value <= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", item,
          "' is not ttft:MS, tpot:MS or e2el:MS with milliseconds above 0"));
    }
    if (limit->has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", item, "' is the second limit on ", name));
    }
    *limit = value;
  }
  return level;
}

bool KeepsServiceLevel(const RequestLatency& latency,
                       const ServiceLevel& level) {
  const auto keeps = [](const std::optional<double>& value,
                        const std::optional<double>& limit) {
    return !value.has_value() || !limit.has_value() || *value <= *limit;
  };
  return keeps(latency.ttft_ms, level.ttft_ms) &&
         keeps(latency.tpot_ms, level.tpot_ms) &&
         keeps(latency.e2el_ms, level.e2el_ms);
}

}  // namespace recurve
