// Sixteen bytes of shared memory by address. Device code only.
#ifndef RECURVE_KERNELS_ATTENTION_ATTENTION_ACCESS_CUH_
#define RECURVE_KERNELS_ATTENTION_ATTENTION_ACCESS_CUH_

#include <cstdint>

namespace recurve {

__device__ __forceinline__ void LoadShared16(uint32_t (&x)[4],
                                             uint32_t address) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ClearShared16(uint32_t address) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(address), "r"(0)
               : "memory");
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_ATTENTION_ACCESS_CUH_
