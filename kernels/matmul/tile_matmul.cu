// Product of 2 to 64 16-bit rows, or any number with 32,768 outputs and more: a
// producer warp fills a ring buffer of swizzled TMA boxes, warpgroups multiply
// with wgmma, weights as the 64 rows. The parts of a matrix in parts are the
// blocks of a cluster.
// Shapes: w [O, I] and x [T, I] 16-bit, y [T, O] float32, or with a gate
// [T, O / 2], float32 or 16-bit.
// Floor: 2 · I · (O + T) + 4 · T · O bytes; of weights 2 · O · I, read once up
// to 64 rows.
#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/matmul/decode_matmul_hopper.h"
#include "kernels/matmul/decode_tiles.cuh"
#include "kernels/matmul/wide_matmul_plan.h"

namespace recurve {
namespace {

// A block has 64 · kGroups outputs by 8 · kColumns rows, a warpgroup 64
// outputs; a producer warp copies them. Stages have 64 inputs: rows of 128
// bytes, swizzled. More than 128 rows are two instructions.
template <int kGroups_, int kColumns_, int kStages_, bool kParts_>
struct Tile {
  static constexpr int kGroups = kGroups_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kHalves = kColumns > 16 ? 2 : 1;
  static constexpr int kStages = kStages_;
  static constexpr int kConsumers = 128 * kGroups;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kOutputs = 64 * kGroups;
  // Weights of a gate come in halves: outputs, and their partners.
  static constexpr int kGateHalf = kOutputs / 2;
  static constexpr int kRows = 8 * kColumns;
  static constexpr int kWeightBytes = kOutputs * 128;
  static constexpr int kStageBytes = kWeightBytes + kRows * 128;
  // Pitch of a row of a part's sums: writes have no bank conflicts.
  static constexpr int kSumStride = kOutputs + 4;
  static constexpr int kRingBytes =
      kStages * kStageBytes > kRows* kSumStride * 4 ? kStages* kStageBytes
                                                    : kRows* kSumStride * 4;
  // For a matrix in parts: the rows that a block adds up, and the size of
  // another part's sums of them.
  static constexpr bool kParts = kParts_;
  static constexpr int kMine = kRows / kDecodeMatmulMaxSplits;
  static constexpr int kPartBytes = kMine * kOutputs * 4;
  static constexpr int kReceiveBytes =
      kParts ? (kDecodeMatmulMaxSplits - 1) * kPartBytes : 0;
  // Barriers and a flag; the ring buffer begins at a multiple of 1024.
  static constexpr int kSharedBytes =
      kRingBytes + kReceiveBytes + 16 * kStages + 16 + 1024;
  // Blocks a multiprocessor.
  static constexpr int kBlocks = kSharedBytes <= 113 * 1024 ? 2 : 1;
};

// Writes the block's sums [rows, outputs] to y.
template <typename S>
__device__ __forceinline__ void WriteTile(const DecodeMatmulParams& p,
                                          const float* sums, int rows,
                                          const TilePlace& place) {
  constexpr int kFours = S::kOutputs / 4;
  const bool fours = WritesFours(p);
#pragma unroll 2
  for (int i = place.others_rows * kFours + static_cast<int>(threadIdx.x);
       i < rows * kFours; i += S::kThreads) {
    const int row = i / kFours;
    const int m = i % kFours * 4;
    if (m < place.others_outputs) continue;
    WriteFour(p, fours, place.row + row, place.output + m,
              *reinterpret_cast<const float4*>(sums + row * S::kSumStride + m));
  }
}

// The same with a gate.
template <typename T, typename S>
__device__ __forceinline__ void WriteGatedTile(const DecodeMatmulParams& p,
                                               const float* sums, int rows,
                                               const TilePlace& place) {
  constexpr int kFours = S::kGateHalf / 4;
  const bool fours = WritesFours(p);
#pragma unroll 1
  for (int i = place.others_rows * kFours + static_cast<int>(threadIdx.x);
       i < rows * kFours; i += S::kThreads) {
    const int row = i / kFours;
    const int m = i % kFours * 4;
    if (m < place.others_outputs) continue;
    const float* const at = sums + row * S::kSumStride + m;
    WriteGatedFour<T>(p, fours, place.row + row, place.output + m,
                      *reinterpret_cast<const float4*>(at),
                      *reinterpret_cast<const float4*>(at + S::kGateHalf));
  }
}

// Grid: (tiles of outputs times splits, tiles of rows). The splits of a tile
// are the blocks of a cluster; they add their sums in order at the end.
//
// Weights do not wait for the previous kernel.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    tile_kernel(const __grid_constant__ TileArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  LaunchDependents();
  const DecodeMatmulParams& p = args.p;
  const int splits = args.splits;
  const uint32_t ring = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  const uint32_t receive = ring + S::kRingBytes;
  const uint32_t full = receive + S::kReceiveBytes;
  const uint32_t empty = full + 8 * S::kStages;
  const uint32_t received = empty + 8 * S::kStages;
  // Whether the previous kernel is done.
  auto* const flag = reinterpret_cast<volatile uint32_t*>(
      unaligned + (received + 8 - SharedAddress(unaligned)));
  const int split = static_cast<int>(blockIdx.x) % splits;
  const TilePlace place = PlaceOf(args, static_cast<int>(blockIdx.y) * S::kRows,
                                  static_cast<int>(blockIdx.x) / splits *
                                      (p.gate ? S::kGateHalf : S::kOutputs));
  const int inputs = static_cast<int>(p.inputs);
  const int begin = DecodeMatmulSplitBegin(inputs, splits, split);
  const int end = DecodeMatmulSplitBegin(inputs, splits, split + 1);
  const int stages = (end - begin + kStageInputs - 1) / kStageInputs;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = Uniform(thread / 32);
  const int lane = thread % 32;
  if (thread == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(empty + 8 * s, S::kGroups);
    }
    BarrierInit(received, 1);
    *flag = 0;
    BarrierInitFence();
    if (S::kParts) BarrierExpect(received, S::kReceiveBytes);
  }
  __syncthreads();
  if (S::kParts) cluster::Begun();

