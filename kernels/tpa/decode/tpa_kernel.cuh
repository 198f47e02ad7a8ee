// The body of the TPA decode kernel, and its launch: producer warps fill ring
// buffers with pages, consumer warpgroups (tpa_worker.cuh or tpa_head_rows.cuh)
// attend, blocks that share a row merge.
// Shapes and floor: see tpa_decode_hopper.cuh.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_KERNEL_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_KERNEL_CUH_

#include <type_traits>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/tpa/decode/tpa_cluster.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"
#include "kernels/tpa/decode/tpa_fresh_page.cuh"
#include "kernels/tpa/decode/tpa_head_rows.cuh"
#include "kernels/tpa/decode/tpa_merge.cuh"
#include "kernels/tpa/decode/tpa_own_tokens.cuh"
#include "kernels/tpa/decode/tpa_products.cuh"
#include "kernels/tpa/decode/tpa_ring.cuh"
#include "kernels/tpa/decode/tpa_worker.cuh"

namespace recurve {

// One warpgroup in addition to the consumers: one of its warps a lane copies,
// and it releases registers to the others.
inline constexpr int kTpaMaxThreads = 128 * (kTpaMaxWarpgroups + 1);

// Prefetches the block's share of the next launch's data, by one warp: memory
// is nearly idle while blocks end and merge.
__device__ __forceinline__ void AskForNext(const TpaCudaDecodeParams& p,
                                           int lane) {
  constexpr int kPiece = 2048;  // bytes
  const int64_t pieces = min(p.next_bytes, kTpaNextBytes) / kPiece;
  const int64_t block = blockIdx.x + int64_t{gridDim.x} * blockIdx.y;
  const int64_t step = 32 * int64_t{gridDim.x} * gridDim.y;
  for (int64_t i = 32 * block + lane; i < pieces; i += step)
    PrefetchL2(static_cast<const char*>(p.next) + i * kPiece, kPiece);
}

// Zeros for rows without tokens. By a free warp of each block, so that the
// consecutive empty rows of a padded batch do not fall to one block.
__device__ __forceinline__ void ClearEmptyRows(const TpaDecodeArgs& args) {
  const TpaCudaDecodeParams& p = args.p;
  if (blockIdx.y > 0) return;  // the first block of heads clears them all
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = static_cast<int>(gridDim.x);
  const int width =
      static_cast<int>(p.shape.num_heads) * static_cast<int>(p.shape.value_dim);
#pragma unroll 1
  for (int first = static_cast<int>(blockIdx.x); first < p.rows;
       first += 32 * blocks) {
    const int own = first + lane * blocks;
    // The schedule is older than the previous launch, which may still read what
    // is written here. (Waiting again is free.)
    const bool empty = own < p.rows && __ldcg(&args.row_work(own).length) == 0;
    uint32_t empties = __ballot_sync(0xffffffffu, empty);
    if (empties != 0) WaitForPrevious();
#pragma unroll 1
    for (; empties != 0; empties &= empties - 1) {
      const int row = first + (__ffs(static_cast<int>(empties)) - 1) * blocks;
#pragma unroll 1
      for (int t = 0; t < p.new_tokens; ++t) {
        const int64_t to = (int64_t{row} * p.new_tokens + t) * p.out_stride;
#pragma unroll 1
        for (int i = 4 * lane; i < width; i += 128)
          WriteFour(p, to + i, {0.0f, 0.0f, 0.0f, 0.0f});
      }
    }
  }
}

// kAppends: the launch appends the rows' tokens and forms their queries.
// kClusters: the blocks of each row are a cluster.
template <typename T, int kColumns, int kTiles, int kRank, typename Products,
          bool kAppends = false, bool kClusters = false>
__device__ __forceinline__ void TpaDecodeBlock(const TpaDecodeArgs& args) {
  extern __shared__ __align__(128) char memory[];
  const int ring_bytes = args.stages * args.stage_bytes;
  char* at = memory + args.lanes * ring_bytes;
  TpaShared shared;
  shared.queries = at;
  at += 2 * Half<T>::kTerms * kColumns * args.groups *
        static_cast<int>(args.layout.b_k_width);
  constexpr bool kHeadRows = std::is_same_v<Products, TpaHeadRows>;
  shared.weights = SharedAddress(at);
  shared.staging = reinterpret_cast<float*>(at);
  if constexpr (kHeadRows) {
    at += TpaStagingBytes(args.p.shape, args.groups * args.group_octets);
  } else {
    at += 2 * 2 * kTpaPageTokens * kColumns * args.groups * args.lanes;
    shared.exchange = reinterpret_cast<float*>(at);
    at += 2 * 4 * 4 * kColumns * args.groups * args.lanes;
  }
  shared.kept = reinterpret_cast<float2*>(at);
  at += 2 * 8 * kColumns * args.groups;
  auto* share = reinterpret_cast<int*>(at);
  at += sizeof(TpaBlockWork);
  const uint32_t barriers = SharedAddress(at);
  at += 16 * (args.lanes * args.stages + 1);
  shared.kept_outputs =
      reinterpret_cast<float*>(kHeadRows ? shared.queries : at);
  const TpaCluster cluster(args, SharedAddress(at));  // shares that memory
  const TpaQueryCopy queries(
      args, shared.queries, barriers + 16 * args.lanes * args.stages, kColumns);
  // In the place of the queries' barrier, which is then unused.
  const TpaFreshPage fresh(barriers + 16 * args.lanes * args.stages);
  const auto ring_of = [&](int lane) {
    return TpaRing(args, SharedAddress(memory) + lane * ring_bytes,
                   barriers + 16 * lane * args.stages);
  };
  const int thread = static_cast<int>(threadIdx.x);
  const int consumers = args.consumers();
  // Threads that wait for the block's share, or load it.
  const int sharers =
      consumers + 32 * (args.lanes + (Products::kAsync ? 1 : 0));
  LaunchDependents();
  if constexpr (kClusters) cluster.Begin();
  if (thread >= consumers) {
    if constexpr (Products::kAsync) ReleaseRegisters<40>();
    const int lane = (thread - consumers) / 32;
    const int word = thread % 32;
    if (kAppends && lane >= args.lanes) {
      if (lane == args.lanes) NamedBarrierArrive(kTpaShareBarrier, sharers);
      const int work =
          __ldcg(reinterpret_cast<const int*>(&args.block_work()) + word);
      if constexpr (kClusters) {
        TpaCompleteFreshPage<T, kColumns, kRank>(args, ring_of, fresh,
                                                 lane - args.lanes, work);
      } else {
        TpaAppendRows<T, kColumns, kTiles>(args, lane - args.lanes, work);
      }
      if (lane == 3) ClearEmptyRows(args);
      return;
    }
    // After the producer warps: one warp requests queries, and the last one is
    // free, as there are at most two lanes.
    if (lane == 3) {
      ClearEmptyRows(args);
      return;
    }
    if (lane > args.lanes || (lane == args.lanes && !Products::kAsync)) return;
    const int work =
        __ldcg(reinterpret_cast<const int*>(&args.block_work()) + word);
    if (lane == args.lanes) {
      if (word == 0) queries.Init();
      __syncwarp();
      NamedBarrierArrive(kTpaShareBarrier, sharers);
      AskForFirstQueries(args, queries, work);
      return;
    }
    const TpaRing ring = ring_of(lane);
    ring.Init(4 * args.groups, Products::kAsync);
    TpaCopier<Products::kAsync, kAppends, kAppends && kClusters> copier(
        args, ring, fresh, lane, work);
    copier.Begin();
    if (lane == 0) share[word] = work;
    NamedBarrierArrive(kTpaShareBarrier, sharers);
    copier.CopyShare();
    // Clusters are few blocks: each would need long to request its share
    // (measured; docs/kernels/tpa_decode.md).
    if (Products::kAsync && !kClusters && lane == 0) AskForNext(args.p, word);
  } else {
    if constexpr (Products::kAsync) ClaimRegisters<232>();
    if constexpr (!kHeadRows) queries.ClearUnused();
    const int lane = thread >= args.lane_threads() ? 1 : 0;
    // Work that does not need the share overlaps its load.
    using Worker = std::conditional_t<
        kHeadRows, TpaHeadRowsWorker<T, kRank, kAppends>,
        TpaWorker<T, kColumns, kTiles, kRank, Products, kAppends>>;
    Worker worker(args, shared, ring_of(lane), queries, lane);
    NamedBarrier(kTpaShareBarrier, sharers);
    WaitForPrevious();
    if constexpr (kClusters) {
      const int row = TpaCluster::Row();
      const int length = Uniform(__ldcg(&args.row_work(row).length));
      const int chunks = TpaChunkCount(length);
      if (chunks > kTpaClusterChunks) __trap();
      if (chunks == 0) return;
      if (thread == 0) cluster.Expect(chunks);
      if (TpaClusterFirst(chunks, TpaCluster::Block()) < chunks)
        worker.RunInCluster(cluster, row, length, chunks);
      cluster.Merge(row, chunks);
    } else {
      const auto& work = *reinterpret_cast<const TpaBlockWork*>(share);
      worker.Run(work);
      // All copies are done: the ring buffers' memory is free.
      TpaMerger merger(args, memory, args.lanes * ring_bytes);
      merger.Arrive(work);
      merger.Merge(work);
    }
  }
}

template <typename Kernel>
cudaError_t LaunchTpaKernel(Kernel kernel, const TpaDecodeArgs& args,
                            const TpaDecodePlan& plan, cudaStream_t stream) {
  const cudaError_t error = AllowSharedMemory(kernel, plan.shared_bytes);
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks),
                        static_cast<unsigned>(plan.head_blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (plan.hopper) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (plan.cluster_blocks > 0) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {
        static_cast<unsigned>(plan.cluster_blocks), 1, 1};
  }
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, args);
}

// tpa_decode_hopper_*.cu and tpa_decode_portable.cu. cudaErrorInvalidValue for
// an instance that they do not have.
cudaError_t LaunchTpaHopperBFloat16(const TpaDecodeArgs& args,
                                    const TpaDecodePlan& plan,
                                    cudaStream_t stream);
cudaError_t LaunchTpaHopperFloat16(const TpaDecodeArgs& args,
                                   const TpaDecodePlan& plan,
                                   cudaStream_t stream);
// TpaDevice::clusters, for the most shared memory that a block may have.
int CountTpaClusters(int shared_memory);
cudaError_t LaunchTpaPortable(const TpaDecodeArgs& args,
                              const TpaDecodePlan& plan, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_KERNEL_CUH_
