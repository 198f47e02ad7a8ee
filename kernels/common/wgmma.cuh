// Warpgroup matrix products (wgmma) of 16-bit operands in shared memory. Device
// code only, for sm_90a.
#ifndef RECURVE_KERNELS_COMMON_WGMMA_CUH_
#define RECURVE_KERNELS_COMMON_WGMMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace recurve {

// ---- operands ----

// Layout of a 16-bit operand in shared memory, without swizzle: cores of 8 rows
// of 16 bytes, 128 bytes each. For `kMajorK`, a core's row is 8 elements of one
// row (or column, of B) of the operand along the product's inner dimension K;
// for `kMajorMN`, a core's row is one of K. (PTX ISA, "Shared memory matrix
// layout", no swizzling.)
inline constexpr int kMajorK = 0;
inline constexpr int kMajorMN = 1;

// `k_bytes` separate cores that follow each other along K, `mn_bytes` those
// along M or N; both, and the address, are multiples of 16.
__device__ __forceinline__ uint64_t WgmmaOperand(uint32_t address,
                                                 uint32_t k_bytes,
                                                 uint32_t mn_bytes) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(k_bytes >> 4) << 16 |
         static_cast<uint64_t>(mn_bytes >> 4) << 32;
}
// The same operand, known to the compiler to be uniform, and so kept in uniform
// registers, where WgmmaAdvance is an addition. Otherwise each product waits
// until its operands have been moved to such registers. For whole warps.
__device__ __forceinline__ uint64_t WgmmaUniform(uint64_t operand) {
  const uint32_t low =
      __shfl_sync(0xffffffffu, static_cast<uint32_t>(operand), 0);
  return operand >> 32 << 32 | low;
}
// The operand `bytes` further on.
__device__ __forceinline__ uint64_t WgmmaAdvance(uint64_t operand,
                                                 uint32_t bytes) {
  return operand + (bytes >> 4);
}

// ---- order ----

// Before the first product of a group, if registers of its accumulators were
// written since the last.
__device__ __forceinline__ void WgmmaFence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void WgmmaCommit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until at most `kGroups` committed groups are in flight.
template <int kGroups>
__device__ __forceinline__ void WgmmaWait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
#endif
}
// Keeps the compiler from moving uses of these registers, floats or 32-bit
// integers in arrays of any rank, across this point.
template <typename Register, int kCount>
__device__ __forceinline__ void WgmmaPin(Register (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_array_v<Register>) {
      WgmmaPin(d[i]);
    } else if constexpr (std::is_same_v<Register, float>) {
      asm volatile("" : "+f"(d[i])::"memory");
    } else {
      asm volatile("" : "+r"(d[i])::"memory");
    }
  }
}

// ---- products: d = (add ? d : 0) + A [64, 16] · B [16, kCount / 4 · 8] ----
//
// Warp w of the four has rows 16 w to 16 w + 15; its lane l has, for each 8
// columns j, of row l / 4 columns 8 j + 2 (l % 4) and the next in d[4 j] and
// d[4 j + 1], and the same of row l / 4 + 8 in d[4 j + 2] and d[4 j + 3].
//
//   Wgmma<kMajorA, kMajorB>(d, a, b, add, T())    both from shared memory
//   WgmmaOfRegisters<kMajorB>(d, a, b, add, T())  A from registers, as
//                                                 fragments of mma.m16n8k16
//
// T is __nv_bfloat16 or __half. Elsewhere than on sm_90a they do nothing.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define RECURVE_WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
#define RECURVE_WGMMA_ASM(...) static_cast<void>(0)
#endif

// The width, and the number of registers, are part of the instruction.
#define RECURVE_WGMMA_4(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RECURVE_WGMMA_D8 RECURVE_WGMMA_4(0), RECURVE_WGMMA_4(4)
#define RECURVE_WGMMA_D12 RECURVE_WGMMA_D8, RECURVE_WGMMA_4(8)
#define RECURVE_WGMMA_D16 RECURVE_WGMMA_D12, RECURVE_WGMMA_4(12)
#define RECURVE_WGMMA_D20 RECURVE_WGMMA_D16, RECURVE_WGMMA_4(16)
#define RECURVE_WGMMA_D24 RECURVE_WGMMA_D20, RECURVE_WGMMA_4(20)
#define RECURVE_WGMMA_D32 \
  RECURVE_WGMMA_D24, RECURVE_WGMMA_4(24), RECURVE_WGMMA_4(28)
