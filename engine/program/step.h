#ifndef RECURVE_ENGINE_PROGRAM_STEP_H_
#define RECURVE_ENGINE_PROGRAM_STEP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/sampling/sampling.h"

namespace recurve {

// How a token is computed: as a decode step or as part of a prompt, for which
// an executor may use other arithmetic. A token is of the same kind whenever it
// is computed.
enum class TokenKind : uint8_t {
  kPrompt,            // continues after the token before it, also of kPrompt or
                      // kPromptStart
  kPromptStart,       // the first of a prompt, the tokens that one command
                      // appends
  kShortPrompt,       // as kPrompt, for short prompts: their products may
  kShortPromptStart,  // be those of steps, so that weights are read once for
                      // both
  kStep,              // generated, or one of a few that a command appended
};

// Tokens appended by one command are a prompt if there are at least this many;
// fewer are of kStep, because a prompt kernel would not pay off. The first
// command appends a prompt of any length if the model processes it as a whole.
inline constexpr size_t kMinPromptTokens = 32;
// A prompt of at most this many tokens is short.
inline constexpr size_t kShortPromptTokens = 384;

// The kind of the first token, and of the others, of `count` tokens that are
// appended together as a prompt.
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
  absl::Span<const int32_t> prompt;  // the tokens that penalties count
  absl::Span<const int32_t> output;
  // Index among the generated tokens: the draw's counter. Larger than
  // output.size() if the tokens in between are StepBatch::fed to this step.
  uint64_t index;
  // Identifies the tokens' sequence. The same number later means the same
  // tokens, possibly followed by more.
  uint64_t sequence = 0;
};

// Rows [begin, end) of a step: consecutive tokens of one sequence, either all
// of TokenKind::kStep or part of one command's prompt, which is short or not.
// Never empty.
struct StepRun {
  int32_t sequence;
  TokenKind kind;  // kStep, kPrompt or kShortPrompt
  int64_t begin;
  int64_t end;
  // Number of the sequence's tokens before the run up to the last one that is
  // part of a prompt: by it, too, an executor may choose its arithmetic.
  int64_t prompt_end = 0;

  bool step() const { return kind == TokenKind::kStep; }
  int64_t count() const { return end - begin; }
  bool operator==(const StepRun&) const = default;
};

// The ragged batch of one step: B sequences, T tokens in all. It may mix
// prefill chunks and decode tokens. If the model processes prompts as a whole
// (ModelInfo::whole_prompts), a prompt that begins at position 0 is complete in
// it. Contains everything that changes from step to step.
struct StepBatch {
  std::vector<int32_t> tokens;        // [T]
  std::vector<int64_t> positions;     // [T]
  std::vector<int32_t> row_sequence;  // [T] in [0, B)
  std::vector<int32_t> query_start;   // [B + 1] first row of each sequence
  std::vector<int32_t> page_table;    // [B, page_table_stride]
  int64_t page_table_stride = 0;
  std::vector<int32_t> slots;    // [B]
  std::vector<TokenKind> kinds;  // [T]; empty: each sequence's tokens are one
                                 // prompt
  std::vector<int64_t> prompt_ends;  // [B] StepRun::prompt_end of each
                                     // sequence's first row; empty: 0
  std::vector<StepRun> runs;         // of all rows, in order: CutRuns
  std::vector<int32_t>
      logit_rows;  // [L] rows whose logits are wanted, ascending
  std::vector<SampleRequest> samples;
  // Rows whose token is not known yet: the result of a sample of the previous
  // step, which may be in flight. `tokens` has 0 there.
  struct Fed {
    int32_t row;
    int32_t sample;  // into the samples of the previous step
  };
  std::vector<Fed> fed;
  // Whether StepOutput::logits will be read; otherwise it may be empty.
  bool wants_logits = true;
  // Indices into logit_rows, ascending, at most kMaxKeptRows: rows whose logits
  // StepOutput::kept will have, without the step being waited for before the
  // next is launched. None in a step of single tokens of kStep.
  std::vector<int32_t> kept;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(slots.size()); }
};

inline constexpr int64_t kMaxKeptRows = 4;

struct StepOutput {
  // One for each of StepBatch::samples. An error affects only that sequence.
  std::vector<absl::StatusOr<SampleResult>> samples;
  // [L, vocab], valid until the next step. Empty unless wants_logits.
  absl::Span<const float> logits;
  // Not OK if the step wants logits but memory for them ran out. Affects only
  // the sequences that want logits.
  absl::Status logits_status;
  // [vocab] for each of StepBatch::kept, valid until the next Wait.
  std::vector<absl::Span<const float>> kept;
  // Device time from the end of the previous step to this one's first kernel,
  // with its inputs transferred; and from there to its end. 0 if not measured.
  double device_idle_seconds = 0;
  double device_seconds = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_STEP_H_
