#ifndef RECURVE_KV_CACHE_CACHE_STORAGE_H_
#define RECURVE_KV_CACHE_CACHE_STORAGE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace recurve {

// What is copied of one sequence's memory between the device and host memory:
// page i corresponds to block i; the slot is in the blocks after those of the
// pages. Pages need not be all of the sequence's.
struct SavedMemory {
  int32_t slot;
  absl::Span<const int32_t> pages;
  absl::Span<const int32_t> blocks;
};

// The memory behind pages and slots, owned by an executor. The cache manager
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
  // sees neither old contents nor a NaN.
  virtual absl::Status ClearPage(int32_t page) = 0;

  // Sets every byte of the slot (all layers) to zero: the state at position 0.
  virtual absl::Status ClearSlot(int32_t slot) = 0;

  // Fills freed memory with NaN, so that a read through a stale table is
  // detected. Called only when the cache manager was asked to poison.
  virtual absl::Status PoisonPage(int32_t /*page*/) { return absl::OkStatus(); }
  virtual absl::Status PoisonSlot(int32_t /*slot*/) { return absl::OkStatus(); }

  // Copies pages and slot to their blocks, every byte, or back. On a device the
  // copies run concurrently with steps; later operations on these pages, slots
  // and blocks wait for them, and so does a step with the slot.
  //
  // The sequence of a Restore may share pages with others instead of copying
  // them: all of them, and then there may be nothing to copy, but Restore is
  // called. So a step with its slot also waits for every earlier Restore, which
  // may be copying those pages. It need not wait for a Save, which reads them.
  //
  // Called only if CacheSpec has blocks.
  virtual absl::Status Save(const SavedMemory& /*memory*/) {
    return absl::UnimplementedError("no host memory to save sequences in");
  }
  virtual absl::Status Restore(const SavedMemory& /*memory*/) {
    return absl::UnimplementedError("no host memory to save sequences in");
  }
  // The bytes of a block. They may be read, or written if no Save wrote them,
  // after FinishCopies.
  virtual absl::Span<char> HostBlock(int32_t /*block*/) { return {}; }
  // Waits for the copies of all earlier Saves and Restores. These two may be
  // called on any thread.
  virtual absl::Status FinishCopies() { return absl::OkStatus(); }
  // Whether a step with the slot can start without waiting for a Restore: its
  // own, or an earlier one.
  virtual bool Restored(int32_t /*slot*/) { return true; }
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_CACHE_STORAGE_H_
