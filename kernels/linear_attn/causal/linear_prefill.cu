// Causal linear attention over prompts, cut state, on sm_90a: a cluster's
// blocks are the slices of 64 features of a head's state; in a block, a
// warpgroup copies, activates and encodes tiles and makes scores (Preparer),
// one or two keep 64 by 64 of the state in registers (StateGroups), one sums
// slices and writes (Finisher); products by wgmma.
// Shapes: q, k [T, H, D], v, out [T, H, E] bfloat16 or float32 (e bytes);
// states [slots, H, Dk, E] float32.
// Floor: 2 · T · H · (D + E) · e bytes, and 4 · Dk · E a head and row for each
// read and write of a state. With activation or encoding bound by the Preparer,
// which every slice repeats.
#include <cuda_bf16.h>

#include "kernels/common/alignment.h"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/device_attribute.h"
#include "kernels/common/hopper_kernel.h"
#include "kernels/linear_attn/causal/linear_chunks.h"
#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/linear_attn/causal/linear_prefill_finish.cuh"
#include "kernels/linear_attn/causal/linear_prefill_plan.h"
#include "kernels/linear_attn/causal/linear_prefill_prepare.cuh"
#include "kernels/linear_attn/causal/linear_prefill_shared.cuh"
#include "kernels/linear_attn/causal/linear_prefill_state.cuh"
#include "kernels/linear_attn/linear_dims.h"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"

namespace recurve {
namespace {

using cluster::ClusterBarrier;
using cluster::ClusterRank;
using linear_prefill::Finisher;
using linear_prefill::kChunk;
using linear_prefill::kGroup;
using linear_prefill::Layout;
using linear_prefill::Preparer;
using linear_prefill::Row;
using linear_prefill::Shape;
using linear_prefill::Source;
using linear_prefill::StateGroup;

// Outputs of a row in the sink: 0, in this block's columns.
template <int kGroups, typename Out>
__device__ void WriteZeros(const LinearPrefillParams& p, const Shape& s,
                           int64_t first_token, int count, int head,
                           int value_tile) {
  const int first = value_tile * kGroups * 64;
  const int columns = min(kGroups * 64, s.value_dim - first);
  for (int64_t i = threadIdx.x; i < int64_t{count} * columns; i += blockDim.x) {
    static_cast<Out*>(
        p.out)[(first_token + i / columns) * p.out_stride +
               int64_t{head} * s.value_dim + first + i % columns] =
        FromFloat<Out>(0.0f);
  }
}

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (key slices, heads · value tiles, rows), in clusters of the key slices.
// Key slices are independent but for the sum of their outputs; value tiles are
// fully independent.
template <int kGroups, Source kSource, typename IO>
__global__ void __launch_bounds__(kGroup*(2 + kGroups), 1)
    linear_prefill_kernel(const __grid_constant__ LinearPrefillParams p,
                          const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  const int b = blockIdx.z;
  const int head = blockIdx.y / s.value_tiles;
  const int value_tile = blockIdx.y % s.value_tiles;
  if (p.rows != nullptr && b >= *p.rows) return;
  const int64_t first_token = p.query_start[b];
  const int count = p.query_start[b + 1] - p.query_start[b];
  const int slot = p.slots[b];
  if (count <= 0) return;
  if (slot <= 0) {
    if (blockIdx.x == 0) {
      if (p.out_type == ElementType::kFloat32) {
        WriteZeros<kGroups, float>(p, s, first_token, count, head, value_tile);
      } else {
        WriteZeros<kGroups, __nv_bfloat16>(p, s, first_token, count, head,
                                           value_tile);
      }
    }
    return;
  }
  const Row row(first_token, count, p.positions[b]);
  const bool fresh = p.fresh != nullptr && p.fresh[b] != 0;
  const float decay = p.decay == nullptr ? 1.0f : p.decay[head];
  // Also for a decay of 0, whose powers are 1, 0, 0, …: not -inf · 0.
  const float log2_decay = decay == 0.0f ? -1e30f : log2f(decay);
  const Layout<kGroups> layout((SharedAddress(shared) + 1023) & ~1023u, s);
  if (threadIdx.x == 0) {
    for (int i = 0; i < s.stages; ++i) {
      BarrierInit(layout.Full(i), 1);
      BarrierInit(layout.Free(i), 4 * kGroups);
    }
    for (int i = 0; i < 2; ++i) {
      BarrierInit(layout.ScoresFull(i), 1);
      BarrierInit(layout.ScoresFree(i), 4 * kGroups);
      for (int g = 0; g < kGroups; ++g) {
        BarrierInit(layout.SumsFull(g, i), s.key_slices == 1 ? kGroup : 1);
        BarrierInit(layout.SumsFree(g, i), 4 * s.key_slices);
      }
    }
    BarrierInitFence();
  }
  for (int n = threadIdx.x; n <= kChunk; n += blockDim.x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(layout.powers + 4 * n),
                 "f"(exp2f(log2_decay * static_cast<float>(n)))
                 : "memory");
  }
  __syncthreads();
  ClusterBarrier();  // all blocks' barriers are ready