#define RECURVE_WGMMA_D40 \
  RECURVE_WGMMA_D32, RECURVE_WGMMA_4(32), RECURVE_WGMMA_4(36)
#define RECURVE_WGMMA_D48 \
  RECURVE_WGMMA_D40, RECURVE_WGMMA_4(40), RECURVE_WGMMA_4(44)
#define RECURVE_WGMMA_D64                                      \
  RECURVE_WGMMA_D48, RECURVE_WGMMA_4(48), RECURVE_WGMMA_4(52), \
      RECURVE_WGMMA_4(56), RECURVE_WGMMA_4(60)
#define RECURVE_WGMMA_D80                                      \
  RECURVE_WGMMA_D64, RECURVE_WGMMA_4(64), RECURVE_WGMMA_4(68), \
      RECURVE_WGMMA_4(72), RECURVE_WGMMA_4(76)
#define RECURVE_WGMMA_D72 \
  RECURVE_WGMMA_D64, RECURVE_WGMMA_4(64), RECURVE_WGMMA_4(68)
#define RECURVE_WGMMA_D88 \
  RECURVE_WGMMA_D80, RECURVE_WGMMA_4(80), RECURVE_WGMMA_4(84)
#define RECURVE_WGMMA_D128                                              \
  RECURVE_WGMMA_D88, RECURVE_WGMMA_4(88), RECURVE_WGMMA_4(92),          \
      RECURVE_WGMMA_4(96), RECURVE_WGMMA_4(100), RECURVE_WGMMA_4(104),  \
      RECURVE_WGMMA_4(108), RECURVE_WGMMA_4(112), RECURVE_WGMMA_4(116), \
      RECURVE_WGMMA_4(120), RECURVE_WGMMA_4(124)
#define RECURVE_WGMMA_TEXT8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define RECURVE_WGMMA_TEXT12 RECURVE_WGMMA_TEXT8 ", %8, %9, %10, %11"
#define RECURVE_WGMMA_TEXT16 RECURVE_WGMMA_TEXT12 ", %12, %13, %14, %15"
#define RECURVE_WGMMA_TEXT20 RECURVE_WGMMA_TEXT16 ", %16, %17, %18, %19"
#define RECURVE_WGMMA_TEXT24 RECURVE_WGMMA_TEXT20 ", %20, %21, %22, %23"
#define RECURVE_WGMMA_TEXT32 \
  RECURVE_WGMMA_TEXT24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define RECURVE_WGMMA_TEXT40 \
  RECURVE_WGMMA_TEXT32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define RECURVE_WGMMA_TEXT48 \
  RECURVE_WGMMA_TEXT40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define RECURVE_WGMMA_TEXT64                                            \
  RECURVE_WGMMA_TEXT48                                                  \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, " \
  "%61, %62, %63"
#define RECURVE_WGMMA_TEXT72 \
  RECURVE_WGMMA_TEXT64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71"
#define RECURVE_WGMMA_TEXT80                                            \
  RECURVE_WGMMA_TEXT64                                                  \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, " \
  "%77, %78, %79"
#define RECURVE_WGMMA_TEXT88 \
  RECURVE_WGMMA_TEXT80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87"
