#ifndef RECURVE_KV_CACHE_SEQUENCE_LEASE_H_
#define RECURVE_KV_CACHE_SEQUENCE_LEASE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kv_cache/id_pool.h"

namespace recurve {

class CacheManager;

// All memory of one sequence: its slot and its pages, of which other sequences
// may hold those that are full (CacheManager::Restore). Whatever ends a
// sequence (finish, cancel, disconnect, error, preemption) destroys its lease,
// which gives everything back exactly once.
//
// Made by CacheManager::Acquire; a default-made, moved-from or released lease
// is empty. Movable, not copyable. Must not outlive its manager.
//
// Thread safety: none; the engine's step thread owns it.
class SequenceLease {
 public:
  SequenceLease() = default;
  ~SequenceLease() { Release(); }
  SequenceLease(SequenceLease&& other) noexcept;
  SequenceLease& operator=(SequenceLease&& other) noexcept;

  // Gives everything back, even with an update in flight: its state is dropped.
  // The lease is empty afterwards. No effect on an empty lease.
  void Release();

  bool empty() const { return manager_ == nullptr; }

  // The sequence id; 0 when empty.
  uint64_t owner() const { return owner_; }

  // The slot; 0 (the sink) when empty.
  int32_t slot() const { return slot_.id; }

  // Pages in token order: page i holds tokens [64 i, 64 i + 64). Valid until
  // the lease changes.
  absl::Span<const int32_t> pages() const { return pages_; }

  // Tokens the state has absorbed, committed updates only; 0 when empty.
  int64_t tokens_applied() const;

 private:
  friend class CacheManager;
  friend class CachePeer;  // tests break invariants on purpose

  SequenceLease(CacheManager* manager, uint64_t owner, OwnedId slot)
      : manager_(manager), owner_(owner), slot_(slot) {}

  void Add(OwnedId page) {
    pages_.push_back(page.id);
    page_generations_.push_back(page.generation);
  }

  CacheManager* manager_ = nullptr;
  uint64_t owner_ = 0;
  OwnedId slot_;
  // Separate from the generations, so that pages() is a plain table.
  std::vector<int32_t> pages_;
  std::vector<uint32_t> page_generations_;  // of pages_[i]
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_SEQUENCE_LEASE_H_
