#ifndef RECURVE_KV_CACHE_SAVED_SEQUENCE_H_
#define RECURVE_KV_CACHE_SAVED_SEQUENCE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "kv_cache/id_pool.h"

namespace recurve {

class CacheManager;

// The memory of a preempted sequence, in blocks of host memory. Destroying it
// gives the blocks back, once.
//
// Made by CacheManager::Save; a default-made, moved-from or released one is
// empty. Movable, not copyable. Must not outlive its manager.
//
// Thread safety: none; the engine's step thread owns it.
class SavedSequence {
 public:
  SavedSequence() = default;
  ~SavedSequence() { Release(); }
  SavedSequence(SavedSequence&& other) noexcept { Swap(other); }
  SavedSequence& operator=(SavedSequence&& other) noexcept {
    SavedSequence old = std::move(*this);
    Swap(other);
    return *this;
  }

  // Gives the blocks back: what they hold is lost.
  void Release();

  bool empty() const { return manager_ == nullptr; }
  // The sequence id; 0 when empty.
  uint64_t owner() const { return owner_; }
  // Tokens that the memory has absorbed.
  int64_t tokens() const { return tokens_; }

 private:
  friend class CacheManager;

  SavedSequence(CacheManager* manager, uint64_t owner, int64_t tokens)
      : manager_(manager), owner_(owner), tokens_(tokens) {}
  void Swap(SavedSequence& other) noexcept {
    std::swap(manager_, other.manager_);
    std::swap(owner_, other.owner_);
    std::swap(tokens_, other.tokens_);
    std::swap(blocks_, other.blocks_);
    std::swap(generations_, other.generations_);
  }

  CacheManager* manager_ = nullptr;
  uint64_t owner_ = 0;
  int64_t tokens_ = 0;
  std::vector<int32_t> blocks_;
  std::vector<uint32_t> generations_;  // of blocks_[i]
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_SAVED_SEQUENCE_H_
