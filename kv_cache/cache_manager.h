#ifndef RECURVE_KV_CACHE_CACHE_MANAGER_H_
#define RECURVE_KV_CACHE_CACHE_MANAGER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv_cache/block_pool.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/cache_storage.h"
#include "kv_cache/page_pool.h"
#include "kv_cache/sequence_lease.h"
#include "kv_cache/slot_pool.h"
#include "kv_cache/snapshot.h"

namespace recurve {

struct CacheOptions {
  // Has the storage fill pages and slots with NaN when they are free; pages
  // that have the bytes of a block, when the block is given up. For tests: it
  // costs a write of every freed byte.
  bool poison_on_release = false;
};

// A page or block with several holders is used once. Pages that are free and
// have the bytes of a block are free.
struct PoolStats {
  int32_t total = 0;
  int32_t used = 0;
  int32_t free = 0;
};

struct CacheStats {
  PoolStats pages;
  PoolStats slots;
  PoolStats host_blocks;
  uint64_t pages_shared_total = 0;  // by Restore, instead of copied
};

// Hands out sequence memory and checks every use of it. Bookkeeping only: the
// bytes belong to the storage.
//
// One writer, many readers: a slot has one owner, which alone writes to it. A
// page is written by the lease that it was handed out to, until its last token;
// once it is full and a block of host memory has the same bytes, it has no
// writer, and any number of leases may hold it. A block is written once, and
// read by all snapshots that hold it.
//
// A full page that Save copies, or that Restore copies to, is bound to the
// block (PagePool). Restore shares the page of a block, if it has one, instead
// of copying the block: also a free page, which has its bytes until it is
// handed out to be overwritten. The order of the storage's copies makes the
// bytes ready in time: see CacheStorage::Restore.
//
// Invariants: memory is cleared, or overwritten by a snapshot, while still
// free, before it gets an owner; each slot has at most one owner; each page has
// either one holder, which may write to it, or no writer, and then every holder
// has absorbed all of its tokens; bound pages have the bytes of their blocks; a
// failed call changes nothing that can be observed through this class, other
// than which bytes of free pages can be shared.
//
// Statuses: ResourceExhausted means that a pool is exhausted and that releasing
// memory helps; it never comes from the storage, whose errors arrive as
// Internal. Misuse is Internal, with the numbers.
//
// Thread safety: none; the engine's step thread owns the manager and its
// leases.
class CacheManager {
 public:
  // `storage` outlives the manager. REQUIRES: nothing in `spec` is negative.
  CacheManager(const CacheSpec& spec, CacheStorage* storage,
               const CacheOptions& options = {});
  // REQUIRES: every lease and snapshot is gone.
  ~CacheManager();
  CacheManager(const CacheManager&) = delete;
  CacheManager& operator=(const CacheManager&) = delete;

  const CacheSpec& spec() const { return spec_; }

  // A lease of one cleared slot at position 0 and no pages. `owner` is a
  // sequence id other than 0 that holds no lease now.
  absl::StatusOr<SequenceLease> Acquire(uint64_t owner);

  // Grows the lease to the pages needed for `tokens` tokens in total; on an
  // error it is unchanged. Never shrinks it.
  absl::Status Reserve(SequenceLease& lease, int64_t tokens);

  // To be called before each launch that feeds the sequence's tokens
  // [position, position + num_tokens): verifies that slot and pages are still
  // this lease's, that the state is exactly at `position` with no update in
  // flight, that the pages cover the tokens, and that no other lease holds a
  // page that is written to.
  absl::Status BeginUpdate(const SequenceLease& lease, int64_t position,
                           int64_t num_tokens);

  // The launch succeeded. After one that failed the state is unknown: release
  // the lease instead. REQUIRES: an update of `num_tokens` is in flight.
  void CommitUpdate(SequenceLease& lease, int64_t num_tokens);

  // The most blocks that Save takes: of the lease's memory without the full
  // pages that `base` has. 0 if it cannot be saved: the lease is empty, has
  // absorbed nothing, or an update is in flight and the state is therefore
  // unknown.
  int64_t BlocksToSave(const SequenceLease& lease,
                       const SnapshotPrefix& base) const;

