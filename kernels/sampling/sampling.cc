#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "kernels/sampling/sampling_weight.h"

namespace recurve {
namespace {

using Row = absl::Span<const float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A token with its rank in one integer: comparing keys compares ranks. The
// upper half is the logit's bits, mapped so that a larger logit is a smaller
// number; the lower half is the id.
uint64_t RankKey(float logit, int32_t id) {
  // Adding +0 turns -0 into +0: they are equal, so the id must decide.
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t order = (bits >> 31) != 0 ? bits : bits ^ 0x7fffffffu;
  return uint64_t{order} << 32 | static_cast<uint32_t>(id);
}
int32_t IdOf(uint64_t key) {
  return static_cast<int32_t>(static_cast<uint32_t>(key));
}
float LogitOf(uint64_t key) {
  const uint32_t order = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((order >> 31) != 0 ? order : order ^ 0x7fffffffu);
}

// Leaves the best `k` possible tokens in *keys, unordered; fewer if fewer
// exist. One pass: candidates collect in a buffer that is cut back to k
// whenever it fills; from then on only a larger logit than the k-th can matter
// (ids ascend, so a later equal ranks lower). REQUIRES: k >= 1.
void SelectBest(Row logits, size_t k, std::vector<uint64_t>* keys) {
  const size_t capacity = std::max<size_t>(2 * k, 1024);
  float cutoff = -kInfinity;
  keys->clear();
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!(logits[id] > cutoff)) continue;
    keys->push_back(RankKey(logits[id], static_cast<int32_t>(id)));
    if (keys->size() < capacity) continue;
    std::nth_element(keys->begin(), keys->begin() + (k - 1), keys->end());
    keys->resize(k);
    cutoff = LogitOf(keys->back());
  }
  if (keys->size() > k) {
    std::nth_element(keys->begin(), keys->begin() + (k - 1), keys->end());
    keys->resize(k);
  }
}

absl::Status CheckIds(absl::string_view what, absl::Span<const int32_t> ids,
                      size_t vocab) {
  for (int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= vocab) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, ": token id ", id, " is outside the vocabulary of ", vocab));
    }
  }
  return absl::OkStatus();
}

// Counts the tokens that penalties apply to: seen[id] is 1 plus its count in
// the output, or 0 for a token in neither list.
absl::Status CountTokens(const SampleInput& input, bool with_prompt,
                         SamplingScratch* scratch) {
  const size_t vocab = input.logits.size();
  if (with_prompt)
    RECURVE_RETURN_IF_ERROR(CheckIds("prompt", input.prompt, vocab));
  RECURVE_RETURN_IF_ERROR(CheckIds("output", input.output, vocab));
  if (scratch->seen.size() < vocab) scratch->seen.resize(vocab, 0);
  scratch->touched.clear();
  const auto touch = [scratch](int32_t id) {
    if (scratch->seen[id] != 0) return;
    scratch->seen[id] = 1;
    scratch->touched.push_back(id);
  };
  if (with_prompt) {
    for (int32_t id : input.prompt) touch(id);
  }
  for (int32_t id : input.output) {
    touch(id);
    ++scratch->seen[id];
  }
  return absl::OkStatus();
}

// Step 1 of the header: the logits after penalties and bias, or the input's own
// without any.
absl::StatusOr<Row> Adjust(const SampleInput& input, SamplingScratch* scratch) {
  const SamplingParams& params = *input.params;
  const bool repetition = params.repetition_penalty != 1;
  const bool penalties = HasPenalties(params);
  const bool masks = MasksTokens(params, input.index);
  if (!penalties && !masks && params.logit_bias.empty()) return input.logits;
  for (const auto& [id, bias] : params.logit_bias) {
    RECURVE_RETURN_IF_ERROR(CheckIds("logit_bias", {id}, input.logits.size()));
  }
  if (masks) {
    RECURVE_RETURN_IF_ERROR(
        CheckIds("masked", params.masked, input.logits.size()));
  }
  std::vector<float>& logits = scratch->logits;
  logits.assign(input.logits.begin(), input.logits.end());
  if (penalties) {
    RECURVE_RETURN_IF_ERROR(CountTokens(input, repetition, scratch));
    for (int32_t id : scratch->touched) {
      float l = logits[id];
      if (repetition) {
        l = l > 0 ? l / params.repetition_penalty
                  : l * params.repetition_penalty;
      }
      const uint32_t in_output = std::exchange(scratch->seen[id], 0) - 1;
      if (in_output > 0) {
        l -= params.presence_penalty;
        l -= params.frequency_penalty * static_cast<float>(in_output);
      }
      logits[id] = l;
    }
  }
  for (const auto& [id, bias] : params.logit_bias) logits[id] += bias;
  if (masks) {
    for (const int32_t id : params.masked) logits[id] = -kInfinity;
  }
  return Row(logits);
}