  constexpr int kHalf = S::kColumns / S::kHalves;
  float acc[S::kHalves][kHalf][4];
#pragma unroll
  for (int i = 0; i < S::kColumns; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) acc[i / kHalf][i % kHalf][j] = 0.0f;
  }
  if (warp == S::kConsumers / 32) {
    if (ElectLane()) {
      const auto ask_for_weights = [&](int stage, int slot) {
        const uint32_t to = ring + slot * S::kStageBytes;
        const int at = begin + stage * kStageInputs;
        BarrierExpect(full + 8 * slot, args.stage_bytes);
        CopyWeightBox(to, args.w, at, place.output, 0, full + 8 * slot);
      };
      const auto ask_for_rows = [&](int stage, int slot) {
        CopyBox(ring + slot * S::kStageBytes + S::kWeightBytes, args.x,
                begin + stage * kStageInputs, place.row, 0, full + 8 * slot);
      };
      FillRing<S::kStages>(
          empty, stages, [&] { return *flag != 0; }, ask_for_weights,
          ask_for_rows);
    }
    if (S::kParts) cluster::AwaitBegun();
  } else {
    if (S::kParts) cluster::AwaitBegun();  // during the first copies
    if (thread == 0) {
      WaitForPrevious();
      *flag = 1;
    }
    __syncwarp();
    const uint32_t offset = warp / 4 * 64 * 128;
    int slot = 0;
    uint32_t phase = 0;
    int before = 0;  // slot of the previous stage
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
      BarrierWait(full + 8 * slot, phase);
      const uint32_t at = ring + slot * S::kStageBytes;
      const uint64_t a = SwizzledOperand(at + offset);
#pragma unroll
      for (int h = 0; h < S::kHalves; ++h) WgmmaPin(acc[h]);
      WgmmaFence();
      // Inputs beyond the last are zeros.
#pragma unroll
      for (int k = 0; k < kStageInputs / 16; ++k) {
#pragma unroll
        for (int h = 0; h < S::kHalves; ++h) {
          const uint64_t b =
              SwizzledOperand(at + S::kWeightBytes + h * kHalf * 8 * 128);
          Wgmma<kMajorK, kMajorK>(acc[h], WgmmaAdvance(a, 32 * k),
                                  WgmmaAdvance(b, 32 * k), true, T());
        }
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
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h) WgmmaPin(acc[h]);
    WaitForPrevious();  // before the first addend or write
  }

  // Through shared memory: code that a thread runs once takes 6 cycles an
  // instruction, so the rest is loops. No warp reads the ring buffer any more;
  // the sums take its place.
  const int g = lane / 4;
  const int t = lane % 4;
  __syncthreads();
  // The blocks of the cluster share the tile's rows. A thread's first addend is
  // loaded before the others' sums arrive.
  constexpr int kFours = S::kOutputs / 4;
  const bool fours = WritesFours(p);
  float4 before = make_float4(0, 0, 0, 0);
  if (S::kParts && thread < S::kMine * kFours) {
    const int64_t row = place.row + split * S::kMine + thread / kFours;
    if (row < p.rows) {
      before = ReadFour(p, fours, row, place.output + thread % kFours * 4);
    }
  }
  auto* const sums =
      reinterpret_cast<float*>(unaligned + (ring - SharedAddress(unaligned)));
  if (warp != S::kConsumers / 32) {
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sums[(8 * i + 2 * t + j % 2) * S::kSumStride + 16 * warp + j / 2 * 8 +
             g] = acc[i / kHalf][i % kHalf][j];
      }
    }
  }
  if constexpr (!S::kParts) {
    __syncthreads();
    const int rows =
        static_cast<int>(min(int64_t{S::kRows}, p.rows - place.row));
    if (p.gate) {
      WriteGatedTile<T, S>(p, sums, rows, place);
    } else {
      WriteTile<S>(p, sums, rows, place);
    }
    return;
  }
  if constexpr (S::kParts) {
    __syncthreads();
    // Address of block `from`'s sums of row `row` of those that block `to` adds
    // up.
    const auto received_at = [&](int from, int to, int row, int m) {
      return receive + (from < to ? from : from - 1) * S::kPartBytes +
             (row * S::kOutputs + m) * 4;
    };
#pragma unroll 1
    for (int i = thread; i < S::kRows * kFours; i += S::kThreads) {
      const int row = i / kFours;
      const int m = i % kFours * 4;
      const int to = row / S::kMine;
      if (to == split) continue;
      cluster::SendFour(
          received_at(split, to, row % S::kMine, m), received, to,
          *reinterpret_cast<const float4*>(sums + row * S::kSumStride + m));
    }
    BarrierWait(received, 0);
    // All parts in order.
    const auto sum_of_parts = [&](int row, int m) {
      float4 parts[kDecodeMatmulMaxSplits];
#pragma unroll
      for (int s = 0; s < kDecodeMatmulMaxSplits; ++s) {
        const uint32_t at =
            s == split
                ? ring + ((split * S::kMine + row) * S::kSumStride + m) * 4
                : received_at(s, split, row, m);
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(parts[s].x), "=f"(parts[s].y), "=f"(parts[s].z),
                       "=f"(parts[s].w)
                     : "r"(at)
                     : "memory");
      }
#pragma unroll
      for (int s = 1; s < kDecodeMatmulMaxSplits; ++s) {
        parts[0] = Plus(parts[0], parts[s]);
      }
      return parts[0];
    };
