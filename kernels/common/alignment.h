// What launchers ask of pointers before a kernel goes by them: one that is not
// aligned would end in an error of the device, which no later call gets over.
#ifndef RECURVE_KERNELS_COMMON_ALIGNMENT_H_
#define RECURVE_KERNELS_COMMON_ALIGNMENT_H_

#include <cstdint>

namespace recurve {

// Null is, for what may be left out.
inline bool IsAligned(const void* pointer, uintptr_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}
// For what may not.
inline bool IsThere(const void* pointer, uintptr_t bytes = 16) {
  return pointer != nullptr && IsAligned(pointer, bytes);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_ALIGNMENT_H_
