// Rows on their way between the blocks of product_chain.cu: words that say
// themselves whether they are there, and rows in shared memory for the next
// product.
#ifndef RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_ROWS_CUH_
#define RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_ROWS_CUH_

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/matmul/decode_rows.cuh"
#include "kernels/matmul/product_chain_plan.h"

namespace recurve {
namespace chain {

constexpr int kWarps = kChainWarps;
constexpr int kThreads = 32 * kWarps;  // that multiply
// Of words, half a minute and more: then a partner is gone, and the launch ends
// with an error.
constexpr int kMaxPolls = 1 << 26;
// What a word is until it is written. No value is: NaNs that arithmetic gives
// have other bits.
constexpr uint32_t kAbsent = 0xffffffffu;

// 16 bytes of words as others write them.
__device__ __forceinline__ uint4 LoadWords(const uint32_t* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void StoreWord(uint32_t* to, uint32_t value) {
  if (value == kAbsent) value = 0x7fffffffu;
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(to), "r"(value)
               : "memory");
}

// kCount times 16 bytes, until the words of each that count are there; v is
// absent, before. Meanwhile a warp, as a whole, does meanwhile() over and over.
template <int kCount, typename Meanwhile>
__device__ __forceinline__ void PollWords(const uint32_t* const (&from)[kCount],
                                          const int (&words)[kCount],
                                          uint4 (&v)[kCount],
                                          const Meanwhile& meanwhile) {
  for (int polls = 0;; ++polls) {
    bool ready = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((words[i] > 0 && v[i].x == kAbsent) ||
          (words[i] > 1 && v[i].y == kAbsent) ||
          (words[i] > 2 && v[i].z == kAbsent) ||
          (words[i] > 3 && v[i].w == kAbsent)) {
        v[i] = LoadWords(from[i]);
        ready = false;
      }
    }
    if (__all_sync(0xffffffffu, ready)) break;
    if (polls == kMaxPolls) __trap();
    meanwhile();
  }
}

__device__ __forceinline__ void ConsumerBarrier() { NamedBarrier(1, kThreads); }

constexpr int kFours = 2;  // of columns of a normed row, a thread's
__device__ __forceinline__ int Column(int i) {
  return 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
}

// Before the wait: nobody's result.
__device__ __forceinline__ void LoadNorm(const float* norm, int cols,
                                         float4 (&weight)[kFours]) {
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    weight[i] = norm == nullptr ? make_float4(1, 1, 1, 1)
                                : LoadFour(norm, Column(i), cols);
  }
}

// Rows of words, `stride` apart, normed and rounded, to shared memory, where
// they are `to_stride` bytes apart. `partial`: a float of each row and warp.
template <typename T, int kRows, typename Meanwhile>
__device__ __forceinline__ void NormedRows(const uint32_t* words,
                                           int64_t stride, int cols, int inputs,
                                           const float4 (&weight)[kFours],
                                           float eps, char* to, int to_stride,
                                           float* partial,
                                           const Meanwhile& meanwhile) {
  const uint32_t* from[kRows * kFours];
  int count[kRows * kFours];
  uint4 w[kRows * kFours];
#pragma unroll
  for (int i = 0; i < kRows * kFours; ++i) {
    const int c = Column(i % kFours);
    from[i] = words + i / kFours * stride + c;
    count[i] = cols - c;
    w[i] = make_uint4(kAbsent, kAbsent, kAbsent, kAbsent);
  }
  PollWords(from, count, w, meanwhile);
  float4 v[kRows][kFours];
#pragma unroll
  for (int i = 0; i < kRows * kFours; ++i) {
    v[i / kFours][i % kFours] =
        make_float4(count[i] > 0 ? __uint_as_float(w[i].x) : 0.0f,
                    count[i] > 1 ? __uint_as_float(w[i].y) : 0.0f,
                    count[i] > 2 ? __uint_as_float(w[i].z) : 0.0f,
                    count[i] > 3 ? __uint_as_float(w[i].w) : 0.0f);
  }
  WriteNormed<T, kThreads>(v, weight, cols, inputs, eps, partial, to, to_stride,
                           [] { ConsumerBarrier(); });
}

// Rows of 16-bit values that attention left, `stride` apart, to shared memory.
template <typename T, int kRows>
__device__ __forceinline__ void AttendedRows(const T* x, int64_t stride,
                                             int cols, int inputs, char* to,
                                             int to_stride) {
  constexpr int kTogether = 3;
#pragma unroll 1
  for (int first = 8 * static_cast<int>(threadIdx.x); first < inputs;
       first += 8 * kTogether * kThreads) {
    uint4 v[kRows * kTogether];
#pragma unroll
    for (int i = 0; i < kRows * kTogether; ++i) {
      v[i] = LoadEight(x + i / kTogether * stride,
                       first + 8 * (i % kTogether) * kThreads, cols);
    }
#pragma unroll
    for (int i = 0; i < kRows * kTogether; ++i) {
      const int c = first + 8 * (i % kTogether) * kThreads;
      if (c < inputs)
        *reinterpret_cast<uint4*>(to + i / kTogether * to_stride + 2 * c) =
            v[i];
    }
  }
}

// Rows of gated features, each word two of them, to shared memory.
template <int kRows, typename Meanwhile>
__device__ __forceinline__ void HiddenRows(const uint32_t* words,
                                           int64_t stride, int features,
                                           int inputs, char* to, int to_stride,
                                           const Meanwhile& meanwhile) {
  constexpr int kTogether = 3;
  const int all = (features + 1) / 2;
  // All of a warp go round together, as meanwhile() is of all.
#pragma unroll 1
  for (int round = 0; 8 * round < inputs; round += kTogether * kThreads) {
    const int first = round + static_cast<int>(threadIdx.x);
    const uint32_t* from[kRows * kTogether];
    int count[kRows * kTogether];
    uint4 v[kRows * kTogether];
#pragma unroll
    for (int i = 0; i < kRows * kTogether; ++i) {
      const int at = 4 * (first + i % kTogether * kThreads);
      from[i] = words + i / kTogether * stride + at;
      count[i] = all - at;
      v[i] = make_uint4(kAbsent, kAbsent, kAbsent, kAbsent);
    }
    PollWords(from, count, v, meanwhile);
#pragma unroll
    for (int i = 0; i < kRows * kTogether; ++i) {
      const int at = 8 * (first + i % kTogether * kThreads);
      if (at >= inputs) continue;
      uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Of an odd number the last word's second does not count.
        if (features % 2 != 0 && count[i] == j + 1) w[j] &= 0xffffu;
        if (count[i] <= j) w[j] = 0;
      }
      *reinterpret_cast<uint4*>(to + i / kTogether * to_stride + 2 * at) =
          make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

}  // namespace chain
}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_ROWS_CUH_
