// Store warp (Storer) of linear_noncausal_ring.cu: states, and bfloat16 outputs
// of whole tiles, to global memory. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_STORE_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_STORE_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/linear_attn/noncausal/linear_noncausal_ring_shared.cuh"

namespace recurve {
namespace linear_ring {

// A box from shared memory; parts beyond the map's sizes are left out.
__device__ __forceinline__ void StoreBox(uint32_t from, const CUtensorMap& map,
                                         int x, int y, int z) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group "
      "[%1, {%2, %3, %4}], [%0];" ::"r"(from),
      "l"(&map), "r"(x), "r"(y), "r"(z)
      : "memory");
#endif
}
// Waits until the copy engine has read this thread's stores, except those of
// the last kNotYet calls, including this one.
template <int kNotYet = 0>
__device__ __forceinline__ void WaitForStores() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.commit_group;"
      "cp.async.bulk.wait_group.read %0;" ::"n"(kNotYet)
      : "memory");
#endif
}

// One warp that passes states and whole tiles of outputs to the copy engine, so
// that the Multipliers wait neither for each other nor for it.
template <Form kForm>
struct Storer {
  using P = Plan<kForm>;
  // Tiles of outputs before it waits for S to be in its place.
  static constexpr int kTilesBefore = 2;

  __device__ __forceinline__ void Run() {
    bool summed = false;
#pragma unroll 1
    for (uint32_t round = 0;; ++round) {
      BarrierWait(layout.ItemFull(round % kItemPlaces),
                  round / kItemPlaces & 1);
      const Item item = Told(layout, round);
      if (!item.Works()) break;
      if (round % 2 == 0) {
        Pass(item.Tiles());  // v
        summed = item.Tiles() > 0;
      } else {
        if (summed && args.p.states != nullptr) StoreState(item);
        int load, left;
        ToldPlaces(layout, round, &load, &left);
        Store(item, left);
      }
      WarpArrive(layout.ItemFree(round % kItemPlaces));
    }
  }
  // Waits until the current stage has been written.
  __device__ __forceinline__ void WaitForOutputs() {
    BarrierWait(layout.OutFull(stage), phases >> stage & 1);
    phases ^= 1u << stage;
  }
  // The copy engine has read stage `which`.
  __device__ __forceinline__ void Release(int which) const {
    __syncwarp();
    // For all Multipliers.
    if (threadIdx.x % 32 < kArrivingLanes) {
      BarrierArrive(layout.ValueFree(which), kMultiplierWarps);
    }
  }
  __device__ __forceinline__ void ReleaseBefore() const {
    Release((stage == 0 ? P::kValueStages : stage) - 1);
  }
  __device__ __forceinline__ void StoreState(const Item& item) {
    const int pieces = StatePieces(args);
    const int all = P::kEncodings * pieces;
    int column = 0;
    int row = item.head * P::kEncodings * args.head_dim;
#pragma unroll 1
    for (int i = 0; i < all; ++i) {
      WaitForOutputs();
      if (threadIdx.x % 32 == 0) {
        StoreBox(layout.Value(stage), args.state, column, row, item.slot);
        WaitForStores<1>();
      }
      if (i > 0) ReleaseBefore();
      Pass(1);
      column += kStateColumns;
      if (column >= args.value_dim) {
        column = 0;
        row += args.head_dim;
      }
    }
    if (threadIdx.x % 32 == 0) WaitForStores();
    ReleaseBefore();
  }
  __device__ __forceinline__ void Publish(int* place) {
    if (*place < 0) return;
    BarrierWait(layout.FactorLeft(*place), 0);
    if (threadIdx.x % 32 == 0) {
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(
                       args.place_launches + *place),
                   "r"(ThisLaunch(layout))
                   : "memory");
    }
    __syncwarp();
    *place = -1;
  }
  __device__ __forceinline__ void Pass(int tiles) {
    stage = (stage + tiles) % P::kValueStages;
  }
  // Announces S in place `left`, if that is not negative, between outputs, as
  // its write takes time.
  __device__ __forceinline__ void Store(const Item& item, int left) {
    const int lane = threadIdx.x % 32;
    // Outputs of complete tiles, if they are bfloat16; the Multipliers write
    // the others.
    const int whole =
        args.p.out_type == ElementType::kBFloat16
            ? max(min(item.end, item.count / kTokens) - item.begin, 0)
            : 0;
    int token = item.Token(item.begin);
#pragma unroll 1
    for (int t = 0; t < whole; ++t) {
      WaitForOutputs();
      if (lane == 0) {
        const uint32_t outputs = layout.Value(stage);
        StoreBox(outputs, args.out, 0, item.head, token);
        if (args.value_dim > 64) {
          StoreBox(outputs + kTileBytes, args.out, 64, item.head, token);
        }
        WaitForStores();
      }
      Release(stage);
      Pass(1);
      token += kTokens;
      if (t + 1 == kTilesBefore) Publish(&left);
    }
    Publish(&left);
    Pass(item.Tiles() - whole);
  }

  const Args& args;
  const Layout<kForm>& layout;
  int stage = 0;
  uint32_t phases = 0;  // of OutFull, a bit for each stage
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_RING_STORE_CUH_
