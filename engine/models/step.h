#ifndef RECURVE_ENGINE_MODELS_STEP_H_
#define RECURVE_ENGINE_MODELS_STEP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/sampling/sampling.h"

namespace recurve {

// How a token is computed: as a step of decoding or as part of a prompt, for
// which a backend may have other arithmetic. A token is of the same kind
// whenever it is computed.
enum class TokenKind : uint8_t {
  kPrompt,            // goes on from the token before, also of kPrompt or
                      // kPromptStart
  kPromptStart,       // the first that a client appended together
  kShortPrompt,       // the same of prompts that are short: their products may
  kShortPromptStart,  // be those of steps, so that weights are read once for
                      // both
  kStep,              // generated, or one of a few that a client appended
};

// What a client appends in one command is a prompt from so many tokens on, and
// of kStep below: a kernel for prompts would not pay. What the first command
// appends is a prompt of any length if the model looks at it as a whole.
inline constexpr size_t kMinPromptTokens = 32;
// A prompt of at most so many tokens is short.
inline constexpr size_t kShortPromptTokens = 384;

// Of the first token, and of the others, of `count` that are appended together
// as a prompt.
constexpr TokenKind PromptStartOf(size_t count) {
  return count <= kShortPromptTokens ? TokenKind::kShortPromptStart
                                     : TokenKind::kPromptStart;
}
constexpr TokenKind PromptOf(size_t count) {
  return count <= kShortPromptTokens ? TokenKind::kShortPrompt
                                     : TokenKind::kPrompt;
}
constexpr bool StartsPrompt(TokenKind kind) {
  return kind == TokenKind::kPromptStart ||
         kind == TokenKind::kShortPromptStart;
}
constexpr bool IsShortPrompt(TokenKind kind) {
  return kind == TokenKind::kShortPrompt ||
         kind == TokenKind::kShortPromptStart;
}

// One token to be chosen from one row of logits.
struct SampleRequest {
  int32_t logit_index;  // into StepBatch::logit_rows
  const SamplingParams* params;
  absl::Span<const int32_t> prompt;  // what the penalties look at
  absl::Span<const int32_t> output;
  // Of the token among those generated: the draw's counter. Larger than
  // output.size() if the tokens between are StepBatch::fed to this step.
  uint64_t index;
  // Whose tokens these are. The same number later means the same tokens, and
  // perhaps more behind them.
  uint64_t sequence = 0;
};

// The ragged batch of one step: B sequences, T tokens in all. Prefill chunks
// and decode tokens may share it. A prompt that begins at position 0 is whole
// in it if the model looks at it as a whole (ModelInfo::whole_prompts).
// Everything that changes from step to step is here.
struct StepBatch {
  std::vector<int32_t> tokens;        // [T]
  std::vector<int64_t> positions;     // [T]
  std::vector<int32_t> row_sequence;  // [T] in [0, B)
  std::vector<int32_t> query_start;   // [B + 1] first row of each sequence
  std::vector<int32_t> page_table;    // [B, page_table_stride]
  int64_t page_table_stride = 0;
  std::vector<int32_t> slots;    // [B]
  std::vector<TokenKind> kinds;  // [T]; empty: all of one prompt each
  std::vector<int32_t>
      logit_rows;  // [L] rows whose logits are wanted, ascending
  std::vector<SampleRequest> samples;
  // Rows whose token is not known yet: that of a sample of the step before,
  // which may be under way. `tokens` has 0 there.
  struct Fed {
    int32_t row;
    int32_t sample;  // into the samples of the step before
  };
  std::vector<Fed> fed;
  // Whether StepOutput::logits is read; without, it may be empty.
  bool wants_logits = true;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(slots.size()); }
};

struct StepOutput {
  // One for each of StepBatch::samples. An error concerns that sequence alone.
  std::vector<absl::StatusOr<SampleResult>> samples;
  // [L, vocab], valid until the next step. Empty unless wants_logits.
  absl::Span<const float> logits;
  // Not OK, of a step that wants logits: there are none, for want of memory.
  // Concerns those alone that wanted them.
  absl::Status logits_status;
  // From the end of the step before on the device to this one's first kernel,
  // what it needs from the host being there; and from there to its end. 0 where
  // that is not measured.
  double device_idle_seconds = 0;
  double device_seconds = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_STEP_H_
