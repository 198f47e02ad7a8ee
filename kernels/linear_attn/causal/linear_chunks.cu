// Causal linear attention over prompts, plain tiles, on sm_90a: one or two
// blocks a row, head and 64 columns of the state, chunks of 64 tokens; producer
// warps (Copier) fill a TMA ring buffer, one warpgroup (Keeper) keeps the state
// in registers, two (Writers) make outputs in turns, all products by wgmma.
// Shapes: q, k [T, H, D], v [T, H, E] bfloat16 factors, D <= 128; out [T, H, E]
// bfloat16 or float32 (e bytes); states [slots, H, D, E] float32.
// Floor: T · H · (4 D + (2 + e) E) bytes, and 4 · D · E a head and row for each
// read and write of a state.
#include <cuda.h>
#include <cuda_bf16.h>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/hopper_kernel.h"
#include "kernels/linear_attn/causal/linear_chunks.h"
#include "kernels/linear_attn/causal/linear_chunks_copy.cuh"
#include "kernels/linear_attn/causal/linear_chunks_out.cuh"
#include "kernels/linear_attn/causal/linear_chunks_plan.h"
#include "kernels/linear_attn/causal/linear_chunks_shared.cuh"
#include "kernels/linear_attn/causal/linear_chunks_state.cuh"
#include "kernels/linear_attn/linear_boxes.cuh"

