// LRPE, with an optional activation: a lane makes the sines of 4 or 8 feature
// pairs of a token once and encodes up to 16 heads with them, prefetching one
// or two heads.
// Shapes: x [B, N, H, D], y [B, N, H, Dk] (Dk = D for rotate, 2 D for cosine),
// elements of e bytes.
// Floor: e · B · N · H · (D + Dk) bytes: x read and y written once.
#include <cuda_bf16.h>

#include "kernels/seeds/lrpe/lrpe_check.h"
#include "kernels/seeds/lrpe/lrpe_cuda.h"
#include "kernels/seeds/lrpe/lrpe_token.cuh"

namespace recurve {
namespace {

using lrpe::kHeadsPerThread;
using lrpe::kThreads;
using lrpe::Softmax;

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (runs of tokens, runs of kHeadsPerThread heads).
template <typename T, int kVector, bool kRotate, Softmax kSoftmax>
__global__ void __launch_bounds__(kThreads, lrpe::kBlocks<kRotate>)
    lrpe_kernel(const __grid_constant__ CudaLrpeParams p,
                const __grid_constant__ int lanes) {
  const int first_head = blockIdx.y * kHeadsPerThread;
  lrpe::EncodeToken<T, kVector, kRotate, kSoftmax>(
      p, lanes, blockIdx.x * (kThreads / lanes) + threadIdx.x / lanes,
      static_cast<int>(p.batch * p.length), first_head,
      min(static_cast<int>(p.num_heads), first_head + kHeadsPerThread),
      nullptr);
}

// ----------------------------------------------------------------------------
// Launchers

template <typename T, int kVector, Softmax kSoftmax>
cudaError_t Launch(const CudaLrpeParams& p, cudaStream_t stream) {
  const int lanes = lrpe::LanesPerToken(p.dim, kVector);
  const int64_t tokens_a_block = kThreads / lanes;
  const dim3 grid(
      static_cast<unsigned>((p.batch * p.length + tokens_a_block - 1) /
                            tokens_a_block),
      static_cast<unsigned>((p.num_heads + kHeadsPerThread - 1) /
                            kHeadsPerThread));
  if (p.position == LrpeType::kRotate) {
    lrpe_kernel<T, kVector, true, kSoftmax>
        <<<grid, kThreads, 0, stream>>>(p, lanes);
  } else {
    lrpe_kernel<T, kVector, false, kSoftmax>
        <<<grid, kThreads, 0, stream>>>(p, lanes);
  }
  return cudaGetLastError();
}

// Runs of 16 bytes, or of 8 where half of a bfloat16 head is an odd number of
// 8-byte runs.
template <Softmax kSoftmax>
cudaError_t LaunchType(const CudaLrpeParams& p, cudaStream_t stream) {
  if (p.type == ElementType::kFloat32) {
    return Launch<float, 4, kSoftmax>(p, stream);
  }
  return p.dim % 16 == 0 ? Launch<__nv_bfloat16, 8, kSoftmax>(p, stream)
                         : Launch<__nv_bfloat16, 4, kSoftmax>(p, stream);
}

}  // namespace

cudaError_t LaunchLrpe(const CudaLrpeParams& p, cudaStream_t stream) {
  if (!ValidLrpe(p)) return cudaErrorInvalidValue;
  if (p.batch * p.length == 0) return cudaSuccess;
  return p.activation == Activation::kSoftmax
             ? LaunchType<Softmax::kFeatures>(p, stream)
             : LaunchType<Softmax::kNone>(p, stream);
}

}  // namespace recurve
