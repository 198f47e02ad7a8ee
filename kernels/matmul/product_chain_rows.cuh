// Rows on their way between the blocks of product_chain.cu: words of a value
// and the launch's number, and a row in shared memory for the next product.
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

// 16 bytes of words as others write them.
__device__ __forceinline__ uint4 LoadWords(const uint2* from) {
  uint64_t a, b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(a), "=l"(b)
               : "l"(from)
               : "memory");
  return make_uint4(static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32),
                    static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32));
}
__device__ __forceinline__ void StoreWord(uint2* to, uint32_t value,
                                          uint32_t epoch) {
  const uint64_t word = value | static_cast<uint64_t>(epoch) << 32;
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word)
               : "memory");
}

// kCount times 16 bytes, until the words of each that count have the epoch; v
// does not, before.
template <int kCount>
__device__ __forceinline__ void PollWords(const uint2* const (&from)[kCount],
                                          const int (&words)[kCount],
                                          uint32_t epoch, uint4 (&v)[kCount]) {
  for (int polls = 0;; ++polls) {
    bool ready = true;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if ((words[i] > 0 && v[i].y != epoch) ||
          (words[i] > 1 && v[i].w != epoch)) {
        v[i] = LoadWords(from[i]);
        ready = false;
      }
    }
    if (ready) break;
    if (polls == kMaxPolls) __trap();
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

// A row of words, normed and rounded, to shared memory.
template <typename T>
__device__ __forceinline__ void NormedRow(const uint2* words, int cols,
                                          int inputs,
                                          const float4 (&weight)[kFours],
                                          float eps, uint32_t epoch, char* to,
                                          float* partial) {
  const uint2* from[2 * kFours];
  int count[2 * kFours];
  uint4 w[2 * kFours];
#pragma unroll
  for (int i = 0; i < 2 * kFours; ++i) {
    const int c = Column(i / 2) + i % 2 * 2;
    from[i] = words + c;
    count[i] = cols - c;
    w[i] = make_uint4(0, 0, 0, 0);
  }
  PollWords(from, count, epoch, w);
  float4 v[kFours];
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const uint4& low = w[2 * i];
    const uint4& high = w[2 * i + 1];
    v[i] = make_float4(count[2 * i] > 0 ? __uint_as_float(low.x) : 0.0f,
                       count[2 * i] > 1 ? __uint_as_float(low.z) : 0.0f,
                       count[2 * i + 1] > 0 ? __uint_as_float(high.x) : 0.0f,
                       count[2 * i + 1] > 1 ? __uint_as_float(high.z) : 0.0f);
  }
  WriteNormed<T, kThreads>(v, weight, cols, inputs, eps, partial, to,
                           [] { ConsumerBarrier(); });
}

// The row of 16-bit values that attention left, to shared memory.
template <typename T>
__device__ __forceinline__ void AttendedRow(const T* x, int cols, int inputs,
                                            char* to) {
  constexpr int kTogether = 3;
#pragma unroll 1
  for (int first = 8 * threadIdx.x; first < inputs;
       first += 8 * kTogether * kThreads) {
    uint4 v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      v[i] = LoadEight(x, first + 8 * i * kThreads, cols);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int c = first + 8 * i * kThreads;
      if (c < inputs) *reinterpret_cast<uint4*>(to + 2 * c) = v[i];
    }
  }
}

// The row of gated features, each word two of them, to shared memory.
__device__ __forceinline__ void HiddenRow(const uint2* words, int features,
                                          int inputs, uint32_t epoch,
                                          char* to) {
  constexpr int kTogether = 5;
  const int all = (features + 1) / 2;
#pragma unroll 1
  for (int first = threadIdx.x; 4 * first < inputs;
       first += kTogether * kThreads) {
    const uint2* from[kTogether];
    int count[kTogether];
    uint4 v[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = 2 * (first + i * kThreads);
      from[i] = words + at;
      count[i] = all - at;
      v[i] = make_uint4(0, 0, 0, 0);
    }
    PollWords(from, count, epoch, v);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = 4 * (first + i * kThreads);
      if (at >= inputs) break;
      // Of an odd number the last word's second does not count.
      const bool odd = features % 2 != 0;
      const uint32_t low = odd && count[i] == 1 ? v[i].x & 0xffffu : v[i].x;
      const uint32_t high = odd && count[i] == 2 ? v[i].z & 0xffffu : v[i].z;
      *reinterpret_cast<uint2*>(to + 2 * at) =
          make_uint2(count[i] > 0 ? low : 0, count[i] > 1 ? high : 0);
    }
  }
}

}  // namespace chain
}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_ROWS_CUH_
