#ifndef RECURVE_KV_CACHE_SNAPSHOT_H_
#define RECURVE_KV_CACHE_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace recurve {

class CacheManager;

// The memory of a sequence after its first tokens() tokens, in blocks of host
// memory: a value, which any number of holders share and nothing changes. A
// block may be of several snapshots, if they begin with the same pages; it is
// free again when the last of them is gone.
//
// Made by CacheManager::Save. Must not outlive its manager.
//
// Thread safety: none; the engine's step thread owns it.
class Snapshot {
 public:
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Tokens that the memory has absorbed.
  int64_t tokens() const { return tokens_; }
  // Blocks, also those that it shares.
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
  // Their ids; may be read on any thread.
  const std::vector<int32_t>& block_ids() const { return blocks_; }

 private:
  friend class CacheManager;

  Snapshot(CacheManager* manager, int64_t tokens)
      : manager_(manager), tokens_(tokens) {}

  CacheManager* const manager_;
  const int64_t tokens_;
  // Those of the pages, in order, then those of the slot.
  std::vector<int32_t> blocks_;
  std::vector<uint32_t> generations_;  // of blocks_[i]
};

using SnapshotPtr = std::shared_ptr<const Snapshot>;

// The first `tokens` tokens of a snapshot: all of them, or, without recurrent
// state, any number. Or nothing.
struct SnapshotPrefix {
  SnapshotPtr snapshot;
  int64_t tokens = 0;

  bool empty() const { return snapshot == nullptr; }
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_SNAPSHOT_H_
