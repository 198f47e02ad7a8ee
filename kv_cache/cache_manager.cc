#include "kv_cache/cache_manager.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

// A storage's error as Internal, whatever its code: it must not look like an
// exhausted pool.
absl::Status StorageError(absl::string_view action, int32_t id,
                          const absl::Status& status) {
  return absl::InternalError(
      absl::StrCat(action, " ", id, ": ", status.ToString()));
}

template <typename Pool>
PoolStats StatsOf(const Pool& pool) {
  return {pool.total(), pool.used(), pool.free()};
}

}  // namespace

CacheManager::CacheManager(const CacheSpec& spec, CacheStorage* storage,
                           const CacheOptions& options)
    : spec_(spec),
      storage_(storage),
      options_(options),
      pages_(spec.num_pages, spec.num_host_blocks),
      slots_(spec.num_slots),
      host_blocks_(spec.num_host_blocks),
      pages_of_slot_(static_cast<size_t>(spec.num_slots) + 1) {
  RECURVE_CHECK(storage != nullptr);
  RECURVE_CHECK(spec.page_bytes >= 0 && spec.slot_bytes >= 0);
}

CacheManager::~CacheManager() {
  // What outlived this would write into freed memory.
  RECURVE_CHECK(slots_.ids().used() == 0 && pages_.used() == 0 &&
                host_blocks_.ids().used() == 0);
}

absl::StatusOr<SequenceLease> CacheManager::Acquire(uint64_t owner) {
  if (owner == 0) {
    return absl::InternalError("Acquire: sequence id 0 means free");
  }
  if (slots_.Holds(owner)) {
    return absl::InternalError(
        absl::StrCat("Acquire: sequence ", owner, " holds a slot already"));
  }
  if (slots_.ids().free() == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("sequence ", owner, " needs a slot; 0 of ",
                     slots_.ids().total(), " are free"));
  }
  const int32_t slot = slots_.NextFree();
  const absl::Status cleared = storage_->ClearSlot(slot);
  if (!cleared.ok()) return StorageError("clearing slot", slot, cleared);
  return SequenceLease(this, owner, slots_.Take(owner));
}

absl::Status CacheManager::Reserve(SequenceLease& lease, int64_t tokens) {
  RECURVE_RETURN_IF_ERROR(CheckLease(lease));
  if (tokens < 0) {
    return absl::InternalError(absl::StrCat("Reserve: sequence ", lease.owner_,
                                            " asked for ", tokens, " tokens"));
  }
  const int64_t held = static_cast<int64_t>(lease.pages_.size());
  const int64_t more = PagesFor(tokens, spec_) - held;
  if (more <= 0) return absl::OkStatus();
  if (more > pages_.free()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "sequence ", lease.owner_, " holds ", held, " pages and needs ", more,
        " more for ", tokens, " tokens; ", pages_.free(), " of ",
        pages_.total(), " are free"));
  }
  // All are cleared while free, and only then taken: a failure halfway leaves
  // nothing to undo.
  const auto free = pages_.NextFree(static_cast<int32_t>(more));
  for (int32_t page : free) {
    const absl::Status cleared = storage_->ClearPage(page);
    if (!cleared.ok()) return StorageError("clearing page", page, cleared);
  }
  for (int32_t page : free) lease.Add(pages_.Take(page, lease.owner_));
  std::vector<int32_t>& handed = pages_of_slot_[lease.slot_.id];
  handed.insert(handed.end(), free.begin(), free.end());
  return absl::OkStatus();
}

absl::Status CacheManager::BeginUpdate(const SequenceLease& lease,
                                       int64_t position, int64_t num_tokens) {
  RECURVE_RETURN_IF_ERROR(CheckLease(lease));
  // The pages first: SlotPool::BeginUpdate marks the slot, so it comes last.
  const int64_t held = static_cast<int64_t>(lease.pages_.size());
  const bool writes = spec_.page_bytes != 0 && position >= 0 && num_tokens > 0;
  if (writes && num_tokens > held * kPageTokens - position) {
    return absl::InternalError(
        absl::StrCat("sequence ", lease.owner_, ": update of ", num_tokens,
                     " tokens at position ", position, " but its ", held,
                     " pages hold ", held * kPageTokens, " tokens"));
  }
  for (int64_t i = position / kPageTokens;
       writes && i < PagesFor(position + num_tokens, spec_); ++i) {
    RECURVE_RETURN_IF_ERROR(pages_.CheckWritable(
        {lease.pages_[i], lease.page_generations_[i]}, lease.owner_));
  }
  return slots_.BeginUpdate(lease.slot_, lease.owner_, position, num_tokens);
}

