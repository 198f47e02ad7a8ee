#include "client/loadgen/bench_sweep.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr size_t kMostSteps = 100;
constexpr double kFailedShare = 0.05;
constexpr double kGrowthShare = 0.1;
// Fewer are inconclusive.
constexpr double kLeastArrivals = 10;

// Statuses by which an overloaded server, or a proxy in front of it, fails a
// request. Others would occur at a lower rate too: UNAVAILABLE, for example, is
// a server that is down or draining.
bool FailedForLoad(const RequestRecord& record) {
  return record.outcome == Outcome::kFailed &&
         (absl::IsResourceExhausted(record.status) ||
          absl::IsDeadlineExceeded(record.status));
}

// Why the server cannot sustain the rate, if it cannot.
std::optional<std::string> FindSaturation(const BenchResult& result) {
  if (result.records.empty()) return std::nullopt;
  double sending = 0;
  double failed = 0;
  const auto due = [](const RequestRecord& record) {
    return record.start_seconds - record.send_lag_ms / 1000;
  };
  for (const RequestRecord& record : result.records) {
    sending = std::max(sending, due(record));
    failed += FailedForLoad(record) ? 1 : 0;
  }
  const double share = failed / static_cast<double>(result.records.size());
  if (share > kFailedShare) {
    return absl::StrFormat("%.0f%% of the requests failed", 100 * share);
  }
  double arrived = 0;
  double ended = 0;
  for (const RequestRecord& record : result.records) {
    const double end = record.start_seconds + record.latency.e2el_ms / 1000;
    arrived += due(record) > sending / 2 ? 1 : 0;
    ended += end > sending / 2 && end <= sending ? 1 : 0;
  }
  const double growth = arrived - ended;
  if (arrived >= kLeastArrivals && growth > kGrowthShare * arrived &&
      growth > 2 * std::sqrt(arrived)) {
    return absl::StrFormat(
        "%.0f requests arrived and %.0f ended in the second half of the "
        "sending time",
        arrived, ended);
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::vector<double>> ParseRates(absl::string_view text) {
  const bool doubling = text.find(':') != absl::string_view::npos;
  std::vector<double> rates;
  for (const absl::string_view item :
       absl::StrSplit(text, doubling ? ':' : ',')) {
    double rate = 0;
    if (!absl::SimpleAtod(item, &rate) || !std::isfinite(rate) || rate <= 0 ||
        (!rates.empty() && rate <= rates.back())) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", item, "' in '", text,
                       "' is not a number above 0 and above the one before"));
    }
    rates.push_back(rate);
  }
  if (doubling) {
    if (rates.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is not FROM:TO"));
    }
    const double last = rates[1];
    rates.pop_back();
    // The small term absorbs rounding when TO is FROM times a power of 2.
    while (rates.size() <= kMostSteps &&
           rates.back() * 2 <= last * (1 + 1e-9)) {
      rates.push_back(rates.back() * 2);
    }
  }
  if (rates.size() > kMostSteps) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' has more than ", kMostSteps, " steps"));
  }
  return rates;
}

absl::StatusOr<std::vector<uint32_t>> ParseConcurrencies(
    absl::string_view text) {
  RECURVE_ASSIGN_OR_RETURN(const std::vector<double> values, ParseRates(text));
  std::vector<uint32_t> result;
  for (const double value : values) {
    if (value > 10000 || value < 1 || value != std::floor(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(value, " in '", text,
                       "' is not a whole number of streams from 1 to 10000"));
    }
    result.push_back(static_cast<uint32_t>(value));
  }
  return result;
}

Verdict Judge(const BenchResult& result) {
  // The requests in flight are missing.
  if (result.stopped) return {std::nullopt, "the step was interrupted"};
  uint64_t faults = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  for (const RequestRecord& record : result.records) {
    if (record.outcome != Outcome::kFailed || FailedForLoad(record)) continue;
    if (faults++ == 0) code = record.status.code();
  }
  if (faults > 0) {
    return {std::nullopt, absl::StrCat(faults, " of ", result.records.size(),
                                       " requests failed, and not for load (",
                                       absl::StatusCodeToString(code), ")")};
  }
  std::optional<std::string> reason = FindSaturation(result);
  if (reason.has_value()) return {true, *std::move(reason)};
  if (result.gave_up) return {std::nullopt, "the step reached --max-errors"};
  return {};
}

std::optional<double> MaxSustainedRate(const std::vector<SweepPoint>& points) {
  double lowest_saturated = HUGE_VAL;
  for (const SweepPoint& point : points) {
    if (point.saturated) {
      lowest_saturated = std::min(lowest_saturated, point.rate);
    }
  }
  std::optional<double> best;
  for (const SweepPoint& point : points) {
    if (point.rate < lowest_saturated && point.rate > best.value_or(0)) {
      best = point.rate;
    }
  }
  return best;
}

std::optional<double> RateBetween(const std::vector<SweepPoint>& points) {
  const std::optional<double> sustained = MaxSustainedRate(points);
  std::optional<double> saturated;
  for (const SweepPoint& point : points) {
    if (point.saturated && point.rate < saturated.value_or(HUGE_VAL)) {
      saturated = point.rate;
    }
  }
  if (!sustained.has_value() || !saturated.has_value()) return std::nullopt;
  const double between = std::sqrt(*sustained * *saturated);
  // Rounded to three significant places for readability, unless the two ends
  // are closer than that.
  const double unit = std::pow(10, std::floor(std::log10(between)) - 2);
  const double rounded = std::round(between / unit) * unit;
  return rounded > *sustained && rounded < *saturated ? rounded : between;
}

}  // namespace recurve
