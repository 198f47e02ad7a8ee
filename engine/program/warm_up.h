#ifndef RECURVE_ENGINE_PROGRAM_WARM_UP_H_
#define RECURVE_ENGINE_PROGRAM_WARM_UP_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/program/step.h"

namespace recurve {

struct WarmUpLimits {
  int64_t max_tokens;     // per step
  int64_t max_sequences;  // per step
  int64_t max_pages;      // per sequence; 0: the model has no pages
};

// Maximum length of the first step's prompt.
inline constexpr int64_t kWarmUpPromptTokens = 2048;

// Steps that make an executor load and capture what later steps need: to be run
// once each, in this order, before there is a sequence. All are in page and
// slot 0, several sequences at a time, so the results are meaningless; no
// samples are drawn.
//
// First a prompt together with a decode token; then decode steps with every
// power of two of sequences up to the one that holds `max_sequences`, twice
// each: once to load kernels, once to be captured. Twice more with longer
// contexts for every other variant that `variant_of` returns for given
// positions and power of two: of all sequences, or of one among others of one
// token. Then an increasing number of short prompts in a step. Last, as later
// commands append them, a few tokens, and a prompt that does not begin at
// position 0. Thread safety: pure.
std::vector<StepBatch> WarmUpSteps(
    const WarmUpLimits& limits,
    absl::FunctionRef<int64_t(absl::Span<const int64_t>, int64_t)> variant_of);

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_WARM_UP_H_
