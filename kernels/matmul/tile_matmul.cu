// Products of more rows than a few: tiles of weights and rows in shared memory,
// multiplied by wgmma.
#include <cuda.h>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/matmul/decode_copies.cuh"
#include "kernels/matmul/decode_matmul_hopper.h"
#include "kernels/matmul/decode_matmul_order.h"

namespace recurve {
namespace {

// A block has 64 · kGroups outputs by 8 · kColumns rows, a warpgroup 64
// outputs; another warp brings them in. Stages have 64 inputs: rows of 128
// bytes, swizzled.
template <int kGroups_, int kColumns_, int kStages_>
struct Tile {
  static constexpr int kGroups = kGroups_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kStages = kStages_;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kOutputs = 64 * kGroups;
  static constexpr int kRows = 8 * kColumns;
  static constexpr int kWeightBytes = kOutputs * 128;
  static constexpr int kStageBytes = kWeightBytes + kRows * 128;
  // A row of a part's sums: writes meet no bank conflicts.
  static constexpr int kSumStride = kOutputs + 4;
  static constexpr int kRingBytes =
      kStages * kStageBytes > kRows* kSumStride * 4 ? kStages* kStageBytes
                                                    : kRows* kSumStride * 4;
  // Barriers; and the ring begins at a multiple of 1024.
  static constexpr int kSharedBytes = kRingBytes + 16 * kStages + 1024;
};
constexpr int kStageInputs = 64;

// An operand of rows of 128 bytes, swizzled by 128 bytes: 8 rows every 1024.
// (PTX ISA, "Matrix descriptor format".)
__device__ __forceinline__ uint64_t SwizzledOperand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// One thread copies a box; completion counts on the barrier.
__device__ __forceinline__ void CopyBox(uint32_t to, const CUtensorMap& map,
                                        int x, int y, int z, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier"
      "::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}

struct TileArgs {
  DecodeMatmulParams p;
  int splits;
  CUtensorMap w;  // boxes of 64 inputs by kOutputs rows; of a gate, by 8 rows
                  // of both halves
  CUtensorMap x;  // boxes of 64 inputs by kRows rows
};

__device__ __forceinline__ void ClusterBarrier() {
  __syncwarp();
  asm volatile(
      "barrier.cluster.arrive.release.aligned;"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}
// The float at `address` of this block's shared memory, in block `rank`.
__device__ __forceinline__ float LoadFromBlock(uint32_t address, int rank) {
  float value;
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %1, %2;"
      "  ld.shared::cluster.f32 %0, [there]; }"
      : "=f"(value)
      : "r"(address), "r"(rank)
      : "memory");
  return value;
}

// Grid: (tiles of outputs times splits, tiles of rows). The splits of a tile
// are the blocks of a cluster; they add their sums in order at the end.
//
// Weights do not wait for the kernel before.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 2)
    tile_kernel(const __grid_constant__ TileArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  LaunchDependents();
  const DecodeMatmulParams& p = args.p;
  const int splits = args.splits;
  const uint32_t ring = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  const uint32_t full = ring + S::kRingBytes;
  const uint32_t empty = full + 8 * S::kStages;
  const int split = static_cast<int>(blockIdx.x) % splits;
  const int first_output = static_cast<int>(blockIdx.x) / splits * S::kOutputs;
  const int first_row = static_cast<int>(blockIdx.y) * S::kRows;
  const int inputs = static_cast<int>(p.inputs);
  const int begin = DecodeMatmulSplitBegin(inputs, splits, split);
  const int end = DecodeMatmulSplitBegin(inputs, splits, split + 1);
  const int stages = (end - begin + kStageInputs - 1) / kStageInputs;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  if (thread == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(empty + 8 * s, S::kGroups);
    }
    BarrierInitFence();
  }
  __syncthreads();

  float acc[S::kColumns][4];
#pragma unroll
  for (int i = 0; i < S::kColumns; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[i][j] = 0.0f;
  }
  if (warp == S::kConsumers / 32) {
    if (lane == 0) {
      const auto ask_for_weights = [&](int stage, int slot) {
        const uint32_t to = ring + slot * S::kStageBytes;
        const int at = begin + stage * kStageInputs;
        BarrierExpect(full + 8 * slot, S::kStageBytes);
        if (!p.gate) {
          CopyBox(to, args.w, at, first_output, 0, full + 8 * slot);
          return;
        }
#pragma unroll
        for (int i = 0; i < S::kOutputs / 16; ++i) {
          CopyBox(to + i * 16 * 128, args.w, at, first_output / 2 + 8 * i, 0,
                  full + 8 * slot);
        }
      };
      const auto ask_for_rows = [&](int stage, int slot) {
        CopyBox(ring + slot * S::kStageBytes + S::kWeightBytes, args.x,
                begin + stage * kStageInputs, first_row, 0, full + 8 * slot);
      };
      const int first = min(stages, S::kStages);
      for (int s = 0; s < first; ++s) ask_for_weights(s, s);
      WaitForPrevious();
      for (int s = 0; s < first; ++s) ask_for_rows(s, s);
      int slot = 0;
      uint32_t phase = 0;
      for (int s = first; s < stages; ++s) {
        BarrierWait(empty + 8 * slot, phase);
        ask_for_weights(s, slot);
        ask_for_rows(s, slot);
        if (++slot == S::kStages) {
          slot = 0;
          phase ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    const uint32_t offset = warp / 4 * 64 * 128;
    int slot = 0;
    uint32_t phase = 0;
    int before = 0;  // slot of the stage before
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      BarrierWait(full + 8 * slot, phase);
      const uint32_t at = ring + slot * S::kStageBytes;
      const uint64_t a = SwizzledOperand(at + offset);
      const uint64_t b = SwizzledOperand(at + S::kWeightBytes);
      WgmmaPin(acc);
      WgmmaFence();
      // Beyond the last input there are zeros.
#pragma unroll
      for (int k = 0; k < kStageInputs / 16; ++k) {
        Wgmma<kMajorK, kMajorK>(acc, WgmmaAdvance(a, 32 * k),
                                WgmmaAdvance(b, 32 * k), true, T());
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (stage > 0 && thread % 128 == 0) BarrierArrive(empty + 8 * before);
      before = slot;
      if (++slot == S::kStages) {
        slot = 0;
        phase ^= 1;
      }
    }
    WgmmaWait<0>();
    WgmmaPin(acc);
    WaitForPrevious();  // before anything is added or written
  }

  // ---- results ----
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t features = p.outputs / 2;
  if (splits == 1) {
    if (warp == S::kConsumers / 32) return;
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int64_t row = first_row + 8 * i + 2 * t + j;
        if (row >= p.rows) continue;
        float* const y = p.y + row * p.y_stride;
        if (p.gate) {
          const int64_t feature = first_output / 2 + 8 * warp + g;
          if (feature < features)
            WriteGated<T>(p, row, feature, acc[i][j], acc[i][2 + j]);
          continue;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t output = first_output + 16 * warp + 8 * half + g;
          if (output >= p.outputs) continue;
          const float value = acc[i][2 * half + j];
          y[output] = p.add ? y[output] + value : value;
        }
      }
    }
    return;
  }
  // The ring is read by nobody now; the sums take its place.
  __syncthreads();
  auto* const sums =
      reinterpret_cast<float*>(unaligned + (ring - SharedAddress(unaligned)));
#pragma unroll
  for (int i = 0; i < S::kColumns; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (warp == S::kConsumers / 32) continue;
      sums[(8 * i + 2 * t + j % 2) * S::kSumStride + 16 * warp + j / 2 * 8 +
           g] = acc[i][j];
    }
  }
  ClusterBarrier();
  const auto sum = [&](int row, int output) {
    const uint32_t at = ring + (row * S::kSumStride + output) * 4;
    float parts[kDecodeMatmulMaxSplits];
#pragma unroll
    for (int s = 0; s < kDecodeMatmulMaxSplits; ++s)
      parts[s] = LoadFromBlock(at, s);
    float total = parts[0];
#pragma unroll
    for (int s = 1; s < kDecodeMatmulMaxSplits; ++s) total += parts[s];
    return total;
  };
  // The blocks of the cluster share the tile's rows.
  constexpr int kMine = S::kRows / kDecodeMatmulMaxSplits;
  for (int i = thread; i < kMine * S::kOutputs; i += S::kThreads) {
    const int row = split * kMine + i / S::kOutputs;
    const int m = i % S::kOutputs;
    if (first_row + row >= p.rows) break;
    float* const y = p.y + (first_row + row) * p.y_stride;
    if (p.gate) {
      const int64_t feature = first_output / 2 + m / 16 * 8 + m % 8;
      if (m / 8 % 2 == 0 && feature < features) {
        WriteGated<T>(p, first_row + row, feature, sum(row, m),
                      sum(row, m + 8));
      }
    } else if (first_output + m < p.outputs) {
      const float before = p.add ? y[first_output + m] : 0.0f;
      const float total = sum(row, m);
      y[first_output + m] = p.add ? before + total : total;
    }
  }
  ClusterBarrier();  // others read this block's sums
#else
  __trap();  // never launched there
#endif
}

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver, which is not linked.
Encode FindEncode() {
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                         12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      entry = nullptr;
    }
    return reinterpret_cast<Encode>(entry);
  }();
  return encode;
}

