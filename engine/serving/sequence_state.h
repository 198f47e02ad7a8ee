#ifndef RECURVE_ENGINE_SERVING_SEQUENCE_STATE_H_
#define RECURVE_ENGINE_SERVING_SEQUENCE_STATE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/program/step.h"
#include "engine/serving/request.h"
#include "kv_cache/snapshot.h"

namespace recurve {

// Logits after a token, [vocab]. Null: not kept.
using LogitsRow = std::shared_ptr<const std::vector<float>>;

// What a sequence is between two commands, as a value: another sequence that
// starts from it goes on with the same bits.
//
// Exactness: `computed` is what a sequence of these tokens, each of its kind,
// has absorbed. So a sequence that starts from it computes the rest alike, and
// one that has lost its memory computes all of it alike.
struct SequenceState {
  std::vector<int32_t> tokens;   // all, in order; at least one
  std::vector<TokenKind> kinds;  // of each
  // What is computed of them; may be empty.
  SnapshotPrefix computed;
  // If `computed` is of all tokens: the row that the next one is drawn from;
  // and what was computed before, to compute that row again. May be empty.
  LogitsRow last_row = nullptr;
  SnapshotPrefix before = {};
  // Its memory came from elsewhere, so that its numbers are what a client says:
  // no other sequence may find them by the tokens.
  bool imported = false;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  // Whether a sequence that begins with `command` draws its next token from
  // `last_row`.
  bool draws_from_row(const Command& command) const {
    return last_row != nullptr && command.append.empty() &&
           command.logits == LogitsMode::kNone;
  }
  // What that sequence starts with: it computes the rest.
  const SnapshotPrefix& start(const Command& command) const {
    const bool last = command.append.empty() && !draws_from_row(command);
    return last && computed.tokens == num_tokens() ? before : computed;
  }
};

// InvalidArgument unless it can be the state of a sequence of this server:
// tokens in number and kinds. Ids are not checked.
absl::Status ValidateState(const SequenceState& state,
                           const RequestLimits& limits);

// Made by the engine, which alone may free the memory: a pointer may be held
// and dropped on any thread, but not after the engine is gone.
using SequenceStatePtr = std::shared_ptr<const SequenceState>;

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_SEQUENCE_STATE_H_
