#ifndef RECURVE_ENGINE_SERVING_SNAPSHOT_POLICY_H_
#define RECURVE_ENGINE_SERVING_SNAPSHOT_POLICY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/serving/request.h"

namespace recurve {

// A snapshot of fewer tokens saves too little to be taken.
inline constexpr int64_t kMinSnapshotTokens = 32;

// What decides where snapshots of a prompt are taken. Positions count the
// tokens of the prompt before them.
struct SnapshotRequest {
  int64_t tokens = 0;  // of the prompt
  int64_t cached = 0;  // of these, taken from an earlier snapshot
  // Chunks end at multiples of this, so only there a state of the same bits is
  // computed by other prompts with the same first tokens. At least 1.
  int64_t chunk_multiple = 1;
  // Whether the model has recurrent state, which exists only at the places
  // where it is saved. If not, the first part of a snapshot is one, too.
  bool has_state = false;
  // SequenceOptions::snapshot_at, in any order, at most kMaxNamedSnapshots.
  // Outlives the call.
  absl::Span<const int64_t> named = {};
  // PrefixMatch::common, if it is between `cached` and `tokens`: where this
  // prompt and an earlier one part.
  std::optional<int64_t> parted_at = std::nullopt;
  // No snapshot is shorter.
  int64_t min_tokens = kMinSnapshotTokens;
};

// The places where the computation of a prompt is cut to take snapshots: in
// ascending order, distinct, above `cached`, at least `min_tokens`, and
// multiples of `chunk_multiple`. At most kMaxNamedSnapshots + 2. These are
// wanted, each rounded down to a multiple, because a state beyond a place has
// absorbed tokens that only this prompt has:
//  - The end of the prompt, for its next turn, which repeats all of it. With
//    recurrent state at least one token remains to be computed, because a
//    snapshot has no logits to draw from: an equal prompt can start at each
//    place. Without, nothing is cut.
//  - With recurrent state, where an earlier prompt parted from this one. Two
//    prompts with the same first tokens predict a third, which will part there,
//    too: a system prompt is found in this way, without being named.
//  - With recurrent state, the places that the client named, which knows what
//    its next prompts share before any has parted.
// Without recurrent state, the one at the end gives all others.
std::vector<int64_t> PlanSnapshots(const SnapshotRequest& request);

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_SNAPSHOT_POLICY_H_
