#include "kv_cache/cache_manager.h"

#include <algorithm>
#include <map>

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

PoolStats StatsOf(const IdPool& pool) {
  return {pool.total(), pool.used(), pool.free()};
}

}  // namespace

CacheManager::CacheManager(const CacheSpec& spec, CacheStorage* storage,
                           const CacheOptions& options)
    : spec_(spec),
      storage_(storage),
      options_(options),
      pages_(spec.num_pages),
      slots_(spec.num_slots),
      host_blocks_(spec.num_host_blocks),
      pages_of_slot_(static_cast<size_t>(spec.num_slots) + 1, 0) {
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
  for (int32_t page : pages_.NextFree(static_cast<int32_t>(more))) {
    const absl::Status cleared = storage_->ClearPage(page);
    if (!cleared.ok()) return StorageError("clearing page", page, cleared);
  }
  for (int64_t i = 0; i < more; ++i) {
    const OwnedId page = pages_.Take(lease.owner_);
    lease.pages_.push_back(page.id);
    lease.page_generations_.push_back(page.generation);
  }
  pages_of_slot_[lease.slot_.id] += more;
  return absl::OkStatus();
}

absl::Status CacheManager::BeginUpdate(const SequenceLease& lease,
                                       int64_t position, int64_t num_tokens) {
  RECURVE_RETURN_IF_ERROR(CheckLease(lease));
  // The pages first: SlotPool::BeginUpdate marks the slot, so it comes last.
  const int64_t held = static_cast<int64_t>(lease.pages_.size());
  if (spec_.page_bytes != 0 && position >= 0 && num_tokens >= 0 &&
      num_tokens > held * kPageTokens - position) {
    return absl::InternalError(
        absl::StrCat("sequence ", lease.owner_, ": update of ", num_tokens,
                     " tokens at position ", position, " but its ", held,
                     " pages hold ", held * kPageTokens, " tokens"));
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

int64_t CacheManager::SharedPages(int64_t tokens,
                                  const SnapshotPrefix& base) const {
  if (base.empty() || spec_.page_bytes == 0) return 0;
  return std::min(tokens, base.tokens) / kPageTokens;
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
  auto snapshot = std::shared_ptr<Snapshot>(new Snapshot(this, tokens));
  for (int64_t i = 0; i < shared; ++i) {
    const OwnedId block = {base.snapshot->blocks_[i],
                           base.snapshot->generations_[i]};
    RECURVE_RETURN_IF_ERROR(host_blocks_.Share(block));
    snapshot->blocks_.push_back(block.id);
    snapshot->generations_.push_back(block.generation);
  }
  const int64_t blocks = HostBlocksFor(tokens, spec_);
  for (int64_t i = shared; i < blocks; ++i) {
    const OwnedId block = host_blocks_.Take();
    snapshot->blocks_.push_back(block.id);
    snapshot->generations_.push_back(block.generation);
  }
  // Pages beyond the tokens hold nothing yet.
  const auto pages = lease.pages().first(PagesFor(tokens, spec_));
  const absl::Status copied =
      storage_->Save({lease.slot(), pages.subspan(shared),
                      absl::MakeConstSpan(snapshot->blocks_).subspan(shared)});
  if (!copied.ok()) return StorageError("saving slot", lease.slot(), copied);
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

absl::StatusOr<SequenceLease> CacheManager::Restore(const SnapshotPrefix& from,
                                                    uint64_t owner) {
  if (from.empty()) return absl::InternalError("Restore: no snapshot");
  const Snapshot& snapshot = *from.snapshot;
  const int64_t tokens = from.tokens;
  if (snapshot.manager_ != this) {
    return absl::InternalError("Restore: a snapshot of another manager");
  }
  if (tokens < 1 || tokens > snapshot.tokens_ ||
      (tokens < snapshot.tokens_ && spec_.slot_bytes != 0)) {
    return absl::InternalError(absl::StrCat(
        "Restore: ", tokens, " tokens of a snapshot of ", snapshot.tokens_));
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
  const int64_t count = PagesFor(tokens, spec_);
  if (slots_.ids().free() == 0 || count > pages_.free()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "sequence ", owner, " needs a slot and ", count, " pages; ",
        slots_.ids().free(), " slots and ", pages_.free(), " pages are free"));
  }
  const int32_t slot = slots_.NextFree();
  // In the order in which Take returns them.
  const auto next = pages_.NextFree(static_cast<int32_t>(count));
  const std::vector<int32_t> pages(next.rbegin(), next.rend());
  // Without the pages after `tokens`; a slot of no bytes has no blocks.
  const auto blocks = absl::MakeConstSpan(snapshot.blocks_);
  const absl::Status copied = storage_->Restore(
      {slot, pages,
       spec_.slot_bytes != 0 ? blocks
                             : blocks.first(static_cast<size_t>(count))});
  if (!copied.ok()) return StorageError("restoring slot", slot, copied);
  SequenceLease lease(this, owner, slots_.Take(owner, tokens));
  for (int64_t i = 0; i < count; ++i) {
    const OwnedId page = pages_.Take(owner);
    RECURVE_CHECK(page.id == pages[i]);
    lease.pages_.push_back(page.id);
    lease.page_generations_.push_back(page.generation);
  }
  pages_of_slot_[slot] += count;
  return lease;
}

CacheStats CacheManager::stats() const {
  return {StatsOf(pages_), StatsOf(slots_.ids()), StatsOf(host_blocks_.ids())};
}

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
    RECURVE_RETURN_IF_ERROR(pages_.CheckOwned(
        {lease.pages_[i], lease.page_generations_[i]}, lease.owner_));
  }
  return absl::OkStatus();
}

