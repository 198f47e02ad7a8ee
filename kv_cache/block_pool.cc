#include "kv_cache/block_pool.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

// IdPool's owner of every block in use: who holds it is counted here.
constexpr uint64_t kSnapshots = 1;

}  // namespace

OwnedId BlockPool::Take() {
  const OwnedId block = ids_.Take(kSnapshots);
  holders_[block.id] = 1;
  return block;
}

absl::Status BlockPool::Share(OwnedId block) {
  RECURVE_RETURN_IF_ERROR(Check(block));
  ++holders_[block.id];
  return absl::OkStatus();
}

absl::Status BlockPool::Give(OwnedId block) {
  RECURVE_RETURN_IF_ERROR(Check(block));
  if (--holders_[block.id] > 0) return absl::OkStatus();
  return ids_.Give(block, kSnapshots);
}

absl::Status BlockPool::Check(OwnedId block) const {
  return ids_.CheckOwned(block, kSnapshots);
}

absl::Status BlockPool::CheckInvariants() const {
  RECURVE_RETURN_IF_ERROR(ids_.CheckInvariants());
  for (int32_t id = 1; id <= ids_.total(); ++id) {
    if ((ids_.owner(id) != 0) == (holders_[id] > 0)) continue;
    return absl::InternalError(absl::StrCat(
        "host block ", id, " has ", holders_[id], " holders and is ",
        ids_.owner(id) == 0 ? "free" : "used"));
  }
  return absl::OkStatus();
}

}  // namespace recurve
