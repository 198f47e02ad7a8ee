#include <cstdint>

#include "kernels/sampling/greedy_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 1024;

// As sampling.cc ranks tokens: a larger logit is a larger key, and among equals
// the smaller id is. A row's best token is the largest key.
__device__ __forceinline__ uint64_t Key(float logit, int32_t id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 equals +0
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

// Grid: rows.
__global__ void __launch_bounds__(kThreads)
    greedy_kernel(const __grid_constant__ CudaGreedyParams p) {
  __shared__ uint64_t keys[kThreads / 32];
  const float* row = p.logits + blockIdx.x * p.stride;
  uint64_t best = 0;
  bool broken = false;
  const auto take = [&](float logit, int32_t id) {
    broken |= !(logit < INFINITY);
    if (logit > -INFINITY) best = max(best, Key(logit, id));
  };
  // Aligned rows by four, so that enough is under way; the rest one by one.
  const bool aligned =
      p.stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.logits) % 16 == 0;
  const auto vocab = static_cast<int32_t>(p.vocab);
  const int32_t whole = aligned ? vocab / 4 * 4 : 0;
#pragma unroll 4
  for (int32_t id = 4 * threadIdx.x; id < whole; id += 4 * kThreads) {
    const float4 four = *reinterpret_cast<const float4*>(row + id);
    take(four.x, id);
    take(four.y, id + 1);
    take(four.z, id + 2);
    take(four.w, id + 3);
  }
  for (int32_t id = whole + threadIdx.x; id < vocab; id += kThreads)
    take(row[id], id);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    best = max(best, __shfl_xor_sync(0xffffffffu, best, offset));
  }
  if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = best;
  broken = __syncthreads_or(broken) != 0;
  if (threadIdx.x >= 32) return;
  best = keys[threadIdx.x];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    best = max(best, __shfl_xor_sync(0xffffffffu, best, offset));
  }
  if (threadIdx.x == 0) {
    p.tokens[blockIdx.x] =
        broken || best == 0
            ? kNonFiniteLogits
            : static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(best));
  }
}

}  // namespace

cudaError_t LaunchGreedy(const CudaGreedyParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.rows > INT32_MAX || p.vocab < 1 ||
      p.vocab > INT32_MAX - 4 * kThreads) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  greedy_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace recurve
