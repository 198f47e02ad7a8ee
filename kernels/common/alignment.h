// Alignment checks of launchers. A kernel that reads an unaligned pointer fails
// with a device error that no later call recovers from.
#ifndef RECURVE_KERNELS_COMMON_ALIGNMENT_H_
#define RECURVE_KERNELS_COMMON_ALIGNMENT_H_

#include <cstdint>

namespace recurve {

// Null counts as aligned: for optional pointers.
inline bool IsAligned(const void* pointer, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}
// For required pointers.
inline bool IsThere(const void* pointer, uintptr_t bytes = 16) {
  return pointer != nullptr && IsAligned(pointer, bytes);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_ALIGNMENT_H_
