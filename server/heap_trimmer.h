#ifndef RECURVE_SERVER_HEAP_TRIMMER_H_
#define RECURVE_SERVER_HEAP_TRIMMER_H_

#include <cstdint>

namespace recurve {

// Gives memory that was freed back to the system. The allocator keeps most of
// it for later, which after a flood of connections may be hundreds of MiB that
// the next one to need memory on this machine does not get.
//
// Not thread-safe.
class HeapTrimmer {
 public:
  // Looks at the heap, and trims it if that may give back as much as
  // kLeastBytes. Some milliseconds then, during which other threads may wait
  // for memory; call it now and then. Returns whether it trimmed.
  bool TrimIfWorthwhile();

  static constexpr int64_t kLeastBytes = 32 << 20;

 private:
  // Resident memory after the last time: what is free and not resident any
  // more still counts as free in the heap.
  int64_t resident_bytes_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_HEAP_TRIMMER_H_