absl::Status CacheManager::CheckInvariants() const {
  RECURVE_RETURN_IF_ERROR(poison_status_);
  RECURVE_RETURN_IF_ERROR(pages_.CheckInvariants());
  RECURVE_RETURN_IF_ERROR(slots_.CheckInvariants());
  RECURVE_RETURN_IF_ERROR(host_blocks_.CheckInvariants());
  std::map<uint64_t, int64_t> expected;  // pages by owner
  for (int32_t slot = 0; slot <= slots_.ids().total(); ++slot) {
    const uint64_t owner = slots_.ids().owner(slot);
    if (owner == 0) {
      if (pages_of_slot_[slot] == 0) continue;
      return absl::InternalError(absl::StrCat("slot ", slot,
                                              " is free but counts ",
                                              pages_of_slot_[slot], " pages"));
    }
    if (!expected.emplace(owner, pages_of_slot_[slot]).second) {
      return absl::InternalError(
          absl::StrCat("sequence ", owner, " holds two slots"));
    }
  }
  std::map<uint64_t, int64_t> found;
  for (int32_t page = 1; page <= pages_.total(); ++page) {
    if (pages_.owner(page) != 0) ++found[pages_.owner(page)];
  }
  for (const auto& [owner, count] : found) {
    if (expected.find(owner) == expected.end()) {
      return absl::InternalError(absl::StrCat("sequence ", owner, " owns ",
                                              count, " pages and no slot"));
    }
  }
  for (const auto& [owner, count] : expected) {
    if (found[owner] != count) {
      return absl::InternalError(absl::StrCat("sequence ", owner, " owns ",
                                              found[owner],
                                              " pages but was handed ", count));
    }
  }
  return absl::OkStatus();
}

absl::Status CacheManager::CheckIdle() const {
  RECURVE_RETURN_IF_ERROR(CheckInvariants());
  RECURVE_RETURN_IF_ERROR(slots_.ids().CheckIdle());
  RECURVE_RETURN_IF_ERROR(host_blocks_.ids().CheckIdle());
  return pages_.CheckIdle();
}

void CacheManager::TakeBack(const Snapshot& snapshot) {
  for (size_t i = snapshot.blocks_.size(); i-- > 0;) {
    RECURVE_CHECK(
        host_blocks_.Give({snapshot.blocks_[i], snapshot.generations_[i]})
            .ok());
  }
}

void CacheManager::TakeBack(const SequenceLease& lease) {
  // Last page first, so that the next sequence gets them in the same order.
  for (size_t i = lease.pages_.size(); i-- > 0;) {
    const OwnedId page = {lease.pages_[i], lease.page_generations_[i]};
    RECURVE_CHECK(pages_.CheckOwned(page, lease.owner_).ok());
    if (options_.poison_on_release) {
      const absl::Status poisoned = storage_->PoisonPage(page.id);
      if (!poisoned.ok()) {
        poison_status_.Update(
            StorageError("poisoning page", page.id, poisoned));
      }
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
  pages_of_slot_[slot] = 0;
}

int64_t CacheManager::TokensApplied(const SequenceLease& lease) const {
  return slots_.tokens_applied(lease.slot_.id);
}

}  // namespace recurve
