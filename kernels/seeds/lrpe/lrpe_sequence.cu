// LRPE after a softmax over the sequence, in two passes: sums of exponentials
// in chunks of 512 tokens, which the last block merges, then encoding as in
// lrpe.cu.
// Shapes: x [B, N, H, D], y [B, N, H, Dk], elements of e bytes; shift [B, H, D]
// float32.
// Floor: e · B · N · H · (D + Dk) bytes; the second pass reads x again, so
// these passes move e · B · N · H · (2 D + Dk).
#include <cuda_bf16.h>

#include "kernels/seeds/lrpe/lrpe_check.h"
#include "kernels/seeds/lrpe/lrpe_cuda.h"
#include "kernels/seeds/lrpe/lrpe_stats.cuh"
#include "kernels/seeds/lrpe/lrpe_token.cuh"

namespace recurve {
namespace {

using lrpe::kHeadsPerThread;
using lrpe::kThreads;
using lrpe::Softmax;
using lrpe::Workspace;

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (chunks, heads, sequences).
template <typename T>
__global__ void __launch_bounds__(lrpe::kStatsThreads, 6)
    lrpe_stats_kernel(const __grid_constant__ CudaLrpeParams p,
                      const __grid_constant__ Workspace w) {
  lrpe::ChunkStats<T>(p, w, blockIdx.z, blockIdx.y, blockIdx.x, gridDim.x);
}

// Grid: (runs of tokens, runs of kHeadsPerThread heads). Runs of tokens go from
// last to first: the first pass left the end of x in L2.
template <typename T, int kVector, bool kRotate>
__global__ void __launch_bounds__(kThreads, lrpe::kBlocks<kRotate>)
    lrpe_sequence_kernel(const __grid_constant__ CudaLrpeParams p,
                         const __grid_constant__ int lanes,
                         const float* shift) {
  const int first_head = blockIdx.y * kHeadsPerThread;
  const int run = gridDim.x - 1 - blockIdx.x;
  lrpe::EncodeToken<T, kVector, kRotate, Softmax::kSequence>(
      p, lanes, run * (kThreads / lanes) + threadIdx.x / lanes,
      static_cast<int>(p.batch * p.length), first_head,
      min(static_cast<int>(p.num_heads), first_head + kHeadsPerThread), shift);
}

// ----------------------------------------------------------------------------
// Launchers

Workspace SplitWorkspace(const CudaLrpeParams& p, void* workspace) {
  Workspace w;
  w.shift = static_cast<float*>(workspace);
  w.partial =
      reinterpret_cast<float2*>(w.shift + p.batch * p.num_heads * p.dim);
  w.arrivals = reinterpret_cast<unsigned int*>(
      w.partial + p.batch * p.num_heads * p.dim * lrpe::StatsChunks(p));
  return w;
}

template <typename T, int kVector, bool kRotate>
cudaError_t Launch(const CudaLrpeParams& p, const Workspace& w,
                   cudaStream_t stream) {
  const dim3 stats_grid(static_cast<unsigned>(lrpe::StatsChunks(p)),
                        static_cast<unsigned>(p.num_heads),
                        static_cast<unsigned>(p.batch));
  lrpe_stats_kernel<T><<<stats_grid, lrpe::kStatsThreads, 0, stream>>>(p, w);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  const int lanes = lrpe::LanesPerToken(p.dim, kVector);
  const int64_t tokens_a_block = kThreads / lanes;
  const dim3 grid(
      static_cast<unsigned>((p.batch * p.length + tokens_a_block - 1) /
                            tokens_a_block),
      static_cast<unsigned>((p.num_heads + kHeadsPerThread - 1) /
                            kHeadsPerThread));
  lrpe_sequence_kernel<T, kVector, kRotate>
      <<<grid, kThreads, 0, stream>>>(p, lanes, w.shift);
  return cudaGetLastError();
}

template <bool kRotate>
cudaError_t LaunchType(const CudaLrpeParams& p, const Workspace& w,
                       cudaStream_t stream) {
  if (p.type == ElementType::kFloat32) {
    return Launch<float, 4, kRotate>(p, w, stream);
  }
  return p.dim % 16 == 0 ? Launch<__nv_bfloat16, 8, kRotate>(p, w, stream)
                         : Launch<__nv_bfloat16, 4, kRotate>(p, w, stream);
}

}  // namespace

int64_t LrpeSequenceWorkspaceBytes(const CudaLrpeParams& p) {
  const int64_t groups = p.batch * p.num_heads;
  return groups * p.dim *
             (static_cast<int64_t>(sizeof(float)) +
              lrpe::StatsChunks(p) * static_cast<int64_t>(sizeof(float2))) +
         groups * static_cast<int64_t>(sizeof(unsigned int));
}

cudaError_t LaunchLrpeSequenceSoftmax(const CudaLrpeParams& p, void* workspace,
                                      cudaStream_t stream) {
  if (!ValidLrpe(p) || workspace == nullptr || p.batch > 65535) {
    return cudaErrorInvalidValue;
  }
  if (p.batch * p.length == 0) return cudaSuccess;
  const Workspace w = SplitWorkspace(p, workspace);
  return p.position == LrpeType::kRotate ? LaunchType<true>(p, w, stream)
                                         : LaunchType<false>(p, w, stream);
}

}  // namespace recurve
