#ifndef RECURVE_SERVER_HEAP_TRIMMER_H_
#define RECURVE_SERVER_HEAP_TRIMMER_H_

#include <cstdint>

namespace recurve {

// Returns freed memory to the system. The allocator keeps most of it, which
// after a flood of connections may be hundreds of MiB that are unavailable to
// other programs.
//
// Not thread-safe.
class HeapTrimmer {
 public:
  // Checks the heap, and trims it if that may return at least kLeastBytes.
  // Trimming takes some milliseconds, during which allocations in other threads
  // may wait; call it periodically. Returns whether it trimmed.
  bool TrimIfWorthwhile();

  static constexpr int64_t kLeastBytes = 32 << 20;

 private:
  // Resident memory after the last trim: memory that is free and no longer
  // resident still counts as free in the heap.
  int64_t resident_bytes_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_HEAP_TRIMMER_H_
