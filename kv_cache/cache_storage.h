#ifndef RECURVE_KV_CACHE_CACHE_STORAGE_H_
#define RECURVE_KV_CACHE_CACHE_STORAGE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace recurve {

// Where the memory of one sequence is on the device and in host memory: page i
// beside block i; behind the pages' blocks those of the slot, filled one after
// the other.
struct SavedMemory {
  int32_t slot;
  absl::Span<const int32_t> pages;
  absl::Span<const int32_t> blocks;
};

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

  // Copies pages and slot to their blocks, every byte, or back. On a device the
  // copies run beside steps; what is called later for these pages, slots and
  // blocks waits for them by itself, and so does a step with the slot.
  // Called only where CacheSpec has blocks.
  virtual absl::Status Save(const SavedMemory& /*memory*/) {
    return absl::UnimplementedError("no host memory to save sequences in");
  }
  virtual absl::Status Restore(const SavedMemory& /*memory*/) {
    return absl::UnimplementedError("no host memory to save sequences in");
  }
  // Whether a step with the slot need not wait for a Restore.
  virtual bool Restored(int32_t /*slot*/) { return true; }
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_CACHE_STORAGE_H_
