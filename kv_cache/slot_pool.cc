#include "kv_cache/slot_pool.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {

SlotPool::SlotPool(int32_t num_slots)
    : ids_("slot", num_slots), progress_(static_cast<size_t>(num_slots) + 1) {}

bool SlotPool::Holds(uint64_t owner) const {
  for (int32_t slot = 1; slot <= ids_.total(); ++slot) {
    if (ids_.owner(slot) == owner) return true;
  }
  return false;
}

OwnedId SlotPool::Take(uint64_t owner, int64_t tokens_applied) {
  const OwnedId slot = ids_.Take(owner);
  progress_[slot.id].tokens_applied = tokens_applied;
  return slot;
}

absl::Status SlotPool::Give(OwnedId slot, uint64_t owner) {
  RECURVE_RETURN_IF_ERROR(ids_.Give(slot, owner));
  progress_[slot.id] = Progress();
  return absl::OkStatus();
}

absl::Status SlotPool::BeginUpdate(OwnedId slot, uint64_t owner,
                                   int64_t position, int64_t num_tokens) {
  RECURVE_RETURN_IF_ERROR(ids_.CheckOwned(slot, owner));
  Progress& progress = progress_[slot.id];
  if (progress.in_flight != 0) {
    return absl::InternalError(absl::StrCat(
        "sequence ", owner, ", slot ", slot.id, ": update of ", num_tokens,
        " tokens at position ", position, " while one of ", progress.in_flight,
        " tokens at position ", progress.tokens_applied, " is in flight"));
  }
  if (progress.tokens_applied != position) {
    return absl::InternalError(absl::StrCat(
        "sequence ", owner, ", slot ", slot.id, ": update at position ",
        position, " but the state has absorbed ", progress.tokens_applied,
        " tokens"));
  }
  if (num_tokens <= 0 ||
      num_tokens > std::numeric_limits<int64_t>::max() - position) {
    return absl::InternalError(absl::StrCat(
        "sequence ", owner, ", slot ", slot.id, ": update of ", num_tokens,
        " tokens at position ", position, "; it must be of at least 1"));
  }
  progress.in_flight = num_tokens;
  return absl::OkStatus();
}

absl::Status SlotPool::CommitUpdate(OwnedId slot, uint64_t owner,
                                    int64_t num_tokens) {
  RECURVE_RETURN_IF_ERROR(ids_.CheckOwned(slot, owner));
  Progress& progress = progress_[slot.id];
  if (num_tokens <= 0 || progress.in_flight != num_tokens) {
    return absl::InternalError(absl::StrCat(
        "sequence ", owner, ", slot ", slot.id, ": commit of ", num_tokens,
        " tokens while ", progress.in_flight, " are in flight"));
  }
  progress.tokens_applied += num_tokens;
  progress.in_flight = 0;
  return absl::OkStatus();
}

absl::Status SlotPool::CheckInvariants() const {
  RECURVE_RETURN_IF_ERROR(ids_.CheckInvariants());
  for (int32_t slot = 0; slot <= ids_.total(); ++slot) {
    const Progress& progress = progress_[slot];
    if (ids_.owner(slot) == 0 &&
        (progress.tokens_applied != 0 || progress.in_flight != 0)) {
      return absl::InternalError(absl::StrCat(
          "slot ", slot, " is free but at ", progress.tokens_applied,
          " tokens with ", progress.in_flight, " in flight"));
    }
  }
  return absl::OkStatus();
}

}  // namespace recurve
