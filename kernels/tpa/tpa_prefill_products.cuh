// The tensor core products of a prefill. Device code only, for sm_90a.
#ifndef RECURVE_KERNELS_TPA_TPA_PREFILL_PRODUCTS_CUH_
#define RECURVE_KERNELS_TPA_TPA_PREFILL_PRODUCTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/wgmma.cuh"

namespace recurve {

// c = (add ? c : 0) + A [64, 16] · B [16, n], n = 64 or 128. Warp w of the four
// has rows 16 w to 16 w + 15; its lane l has, for each 8 columns j, of row l /
// 4 columns 8 j + 2 (l % 4) and the next in c[4 j] and c[4 j + 1], and the same
// of row l / 4 + 8 in c[4 j + 2] and c[4 j + 3].

#define RECURVE_TPA_LIST_32(X, b)                                       \
  X(b + 0), X(b + 1), X(b + 2), X(b + 3), X(b + 4), X(b + 5), X(b + 6), \
      X(b + 7), X(b + 8), X(b + 9), X(b + 10), X(b + 11), X(b + 12),    \
      X(b + 13), X(b + 14), X(b + 15), X(b + 16), X(b + 17), X(b + 18), \
      X(b + 19), X(b + 20), X(b + 21), X(b + 22), X(b + 23), X(b + 24), \
      X(b + 25), X(b + 26), X(b + 27), X(b + 28), X(b + 29), X(b + 30), \
      X(b + 31)
#define RECURVE_TPA_ACCUMULATOR(i) "+f"(c[i])
#define RECURVE_TPA_TEXT_64                                 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define RECURVE_TPA_TEXT_128                                         \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// Both operands from shared memory, along K.
#define RECURVE_TPA_SCORES(NAME, N, TEXT, A, B, P, ...)                   \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " P                        \
               ", 0; wgmma.mma_async.sync.aligned.m64n" N "k16.f32." NAME \
               "." NAME " " TEXT ", " A ", " B ", p, 1, 1, 0, 0; }"       \
               : __VA_ARGS__                                              \
               : "l"(a), "l"(b), "r"(static_cast<int>(add)))

template <typename T>
__device__ __forceinline__ void MultiplyScores(float (&c)[64], uint64_t a,
                                               uint64_t b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    RECURVE_TPA_SCORES("bf16", "128", RECURVE_TPA_TEXT_128, "%64", "%65", "%66",
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 0),
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 32));
  } else {
    RECURVE_TPA_SCORES("f16", "128", RECURVE_TPA_TEXT_128, "%64", "%65", "%66",
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 0),
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 32));
  }
#endif
}
template <typename T>
__device__ __forceinline__ void MultiplyScores(float (&c)[32], uint64_t a,
                                               uint64_t b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    RECURVE_TPA_SCORES("bf16", "64", RECURVE_TPA_TEXT_64, "%32", "%33", "%34",
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 0));
  } else {
    RECURVE_TPA_SCORES("f16", "64", RECURVE_TPA_TEXT_64, "%32", "%33", "%34",
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 0));
  }
#endif
}

// A from registers, as fragments of mma.m16n8k16; B from shared memory, along
// N.
#define RECURVE_TPA_VALUES(NAME, N, TEXT, A, B, P, ...)                   \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " P                        \
               ", 0; wgmma.mma_async.sync.aligned.m64n" N "k16.f32." NAME \
               "." NAME " " TEXT ", " A ", " B ", p, 1, 1, 1; }"          \
               : __VA_ARGS__                                              \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),      \
                 "r"(static_cast<int>(add)))

template <typename T>
__device__ __forceinline__ void MultiplyValues(float (&c)[64],
                                               const uint32_t (&a)[4],
                                               uint64_t b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    RECURVE_TPA_VALUES("bf16", "128", RECURVE_TPA_TEXT_128,
                       "{%64, %65, %66, %67}", "%68", "%69",
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 0),
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 32));
  } else {
    RECURVE_TPA_VALUES("f16", "128", RECURVE_TPA_TEXT_128,
                       "{%64, %65, %66, %67}", "%68", "%69",
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 0),
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 32));
  }
#endif
}
template <typename T>
__device__ __forceinline__ void MultiplyValues(float (&c)[32],
                                               const uint32_t (&a)[4],
                                               uint64_t b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    RECURVE_TPA_VALUES("bf16", "64", RECURVE_TPA_TEXT_64,
                       "{%32, %33, %34, %35}", "%36", "%37",
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 0));
  } else {
    RECURVE_TPA_VALUES("f16", "64", RECURVE_TPA_TEXT_64, "{%32, %33, %34, %35}",
                       "%36", "%37",
                       RECURVE_TPA_LIST_32(RECURVE_TPA_ACCUMULATOR, 0));
  }
#endif
}

#undef RECURVE_TPA_SCORES
#undef RECURVE_TPA_VALUES
#undef RECURVE_TPA_TEXT_64
#undef RECURVE_TPA_TEXT_128
#undef RECURVE_TPA_ACCUMULATOR
#undef RECURVE_TPA_LIST_32

// The compiler must not move uses of these registers over this point.
template <int kCount>
__device__ __forceinline__ void HoldRegisters(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}
template <int kRows, int kCount>
__device__ __forceinline__ void HoldRegisters(float (&c)[kRows][kCount]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) HoldRegisters(c[i]);
}
template <int kRows, int kCount>
__device__ __forceinline__ void HoldRegisters(uint32_t (&a)[kRows][kCount]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) asm volatile("" : "+r"(a[i][j])::"memory");
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_PREFILL_PRODUCTS_CUH_
