#ifndef RECURVE_KERNELS_COMMON_BLOCK_SUM_CUH_
#define RECURVE_KERNELS_COMMON_BLOCK_SUM_CUH_

namespace recurve {

// The sum over earlier threads of a block, and over all its threads. Shapes:
// one value a thread; warp_sums [kThreads / 32] in shared memory, free again on
// return. Two barriers; every thread must call.
template <int kThreads>
__device__ int2 ExclusiveSum(int value, int* warp_sums) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int sum = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, offset);
    if (lane >= offset) sum += other;
  }
  if (lane == 31) warp_sums[warp] = sum;
  __syncthreads();
  int before = 0;
  int total = 0;
  for (int i = 0; i < kThreads / 32; ++i) {
    if (i < warp) before += warp_sums[i];
    total += warp_sums[i];
  }
  __syncthreads();
  return {before + sum - value, total};
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_BLOCK_SUM_CUH_
