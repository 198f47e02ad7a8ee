#ifndef RECURVE_KV_CACHE_CACHE_STORAGE_H_
#define RECURVE_KV_CACHE_CACHE_STORAGE_H_

#include <cstdint>

#include "absl/status/status.h"

namespace recurve {

// The memory behind pages and slots, owned by a backend. The cache manager
// knows ids only and asks for contents to be set through this.
//
// On a device, an operation is ordered before every step launched after it; it
// need not have finished on return.
//
// Thread safety: called by the engine's step thread only.
class CacheStorage {
 public:
  virtual ~CacheStorage() = default;

  // Sets every byte of the page (all layers) to zero, so that its next owner
  // finds no trace of the last one, nor a NaN.
  virtual absl::Status ClearPage(int32_t page) = 0;

  // Sets every byte of the slot (all layers) to zero: the state at position 0.
  virtual absl::Status ClearSlot(int32_t slot) = 0;

  // Fills freed memory with NaN, so that a read through a stale table shows.
  // Called only when the cache manager was asked to poison.
  virtual absl::Status PoisonPage(int32_t /*page*/) { return absl::OkStatus(); }
  virtual absl::Status PoisonSlot(int32_t /*slot*/) { return absl::OkStatus(); }
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_CACHE_STORAGE_H_
