// Who writes the state, and outputs but for a row's last tile, to global
// memory. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_STORE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_STORE_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/common/cluster.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_shared.cuh"

namespace recurve {
namespace linear_ring {

// A box of outputs, from shared memory; what is beyond a head's is left out.
__device__ __forceinline__ void StoreBox(uint32_t from, const CUtensorMap& map,
                                         int feature, int head, int token) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group "
      "[%1, {%2, %3, %4}], [%0];" ::"r"(from),
      "l"(&map), "r"(feature), "r"(head), "r"(token)
      : "memory");
#endif
}
__device__ __forceinline__ void StoreBytes(uint32_t from, void* to,
                                           uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
#endif
}
// Until the copy engine has read what this thread has given it.
__device__ __forceinline__ void WaitForStores() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.commit_group;"
      "cp.async.bulk.wait_group.read 0;" ::
          : "memory");
#endif
}

// A warp that gives whole tiles of outputs, and the state, to the copy engine,
// so that those who multiply wait neither for each other nor for it.
template <Form kForm>
struct Storer {
  using P = Plan<kForm>;

  __device__ __forceinline__ void Run() {
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      BarrierWait(layout.ItemFull(round % kItemPlaces),
                  round / kItemPlaces & 1);
      Pass(Told(layout, round).PartTiles());  // v
      if (round > 0) {
        Store(Told(layout, round - 1));
        WarpArrive(layout.ItemFree((round - 1) % kItemPlaces));
      }
      if (!Told(layout, round).Works()) break;
      if (P::kStagesState && args.p.states != nullptr) StoreState(round);
    }
  }
  // This block's quarter of the features. All may then send parts again.
  __device__ __forceinline__ void StoreState(uint32_t round) const {
    const int lane = threadIdx.x % 32;
    const int first = cluster::ClusterRank() * P::kOwnFeatures;
    const int feature = first % kFeatures;
    const int encoding = first / kFeatures;
    BarrierWait(layout.StateFull(), round & 1);
    const Item item = Told(layout, round);
    float* const to =
        args.p.states + int64_t{item.slot} * args.p.slot_stride +
        ((int64_t{item.head} * P::kEncodings + encoding) * args.head_dim +
         feature) *
            args.value_dim;
    const int features = min(args.head_dim - feature, P::kOwnFeatures);
    for (int i = lane; i < features; i += 32) {
      StoreBytes(layout.State(i), to + int64_t{i} * args.value_dim,
                 4 * args.value_dim);
    }
    WaitForStores();
    __syncwarp();
    for (int i = lane; i < kParts * kArrivingLanes; i += 32) {
      cluster::ArriveInCluster(
          cluster::InBlock(layout.PartsFree(), i % kParts));
    }
  }
  __device__ __forceinline__ void Pass(int tiles) {
    stage = (stage + tiles) % P::kValueStages;
  }
  __device__ __forceinline__ void Store(const Item& item) {
    const int lane = threadIdx.x % 32;
    // Outputs of tiles that have all their tokens, if they are bfloat16; those
    // of others are written by who makes them.
    const int whole = args.p.out_type == ElementType::kBFloat16
                          ? min(item.PartTiles(), item.Left(0) / kTokens)
                          : 0;
    int token = item.Token(0);
#pragma unroll 1
    for (int t = 0; t < whole; ++t) {
      BarrierWait(layout.OutFull(stage), phases >> stage & 1);
      phases ^= 1u << stage;
      if (lane == 0) {
        const uint32_t outputs = layout.Value(stage);
        StoreBox(outputs, args.out, 0, item.head, token);
        if (args.value_dim > 64) {
          StoreBox(outputs + kTileBytes, args.out, 64, item.head, token);
        }
        WaitForStores();
      }
      __syncwarp();
      // For all who multiply.
      if (lane < kArrivingLanes) {
        BarrierArrive(layout.ValueFree(stage), kMultiplierWarps);
      }
      Pass(1);
      token += kTokens;
    }
    Pass(item.PartTiles() - whole);
  }

  const Args& args;
  const Layout<kForm>& layout;
  int stage = 0;
  uint32_t phases = 0;  // of OutFull, a bit for each stage
};

// The outputs of rows in the sink, by `thread` of `threads` of each block.
template <typename T>
__device__ __forceinline__ void WriteZeros(const Args& args, T* out, int thread,
                                           int threads) {
  const int columns = args.value_dim;
  Items items(args);
  while (!items.AtEnd()) {
    const Item item = items.Take();
    if (!item.InSink()) continue;
    const int tokens = min(item.PartTiles() * kTokens, item.Left(0));
    for (int64_t i = thread; i < int64_t{tokens} * columns; i += threads) {
      out[(int64_t{item.Token(0)} + i / columns) * args.p.out_stride +
          int64_t{item.head} * columns + i % columns] = T(0.0f);
    }
  }
}

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_STORE_CUH_