  // Whether Save has enough blocks.
  bool CanSave(const SequenceLease& lease, const SnapshotPrefix& base) const;

  // Has the sequence's memory copied to host memory; the lease may then be
  // released, or go on. The blocks of the full pages of `base`, which may be
  // empty, are shared, as are those that other full pages are bound to; the
  // rest is copied. REQUIRES: CanSave; the sequence's first tokens are those of
  // `base`, and were computed alike.
  absl::StatusOr<SnapshotPtr> Save(const SequenceLease& lease,
                                   const SnapshotPrefix& base);

  // A snapshot of `tokens` tokens whose blocks the caller writes (HostBlocks)
  // before it is published. ResourceExhausted without enough blocks.
  // REQUIRES: tokens > 0.
  absl::StatusOr<SnapshotPtr> Blank(int64_t tokens);

  // The blocks of a snapshot's first tokens: those of its pages, and of its
  // slot. Waits for copies in progress. May be called on any thread that holds
  // the snapshot.
  absl::StatusOr<std::vector<absl::Span<char>>> HostBlocks(
      const SnapshotPrefix& prefix) const;

  // A lease of a slot and pages for `owner`, with the contents of `from`. Takes
  // at most PagesFor(from.tokens) free pages; none for a page that another
  // lease holds and that is shared. `owner` as for Acquire.
  absl::StatusOr<SequenceLease> Restore(const SnapshotPrefix& from,
                                        uint64_t owner);

  // Pages of `from` that leases hold: Restore takes none for these.
  int64_t HeldPages(const SnapshotPrefix& from) const;

  // Whether a step with this lease can start without waiting for a Restore.
  bool Restored(const SequenceLease& lease) const {
    return storage_->Restored(lease.slot());
  }

  CacheStats stats() const;

  // Internal unless slot and pages are this lease's.
  absl::Status CheckLease(const SequenceLease& lease) const;

  // Internal unless the holders of each page are the sequences that it was
  // handed to, writers and full pages are as above, bound blocks are in use,
  // free lists and owners agree, and no poisoning failed. Scans everything: for
  // tests and simulation.
  absl::Status CheckInvariants() const;

  // CheckInvariants, and every pool is full again.
  absl::Status CheckIdle() const;

 private:
  friend class SequenceLease;
  friend class Snapshot;
  friend class CachePeer;  // tests break invariants on purpose

  // For Snapshot. REQUIRES: of this manager.
  void TakeBack(const Snapshot& snapshot);
  // Full pages of `tokens` tokens.
  int64_t FullPages(int64_t tokens) const;
  // Full pages that a snapshot of `tokens` tokens shares with `base`.
  int64_t SharedPages(int64_t tokens, const SnapshotPrefix& base) const;
  // Internal unless `from` can be restored for `owner`, whatever is free.
  absl::Status CheckRestore(const SnapshotPrefix& from, uint64_t owner) const;
  // A holder more of each page that has the bytes of one of the first `full`
  // blocks; id 0 where none has.
  std::vector<OwnedId> SharePages(const Snapshot& snapshot, int64_t full);
  absl::Status CheckHolders() const;
  void PoisonPage(int32_t page);
  // For SequenceLease::Release and tokens_applied. REQUIRES: of this manager.
  void TakeBack(const SequenceLease& lease);
  int64_t TokensApplied(const SequenceLease& lease) const;

  const CacheSpec spec_;
  CacheStorage* const storage_;
  const CacheOptions options_;
  PagePool pages_;
  SlotPool slots_;
  BlockPool host_blocks_;
  // The pages handed to the holder of each slot, [num_slots + 1]: a second
  // record, which CheckInvariants compares with that of pages_.
  std::vector<std::vector<int32_t>> pages_of_slot_;
  uint64_t pages_shared_total_ = 0;
  // The first failure to poison. Release cannot report it.
  absl::Status poison_status_;
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_CACHE_MANAGER_H_
