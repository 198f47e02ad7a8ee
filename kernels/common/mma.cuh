// Tensor core building blocks for 16-bit factors, with fragments of
// mma.m16n8k16. Device code only.
#ifndef RECURVE_KERNELS_COMMON_MMA_CUH_
#define RECURVE_KERNELS_COMMON_MMA_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace recurve {

// Loads four 8x8 matrices of 16-bit elements; lane l gives the address of row
// l % 8 of matrix l / 8. Thread (g, t) = (lane / 4, lane % 4) gets row g,
// columns 2t and 2t + 1 of each.
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4],
                                             uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// The same, each matrix transposed: rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&r)[4],
                                                       uint32_t address) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(address)
      : "memory");
}

// An 8x8 matrix of 16-bit elements, transposed: thread (g, t) gives row g,
// columns 2t and 2t + 1, and gets them of the result.
__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"
               : "=r"(y)
               : "r"(x));
  return y;
}

// Operations of the 16-bit type. Split() splits a float into terms of the type
// that add up to it: in bfloat16 to 16 bits; in float16 to 22 bits, but to no
// less than 2^-25, and up to 65504.
template <typename T>
struct Half;

template <>
struct Half<__nv_bfloat16> {
  static constexpr int kTerms = 2;
  __device__ static __nv_bfloat16 From(float x) {
    return __float2bfloat16_rn(x);
  }
  __device__ static float To(__nv_bfloat16 x) { return __bfloat162float(x); }
  __device__ static float Low(uint32_t pair) {
    return __uint_as_float(pair << 16);
  }
  __device__ static float High(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
  }
  __device__ static uint32_t Pack(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  __device__ static void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                             uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Half<__half> {
  static constexpr int kTerms = 2;
  __device__ static __half From(float x) { return __float2half_rn(x); }
  __device__ static float To(__half x) { return __half2float(x); }
  __device__ static float Low(uint32_t pair) {
    return __low2float(reinterpret_cast<const __half2&>(pair));
  }
  __device__ static float High(uint32_t pair) {
    return __high2float(reinterpret_cast<const __half2&>(pair));
  }
  __device__ static uint32_t Pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  __device__ static void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                             uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

// Two neighbouring floats as kTerms pairs, largest first.
template <typename T>
__device__ __forceinline__ void Split(float low, float high,
                                      uint32_t (&terms)[Half<T>::kTerms]) {
#pragma unroll
  for (int i = 0; i < Half<T>::kTerms; ++i) {
    terms[i] = Half<T>::Pack(low, high);
    low -= Half<T>::Low(terms[i]);
    high -= Half<T>::High(terms[i]);
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_MMA_CUH_
