#ifndef RECURVE_ENGINE_MODELS_WARM_UP_H_
#define RECURVE_ENGINE_MODELS_WARM_UP_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "engine/models/step.h"
#include "kernels/tpa/decode/tpa_plan.h"

namespace recurve {

struct WarmUpLimits {
  int64_t max_tokens;     // of a step
  int64_t max_sequences;  // of a step
  int64_t max_pages;      // of a sequence; 0: the model has no pages
};

// The prompt of the first step is no longer.
inline constexpr int64_t kWarmUpPromptTokens = 2048;

// Steps that make a backend load and capture what it needs for the others: to
// be run once each, in this order, before there is a sequence. All is in page
// and slot 0, several sequences at a time, so that results mean nothing; no
// samples are drawn.
//
// First a prompt beside a token of decoding; then decoding with every power of
// two of sequences up to the one that holds `max_sequences`, twice each: once
// to load kernels, once to be captured. Twice again with longer contexts of
// each other kind that `contexts_of`, which is given positions and the power of
// two, tells of: of all sequences, or of one beside others of one token. Then
// more and more short prompts in a step. Last, as later commands append them, a
// few tokens, and a prompt that does not begin at position 0. Thread safety:
// pure.
std::vector<StepBatch> WarmUpSteps(
    const WarmUpLimits& limits,
    absl::FunctionRef<TpaContexts(absl::Span<const int64_t>, int64_t)>
        contexts_of);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_WARM_UP_H_
