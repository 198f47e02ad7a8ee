// The checks of CacheManager.

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kv_cache/cache_manager.h"

namespace recurve {

absl::Status CacheManager::CheckLease(const SequenceLease& lease) const {
  if (lease.empty()) {
    return absl::InternalError("the lease is empty: released or moved from");
  }
  if (lease.manager_ != this) {
    return absl::InternalError(absl::StrCat(
        "the lease of sequence ", lease.owner_, " is another manager's"));
  }
  RECURVE_RETURN_IF_ERROR(slots_.ids().CheckOwned(lease.slot_, lease.owner_));
  for (size_t i = 0; i < lease.pages_.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(pages_.CheckHeld(
        {lease.pages_[i], lease.page_generations_[i]}, lease.owner_));
  }
  return absl::OkStatus();
}

absl::Status CacheManager::CheckInvariants() const {
  RECURVE_RETURN_IF_ERROR(poison_status_);
  RECURVE_RETURN_IF_ERROR(pages_.CheckInvariants());
  RECURVE_RETURN_IF_ERROR(slots_.CheckInvariants());
  RECURVE_RETURN_IF_ERROR(host_blocks_.CheckInvariants());
  return CheckHolders();
}

absl::Status CacheManager::CheckHolders() const {
  std::set<uint64_t> owners;
  std::vector<int32_t> handed(static_cast<size_t>(pages_.total()) + 1);
  for (int32_t slot = 0; slot <= slots_.ids().total(); ++slot) {
    const uint64_t owner = slots_.ids().owner(slot);
    const std::vector<int32_t>& pages = pages_of_slot_[slot];
    if (owner == 0 && !pages.empty()) {
      return absl::InternalError(absl::StrCat(
          "slot ", slot, " is free but has ", pages.size(), " pages"));
    }
    if (owner != 0 && !owners.insert(owner).second) {
      return absl::InternalError(
          absl::StrCat("sequence ", owner, " holds two slots"));
    }
    for (size_t i = 0; i < pages.size(); ++i) {
      ++handed[pages[i]];
      const uint64_t writer = pages_.writer(pages[i]);
      const auto end = static_cast<int64_t>(i + 1) * kPageTokens;
      if (writer == owner ||
          (writer == 0 && end <= slots_.tokens_applied(slot))) {
        continue;
      }
      return absl::InternalError(absl::StrCat(
          "page ", pages[i], " up to token ", end, " of sequence ", owner,
          " of ", slots_.tokens_applied(slot), " tokens has writer ", writer));
    }
  }
  for (int32_t page = 1; page <= pages_.total(); ++page) {
    if (pages_.holders(page) != handed[page]) {
      return absl::InternalError(absl::StrCat(
          "page ", page, " has ", pages_.holders(page),
          " holders but was handed to ", handed[page], " sequences"));
    }
    const OwnedId block = pages_.BlockOf(page);
    if (block.id != 0) RECURVE_RETURN_IF_ERROR(host_blocks_.Check(block));
  }
  return absl::OkStatus();
}

absl::Status CacheManager::CheckIdle() const {
  RECURVE_RETURN_IF_ERROR(CheckInvariants());
  RECURVE_RETURN_IF_ERROR(slots_.ids().CheckIdle());
  RECURVE_RETURN_IF_ERROR(host_blocks_.ids().CheckIdle());
  return pages_.CheckIdle();
}

}  // namespace recurve
