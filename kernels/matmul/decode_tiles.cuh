// Helpers of tile_matmul.cu, wide_matmul.cu and gated_matmul.cu: TMA boxes in a
// ring buffer, results written from shared memory.
#ifndef RECURVE_KERNELS_MATMUL_DECODE_TILES_CUH_
#define RECURVE_KERNELS_MATMUL_DECODE_TILES_CUH_

#include <cuda.h>

#include <algorithm>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/tensor_copy.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/common/wgmma.cuh"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/matmul/decode_matmul_order.h"

namespace recurve {

inline constexpr int kStageInputs = 64;

// Operand with rows of 128 bytes, swizzled by 128 bytes: 8 rows every 1024.
// (PTX ISA, "Matrix descriptor format".)
__device__ __forceinline__ uint64_t SwizzledOperand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// CopyBox for weights, which are read once a step: they leave L2 before data
// that the next kernels reuse.
__device__ __forceinline__ void CopyWeightBox(uint32_t to,
                                              const CUtensorMap& map, int x,
                                              int y, int z, uint32_t barrier) {
  asm volatile(
      "{ .reg .b64 policy;"
      "  createpolicy.fractional.L2::evict_first.b64 policy, 1.0;"
      "  cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier"
      "::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], policy; }" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// Parameters of a launch. "Outputs" of a gate are its features: a box of
// weights has those of both halves.
//
// A last tile with too few rows or outputs begins earlier, inside the tile
// before it, and writes only its own: boxes that TMA pads with zeros arrive
// late. (Measured; docs/kernels/matmul.md.)
struct TileArgs {
  DecodeMatmulParams p;
  int splits;
  int stage_bytes;  // of a stage's copies
  int last_row;     // last first row of a tile
  int last_output;  // likewise; a multiple of 4
  CUtensorMap
      w;  // boxes of 64 inputs by the outputs of a block, or part of them
  // Boxes of 64 inputs by rows, likewise. With fewer rows than a block has, the
  // others are stale shared memory: a row of results depends on its own row
  // only.
  CUtensorMap x;
};

// Start of a block's tile, and its leading rows and outputs that another tile
// writes.
struct TilePlace {
  int row;
  int output;
  int others_rows;
  int others_outputs;
};
__device__ __forceinline__ TilePlace PlaceOf(const TileArgs& args, int row,
                                             int output) {
  const int first_row = min(row, args.last_row);
  const int first_output = min(output, args.last_output);
  return {first_row, first_output, row - first_row, output - first_output};
}

// Cycles between stages while the previous kernel runs: all multiprocessors'
// ring buffers at once would fill the memory queues and delay its reads and
// writes. (Measured; docs/kernels/matmul.md.)
inline constexpr uint32_t kEarlyStageCycles = 500;

// Calls ask_for_weights(stage) for the first `stages`, which do not depend on
// the previous kernel; paced while `released()` is false.
template <typename Released, typename AskForWeights>
__device__ __forceinline__ void AskUnhurried(
    int stages, const Released& released,
    const AskForWeights& ask_for_weights) {
  const auto begun = static_cast<uint32_t>(clock());
  for (int s = 0; s < stages; ++s) {
    while (!released() && static_cast<uint32_t>(clock()) - begun <
                              kEarlyStageCycles * static_cast<uint32_t>(s)) {
    }
    ask_for_weights(s);
  }
}

// Producer thread of a ring buffer of kStages slots: requests the weights of
// the first stages before the previous kernel is done, their rows after it, and
// each later stage when its slot's barrier in `empty` (8 bytes each) has
// completed. ask_for_weights(stage, slot) makes the slot's barrier expect both.
template <int kStages, typename Released, typename AskForWeights,
          typename AskForRows>
__device__ __forceinline__ void FillRing(uint32_t empty, int stages,
                                         const Released& released,
                                         const AskForWeights& ask_for_weights,
                                         const AskForRows& ask_for_rows) {
  const int first = min(stages, kStages);
  AskUnhurried(first, released, [&](int s) { ask_for_weights(s, s); });
  WaitForPrevious();
  for (int s = 0; s < first; ++s) ask_for_rows(s, s);
  int slot = 0;
  uint32_t phase = 0;
  for (int s = first; s < stages; ++s) {
    BarrierWait(empty + 8 * slot, phase);
    ask_for_weights(s, slot);
    ask_for_rows(s, slot);
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }
}

// Waits until the slots filled by FillRing are empty again. Where the blocks of
// a cluster signal it to each other, no copy to a block that has waited is in
// flight, and it may end when all have waited.
template <int kStages>
__device__ __forceinline__ void DrainRing(uint32_t empty, int stages) {
  for (int slot = 0; slot < min(stages, kStages); ++slot) {
    const int fills = (stages - slot + kStages - 1) / kStages;
    BarrierWait(empty + 8 * slot, static_cast<uint32_t>(fills - 1) % 2);
  }
}

__device__ __forceinline__ float4 Plus(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// Whether four neighbouring outputs of a row can be written at once.
__device__ __forceinline__ bool WritesFours(const DecodeMatmulParams& p) {
  return p.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.y) % 16 == 0;
}

// The addend of outputs `output` to `output` + 3 of a row, if WriteFour would
// read them at once; else 0. `fours` is WritesFours.
__device__ __forceinline__ float4 ReadFour(const DecodeMatmulParams& p,
                                           bool fours, int64_t row,
                                           int64_t output) {
  if (!p.add || !fours || output + 4 > p.outputs)
    return make_float4(0, 0, 0, 0);
  return *reinterpret_cast<const float4*>(p.y + row * p.y_stride + output);
}

// Writes outputs `output` to `output` + 3 of a row, those that exist. `before`
// is ReadFour's.
__device__ __forceinline__ void WriteFour(const DecodeMatmulParams& p,
                                          bool fours, int64_t row,
                                          int64_t output, float4 sum,
                                          const float4& before) {
  float* const y = p.y + row * p.y_stride + output;
  if (fours && output + 4 <= p.outputs) {
    if (p.add) sum = Plus(before, sum);
    *reinterpret_cast<float4*>(y) = sum;
    return;
  }
  const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (output + j < p.outputs) y[j] = p.add ? y[j] + values[j] : values[j];
  }
}

__device__ __forceinline__ void WriteFour(const DecodeMatmulParams& p,
                                          bool fours, int64_t row,
                                          int64_t output, float4 sum) {
  WriteFour(p, fours, row, output, sum, ReadFour(p, fours, row, output));
}

// The same for features of a gate, from their two outputs.
template <typename T>
__device__ __forceinline__ void WriteGatedFour(const DecodeMatmulParams& p,
                                               bool fours, int64_t row,
                                               int64_t feature,
                                               const float4& gate,
                                               const float4& up) {
  const int64_t features = p.outputs / 2;
  const float values[4] = {DeviceActivate(p.activation, gate.x) * up.x,
                           DeviceActivate(p.activation, gate.y) * up.y,
                           DeviceActivate(p.activation, gate.z) * up.z,
                           DeviceActivate(p.activation, gate.w) * up.w};
  const int64_t to = row * p.y_stride + feature;
  T* const half = reinterpret_cast<T*>(p.y) + to;
  if (fours && feature + 4 <= features) {
    if (p.y_is_half) {
      *reinterpret_cast<uint2*>(half) =
          make_uint2(Half<T>::Pack(values[0], values[1]),
                     Half<T>::Pack(values[2], values[3]));
    } else {
      *reinterpret_cast<float4*>(p.y + to) =
          make_float4(values[0], values[1], values[2], values[3]);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (feature + j >= features) break;
    if (p.y_is_half) {
      half[j] = Half<T>::From(values[j]);
    } else {
      p.y[to + j] = values[j];
    }
  }
}

// A map of boxes of 64 elements by `rows` by `planes` of 16-bit data; elements
// beyond the sizes read as zeros.
inline cudaError_t MakeMap(const void* data, int64_t cols, int64_t rows,
                           int64_t row_stride, int64_t planes,
                           int64_t plane_stride, int box_rows, int box_planes,
                           CUtensorMap* map) {
  return MakeTensorMap(data,
                       {CU_TENSOR_MAP_DATA_TYPE_UINT16,
                        {cols, rows, planes},
                        {row_stride, plane_stride},
                        {kStageInputs, box_rows, box_planes}},
                       map);
}

// Arguments of blocks with `rows` rows and `outputs` outputs (both halves of a
// gate). Where the blocks of a cluster share them, a box is the part that one
// of them copies for all: of the rows (then there are at least `rows`), and of
// the outputs; with a gate one half, so two blocks share them.
struct TileShares {
  int of_rows = 1;
  int of_outputs = 1;
};
inline cudaError_t MakeTileArgs(const DecodeMatmulParams& p, int rows,
                                int outputs, TileShares shares,
                                TileArgs* args) {
  const int planes = p.gate ? 2 : 1;
  const int64_t all = p.outputs / planes;
  const int box = outputs / planes;
  const int box_rows = static_cast<int>(std::min<int64_t>(rows, p.rows));
  args->p = p;
  args->stage_bytes = (box_rows + outputs) * kStageInputs * 2;
  args->last_row = static_cast<int>(p.rows) - box_rows;
  // Makes four outputs writable at once.
  args->last_output =
      static_cast<int>(std::max<int64_t>(0, all - box + 3) / 4 * 4);
  const bool whole = shares.of_outputs == 1;
  const cudaError_t error = MakeMap(
      p.w, p.inputs, all, p.inputs, planes, all * p.inputs,
      whole ? box : outputs / shares.of_outputs, whole ? planes : 1, &args->w);
  if (error != cudaSuccess) return error;
  return MakeMap(p.x, p.x_cols, p.rows, p.x_stride, 1, p.rows * p.x_stride,
                 box_rows / shares.of_rows, 1, &args->x);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_TILES_CUH_
