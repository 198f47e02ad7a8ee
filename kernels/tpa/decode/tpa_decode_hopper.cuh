// TPA decode on sm_90a: one block a share of the rows' chunks (and of their
// heads); a producer warp a lane copies pages of factors by cp.async.bulk into
// a ring buffer; up to two consumer warpgroups multiply them by wgmma as they
// are.
// Shapes: queries [rows, T, H, D] as two 16-bit terms, or factors to form them
// of; pages of 64 tokens, of rank R: A_k, A_v [64, H], B_k [64, D], B_v [64, E]
// 16-bit; out [rows, T, H, E].
// Floor: each page of factors is read once: pages · 64 · R · (2 H + D + E) · 2
// bytes. (Blocks that share a row's heads each read B.)
//
// For one type of elements; a file for each, as they compile for long.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_DECODE_HOPPER_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_DECODE_HOPPER_CUH_

#include "kernels/tpa/decode/tpa_kernel.cuh"

namespace recurve {
namespace {

// Any shape.
template <typename T, int kColumns, int kTiles>
__global__ void __launch_bounds__(kTpaMaxThreads, 1)
    tpa_decode_any(const __grid_constant__ TpaDecodeArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TpaDecodeBlock<T, kColumns, kTiles, 0,
                 TpaWgmmaProducts<T, kColumns, kTiles, 0>>(args);
#else
  __trap();  // never launched: plans for such a device are not `hopper`
#endif
}

// Common shapes: D = E = 64 kTiles, rank 1 or 2. Products have no branches
// between them, and ranks no loop. Those that append are separate instances:
// unused code makes the others slower.
template <typename T, int kColumns, int kTiles, int kRank, bool kAppends>
__global__ void __launch_bounds__(kTpaMaxThreads, 1)
    tpa_decode_fast(const __grid_constant__ TpaDecodeArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TpaDecodeBlock<T, kColumns, kTiles, kRank,
                 TpaWgmmaProducts<T, kColumns, kTiles, 4 * kTiles>, kAppends>(
      args);
#else
  __trap();
#endif
}

// Heads as rows.
template <typename T, int kRank, bool kAppends>
__global__ void __launch_bounds__(kTpaMaxThreads, 1)
    tpa_decode_head_rows(const __grid_constant__ TpaDecodeArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TpaDecodeBlock<T, kTpaHeadRowsHeads, 1, kRank, TpaHeadRows, kAppends>(args);
#else
  __trap();
#endif
}

// Rows in clusters.
template <typename T, int kRank, bool kAppends>
__global__ void __launch_bounds__(kTpaMaxThreads, 1)
    tpa_decode_clusters(const __grid_constant__ TpaDecodeArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TpaDecodeBlock<T, 24, 1, kRank, TpaWgmmaProducts<T, 24, 1, 4>, kAppends,
                 true>(args);
#else
  __trap();
#endif
}

template <typename T>
cudaError_t LaunchClusters(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                           cudaStream_t stream) {
  const bool one = args.p.shape.kv_rank == 1;
  const bool appends = args.p.queries == nullptr;
  return LaunchTpaKernel(one ? (appends ? tpa_decode_clusters<T, 1, true>
                                        : tpa_decode_clusters<T, 1, false>)
                             : (appends ? tpa_decode_clusters<T, 2, true>
                                        : tpa_decode_clusters<T, 2, false>),
                         args, plan, stream);
}

template <typename T>
cudaError_t LaunchHeadRows(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                           cudaStream_t stream) {
  const bool one = args.p.shape.kv_rank == 1;
  const bool appends = args.p.queries == nullptr;
  return LaunchTpaKernel(one ? (appends ? tpa_decode_head_rows<T, 1, true>
                                        : tpa_decode_head_rows<T, 1, false>)
                             : (appends ? tpa_decode_head_rows<T, 2, true>
                                        : tpa_decode_head_rows<T, 2, false>),
                         args, plan, stream);
}

template <typename T, int kColumns, int kTiles>
cudaError_t LaunchRank(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                       cudaStream_t stream) {
  if (plan.early_keys == 0) {
    return LaunchTpaKernel(tpa_decode_any<T, kColumns, kTiles>, args, plan,
                           stream);
  }
  const bool one = args.p.shape.kv_rank == 1;
  const bool appends = args.p.queries == nullptr;
  return LaunchTpaKernel(
      one ? (appends ? tpa_decode_fast<T, kColumns, kTiles, 1, true>
                     : tpa_decode_fast<T, kColumns, kTiles, 1, false>)
          : (appends ? tpa_decode_fast<T, kColumns, kTiles, 2, true>
                     : tpa_decode_fast<T, kColumns, kTiles, 2, false>),
      args, plan, stream);
}

template <typename T>
cudaError_t LaunchVariant(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                          cudaStream_t stream) {
  if (plan.cluster_blocks > 0) return LaunchClusters<T>(args, plan, stream);
  switch (plan.variant) {
    case 0:
      return LaunchRank<T, 32, 1>(args, plan, stream);
    case 1:
      return LaunchRank<T, 32, 2>(args, plan, stream);
    case 2:
      return LaunchTpaKernel(tpa_decode_any<T, 32, 4>, args, plan, stream);
    case 3:
      return LaunchRank<T, 40, 1>(args, plan, stream);
    case 4:
      return LaunchRank<T, 40, 2>(args, plan, stream);
    case 5:
      return LaunchRank<T, 24, 1>(args, plan, stream);
    case 6:
      return LaunchHeadRows<T>(args, plan, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_DECODE_HOPPER_CUH_
