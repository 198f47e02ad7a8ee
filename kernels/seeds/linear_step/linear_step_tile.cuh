// A block's tile of a state, in registers.
#ifndef RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_TILE_CUH_
#define RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_TILE_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/seeds/linear_step/linear_step_plan.h"

namespace recurve {
namespace linear_step {

// The dimensions of a launch, in 32 bits for the device.
struct Shape {
  int head_dim;
  int key_dim;
  int value_dim;
  int angles;
};

// One thread's part of a state tile: 16 bytes of each of kRows rows, which are
// apart, so that a warp's are adjacent in each access.
template <typename State>
struct Tile {
  static constexpr int kVector = 16 / sizeof(State);
  static constexpr int kLanes = kLinearTileColumns / kVector;  // neighbours
  static constexpr int kRows = kLinearRowsPerWarp / (32 / kLanes);
  static constexpr int kRowStep = 32 / kLanes;

  __device__ Tile(State* head_state, const Shape& s)
      : column(blockIdx.x * kLinearTileColumns +
               threadIdx.x % kLanes * kVector),
        row(threadIdx.x / 32 * kLinearRowsPerWarp + threadIdx.x % 32 / kLanes),
        state(head_state + int64_t{row} * s.value_dim + column),
        row_step(kRowStep * s.value_dim),
        rows(column < s.value_dim ? (s.key_dim - row + kRowStep - 1) / kRowStep
                                  : 0) {}

  // Bypasses L1 only: evict-first in L2 costs 2% at large batches.
  __device__ __forceinline__ void Load() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i < rows) raw[i] = __ldcg(Address(i));
    }
  }

  __device__ __forceinline__ void Get(int i, float (&x)[kVector]) const {
    const uint32_t word[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kVector == 4) {
        x[j] = __uint_as_float(word[j]);
      } else {  // bfloat16 is the upper half of a float32
        x[2 * j] = __uint_as_float(word[j] << 16);
        x[2 * j + 1] = __uint_as_float(word[j] & 0xffff0000u);
      }
    }
  }

  // The row of the state in register i.
  __device__ __forceinline__ int Row(int i) const { return row + i * kRowStep; }
  __device__ __forceinline__ uint4* Address(int i) const {
    return reinterpret_cast<uint4*>(state + i * row_step);
  }

  int column;    // first of kVector
  int row;       // first of kRows
  State* state;  // at (row, column)
  int row_step;  // elements from row to row
  int rows;      // that exist, a multiple of 8; may exceed kRows
  uint4 raw[kRows];
};

// A float32 whose upper half is its bfloat16, rounded up with the probability
// given by the bits cut off. `random` is uniform in 16 bits. NaN and infinities
// are unchanged.
__device__ __forceinline__ uint32_t RoundStochastically(float x,
                                                        uint32_t random) {
  return x != x ? 0x7fffffffu : __float_as_uint(x) + random;
}

// Stores a thread's part of state row `i`. `element` is the index of its first
// element in the slot.
__device__ __forceinline__ void StoreRow(const Tile<float>& tile, int i,
                                         const float (&x)[4], uint64_t, int64_t,
                                         int64_t) {
  *tile.Address(i) = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]),
                                __float_as_uint(x[2]), __float_as_uint(x[3]));
}
__device__ __forceinline__ void StoreRow(const Tile<__nv_bfloat16>& tile, int i,
                                         const float (&x)[8], uint64_t seed,
                                         int64_t element, int64_t position) {
  const uint4 random =
      DevicePhilox4x32(seed, static_cast<uint64_t>(element) / 8,
                       static_cast<uint64_t>(position));
  const uint32_t word[4] = {random.x, random.y, random.z, random.w};
  uint32_t packed[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    packed[j] =
        __byte_perm(RoundStochastically(x[2 * j], word[j] & 0xffffu),
                    RoundStochastically(x[2 * j + 1], word[j] >> 16), 0x7632);
  }
  *tile.Address(i) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

}  // namespace linear_step
}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_STEP_LINEAR_STEP_TILE_CUH_
