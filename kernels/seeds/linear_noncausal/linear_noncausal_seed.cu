// Non-causal linear attention with rotate, or softmax over the sequence, on
// sm_90a: a cluster of four blocks a head of a row; each sums S of a quarter of
// the tokens in registers (wgmma, cp.async stages), the quarters are added
// through shared memory, then each makes its quarter's outputs.
// Shapes: q, k [T, H, D], v, g, out [T, H, E], bfloat16 (out: e bytes), D and E
// up to 128; states [slots, H, Dk, E] float32.
// Floor: T · H · (4 D + (4 + e) E) bytes, and 4 · Dk · E a head and row; a
// tensor with softmax over the sequence is read twice.
#include <cuda_bf16.h>

#include "kernels/common/alignment.h"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/hopper_kernel.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring.h"
#include "kernels/seeds/linear_noncausal/linear_noncausal_out.cuh"
#include "kernels/seeds/linear_noncausal/linear_noncausal_seed_cuda.h"

namespace recurve {
namespace {

static_assert(kLinearNoncausalMaxDim == linear_noncausal::kFeatures, "");

using linear_noncausal::Change;
using linear_noncausal::kParts;
using linear_noncausal::kThreads;
using linear_noncausal::Noncausal;
using linear_noncausal::Shape;

// Outputs of a row in the sink.
template <typename T>
__device__ void WriteZeros(const LinearNoncausalParams& p, int value_dim,
                           int64_t first_token, int count) {
  for (int64_t i = threadIdx.x; i < int64_t{count} * value_dim;
       i += blockDim.x) {
    static_cast<T*>(p.out)[(first_token + i / value_dim) * p.out_stride +
                           int64_t{blockIdx.y} * value_dim + i % value_dim] =
        T(0.0f);
  }
}

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (parts, heads, rows), a cluster a (head, row).
template <LrpeType kPosition>
__global__ void __launch_bounds__(kThreads, 1)
    linear_noncausal_kernel(const __grid_constant__ LinearNoncausalParams p,
                            const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  const int b = blockIdx.z;
  if (p.rows != nullptr && b >= *p.rows) return;
  const int64_t first_token = p.query_start[b];
  const int count = p.query_start[b + 1] - p.query_start[b];
  if (count <= 0) return;
  float* head_state = nullptr;
  using Work = Noncausal<kPosition>;
  if (p.states != nullptr) {
    const int slot = p.slots[b];
    if (slot <= 0) {
      if (blockIdx.x != 0) return;
      if (p.out_type == ElementType::kFloat32) {
        WriteZeros<float>(p, s.value_dim, first_token, count);
      } else {
        WriteZeros<__nv_bfloat16>(p, s.value_dim, first_token, count);
      }
      return;
    }
    head_state =
        p.states + int64_t{slot} * p.slot_stride +
        int64_t{blockIdx.y} * (Work::kEncodings * s.head_dim) * s.value_dim;
  }
  const int64_t position = p.positions == nullptr ? 0 : p.positions[b];
  const typename Work::Memory memory((SharedAddress(shared) + 1023) & ~1023u);
  Work work(p, s, memory, first_token, count, position);
  work.Run(head_state);
#else
  __trap();  // never launched there
#endif
}

// ----------------------------------------------------------------------------
// Launchers

Change ChangeOf(Activation activation, bool sequence_softmax) {
  if (sequence_softmax) return Change::kSequenceSoftmax;
  if (activation == Activation::kSilu) return Change::kSilu;
  return activation == Activation::kSoftmax ? Change::kFeatureSoftmax
                                            : Change::kNone;
}

template <LrpeType kPosition>
cudaError_t Launch(const LinearNoncausalParams& p, cudaStream_t stream) {
  const auto kernel = linear_noncausal_kernel<kPosition>;
  constexpr int kBytes = Noncausal<kPosition>::Memory::kBytes;
  const cudaError_t error = PrepareHopperKernel(kernel, kBytes);
  if (error != cudaSuccess) return error;
  const int head_dim = static_cast<int>(p.head_dim);
  const int half = kPosition == LrpeType::kRotate ? head_dim / 2 : 64;
  const Shape shape = {head_dim,
                       static_cast<int>(p.value_dim),
                       half,
                       head_dim < half ? head_dim : half,
                       ChangeOf(p.q_activation, p.q_sequence_softmax),
                       ChangeOf(p.k_activation, p.k_sequence_softmax)};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kParts, static_cast<unsigned>(p.num_heads),
                        static_cast<unsigned>(p.max_rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kParts;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, shape);
}

}  // namespace

cudaError_t LaunchLinearNoncausalSeed(const LinearNoncausalParams& p,
                                      cudaStream_t stream) {
  if (LinearNoncausalRingDoes(p)) return LaunchLinearNoncausal(p, stream);
  if (!ValidLinearNoncausal(p)) return cudaErrorInvalidValue;
  if (p.max_rows == 0) return cudaSuccess;
  switch (p.position) {
    case LrpeType::kRotate:
      return Launch<LrpeType::kRotate>(p, stream);
    case LrpeType::kCosine:
      return Launch<LrpeType::kCosine>(p, stream);
    case LrpeType::kNone:
      break;
  }
  return Launch<LrpeType::kNone>(p, stream);
}

}  // namespace recurve
