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
#include "kernels/linear_attn/noncausal/linear_noncausal_out.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring.h"
#include "kernels/linear_attn/step/linear_step_check.h"

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

bool ValidActivation(Activation activation) {
  return activation == Activation::kNone || activation == Activation::kSilu ||
         activation == Activation::kSoftmax;
}

bool Valid(const LinearNoncausalParams& p) {
  return p.num_heads >= 1 && p.num_heads <= 65535 &&
         ValidLinearDim(p.head_dim) && ValidLinearDim(p.value_dim) &&
         p.head_dim <= kLinearNoncausalMaxDim &&
         p.value_dim <= kLinearNoncausalMaxDim &&
         (p.position != LrpeType::kRotate || p.head_dim % 16 == 0) &&
         p.max_rows >= 0 && p.max_rows <= 65535 &&
         p.max_rows * p.num_heads <= int64_t{1} << 27 && IsThere(p.q) &&
         IsThere(p.k) && IsThere(p.v) && IsAligned(p.g) && IsThere(p.out) &&
         (p.out_type == ElementType::kBFloat16 ||
          p.out_type == ElementType::kFloat32) &&
         p.stride % 8 == 0 && p.out_stride % 8 == 0 &&
         p.query_start != nullptr && ValidActivation(p.q_activation) &&
         ValidActivation(p.k_activation) &&
         p.g_activation != Activation::kSoftmax &&
         ValidActivation(p.g_activation) &&
         (p.position == LrpeType::kNone ||
          (p.phase_steps != nullptr && p.positions != nullptr)) &&
         (p.states == nullptr || (p.slots != nullptr && IsAligned(p.states) &&
                                  p.slot_stride % 4 == 0)) &&
         (IsThere(p.workspace, 128) || !LinearNoncausalRingDoes(p));
}

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

int64_t LinearNoncausalWorkspaceBytes(const LinearNoncausalParams& p) {
  return LinearNoncausalRingDoes(p) ? LinearNoncausalRingWorkspaceBytes(p) : 0;
}

cudaError_t LaunchLinearNoncausal(const LinearNoncausalParams& p,
                                  cudaStream_t stream) {
  if (!Valid(p)) return cudaErrorInvalidValue;
  if (p.max_rows == 0) return cudaSuccess;
  if (LinearNoncausalRingDoes(p)) return LaunchLinearNoncausalRing(p, stream);
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