void CacheManager::CommitUpdate(SequenceLease& lease, int64_t num_tokens) {
  RECURVE_CHECK(lease.manager_ == this);
  RECURVE_CHECK(
      slots_.CommitUpdate(lease.slot_, lease.owner_, num_tokens).ok());
}

int64_t CacheManager::BlocksToSave(const SequenceLease& lease,
                                   const SnapshotPrefix& base) const {
  if (!CheckLease(lease).ok() || slots_.in_flight(lease.slot())) return 0;
  const int64_t tokens = TokensApplied(lease);
  if (tokens == 0) return 0;
  return HostBlocksFor(tokens, spec_) - SharedPages(tokens, base);
}

int64_t CacheManager::FullPages(int64_t tokens) const {
  return spec_.page_bytes == 0 ? 0 : tokens / kPageTokens;
}

int64_t CacheManager::SharedPages(int64_t tokens,
                                  const SnapshotPrefix& base) const {
  return base.empty() ? 0 : FullPages(std::min(tokens, base.tokens));
}

bool CacheManager::CanSave(const SequenceLease& lease,
                           const SnapshotPrefix& base) const {
  const int64_t blocks = BlocksToSave(lease, base);
  return blocks > 0 && blocks <= host_blocks_.ids().free();
}

absl::StatusOr<SnapshotPtr> CacheManager::Save(const SequenceLease& lease,
                                               const SnapshotPrefix& base) {
  RECURVE_RETURN_IF_ERROR(CheckLease(lease));
  if (!CanSave(lease, base)) {
    return absl::InternalError(absl::StrCat(
        "Save: sequence ", lease.owner_, " of ", TokensApplied(lease),
        " tokens cannot be saved; ", host_blocks_.ids().free(), " of ",
        host_blocks_.ids().total(), " host blocks are free"));
  }
  const int64_t tokens = TokensApplied(lease);
  const int64_t shared = SharedPages(tokens, base);
  const int64_t full = FullPages(tokens);
  // Pages beyond the tokens hold nothing yet.
  const int64_t held = PagesFor(tokens, spec_);
  auto snapshot = std::shared_ptr<Snapshot>(new Snapshot(this, tokens));
  std::vector<int64_t> copied;  // indices of pages
  std::vector<int32_t> pages;   // what is copied, and where to
  std::vector<int32_t> blocks;
  for (int64_t i = 0; i < HostBlocksFor(tokens, spec_); ++i) {
    OwnedId block;
    if (i < shared) {
      block = {base.snapshot->blocks_[i], base.snapshot->generations_[i]};
    } else if (i < full) {
      block = pages_.BlockOf(lease.pages_[i]);
    }
    if (block.id != 0) {
      RECURVE_RETURN_IF_ERROR(host_blocks_.Share(block));
    } else {
      block = host_blocks_.Take();
      blocks.push_back(block.id);
      if (i < held) pages.push_back(lease.pages_[i]);
      if (i < full) copied.push_back(i);
    }
    snapshot->blocks_.push_back(block.id);
    snapshot->generations_.push_back(block.generation);
  }
  const absl::Status status = storage_->Save({lease.slot(), pages, blocks});
  if (!status.ok()) return StorageError("saving slot", lease.slot(), status);
  for (int64_t i : copied) {
    pages_.Bind(lease.pages_[i],
                {snapshot->blocks_[i], snapshot->generations_[i]});
  }
  return snapshot;
}