// A box of 64 elements by `rows` by `planes` of 16-bit data; what lies beyond
// the sizes reads as zeros.
cudaError_t MakeMap(const void* data, int64_t cols, int64_t rows,
                    int64_t row_stride, int64_t planes, int64_t plane_stride,
                    int box_rows, int box_planes, CUtensorMap* map) {
  const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(cols),
                               static_cast<cuuint64_t>(rows),
                               static_cast<cuuint64_t>(planes)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(2 * row_stride),
                                 static_cast<cuuint64_t>(2 * plane_stride)};
  const cuuint32_t box[3] = {kStageInputs, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(box_planes)};
  const cuuint32_t steps[3] = {1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<void*>(data),
                sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
             ? cudaSuccess
             : cudaErrorInvalidValue;
}

template <typename T, typename S>
cudaError_t Launch(const DecodeMatmulParams& p, cudaStream_t stream) {
  const auto kernel = tile_kernel<T, S>;
  TileArgs args = {};
  args.p = p;
  args.splits = DecodeMatmulSplits(p.outputs);
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (error == cudaSuccess) {
    error = p.gate ? MakeMap(p.w, p.inputs, p.outputs / 2, p.inputs, 2,
                             p.outputs / 2 * p.inputs, 8, 2, &args.w)
                   : MakeMap(p.w, p.inputs, p.outputs, p.inputs, 1,
                             p.outputs * p.inputs, S::kOutputs, 1, &args.w);
  }
  if (error == cudaSuccess) {
    error = MakeMap(p.x, p.x_cols, p.rows, p.x_stride, 1, p.rows * p.x_stride,
                    S::kRows, 1, &args.x);
  }
  if (error != cudaSuccess) return error;
  const int64_t tiles = (p.outputs + S::kOutputs - 1) / S::kOutputs;
  const int64_t row_tiles = (p.rows + S::kRows - 1) / S::kRows;
  return LaunchDependentCluster(kernel,
                                dim3(static_cast<unsigned>(tiles * args.splits),
                                     static_cast<unsigned>(row_tiles)),
                                S::kThreads, S::kSharedBytes, args.splits,
                                stream, args);
}

// Two blocks share a multiprocessor, also those of kernels after each other.
using Rows16 = Tile<1, 2, 10>;
using Rows32 = Tile<1, 4, 8>;
using Rows64 = Tile<1, 8, 6>;
using Rows128 = Tile<2, 16, 3>;

template <typename T>
cudaError_t LaunchTyped(const DecodeMatmulParams& p, cudaStream_t stream) {
  if (p.rows <= 16) return Launch<T, Rows16>(p, stream);
  if (p.rows <= 32) return Launch<T, Rows32>(p, stream);
  if (p.rows <= 64) return Launch<T, Rows64>(p, stream);
  return Launch<T, Rows128>(p, stream);
}

}  // namespace

cudaError_t LaunchTileMatmul(const DecodeMatmulParams& p, cudaStream_t stream) {
  return p.type == WeightType::kBFloat16 ? LaunchTyped<__nv_bfloat16>(p, stream)
                                         : LaunchTyped<__half>(p, stream);
}

}  // namespace recurve