#pragma unroll 1
    for (int i = thread; i < S::kMine * kFours; i += S::kThreads) {
      const int row = i / kFours;
      const int64_t y_row = place.row + split * S::kMine + row;
      const int m = i % kFours * 4;
      if (y_row >= p.rows) break;
      if (split * S::kMine + row < place.others_rows ||
          m < place.others_outputs) {
        continue;
      }
      if (!p.gate) {
        if (i != thread) before = ReadFour(p, fours, y_row, place.output + m);
        WriteFour(p, fours, y_row, place.output + m, sum_of_parts(row, m),
                  before);
      } else if (m < S::kGateHalf) {
        WriteGatedFour<T>(p, fours, y_row, place.output + m,
                          sum_of_parts(row, m),
                          sum_of_parts(row, S::kGateHalf + m));
      }
    }
  }
#else
  __trap();  // never launched there
#endif
}

template <typename T, typename S>
cudaError_t Launch(const DecodeMatmulParams& p, cudaStream_t stream) {
  static_assert(S::kColumns / S::kHalves <= 16);  // the widest in wgmma.cuh
  const auto kernel = tile_kernel<T, S>;
  TileArgs args = {};
  args.splits = DecodeMatmulSplits(p.outputs, p.inputs);
  cudaError_t error = AllowSharedMemory(kernel, S::kSharedBytes);
  if (error == cudaSuccess) {
    error = MakeTileArgs(p, S::kRows, S::kOutputs, {}, &args);
  }
  if (error != cudaSuccess) return error;
  if ((args.splits > 1) != S::kParts) return cudaErrorNotSupported;
  const int64_t tiles = (p.outputs + S::kOutputs - 1) / S::kOutputs;
  const int64_t row_tiles = (p.rows + S::kRows - 1) / S::kRows;
  return LaunchDependentCluster(kernel,
                                dim3(static_cast<unsigned>(tiles * args.splits),
                                     static_cast<unsigned>(row_tiles)),
                                S::kThreads, S::kSharedBytes, args.splits,
                                stream, args);
}