absl::StatusOr<SnapshotPtr> CacheManager::Blank(int64_t tokens) {
  RECURVE_CHECK(tokens > 0);
  const int64_t blocks = HostBlocksFor(tokens, spec_);
  if (blocks > host_blocks_.ids().free()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a state of ", tokens, " tokens needs ", blocks,
                     " host blocks; ", host_blocks_.ids().free(), " of ",
                     host_blocks_.ids().total(), " are free"));
  }
  auto snapshot = std::shared_ptr<Snapshot>(new Snapshot(this, tokens));
  for (int64_t i = 0; i < blocks; ++i) {
    const OwnedId block = host_blocks_.Take();
    snapshot->blocks_.push_back(block.id);
    snapshot->generations_.push_back(block.generation);
  }
  return snapshot;
}

absl::StatusOr<std::vector<absl::Span<char>>> CacheManager::HostBlocks(
    const SnapshotPrefix& prefix) const {
  RECURVE_CHECK(!prefix.empty() && prefix.snapshot->manager_ == this);
  RECURVE_RETURN_IF_ERROR(storage_->FinishCopies());
  const Snapshot& snapshot = *prefix.snapshot;
  std::vector<absl::Span<char>> blocks;
  const int64_t pages = PagesFor(prefix.tokens, spec_);
  for (int64_t i = 0; i < pages; ++i) {
    blocks.push_back(storage_->HostBlock(snapshot.blocks_[i]));
  }
  // A part of a snapshot is one only without recurrent state.
  for (auto i = static_cast<size_t>(PagesFor(snapshot.tokens_, spec_));
       i < snapshot.blocks_.size(); ++i) {
    blocks.push_back(storage_->HostBlock(snapshot.blocks_[i]));
  }
  return blocks;
}

absl::Status CacheManager::CheckRestore(const SnapshotPrefix& from,
                                        uint64_t owner) const {
  if (from.empty()) return absl::InternalError("Restore: no snapshot");
  const Snapshot& snapshot = *from.snapshot;
  if (snapshot.manager_ != this) {
    return absl::InternalError("Restore: a snapshot of another manager");
  }
  if (from.tokens < 1 || from.tokens > snapshot.tokens_ ||
      (from.tokens < snapshot.tokens_ && spec_.slot_bytes != 0)) {
    return absl::InternalError(absl::StrCat("Restore: ", from.tokens,
                                            " tokens of a snapshot of ",
                                            snapshot.tokens_));
  }
  for (size_t i = 0; i < snapshot.blocks_.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(
        host_blocks_.Check({snapshot.blocks_[i], snapshot.generations_[i]}));
  }
  if (owner == 0 || slots_.Holds(owner)) {
    return absl::InternalError(
        absl::StrCat("Restore: sequence ", owner,
                     owner == 0 ? " means free" : " holds a slot already"));
  }
  return absl::OkStatus();
}

std::vector<OwnedId> CacheManager::SharePages(const Snapshot& snapshot,
                                              int64_t full) {
  std::vector<OwnedId> pages(full);
  for (int64_t i = 0; i < full; ++i) {
    const int32_t page =
        pages_.PageOf({snapshot.blocks_[i], snapshot.generations_[i]});
    if (page != 0) pages[i] = pages_.Share(page);
  }
  return pages;
}

int64_t CacheManager::HeldPages(const SnapshotPrefix& from) const {
  if (from.empty()) return 0;
  const Snapshot& snapshot = *from.snapshot;
  int64_t held = 0;
  for (int64_t i = 0; i < FullPages(from.tokens); ++i) {
    const int32_t page =
        pages_.PageOf({snapshot.blocks_[i], snapshot.generations_[i]});
    held += page != 0 && pages_.holders(page) > 0;
  }
  return held;
}