  // Registers move to the warpgroups that keep the state.
  const int rank = ClusterRank();
  const int role = threadIdx.x / kGroup;
  if (role == 0) {
    ReleaseRegisters<kGroups == 2 ? 112 : 128>();
    Preparer<kGroups, kSource, IO> preparer(p, s, layout, row, head, rank,
                                            value_tile);
    preparer.Run(log2_decay);
  } else if (role == 1) {
    ReleaseRegisters<kGroups == 2 ? 80 : 112>();
    const Finisher<kGroups> finisher(p, s, layout, row, head, rank, value_tile);
    finisher.Run();
  } else {
    ClaimRegisters<kGroups == 2 ? 160 : 240>();
    float* head_state = p.states + int64_t{slot} * p.slot_stride +
                        int64_t{head} * s.key_dim * s.value_dim;
    StateGroup<kGroups> group(p, s, layout, row, rank, value_tile, role - 2);
    group.Run(head_state, fresh, decay != 1.0f);
  }
  __syncwarp();
  ClusterBarrier();  // no block ends while others send to it
#else
  __trap();  // never launched there
#endif
}

// ----------------------------------------------------------------------------
// Launchers

bool Valid(const LinearPrefillParams& p) {
  return p.num_heads >= 1 && ValidLinearDim(p.head_dim) &&
         ValidLinearDim(p.value_dim) && p.num_heads <= 65535 / 4 &&
         p.max_rows >= 0 && p.max_rows <= 65535 && IsThere(p.q) &&
         IsThere(p.k) && IsThere(p.v) && IsThere(p.out) && p.stride % 8 == 0 &&
         p.out_stride % 8 == 0 && p.query_start != nullptr &&
         p.slots != nullptr && p.positions != nullptr && IsThere(p.states) &&
         (p.position == LrpeType::kNone || p.phase_steps != nullptr);
}

template <int kGroups, Source kSource, typename IO>
cudaError_t Launch(const LinearPrefillParams& p, const LinearPrefillPlan& plan,
                   cudaStream_t stream) {
  const auto kernel = linear_prefill_kernel<kGroups, kSource, IO>;
  const cudaError_t error = PrepareHopperKernel(kernel, plan.shared_bytes);
  if (error != cudaSuccess) return error;
  const Shape shape = {static_cast<int>(p.head_dim),
                       static_cast<int>(LrpeOutputDim(p.position, p.head_dim)),
                       static_cast<int>(p.value_dim),
                       plan.value_tiles,
                       plan.stages,
                       plan.key_slices,
                       plan.key_slices * plan.exchange_blocks * kGroup * 16,
                       plan.exchange_blocks};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.key_slices,
                        static_cast<unsigned>(p.num_heads * plan.value_tiles),
                        static_cast<unsigned>(p.max_rows));
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = plan.key_slices;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, shape);
}

template <int kGroups>
cudaError_t LaunchGroups(const LinearPrefillParams& p,
                         const LinearPrefillPlan& plan, cudaStream_t stream) {
  const auto is = [&p](Activation activation) {
    return p.q_activation == activation || p.k_activation == activation ||
           p.v_activation == activation;
  };
  const bool none = p.q_activation == Activation::kNone &&
                    p.k_activation == Activation::kNone &&
                    p.v_activation == Activation::kNone;
  if (p.io_type == ElementType::kFloat32) {
    return Launch<kGroups, Source::kMade, float>(p, plan, stream);
  }
  if (is(Activation::kSoftmax) ||
      (p.position == LrpeType::kRotate && p.head_dim % 16 != 0)) {
    return Launch<kGroups, Source::kMade, __nv_bfloat16>(p, plan, stream);
  }
  return p.position == LrpeType::kNone && none
             ? Launch<kGroups, Source::kCopied, __nv_bfloat16>(p, plan, stream)
             : Launch<kGroups, Source::kChanged, __nv_bfloat16>(p, plan,
                                                                stream);
}

}  // namespace

cudaError_t LaunchLinearPrefill(const LinearPrefillParams& p,
                                cudaStream_t stream) {
  if (!Valid(p)) return cudaErrorInvalidValue;
  if (p.max_rows == 0) return cudaSuccess;
  int multiprocessors = 0;
  int shared_limit = 0;
  cudaError_t error =
      DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (error == cudaSuccess) {
    error =
        DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_limit);
  }
  if (error != cudaSuccess) return error;
  if (LinearChunksDoes(p)) {
    return LaunchLinearChunks(p, multiprocessors, shared_limit, stream);
  }
  const LinearPrefillPlan plan =
      PlanLinearPrefill(p.position, p.head_dim, p.value_dim, p.num_heads,
                        p.max_rows, multiprocessors, shared_limit);
  if (plan.stages < kLinearPrefillMinStages) return cudaErrorNotSupported;
  return plan.groups == 2 ? LaunchGroups<2>(p, plan, stream)
                          : LaunchGroups<1>(p, plan, stream);
}

}  // namespace recurve