// Up to 64 rows, two blocks share a multiprocessor, also blocks of consecutive
// kernels.
using Parts16 = Tile<1, 2, 10, true>;
using Parts32 = Tile<1, 4, 8, true>;
using Parts64 = Tile<1, 8, 6, true>;
using Rows16 = Tile<1, 2, 10, false>;
using Rows32 = Tile<1, 4, 8, false>;
using Rows64 = Tile<1, 8, 6, false>;
// For a matrix with more tiles than multiprocessors.
using Rows128 = Tile<2, 16, 6, false>;
using ManyRows = Tile<2, 32, 4, false>;
constexpr int64_t kManyOutputs = 256 * ManyRows::kOutputs;

// Other matrices take wide_matmul.cu; those in parts also with fewer rows, if
// clusters of their parts would fill more than one wave, and from 33 rows on if
// they have so few inputs that adding the parts is most of the work. (Measured;
// docs/kernels/matmul.md.)
bool IsWide(const DecodeMatmulParams& p, int multiprocessors) {
  if (p.outputs >= kManyOutputs) return false;
  if (p.rows > 64) return true;
  return DecodeMatmulSplits(p.outputs, p.inputs) > 1 &&
         (HasTallForms(p.outputs, multiprocessors) ||
          (p.rows > 32 && p.inputs < 4096));
}

template <typename T>
cudaError_t LaunchTyped(const DecodeMatmulParams& p, cudaStream_t stream) {
  if (DecodeMatmulSplits(p.outputs, p.inputs) > 1) {
    if (p.rows <= 16) return Launch<T, Parts16>(p, stream);
    if (p.rows <= 32) return Launch<T, Parts32>(p, stream);
    return Launch<T, Parts64>(p, stream);
  }
  if (p.rows <= 16) return Launch<T, Rows16>(p, stream);
  if (p.rows <= 32) return Launch<T, Rows32>(p, stream);
  if (p.rows <= 64) return Launch<T, Rows64>(p, stream);
  if (p.rows <= 128) return Launch<T, Rows128>(p, stream);
  return Launch<T, ManyRows>(p, stream);
}

}  // namespace

cudaError_t LaunchTileMatmul(const DecodeMatmulParams& p, int multiprocessors,
                             cudaStream_t stream) {
  if (IsWide(p, multiprocessors))
    return LaunchWideMatmul(p, multiprocessors, stream);
  return p.type == WeightType::kBFloat16 ? LaunchTyped<__nv_bfloat16>(p, stream)
                                         : LaunchTyped<__half>(p, stream);
}

}  // namespace recurve
