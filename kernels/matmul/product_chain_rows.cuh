// Exchange of rows between the blocks of product_chain.cu: self-validating
// words in global memory, and rows in shared memory for the next product.
#ifndef RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_ROWS_CUH_
#define RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_ROWS_CUH_

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/matmul/decode_rows.cuh"
#include "kernels/matmul/product_chain_plan.h"

namespace recurve {
namespace chain {

constexpr int kWarps = kChainWarps;
constexpr int kThreads = 32 * kWarps;  // consumers
// Polls of half a minute and more: then a partner is gone, and the launch ends
// with an error.
constexpr int kMaxPolls = 1 << 26;
// A word before it is written. No value has these bits: arithmetic gives other
// NaNs.
constexpr uint32_t kAbsent = 0xffffffffu;

// 16 bytes of words that other blocks write.
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

// Reads kTogether groups of four words, 4 · kThreads apart, of each of kRows
// rows, `stride` words apart, until all are written; words from `count` on are
// 0. Meanwhile the whole warp calls meanwhile() repeatedly.
template <int kRows, int kTogether, typename Meanwhile>
__device__ __forceinline__ void PollWords(const uint32_t* from, int stride,
                                          int count,
                                          uint4 (&v)[kRows][kTogether],
                                          const Meanwhile& meanwhile) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      v[r][i] = make_uint4(count > 4 * i * kThreads ? kAbsent : 0, 0, 0, 0);
  }
  for (int polls = 0;; ++polls) {
    bool ready = true;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        uint4& four = v[r][i];
        if (max(max(four.x, four.y), max(four.z, four.w)) != kAbsent) continue;
        const int left = count - 4 * i * kThreads;
        four = LoadWords(from + r * stride + 4 * i * kThreads);
        if (left < 2) four.y = 0;
        if (left < 3) four.z = 0;
        if (left < 4) four.w = 0;
        ready = false;
      }
    }
    if (__all_sync(0xffffffffu, ready)) break;
    if (polls == kMaxPolls) __trap();
    meanwhile();
  }
}

__device__ __forceinline__ void ConsumerBarrier() { NamedBarrier(1, kThreads); }

constexpr int kFours = 2;  // column groups of a normed row, a thread
__device__ __forceinline__ int Column(int i) {
  return 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
}

// Before the wait: no kernel writes it.
__device__ __forceinline__ void LoadNorm(const float* norm, int cols,
                                         float4 (&weight)[kFours]) {
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    weight[i] = norm == nullptr ? make_float4(1, 1, 1, 1)
                                : LoadFour(norm, Column(i), cols);
  }
}

// Rows that other blocks write to words: values to normalise and round, or
// gated features, two a word.
struct WordRows {
  const uint32_t* words;
  int stride;  // words
  int count;   // words of a row
  int inputs;  // of the product, 16 bits each; zeros from the last word on
  bool normed;
  float eps;
};

// Reads them to shared memory, `to_stride` bytes apart. `partial`: a float of
// each row and warp. One function for both kinds: code that runs once is slow
// by its length.
template <typename T, int kRows, typename Meanwhile>
__device__ __forceinline__ void TakeRows(const WordRows& rows,
                                         const float4 (&weight)[kFours],
                                         char* to, int to_stride,
                                         float* partial,
                                         const Meanwhile& meanwhile) {
  constexpr int kTogether = 3;
  static_assert(kFours <= kTogether);
  // A warp iterates as a whole, as meanwhile() requires.
#pragma unroll 1
  for (int round = 0; 8 * round < rows.inputs; round += kTogether * kThreads) {
    const int first = 4 * (round + static_cast<int>(threadIdx.x));
    uint4 w[kRows][kTogether];
    PollWords(rows.words + first, rows.stride, rows.count - first, w,
              meanwhile);
    if (rows.normed) {
      float4 v[kRows][kFours];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kFours; ++i) {
          const uint4& four = w[r][i];
          v[r][i] =
              make_float4(__uint_as_float(four.x), __uint_as_float(four.y),
                          __uint_as_float(four.z), __uint_as_float(four.w));
        }
      }
      WriteNormed<T, kThreads>(v, weight, rows.count, rows.inputs, rows.eps,
                               partial, to, to_stride,
                               [] { ConsumerBarrier(); });
      return;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = 2 * (first + 4 * i * kThreads);
      if (at >= rows.inputs) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        *reinterpret_cast<uint4*>(to + r * to_stride + 2 * at) = w[r][i];
    }
  }
}

// 16-bit rows that attention wrote, `stride` apart, to shared memory.
template <typename T, int kRows>
__device__ __forceinline__ void AttendedRows(const T* x, int64_t stride,
                                             int cols, int inputs, char* to,
                                             int to_stride) {
  constexpr int kTogether = 3;
  const auto put = [&](int row, int c, const uint4& v) {
    *reinterpret_cast<uint4*>(to + row * to_stride + 2 * c) = v;
  };
  const int whole = cols / 8 * 8;
#pragma unroll 1
  for (int first = 8 * static_cast<int>(threadIdx.x); first < inputs;
       first += 8 * kTogether * kThreads) {
    uint4 v[kRows * kTogether];
#pragma unroll
    for (int i = 0; i < kRows * kTogether; ++i) {
      const int c = first + 8 * (i % kTogether) * kThreads;
      v[i] = make_uint4(0, 0, 0, 0);
      if (c < whole) {
        v[i] = *reinterpret_cast<const uint4*>(x + i / kTogether * stride + c);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows * kTogether; ++i) {
      const int c = first + 8 * (i % kTogether) * kThreads;
      if (c < inputs) put(i / kTogether, c, v[i]);
    }
  }
  // The last columns, fewer than eight; by the thread that wrote zeros there.
  if (whole == cols || whole / 8 % kThreads != static_cast<int>(threadIdx.x))
    return;
#pragma unroll 1
  for (int row = 0; row < kRows; ++row)
    put(row, whole, LoadEight(x + row * stride, whole, cols));
}

}  // namespace chain
}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PRODUCT_CHAIN_ROWS_CUH_