absl::StatusOr<SequenceLease> CacheManager::Restore(const SnapshotPrefix& from,
                                                    uint64_t owner) {
  RECURVE_RETURN_IF_ERROR(CheckRestore(from, owner));
  const Snapshot& snapshot = *from.snapshot;
  const int64_t full = FullPages(from.tokens);
  const int64_t count = PagesFor(from.tokens, spec_);
  const int32_t free = pages_.free();
  // Before pages are picked that are overwritten: those must be others.
  std::vector<OwnedId> pages = SharePages(snapshot, full);
  const int32_t revived = free - pages_.free();
  pages.resize(count);
  std::vector<int64_t> copied;  // indices of pages
  std::vector<int32_t> blocks;  // what is copied
  for (int64_t i = 0; i < count; ++i) {
    if (pages[i].id != 0) continue;
    copied.push_back(i);
    blocks.push_back(snapshot.blocks_[i]);
  }
  if (spec_.slot_bytes != 0) {
    blocks.insert(blocks.end(), snapshot.blocks_.begin() + count,
                  snapshot.blocks_.end());
  }
  const auto undo = [&] {
    for (int64_t i = full; i-- > 0;) {
      if (pages[i].id != 0) RECURVE_CHECK(pages_.Give(pages[i], owner).ok());
    }
  };
  const auto fresh = static_cast<int32_t>(copied.size());
  if (slots_.ids().free() == 0 || fresh > pages_.free()) {
    undo();
    return absl::ResourceExhaustedError(absl::StrCat(
        "sequence ", owner, " needs a slot and ", revived + fresh, " pages; ",
        slots_.ids().free(), " slots and ", free, " pages are free"));
  }
  const int32_t slot = slots_.NextFree();
  const std::vector<int32_t> targets = pages_.NextFree(fresh);
  // Also if only pages that are shared are restored: a step with the slot must
  // wait for them.
  const absl::Status status = storage_->Restore({slot, targets, blocks});
  if (!status.ok()) {
    undo();
    return StorageError("restoring slot", slot, status);
  }
  for (int32_t i = 0; i < fresh; ++i) {
    const int64_t index = copied[i];
    pages[index] = pages_.Take(targets[i], owner);
    if (index >= full) continue;
    pages_.Bind(targets[i],
                {snapshot.blocks_[index], snapshot.generations_[index]});
  }
  SequenceLease lease(this, owner, slots_.Take(owner, from.tokens));
  for (const OwnedId& page : pages) lease.Add(page);
  pages_of_slot_[slot] = lease.pages_;
  pages_shared_total_ += static_cast<uint64_t>(count - fresh);
  return lease;
}

CacheStats CacheManager::stats() const {
  return {StatsOf(pages_), StatsOf(slots_.ids()), StatsOf(host_blocks_.ids()),
          pages_shared_total_};
}

void CacheManager::TakeBack(const Snapshot& snapshot) {
  for (size_t i = snapshot.blocks_.size(); i-- > 0;) {
    const int32_t block = snapshot.blocks_[i];
    RECURVE_CHECK(host_blocks_.Give({block, snapshot.generations_[i]}).ok());
    if (host_blocks_.holders(block) > 0) continue;
    const int32_t page = pages_.Unbind(block);
    if (page != 0 && pages_.holders(page) == 0) PoisonPage(page);
  }
}

void CacheManager::TakeBack(const SequenceLease& lease) {
  // Last page first, so that the next sequence gets them in the same order; and
  // of those that are bound, the first tokens are kept the longest.
  for (size_t i = lease.pages_.size(); i-- > 0;) {
    const OwnedId page = {lease.pages_[i], lease.page_generations_[i]};
    RECURVE_CHECK(pages_.CheckHeld(page, lease.owner_).ok());
    // The bytes of a bound page may be shared again.
    if (pages_.holders(page.id) == 1 && pages_.BlockOf(page.id).id == 0) {
      PoisonPage(page.id);
    }
    RECURVE_CHECK(pages_.Give(page, lease.owner_).ok());
  }
  const int32_t slot = lease.slot_.id;
  RECURVE_CHECK(slots_.ids().CheckOwned(lease.slot_, lease.owner_).ok());
  if (options_.poison_on_release) {
    const absl::Status poisoned = storage_->PoisonSlot(slot);
    if (!poisoned.ok()) {
      poison_status_.Update(StorageError("poisoning slot", slot, poisoned));
    }
  }
  RECURVE_CHECK(slots_.Give(lease.slot_, lease.owner_).ok());
  pages_of_slot_[slot].clear();
}

void CacheManager::PoisonPage(int32_t page) {
  if (!options_.poison_on_release) return;
  const absl::Status poisoned = storage_->PoisonPage(page);
  if (!poisoned.ok()) {
    poison_status_.Update(StorageError("poisoning page", page, poisoned));
  }
}

int64_t CacheManager::TokensApplied(const SequenceLease& lease) const {
  return slots_.tokens_applied(lease.slot_.id);
}

}  // namespace recurve