namespace recurve {
namespace {

using linear_chunks::Args;
using linear_chunks::Copier;
using linear_chunks::kChunk;
using linear_chunks::Keeper;
using linear_chunks::kGroup;
using linear_chunks::Layout;
using linear_chunks::Part;
using linear_chunks::Row;
using linear_chunks::Writer;

// Outputs of a row in the sink: 0, in this block's columns.
template <typename T>
__device__ void WriteZeros(const Args& args, int64_t first_token, int count,
                           int head, const Part& part) {
  const int first = part.tile * 64;
  const int columns = min(64, args.value_dim - first);
  for (int64_t i = threadIdx.x; i < int64_t{count} * columns; i += blockDim.x) {
    static_cast<T*>(
        args.p.out)[(first_token + i / columns) * args.p.out_stride +
                    int64_t{head} * args.value_dim + first + i % columns] =
        T(0.0f);
  }
}

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (tiles of 64 columns · blocks that take turns, heads, rows); mixed: all
// blocks of all units of work (LinearChunksPlan::lone).
template <int kKeyTiles, bool kMixed>
__global__ void __launch_bounds__(kLinearChunksThreads, 1)
    linear_chunks_kernel(const __grid_constant__ Args args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  const LinearPrefillParams& p = args.p;
  const Part part = linear_chunks::PartOf<kMixed>(args);
  const int b = part.row;
  const int head = part.head;
  // All inputs of the block, loaded before any of them is used.
  const int rows = p.rows == nullptr ? static_cast<int>(p.max_rows) : *p.rows;
  const int64_t first_token = p.query_start[b];
  const int count = p.query_start[b + 1] - p.query_start[b];
  const int slot = p.slots[b];
  const int64_t position = p.positions[b];
  const bool fresh = p.fresh != nullptr && p.fresh[b] != 0;
  const float decay = p.decay == nullptr ? 1.0f : p.decay[head];
  const Layout<kKeyTiles> layout((SharedAddress(shared) + 1023) & ~1023u, args);
  layout.InitBarriers(part.turns);
  if (b >= rows) return;
  if (count <= 0) return;
  if (slot <= 0) {
    if (part.turn != 0) return;
    if (p.out_type == ElementType::kFloat32) {
      WriteZeros<float>(args, first_token, count, head, part);
    } else {
      WriteZeros<__nv_bfloat16>(args, first_token, count, head, part);
    }
    return;
  }
  const Row row(first_token, count, position);
  // Also for a decay of 0, whose powers are 1, 0, 0, …: not -inf · 0.
  const float log2_decay = decay == 0.0f ? -1e30f : log2f(decay);
  __syncthreads();
  // All blocks' barriers are ready.
  if (part.turns > 1) cluster::Meet();

  // Registers move to the warpgroups with accumulators: all registers, four
  // times the initial 128.
  const int group = threadIdx.x / kGroup;
  if (group == 0) {
    ReleaseRegisters<40>();
    const Copier<kKeyTiles> copier(args, layout, row, part, head);
    copier.Run();
  } else if (group == 1) {
    ClaimRegisters<200>();
    float* const head_state = p.states + int64_t{slot} * p.slot_stride +
                              int64_t{head} * args.head_dim * args.value_dim;
    const Keeper<kKeyTiles> keeper(args, layout, row, part);
    keeper.Run(head_state, fresh, log2_decay);
  } else {
    ClaimRegisters<136>();
    const Writer<kKeyTiles> writer(args, layout, row, part, head, group - 2);
    writer.Run(log2_decay);
  }
#else
  __trap();  // never launched there
#endif
}

// ----------------------------------------------------------------------------
// Launchers

template <int kKeyTiles>
cudaError_t Launch(const LinearPrefillParams& p, const LinearChunksPlan& plan,
                   cudaStream_t stream) {
  const bool mixed = plan.lone > 0;
  const auto kernel = mixed ? linear_chunks_kernel<kKeyTiles, true>
                            : linear_chunks_kernel<kKeyTiles, false>;
  cudaError_t error = PrepareHopperKernel(kernel, plan.shared_bytes);
  Args args = {};
  args.p = p;
  if (error == cudaSuccess) {
    error = linear_boxes::MakeMap(p.q, p.head_dim, p.num_heads, p.stride,
                                  kChunk, &args.q);
  }
  for (int i = 0; i < plan.turns; ++i) {
    const int tokens = kChunk / (i + 1);
    if (error == cudaSuccess) {
      error = linear_boxes::MakeMap(p.k, p.head_dim, p.num_heads, p.stride,
                                    tokens, &args.k[i]);
    }
    if (error == cudaSuccess) {
      error = linear_boxes::MakeMap(p.v, p.value_dim, p.num_heads, p.stride,
                                    tokens, &args.v[i]);
    }
  }
  if (error != cudaSuccess) return error;
  args.head_dim = static_cast<int>(p.head_dim);
  args.value_dim = static_cast<int>(p.value_dim);
  args.heads = static_cast<int>(p.num_heads);
  args.value_tiles = plan.value_tiles;
  args.turns = plan.turns;
  args.lone = static_cast<int>(plan.lone);
  args.stages = plan.stages;
  args.query_stages = plan.query_stages;
  args.state_buffers = plan.state_buffers;
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(plan.value_tiles * plan.turns, static_cast<unsigned>(p.num_heads),
           static_cast<unsigned>(p.max_rows));
  if (mixed) {  // some waves of blocks: fits an int
    const int64_t units = p.max_rows * p.num_heads * plan.value_tiles;
    config.gridDim = dim3(
        static_cast<unsigned>(plan.lone + (units - plan.lone) * plan.turns));
  }
  config.blockDim = dim3(kLinearChunksThreads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = plan.turns;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace

bool LinearChunksDoes(const LinearPrefillParams& p) {
  return p.io_type == ElementType::kBFloat16 &&
         p.head_dim <= kLinearChunksMaxDim &&
         p.q_activation == Activation::kNone &&
         p.k_activation == Activation::kNone &&
         p.v_activation == Activation::kNone && p.position == LrpeType::kNone;
}

cudaError_t LaunchLinearChunks(const LinearPrefillParams& p,
                               int multiprocessors, int shared_limit,
                               cudaStream_t stream) {
  const LinearChunksPlan plan =
      PlanLinearChunks(p.head_dim, p.value_dim, p.num_heads, p.max_rows,
                       multiprocessors, shared_limit);
  if (plan.stages < kLinearChunksMinStages) return cudaErrorNotSupported;
  return plan.key_tiles == 2 ? Launch<2>(p, plan, stream)
                             : Launch<1>(p, plan, stream);
}

}  // namespace recurve
