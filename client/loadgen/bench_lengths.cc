#include "client/loadgen/bench_lengths.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "client/cli/parse.h"

namespace recurve {
namespace {

// For a zipf distribution: its table has 8 bytes for each length.
constexpr uint32_t kMostZipfLengths = 1 << 20;

constexpr char kForms[] =
    "N, MIN:MAX, normal:MEAN:STD:MIN:MAX, lognormal:MEDIAN:SIGMA:MIN:MAX, "
    "zipf:S:MIN:MAX or file:PATH";

bool IsPositive(absl::string_view text, double* value) {
  return absl::SimpleAtod(text, value) && std::isfinite(*value) && *value > 0;
}

}  // namespace

LengthDistribution::LengthDistribution(uint32_t min, uint32_t max)
    : min_(min),
      max_(max),
      text_(min == max ? absl::StrCat(min) : absl::StrCat(min, ":", max)) {
  RECURVE_CHECK(1 <= min && min <= max);
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(
    absl::string_view text) {
  if (absl::StartsWith(text, "file:")) {
    return ReadLengths(std::string(text.substr(5)));
  }
  if (!text.empty() && absl::ascii_isalpha(text[0])) return ParseNamed(text);
  RECURVE_ASSIGN_OR_RETURN(const CountRange range, ParseCountRange(text));
  return LengthDistribution(range.min, range.max);
}

absl::StatusOr<LengthDistribution> LengthDistribution::ParseNamed(
    absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const bool zipf = parts[0] == "zipf";
  const bool normal = parts[0] == "normal";
  const bool lognormal = parts[0] == "lognormal";
  const size_t expected = zipf ? 4 : normal || lognormal ? 5 : 0;
  double first = 0;
  double second = 0;
  if (parts.size() != expected || !IsPositive(parts[1], &first) ||
      (!zipf && !IsPositive(parts[2], &second))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is none of ", kForms, " with numbers above 0"));
  }
  RECURVE_ASSIGN_OR_RETURN(const CountRange range,
                           ParseCountRange(absl::StrCat(
                               parts[expected - 2], ":", parts[expected - 1])));
  LengthDistribution result(range.min, range.max);
  result.text_ = std::string(text);
  if (!zipf) {
    result.kind_ = normal ? Kind::kNormal : Kind::kLognormal;
    result.location_ = normal ? first : std::log(first);
    result.spread_ = second;
    return result;
  }
  if (range.max - range.min >= kMostZipfLengths) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' has ", uint64_t{range.max} - range.min + 1,
        " lengths; a zipf distribution takes at most ", kMostZipfLengths));
  }
  result.kind_ = Kind::kZipf;
  std::vector<double> cumulative;
  double sum = 0;
  for (uint32_t rank = 1; rank <= range.max - range.min + 1; ++rank) {
    sum += std::pow(rank, -first);
    cumulative.push_back(sum);
  }
  for (double& value : cumulative) value /= sum;
  result.cumulative_ =
      std::make_shared<const std::vector<double>>(std::move(cumulative));
  return result;
}

absl::StatusOr<LengthDistribution> LengthDistribution::ReadLengths(
    const std::string& path) {
  RECURVE_ASSIGN_OR_RETURN(const std::string content, ReadTextFile(path));
  std::vector<uint32_t> lengths;
  uint64_t line_number = 0;
  for (const absl::string_view line : absl::StrSplit(content, '\n')) {
    ++line_number;
    const absl::string_view trimmed = absl::StripAsciiWhitespace(line);
    if (trimmed.empty()) continue;
    const auto range = ParseCountRange(trimmed);
    if (!range.ok() || range->min != range->max) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "' line ", line_number, ": '", trimmed,
                       "' is not a length of 1 or more"));
    }
    lengths.push_back(range->min);
  }
  if (lengths.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' has no lengths; one a line is expected"));
  }
  const auto ends = std::minmax_element(lengths.begin(), lengths.end());
  LengthDistribution result(*ends.first, *ends.second);
  result.kind_ = Kind::kFile;
  result.text_ = absl::StrCat("file:", path);
  result.lengths_ =
      std::make_shared<const std::vector<uint32_t>>(std::move(lengths));
  return result;
}

uint32_t LengthDistribution::Draw(BenchDraws* draws) const {
  double value = 0;
  switch (kind_) {
    case Kind::kUniform:
      return draws->In(min_, max_);
    case Kind::kFile:
      return (*lengths_)[draws->Below(static_cast<uint32_t>(lengths_->size()))];
    case Kind::kZipf: {
      const auto found = std::upper_bound(cumulative_->begin(),
                                          cumulative_->end(), draws->Unit());
      // The last weight may have been rounded to just below 1.
      return std::min(
          max_, min_ + static_cast<uint32_t>(found - cumulative_->begin()));
    }
    case Kind::kNormal:
      value = location_ + spread_ * draws->Normal();
      break;
    case Kind::kLognormal:
      value = std::exp(location_ + spread_ * draws->Normal());
      break;
  }
  // Clamped before the conversion to an integer, which could overflow.
  return static_cast<uint32_t>(
      std::round(std::clamp<double>(value, min_, max_)));
}

}  // namespace recurve
