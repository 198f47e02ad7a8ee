#ifndef RECURVE_KERNELS_SAMPLING_SAMPLING_H_
#define RECURVE_KERNELS_SAMPLING_SAMPLING_H_

// Chooses the next token from one row of logits, on the CPU. This is the
// specification that other implementations are tested against.
//
// In order:
//  1. Penalties and bias, in float32, on the logit l of a token:
//       seen in prompt or output:  l = l > 0 ? l / repetition : l * repetition
//       in the output, n times:    l = l - presence, then l = l - frequency * n
//       for each entry of logit_bias: l = l + bias
//       masked, for the first min_tokens tokens: l = -Inf
//     What follows calls the result "the logits".
//  2. Log-probabilities, when asked for: log-softmax of the logits.
//  3. temperature 0: the largest logit, the smallest id among equals. Done.
//  4. Weights w = exp((l - max l) · (1 / temperature)); the best token has 1.
//  5. top_k: the k best tokens. Rank is by logit, larger first, ties by smaller
//     id; so exactly k are kept.
//  6. top_p: the shortest prefix, in rank order, whose weights sum to at least
//     top_p of the sum over the tokens that top_k left; the best token always.
//  7. min_p: those with w >= min_p.
//  8. One draw: u in [0, 1), uniform with 53 bits, from words 0 (high) and 1 of
//     Philox4x32(seed, index, 0). Walking the kept tokens by ascending id, the
//     first whose running sum of weights exceeds u times their sum.
// Weights and exponentials are float64, by sampling_weight.h; in a sum, also
// that of step 2, a weight counts as the nearest multiple of 2^-40. So a sum
// has no order, and the GPU (sampling_cuda.h) draws the same tokens.
//
// A token with logit -Inf is impossible: it is never chosen, ranked or
// reported. NaN, +Inf, and a row of nothing but -Inf mean that the sequence is
// broken, and give an error.
//
// The result depends on the input alone: not on the scratch's history, nor on
// other rows. Thread safety: calls with different scratches may run at the same
// time.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace recurve {

// Ranges are those of recurve.v1.SamplingParams, validated where a request is
// accepted. Other values give an unspecified token or an error.
struct SamplingParams {
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float temperature = 0;
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;  // 0 = all
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id, bias
  // -1: none. n >= 0: the chosen token's, and those of the n best.
  int32_t num_logprobs = -1;
  // Ids that none of the first `min_tokens` tokens can be: those that would end
  // the output. Distinct.
  int64_t min_tokens = 0;
  std::vector<int32_t> masked;
};

// Whether step 1 has penalties, so that seen tokens must be counted.
inline bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

// Whether step 1 masks tokens in the draw of the generated token `index`.
inline bool MasksTokens(const SamplingParams& params, uint64_t index) {
  return !params.masked.empty() &&
         index < static_cast<uint64_t>(params.min_tokens);
}

struct SampleInput {
  absl::Span<const float> logits;    // [vocab]
  absl::Span<const int32_t> prompt;  // token ids, read for repetition_penalty
  absl::Span<const int32_t> output;  // token ids generated so far
  // Index of the token to draw among the generated ones, from 0: the same index
  // of the same request always gets the same u.
  uint64_t index = 0;
  const SamplingParams* params = nullptr;
};

struct SampleResult {
  int32_t token = 0;
  float logprob = 0;  // natural logarithm; 0 when num_logprobs is -1
  // (token id, log-probability) in rank order: num_logprobs entries, or fewer
  // if there are fewer possible tokens.
  std::vector<std::pair<int32_t, float>> top;
};

// Buffers kept between calls to avoid allocation. The contents are private to
// SampleRow.
struct SamplingScratch {
  std::vector<float> logits;      // [vocab], after penalties and bias
  std::vector<uint32_t> seen;     // [vocab], all 0 between calls
  std::vector<int32_t> touched;   // ids with seen != 0
  std::vector<uint64_t> ranked;   // tokens as rank keys, see sampling.cc
  std::vector<uint64_t> weights;  // of the tokens to draw from
};

// The log-probability of a token that is given, not drawn.
struct TokenScore {
  float logprob = 0;
  // 1 plus the number of tokens with a larger logit.
  int64_t rank = 0;
  // As in SampleResult.
  std::vector<std::pair<int32_t, float>> top;
};
// Step 2 of the header on `logits` as they are, without step 1: the
// log-probability of `token`, and those of the `num_top` best tokens. An
// impossible token has -Inf. Errors: as for SampleRow; InvalidArgument for a
// token outside [0, vocab). REQUIRES: num_top >= 0; scratch is not null.
absl::StatusOr<TokenScore> ScoreToken(absl::Span<const float> logits,
                                      int32_t token, int32_t num_top,
                                      SamplingScratch* scratch);

// u of step 8 as a multiple of 2^-53.
uint64_t SampleUniform(uint64_t seed, uint64_t index);

// Errors: Internal "non-finite logits: ..." for this row alone; InvalidArgument
// for a row that is empty or of more than 2^23 (kMaxSampleVocab) logits, or an
// id outside [0, vocab) in logit_bias, masked, output or prompt (each checked
// only where it takes effect). REQUIRES: input.params and scratch are not null.
absl::StatusOr<SampleResult> SampleRow(const SampleInput& input,
                                       SamplingScratch* scratch);

}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_SAMPLING_H_
