#include "engine/serving/sequence_state.h"

#include "absl/strings/str_cat.h"

namespace recurve {

absl::Status ValidateState(const SequenceState& state,
                           const RequestLimits& limits) {
  const int64_t tokens = state.num_tokens();
  if (tokens < 1 || tokens > limits.max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the state has ", tokens, " tokens; this server's max_model_len is ",
        limits.max_model_len));
  }
  TokenKind before = TokenKind::kStep;
  for (size_t i = 0; i < state.kinds.size(); ++i) {
    const TokenKind kind = state.kinds[i];
    // A prompt begins with its first token.
    const bool follows =
        kind == TokenKind::kPrompt
            ? before == TokenKind::kPrompt || before == TokenKind::kPromptStart
        : kind == TokenKind::kShortPrompt
            ? before == TokenKind::kShortPrompt ||
                  before == TokenKind::kShortPromptStart
            : StartsPrompt(kind) || kind == TokenKind::kStep;
    if (!follows) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token_kinds[", i, "] is ", static_cast<int>(kind), " after ",
          static_cast<int>(before), "; no sequence has that"));
    }
    before = kind;
  }
  return absl::OkStatus();
}

}  // namespace recurve