absl::Status NonFinite(Row logits) {
  for (size_t id = 0; id < logits.size(); ++id) {
    if (std::isnan(logits[id]) || logits[id] == kInfinity) {
      return absl::InternalError(
          absl::StrCat("non-finite logits: ", logits[id], " for token ", id));
    }
  }
  return absl::InternalError(absl::StrCat("non-finite logits: every one of ",
                                          logits.size(), " is -inf"));
}

// The largest logit's smallest id, in one pass that also checks the row: the
// comparison fails for NaN and +Inf too, and seldom for anything else.
absl::StatusOr<int32_t> ArgMax(Row logits) {
  float best = -kInfinity;
  int32_t best_id = -1;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] <= best) continue;
    if (!(logits[id] < kInfinity)) return NonFinite(logits);
    best = logits[id];
    best_id = static_cast<int32_t>(id);
  }
  if (best_id < 0) return NonFinite(logits);
  return best_id;
}

constexpr double kExpTable[kSampleExpEntries] = RECURVE_SAMPLE_EXP_TABLE;

// Step 4: weight of a logit relative to the best one.
struct Weigher {
  double max;
  double inverse_temperature;
  double Exact(float logit) const {
    return SampleExp((static_cast<double>(logit) - max) * inverse_temperature,
                     kExpTable);
  }
  uint64_t operator()(float logit) const { return SampleFixed(Exact(logit)); }
};

// Step 2, for `result->token` or a TokenScore's `token`.
template <typename Result>
void AddLogprobs(Row logits, float max, int32_t token, int32_t count,
                 SamplingScratch* scratch, Result* result) {
  const Weigher weigh = {max, 1.0};
  uint64_t sum = 0;
  for (float logit : logits) sum += weigh(logit);
  const double log_sum = SampleLogSum(max, sum);
  result->logprob = static_cast<float>(logits[token] - log_sum);
  if (count == 0) return;
  SelectBest(logits, count, &scratch->ranked);
  std::sort(scratch->ranked.begin(), scratch->ranked.end());
  result->top.reserve(scratch->ranked.size());
  for (uint64_t key : scratch->ranked) {
    result->top.emplace_back(IdOf(key),
                             static_cast<float>(LogitOf(key) - log_sum));
  }
}

absl::Status CheckRow(Row logits) {
  if (logits.empty()) {
    return absl::InvalidArgumentError("logits: the row is empty");
  }
  if (static_cast<int64_t>(logits.size()) > kMaxSampleVocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("logits: a row of ", logits.size(), "; at most ",
                     kMaxSampleVocab, " are supported"));
  }
  return absl::OkStatus();
}

uint64_t SumOf(absl::Span<const uint64_t> keys, const Weigher& weigh) {
  uint64_t sum = 0;
  for (uint64_t key : keys) sum += weigh(LogitOf(key));
  return sum;
}

// Reduces *keys, in any order, to its shortest prefix in rank order whose
// weights sum to `threshold`; to all if none does. Halves the range that holds
// the prefix's end instead of sorting a whole vocabulary. REQUIRES: *keys is
// not empty.
void CutAt(uint64_t threshold, const Weigher& weigh,
           std::vector<uint64_t>* keys) {
  // All keys before first are in the prefix and sum to `sum` < threshold; none
  // from last on is.
  auto first = keys->begin();
  auto last = keys->end();
  uint64_t sum = 0;
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last);
    const uint64_t better =
        SumOf(absl::MakeConstSpan(&*first, middle - first), weigh);
    if (sum + better >= threshold) {
      last = middle;
    } else {
      sum += better;
      first = middle;
    }
  }
  keys->erase(last, keys->end());
}

