#ifndef RECURVE_KV_CACHE_BLOCK_POOL_H_
#define RECURVE_KV_CACHE_BLOCK_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kv_cache/id_pool.h"

namespace recurve {

// Blocks of host memory, 1..total: written once, then read by any number of
// holders (snapshots) until the last gives it back.
//
// Invariants: a block is in use if and only if it has holders; its generation
// tells its tenures apart, as in IdPool.
//
// Thread safety: none; the engine's step thread owns it.
class BlockPool {
 public:
  // REQUIRES: total >= 0.
  explicit BlockPool(int32_t total)
      : ids_("host block", total), holders_(static_cast<size_t>(total) + 1) {}

  const IdPool& ids() const { return ids_; }

  // A free block, with one holder. REQUIRES: ids().free() > 0.
  OwnedId Take();
  // One more holder, or one less. Internal unless this tenure of the block is
  // current.
  absl::Status Share(OwnedId block);
  absl::Status Give(OwnedId block);
  absl::Status Check(OwnedId block) const;

  int32_t holders(int32_t block) const { return holders_[block]; }
  absl::Status CheckInvariants() const;

 private:
  IdPool ids_;
  std::vector<int32_t> holders_;  // [total + 1]
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_BLOCK_POOL_H_
