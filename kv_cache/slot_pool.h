#ifndef RECURVE_KV_CACHE_SLOT_POOL_H_
#define RECURVE_KV_CACHE_SLOT_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kv_cache/id_pool.h"

namespace recurve {

// Slots of recurrent state, one for each sequence.
//
// A recurrent update is not idempotent: repeating or skipping one silently
// corrupts the state. So a slot counts the tokens its state has absorbed, and
// an update must begin exactly there. Between BeginUpdate and CommitUpdate the
// state is undefined: it may only be committed or given back.
//
// Thread safety: none; the engine's step thread owns it.
class SlotPool {
 public:
  explicit SlotPool(int32_t num_slots);

  // Ownership, read-only.
  const IdPool& ids() const { return ids_; }

  // Whether `owner` holds a slot. Scans every slot.
  bool Holds(uint64_t owner) const;

  // The slot that the next Take returns. REQUIRES: ids().free() > 0.
  int32_t NextFree() const { return ids_.NextFree(1)[0]; }

  // Hands over a slot whose state has absorbed `tokens_applied` tokens.
  // REQUIRES: ids().free() > 0, owner != 0, tokens_applied >= 0.
  OwnedId Take(uint64_t owner, int64_t tokens_applied = 0);

  // Makes the slot free again, dropping an update in flight. Internal when it
  // is not `owner`'s.
  absl::Status Give(OwnedId slot, uint64_t owner);

  // Tokens the slot's state has absorbed. REQUIRES: 1 <= slot <= total.
  int64_t tokens_applied(int32_t slot) const {
    return progress_[slot].tokens_applied;
  }

  // Whether an update is in flight. REQUIRES: 1 <= slot <= total.
  bool in_flight(int32_t slot) const { return progress_[slot].in_flight != 0; }

  // Declares that tokens [position, position + num_tokens) are about to be
  // absorbed. Internal unless the slot is `owner`'s, is at `position`, and has
  // no update in flight; then nothing changed.
  absl::Status BeginUpdate(OwnedId slot, uint64_t owner, int64_t position,
                           int64_t num_tokens);

  // Ends the update in flight. Internal unless the slot is `owner`'s and the
  // update is of exactly `num_tokens`: a state cannot be updated in part.
  absl::Status CommitUpdate(OwnedId slot, uint64_t owner, int64_t num_tokens);

  // Internal unless ownership is sound and every free slot is at 0 tokens.
  absl::Status CheckInvariants() const;

 private:
  friend class CachePeer;  // tests break invariants on purpose

  struct Progress {
    int64_t tokens_applied = 0;
    int64_t in_flight = 0;  // tokens of the update in flight, 0 = none
  };

  IdPool ids_;
  std::vector<Progress> progress_;  // [num_slots + 1], by slot
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_SLOT_POOL_H_