#define RECURVE_WGMMA_TEXT128                                                  \
  RECURVE_WGMMA_TEXT88                                                         \
  ", %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, " \
  "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, "   \
  "%114, %115, "                                                               \
  "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define RECURVE_WGMMA_TEXT(type, n, count, a, b, p, majors)       \
  "{ .reg .pred p; setp.ne.b32 p, " p                             \
  ", 0; "                                                         \
  "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
  " {" RECURVE_WGMMA_TEXT##count "}, " a ", " b ", p, 1, 1, " majors "; }"
#define RECURVE_WGMMA_SHARED(type, n, count, o1, o2, o3, o4)                \
  RECURVE_WGMMA_ASM(RECURVE_WGMMA_TEXT(type, n, count, "%" #count, "%" #o1, \
                                       "%" #o2, "%" #o3 ", %" #o4)          \
                    : RECURVE_WGMMA_D##count                                \
                    : "l"(a), "l"(b), "r"(static_cast<int>(add)),           \
                      "n"(kMajorA), "n"(kMajorB))
#define RECURVE_WGMMA_REGISTERS(type, n, count, o1, o2, o3, o4, o5, o6) \
  RECURVE_WGMMA_ASM(                                                    \
      RECURVE_WGMMA_TEXT(type, n, count,                                \
                         "{%" #count ", %" #o1 ", %" #o2 ", %" #o3 "}", \
                         "%" #o4, "%" #o5, "%" #o6)                     \
      : RECURVE_WGMMA_D##count                                          \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),             \
        "r"(static_cast<int>(add)), "n"(kMajorB))
// The products of n columns: `count` registers, and the six operand numbers
// that follow.
#define RECURVE_WGMMA(n, count, o1, o2, o3, o4, o5, o6)                   \
  template <int kMajorA, int kMajorB, typename T>                         \
  __device__ __forceinline__ void Wgmma(float(&d)[count], uint64_t a,     \
                                        uint64_t b, bool add, T) {        \
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {                     \
      RECURVE_WGMMA_SHARED("bf16", n, count, o1, o2, o3, o4);             \
    } else {                                                              \
      static_assert(std::is_same_v<T, __half>);                           \
      RECURVE_WGMMA_SHARED("f16", n, count, o1, o2, o3, o4);              \
    }                                                                     \
  }                                                                       \
  template <int kMajorB, typename T>                                      \
  __device__ __forceinline__ void WgmmaOfRegisters(                       \
      float(&d)[count], const uint32_t(&a)[4], uint64_t b, bool add, T) { \
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {                     \
      RECURVE_WGMMA_REGISTERS("bf16", n, count, o1, o2, o3, o4, o5, o6);  \
    } else {                                                              \
      static_assert(std::is_same_v<T, __half>);                           \
      RECURVE_WGMMA_REGISTERS("f16", n, count, o1, o2, o3, o4, o5, o6);   \
    }                                                                     \
  }

RECURVE_WGMMA(16, 8, 9, 10, 11, 12, 13, 14)
RECURVE_WGMMA(24, 12, 13, 14, 15, 16, 17, 18)
RECURVE_WGMMA(32, 16, 17, 18, 19, 20, 21, 22)
RECURVE_WGMMA(40, 20, 21, 22, 23, 24, 25, 26)
RECURVE_WGMMA(48, 24, 25, 26, 27, 28, 29, 30)
RECURVE_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
RECURVE_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
RECURVE_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
RECURVE_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
RECURVE_WGMMA(144, 72, 73, 74, 75, 76, 77, 78)
RECURVE_WGMMA(160, 80, 81, 82, 83, 84, 85, 86)
RECURVE_WGMMA(176, 88, 89, 90, 91, 92, 93, 94)
RECURVE_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)

#undef RECURVE_WGMMA
#undef RECURVE_WGMMA_REGISTERS
#undef RECURVE_WGMMA_SHARED
#undef RECURVE_WGMMA_TEXT
#undef RECURVE_WGMMA_TEXT128
#undef RECURVE_WGMMA_TEXT88
#undef RECURVE_WGMMA_TEXT72
#undef RECURVE_WGMMA_TEXT80
#undef RECURVE_WGMMA_TEXT64
#undef RECURVE_WGMMA_TEXT48
#undef RECURVE_WGMMA_TEXT40
#undef RECURVE_WGMMA_TEXT32
#undef RECURVE_WGMMA_TEXT24
#undef RECURVE_WGMMA_TEXT20
#undef RECURVE_WGMMA_TEXT16
#undef RECURVE_WGMMA_TEXT12
#undef RECURVE_WGMMA_TEXT8
#undef RECURVE_WGMMA_D128
#undef RECURVE_WGMMA_D88
#undef RECURVE_WGMMA_D72
#undef RECURVE_WGMMA_D80
#undef RECURVE_WGMMA_D64
#undef RECURVE_WGMMA_D48
#undef RECURVE_WGMMA_D40
#undef RECURVE_WGMMA_D32
#undef RECURVE_WGMMA_D24
#undef RECURVE_WGMMA_D20
#undef RECURVE_WGMMA_D16
#undef RECURVE_WGMMA_D12
#undef RECURVE_WGMMA_D8
#undef RECURVE_WGMMA_4
#undef RECURVE_WGMMA_ASM

// The same with four registers a row.
template <int kMajorA, int kMajorB, int kRows, typename T>
__device__ __forceinline__ void Wgmma(float (&d)[kRows][4], uint64_t a,
                                      uint64_t b, bool add, T) {
  Wgmma<kMajorA, kMajorB>(reinterpret_cast<float(&)[4 * kRows]>(d), a, b, add,
                          T());
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_WGMMA_CUH_