// Steps 5 and 6: the tokens that top_k (0: all) and top_p keep, unordered.
void KeepBest(Row logits, size_t top_k, float top_p, const Weigher& weigh,
              std::vector<uint64_t>* keys) {
  if (top_k > 0) {
    SelectBest(logits, top_k, keys);
    if (top_p < 1)
      CutAt(SampleThreshold(top_p, SumOf(*keys, weigh)), weigh, keys);
    return;
  }
  uint64_t total = 0;
  for (float logit : logits) total += weigh(logit);
  const uint64_t threshold = SampleThreshold(top_p, total);
  // The prefix is usually among a few.
  constexpr size_t kFew = 256;
  SelectBest(logits, kFew, keys);
  if (SumOf(*keys, weigh) < threshold) {
    SelectBest(logits, logits.size(), keys);
  }
  CutAt(threshold, weigh, keys);
}

// Step 8: an index into `weights`.
size_t Draw(absl::Span<const uint64_t> weights, uint64_t seed, uint64_t index) {
  uint64_t total = 0;
  for (uint64_t weight : weights) total += weight;
  const uint64_t target = SampleTarget(SampleUniform(seed, index), total);
  uint64_t sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum > target) return i;
  }
  return 0;  // all weights are 0: min_p was out of its range
}

// Steps 4 to 8.
int32_t DrawToken(Row logits, float max, const SampleInput& input,
                  SamplingScratch* scratch) {
  const SamplingParams& params = *input.params;
  const Weigher weigh = {max, 1.0 / params.temperature};
  const double min_p = params.min_p;
  const auto kept_weight = [&](float logit) -> uint64_t {
    const double weight = weigh.Exact(logit);
    return weight >= min_p ? SampleFixed(weight) : 0;
  };
  std::vector<uint64_t>& weights = scratch->weights;
  weights.clear();
  const bool cut_k =
      params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  if (!cut_k && params.top_p >= 1) {
    for (float logit : logits) weights.push_back(kept_weight(logit));
    return static_cast<int32_t>(Draw(weights, params.seed, input.index));
  }
  std::vector<uint64_t>& keys = scratch->ranked;
  KeepBest(logits, cut_k ? params.top_k : 0, params.top_p, weigh, &keys);
  std::sort(keys.begin(), keys.end(),
            [](uint64_t a, uint64_t b) { return IdOf(a) < IdOf(b); });
  for (uint64_t key : keys) weights.push_back(kept_weight(LogitOf(key)));
  return IdOf(keys[Draw(weights, params.seed, input.index)]);
}

}  // namespace

uint64_t SampleUniform(uint64_t seed, uint64_t index) {
  const std::array<uint32_t, 4> words = Philox4x32(seed, index, 0);
  return (uint64_t{words[0]} << 32 | words[1]) >> 11;
}

absl::StatusOr<SampleResult> SampleRow(const SampleInput& input,
                                       SamplingScratch* scratch) {
  RECURVE_CHECK(input.params != nullptr && scratch != nullptr);
  const SamplingParams& params = *input.params;
  RECURVE_RETURN_IF_ERROR(CheckRow(input.logits));
  RECURVE_ASSIGN_OR_RETURN(const Row logits, Adjust(input, scratch));
  RECURVE_ASSIGN_OR_RETURN(const int32_t best, ArgMax(logits));
  SampleResult result;
  result.token = params.temperature > 0
                     ? DrawToken(logits, logits[best], input, scratch)
                     : best;
  if (params.num_logprobs >= 0) {
    AddLogprobs(logits, logits[best], result.token, params.num_logprobs,
                scratch, &result);
  }
  return result;
}

absl::StatusOr<TokenScore> ScoreToken(Row logits, int32_t token,
                                      int32_t num_top,
                                      SamplingScratch* scratch) {
  RECURVE_CHECK(num_top >= 0 && scratch != nullptr);
  RECURVE_RETURN_IF_ERROR(CheckRow(logits));
  RECURVE_RETURN_IF_ERROR(CheckIds("token", {token}, logits.size()));
  RECURVE_ASSIGN_OR_RETURN(const int32_t best, ArgMax(logits));
  TokenScore score;
  const float own = logits[token];
  score.rank = 1 + std::count_if(logits.begin(), logits.end(),
                                 [own](float logit) { return logit > own; });
  AddLogprobs(logits, logits[best], token, num_top, scratch, &score);
  return score;
}

}  // namespace recurve
