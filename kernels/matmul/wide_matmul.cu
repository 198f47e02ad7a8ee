// Product of many 16-bit rows, or of any with a large matrix in parts, as
// tile_matmul.cu but with rows as the 64 rows of wgmma and outputs as its
// columns: a tile may have any multiple of 8 outputs, chosen to give nearly
// every multiprocessor a block. Which operand is which changes no bits.
// Shapes: w [O, I] and x [T, I] 16-bit, y [T, O] float32, or with a gate
// [T, O / 2], float32 or 16-bit.
// Floor: 2 · I · (O + T) + 4 · T · O bytes; from some 200 (H200) or 300 (H100)
// rows on compute bound: 2 · T · O · I flops.

#include <iterator>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/matmul/decode_matmul_hopper.h"
#include "kernels/matmul/decode_tiles.cuh"
#include "kernels/matmul/wide_matmul_plan.h"

namespace recurve {
namespace {

// Writes a block's tile; `sum_of` gives the sums of four neighbouring outputs.
// With a gate, the tile's second half are the partners of the first.
template <typename T, typename S, typename SumOf>
__device__ __forceinline__ void WriteSums(const DecodeMatmulParams& p,
                                          const TilePlace& place,
                                          const SumOf& sum_of) {
  const int thread = static_cast<int>(threadIdx.x);
  const int rows = static_cast<int>(min(int64_t{S::kRows}, p.rows - place.row));
  const bool fours = WritesFours(p);
  if (p.gate) {
    constexpr int kFours = S::kHalf / 4;
#pragma unroll 1
    for (int i = place.others_rows * kFours + thread; i < rows * kFours;
         i += S::kThreads) {
      const int row = i / kFours;
      const int m = i % kFours * 4;
      if (m < place.others_outputs) continue;
      WriteGatedFour<T>(p, fours, place.row + row, place.output + m,
                        sum_of(row, m), sum_of(row, S::kHalf + m));
    }
    return;
  }
  constexpr int kFours = S::kOutputs / 4;
#pragma unroll 1
  for (int i = place.others_rows * kFours + thread; i < rows * kFours;
       i += S::kThreads) {
    const int row = i / kFours;
    const int m = i % kFours * 4;
    if (m < place.others_outputs) continue;
    WriteFour(p, fours, place.row + row, place.output + m, sum_of(row, m));
  }
}

// Copies the weights of a stage, 64 inputs from `input` on; the barrier also
// expects the stage's rows.
__device__ __forceinline__ void AskForWeights(const TileArgs& args, uint32_t to,
                                              uint32_t barrier, int input,
                                              int output) {
  BarrierExpect(barrier, args.stage_bytes);
  CopyWeightBox(to, args.w, input, output, 0, barrier);
}

// ---- a matrix that is not in parts ----

// A block has 64 · kGroups rows by 8 · kColumns outputs, a warpgroup 64 rows; a
// producer warp copies them. kPieces products make a warpgroup's outputs.
//
// kInParts: for a matrix in parts. Warpgroups go through the parts in order and
// add their sums.
template <int kGroups_, int kColumns_, int kStages_, int kPieces_ = 1,
          bool kInParts_ = false>
struct WideTile {
  static constexpr int kGroups = kGroups_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kPieces = kPieces_;
  static constexpr bool kInParts = kInParts_;
  static constexpr int kParts = kInParts ? kDecodeMatmulMaxSplits : 1;
  static constexpr int kSide = 1;  // as in PartsTile
  // With many tiles of rows, those of the same outputs run at the same time,
  // and read their weights from L2.
  static constexpr bool kRowsFirst = kPieces > 1 || kInParts;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = 128 * kGroups + 32;
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kOutputs = 8 * kColumns;
  // Weights of a gate come in halves: outputs, and their partners.
  static constexpr int kHalf = kOutputs / 2;
  static constexpr int kRowBytes = kRows * 128;
  static constexpr int kStageBytes = kRowBytes + kOutputs * 128;
  // Pitch of a row of sums: writes of pairs, 4 to each of 8 rows, have no bank
  // conflicts.
  static constexpr int kSumStride =
      kOutputs % 16 == 8 ? kOutputs : kOutputs + 8;
  static constexpr int kRingBytes =
      kStages * kStageBytes > kRows* kSumStride * 4 ? kStages* kStageBytes
                                                    : kRows* kSumStride * 4;
  // Barriers and a flag; the ring buffer begins at a multiple of 1024.
  static constexpr int kSharedBytes = kRingBytes + 16 * kStages + 16 + 1024;
  static_assert(kHalf % 8 == 0 && kColumns % kPieces == 0);
  static_assert(kSharedBytes <= 227 * 1024);
};

// Grid: (tiles of outputs, tiles of rows), swapped if kRowsFirst.
//
// Weights do not wait for the previous kernel.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    wide_kernel(const __grid_constant__ TileArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  LaunchDependents();
  const DecodeMatmulParams& p = args.p;
  const uint32_t ring = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  const uint32_t full = ring + S::kRingBytes;
  const uint32_t empty = full + 8 * S::kStages;
  // Whether the previous kernel is done.
  auto* const flag = reinterpret_cast<volatile uint32_t*>(
      unaligned + (empty + 8 * S::kStages - SharedAddress(unaligned)));
  const auto output_tile =
      static_cast<int>(S::kRowsFirst ? blockIdx.y : blockIdx.x);
  const auto row_tile =
      static_cast<int>(S::kRowsFirst ? blockIdx.x : blockIdx.y);
  const TilePlace place =
      PlaceOf(args, row_tile * S::kRows,
              output_tile * (p.gate ? S::kHalf : S::kOutputs));
  const int stages =
      (static_cast<int>(p.inputs) + kStageInputs - 1) / kStageInputs;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = Uniform(thread / 32);
  const int lane = thread % 32;
  if (thread == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(empty + 8 * s, S::kGroups);
    }
    *flag = 0;
    BarrierInitFence();
  }
  __syncthreads();

  constexpr int kPieceColumns = S::kColumns / S::kPieces;
  float acc[S::kPieces][kPieceColumns][4];
  float total[S::kPieces][kPieceColumns][4];  // used only if kInParts
  if (warp == 4 * S::kGroups) {
    if (ElectLane()) {
      const auto ask_for_weights = [&](int stage, int slot) {
        const uint32_t barrier = full + 8 * slot;
        const uint32_t to = ring + slot * S::kStageBytes + S::kRowBytes;
        AskForWeights(args, to, barrier, stage * kStageInputs, place.output);
      };
      const auto ask_for_rows = [&](int stage, int slot) {
        CopyBox(ring + slot * S::kStageBytes, args.x, stage * kStageInputs,
                place.row, 0, full + 8 * slot);
      };
      FillRing<S::kStages>(
          empty, stages, [&] { return *flag != 0; }, ask_for_weights,
          ask_for_rows);
    }
    __syncwarp();
  } else {
    if (thread == 0) {
      WaitForPrevious();
      *flag = 1;
    }
    __syncwarp();
    const uint32_t offset = warp / 4 * 64 * 128;
    int slot = 0;
    uint32_t phase = 0;
    int before = 0;  // slot of the previous stage
    int stage = 0;
#pragma unroll 1
    for (int part = 0; part < S::kParts; ++part) {
      const int first_stage = stage;
      const int end = S::kInParts
                          ? DecodeMatmulSplitBegin(stages * kStageInputs,
                                                   S::kParts, part + 1) /
                                kStageInputs
                          : stages;
#pragma unroll 1
      for (; stage < end; ++stage) {
        BarrierWait(full + 8 * slot, phase);
        const uint32_t at = ring + slot * S::kStageBytes;
        const uint64_t a = SwizzledOperand(at + offset);
        WgmmaPin(acc);
        WgmmaFence();
        // Inputs beyond the last are zeros.
#pragma unroll
        for (int k = 0; k < kStageInputs / 16; ++k) {
#pragma unroll
          for (int piece = 0; piece < S::kPieces; ++piece) {
            const uint64_t b = SwizzledOperand(at + S::kRowBytes +
                                               piece * kPieceColumns * 8 * 128);
            Wgmma<kMajorK, kMajorK>(acc[piece], WgmmaAdvance(a, 32 * k),
                                    WgmmaAdvance(b, 32 * k),
                                    k > 0 || stage > first_stage, T());
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
      WgmmaPin(acc);
      if constexpr (S::kInParts) {
        if (stage == first_stage) continue;
#pragma unroll
        for (int piece = 0; piece < S::kPieces; ++piece) {
#pragma unroll
          for (int i = 0; i < kPieceColumns; ++i) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              total[piece][i][j] = first_stage == 0
                                       ? acc[piece][i][j]
                                       : total[piece][i][j] + acc[piece][i][j];
            }
          }
        }
      }
    }
    WaitForPrevious();  // before the first addend or write
  }

  // ---- results: through shared memory, as in tile_matmul.cu ----
  __syncthreads();
  auto* const sums =
      reinterpret_cast<float*>(unaligned + (ring - SharedAddress(unaligned)));
  if (warp != 4 * S::kGroups) {
    float* const mine =
        sums + (16 * warp + lane / 4) * S::kSumStride + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) {
      const auto& from = S::kInParts ? total : acc;
      const float(&sum)[4] = from[i / kPieceColumns][i % kPieceColumns];
      *reinterpret_cast<float2*>(mine + 8 * i) = make_float2(sum[0], sum[1]);
      *reinterpret_cast<float2*>(mine + 8 * i + 8 * S::kSumStride) =
          make_float2(sum[2], sum[3]);
    }
  }
  __syncthreads();
  WriteSums<T, S>(p, place, [&](int row, int output) {
    return *reinterpret_cast<const float4*>(sums + row * S::kSumStride +
                                            output);
  });
#else
  __trap();  // never launched there
#endif
}

// ---- a matrix in parts ----

// A block has 64 rows by 8 · kColumns outputs, and all parts of them.
// Warpgroups take parts in turn, each with its own ring buffer and producer
// warp, so that none waits for another; the block adds the parts at the end.
//
// kSide: clusters are squares of kSide by kSide blocks. Blocks of the same rows
// share these, blocks of the same outputs the weights: each copies its part for
// all. Such tiles are bound by the traffic from L2: for 64 inputs 16 KB a
// block, 8 in a square of two by two.
template <int kColumns_, int kStages_, int kSide_ = 1>
struct PartsTile {
  static constexpr int kColumns = kColumns_;
  static constexpr int kStages = kStages_;  // of a ring buffer
  static constexpr int kSide = kSide_;
  static constexpr int kBlocks = kSide * kSide;  // of a cluster
  static constexpr int kParts = 4;
  static constexpr int kTurns = kDecodeMatmulMaxSplits / kParts;
  static constexpr bool kRowsFirst = false;
  static constexpr int kThreads = 160 * kParts;
  static constexpr int kRows = 64;
  static constexpr int kOutputs = 8 * kColumns;
  static constexpr int kHalf = kOutputs / 2;
  static constexpr int kRowBytes = kRows * 128;
  static constexpr int kStageBytes = kRowBytes + kOutputs * 128;
  // Rows and outputs that a block copies.
  static constexpr int kOwnRows = kRows / kSide;
  static constexpr int kOwnOutputs = kOutputs / kSide;
  static_assert(kOwnRows % 8 == 0 && kOwnOutputs % 8 == 0 && kSide <= 2);
  static constexpr int kSumStride =
      kOutputs % 16 == 8 ? kOutputs : kOutputs + 8;
  static constexpr int kPartFloats = kRows * kSumStride;
  static constexpr int kRings = kParts * kStages * kStageBytes;
  static constexpr int kSums = kDecodeMatmulMaxSplits * kPartFloats * 4;
  static constexpr int kRingBytes = kRings > kSums ? kRings : kSums;
  static constexpr int kSharedBytes = kRingBytes + 16 * kParts * kStages + 1024;
  static_assert(kHalf % 8 == 0 && kSharedBytes <= 227 * 1024);
};

// Grid: clusters, and their blocks, outputs first.
//
// Weights do not wait for the previous kernel.
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    parts_kernel(const __grid_constant__ TileArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  LaunchDependents();
  const DecodeMatmulParams& p = args.p;
  const uint32_t memory = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = Uniform(thread / 32);
  const int lane = thread % 32;
  // Index among the warpgroups, or among the producer warps, which are the
  // last.
  const bool copies = warp >= 4 * S::kParts;
  const int mine = copies ? warp - 4 * S::kParts : warp / 4;
  const uint32_t ring = memory + mine * S::kStages * S::kStageBytes;
  const uint32_t full = memory + S::kRingBytes + 16 * mine * S::kStages;
  const uint32_t empty = full + 8 * S::kStages;
  const int rank = S::kSide == 1 ? 0 : cluster::ClusterRank();
  const int side_row = rank / S::kSide;
  const int side_output = rank % S::kSide;
  const int row_tile = static_cast<int>(blockIdx.y) * S::kSide + side_row;
  const int output_tile =
      static_cast<int>(blockIdx.x) / S::kBlocks * S::kSide + side_output;
  const TilePlace place =
      PlaceOf(args, row_tile * S::kRows,
              output_tile * (p.gate ? S::kHalf : S::kOutputs));
  const int inputs = static_cast<int>(p.inputs);
  const auto begin_of = [&](int part) {
    return DecodeMatmulSplitBegin(inputs, kDecodeMatmulMaxSplits, part);
  };
  const auto stages_of = [&](int part) {
    return (begin_of(part + 1) - begin_of(part) + kStageInputs - 1) /
           kStageInputs;
  };
  if (copies && lane == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(empty + 8 * s, 2 * S::kSide - 1);
    }
    BarrierInitFence();
  }
  __syncthreads();
  if constexpr (S::kSide > 1) cluster::Meet();
  // The blocks of the cluster that copy to this one, and are told when it has
  // used the copies: of the same rows, and of the same outputs.
  const int row_mate = rank ^ 1;
  const int output_mate = rank ^ S::kSide;

  float acc[S::kTurns][S::kColumns][4];
#pragma unroll
  for (int turn = 0; turn < S::kTurns; ++turn) {
#pragma unroll
    for (int i = 0; i < S::kColumns; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[turn][i][j] = 0.0f;
    }
  }
  if (copies) {
    if (ElectLane()) {
      // First input of stage `stage` of this ring buffer.
      const int first_stages = stages_of(mine);
      const int stages = first_stages + stages_of(mine + S::kParts);
      const auto input_of = [&](int stage) {
        return stage < first_stages ? begin_of(mine) + stage * kStageInputs
                                    : begin_of(mine + S::kParts) +
                                          (stage - first_stages) * kStageInputs;
      };
      const auto ask_for_weights = [&](int stage, int slot) {
        const uint32_t barrier = full + 8 * slot;
        const uint32_t to = ring + slot * S::kStageBytes + S::kRowBytes;
        if constexpr (S::kSide == 1) {
          AskForWeights(args, to, barrier, input_of(stage), place.output);
        } else {
          // With a gate, one half of the outputs each.
          BarrierExpect(barrier, args.stage_bytes);
          const int mine_first = side_row * S::kOwnOutputs;
          CopyBoxToAll(to + mine_first * 128, args.w, input_of(stage),
                       place.output + (p.gate ? 0 : mine_first),
                       p.gate ? side_row : 0, barrier,
                       1u << rank | 1u << output_mate);
        }
      };
      const auto ask_for_rows = [&](int stage, int slot) {
        const uint32_t to = ring + slot * S::kStageBytes;
        if constexpr (S::kSide == 1) {
          CopyBox(to, args.x, input_of(stage), place.row, 0, full + 8 * slot);
        } else {
          const int mine_first = side_output * S::kOwnRows;
          CopyBoxToAll(to + mine_first * 128, args.x, input_of(stage),
                       place.row + mine_first, 0, full + 8 * slot,
                       1u << rank | 1u << row_mate);
        }
      };
      FillRing<S::kStages>(
          empty, stages, [] { return true; }, ask_for_weights, ask_for_rows);
      if constexpr (S::kSide > 1) DrainRing<S::kStages>(empty, stages);
    }
    __syncwarp();
  } else {
    int slot = 0;
    uint32_t phase = 0;
#pragma unroll
    for (int turn = 0; turn < S::kTurns; ++turn) {
      const int stages = stages_of(mine + turn * S::kParts);
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        BarrierWait(full + 8 * slot, phase);
        const uint32_t at = ring + slot * S::kStageBytes;
        const uint64_t a = SwizzledOperand(at);
        const uint64_t b = SwizzledOperand(at + S::kRowBytes);
        WgmmaPin(acc[turn]);
        WgmmaFence();
        // Inputs beyond the last are zeros.
#pragma unroll
        for (int k = 0; k < kStageInputs / 16; ++k) {
          Wgmma<kMajorK, kMajorK>(acc[turn], WgmmaAdvance(a, 32 * k),
                                  WgmmaAdvance(b, 32 * k), true, T());
        }
        WgmmaCommit();
        WgmmaWait<0>();
        if (thread % 128 == 0) {
          BarrierArrive(empty + 8 * slot);
          if constexpr (S::kSide > 1) {
            using cluster::ArriveInCluster, cluster::InBlock;
            ArriveInCluster(InBlock(empty + 8 * slot, row_mate));
            ArriveInCluster(InBlock(empty + 8 * slot, output_mate));
          }
        }
        if (++slot == S::kStages) {
          slot = 0;
          phase ^= 1;
        }
      }
      WgmmaPin(acc[turn]);
    }
    WaitForPrevious();  // before the first addend or write
  }

  // ---- results: through shared memory, as in tile_matmul.cu ----
  __syncthreads();
  auto* const sums =
      reinterpret_cast<float*>(unaligned + (memory - SharedAddress(unaligned)));
  if (!copies) {
#pragma unroll
    for (int turn = 0; turn < S::kTurns; ++turn) {
      float* const to = sums + (mine + turn * S::kParts) * S::kPartFloats +
                        (16 * (warp % 4) + lane / 4) * S::kSumStride +
                        2 * (lane % 4);
#pragma unroll
      for (int i = 0; i < S::kColumns; ++i) {
        *reinterpret_cast<float2*>(to + 8 * i) =
            make_float2(acc[turn][i][0], acc[turn][i][1]);
        *reinterpret_cast<float2*>(to + 8 * i + 8 * S::kSumStride) =
            make_float2(acc[turn][i][2], acc[turn][i][3]);
      }
    }
  }
  __syncthreads();
  WriteSums<T, S>(p, place, [&](int row, int output) {
    const float* const at = sums + row * S::kSumStride + output;
    float4 sum = *reinterpret_cast<const float4*>(at);
#pragma unroll
    for (int part = 1; part < kDecodeMatmulMaxSplits; ++part) {
      sum = Plus(sum,
                 *reinterpret_cast<const float4*>(at + part * S::kPartFloats));
    }
    return sum;
  });
  // A block's memory must live until the others' copies and arrivals have
  // reached it.
  if constexpr (S::kSide > 1) cluster::Meet();
#else
  __trap();  // never launched there
#endif
}

template <typename T, typename S>
cudaError_t Launch(void (*kernel)(TileArgs), const DecodeMatmulParams& p,
                   cudaStream_t stream) {
  TileArgs args = {};
  cudaError_t error = AllowSharedMemory(kernel, S::kSharedBytes);
  if (error == cudaSuccess) {
    error = MakeTileArgs(p, S::kRows, S::kOutputs, {S::kSide, S::kSide}, &args);
  }
  if (error != cudaSuccess) return error;
  const int64_t rows_each = int64_t{S::kSide} * S::kRows;
  const int64_t outputs_each = int64_t{S::kSide} * S::kOutputs;
  const auto rows = static_cast<unsigned>((p.rows + rows_each - 1) / rows_each);
  const auto outputs = static_cast<unsigned>(
      (p.outputs + outputs_each - 1) / outputs_each * S::kSide * S::kSide);
  const dim3 grid = S::kRowsFirst ? dim3(rows, outputs) : dim3(outputs, rows);
  return LaunchDependentCluster(kernel, grid, S::kThreads, S::kSharedBytes,
                                S::kSide * S::kSide, stream, args);
}

// In the order of kWholeForms and kPartsForms.
using Whole0 = WideTile<2, 10, 8>;
using Whole1 = WideTile<2, 12, 8>;
using Whole2 = WideTile<4, 10, 5>;
using Whole3 = WideTile<2, 32, 4, 2>;
using Parts0 = PartsTile<4, 4>;
using Parts1 = PartsTile<8, 3>;
using Parts1Shared = PartsTile<8, 3, 2>;
using Parts2 = WideTile<2, 8, 8, 1, true>;
using Parts3 = WideTile<2, 16, 6, 1, true>;
using Parts4 = WideTile<2, 20, 6, 1, true>;
using Tall0 = WideTile<1, 4, 16, 1, true>;
using Tall1 = WideTile<1, 6, 14, 1, true>;
using Tall2 = WideTile<2, 4, 10, 1, true>;
using Tall3 = WideTile<2, 6, 9, 1, true>;

template <typename S>
constexpr bool Is(const WideForm& form) {
  return S::kRows == form.rows && S::kOutputs == form.outputs;
}
static_assert(std::size(kWholeForms) == 4 && std::size(kPartsForms) == 9,
              "LaunchForm has a case for each form");
static_assert(Is<Whole0>(kWholeForms[0]) && Is<Whole1>(kWholeForms[1]) &&
              Is<Whole2>(kWholeForms[2]) && Is<Whole3>(kWholeForms[3]) &&
              Is<Parts0>(kPartsForms[0]) && Is<Parts1>(kPartsForms[1]) &&
              Is<Parts2>(kPartsForms[2]) && Is<Parts3>(kPartsForms[3]) &&
              Is<Parts4>(kPartsForms[4]) && Is<Tall0>(kPartsForms[5]) &&
              Is<Tall1>(kPartsForms[6]) && Is<Tall2>(kPartsForms[7]) &&
              Is<Tall3>(kPartsForms[8]));

template <typename T>
cudaError_t LaunchForm(const DecodeMatmulParams& p, int multiprocessors,
                       cudaStream_t stream) {
  const int form = ChooseWideForm(p.rows, p.outputs, p.inputs, multiprocessors);
  if (DecodeMatmulSplits(p.outputs, p.inputs) == 1) {
    switch (form) {
      case 0:
        return Launch<T, Whole0>(wide_kernel<T, Whole0>, p, stream);
      case 1:
        return Launch<T, Whole1>(wide_kernel<T, Whole1>, p, stream);
      case 2:
        return Launch<T, Whole2>(wide_kernel<T, Whole2>, p, stream);
      default:
        return Launch<T, Whole3>(wide_kernel<T, Whole3>, p, stream);
    }
  }
  switch (form) {
    case 0:
      return Launch<T, Parts0>(parts_kernel<T, Parts0>, p, stream);
    case 1:
      if (SharesPartsTiles(p.rows, p.outputs, multiprocessors)) {
        return Launch<T, Parts1Shared>(parts_kernel<T, Parts1Shared>, p,
                                       stream);
      }
      return Launch<T, Parts1>(parts_kernel<T, Parts1>, p, stream);
    case 2:
      return Launch<T, Parts2>(wide_kernel<T, Parts2>, p, stream);
    case 3:
      return Launch<T, Parts3>(wide_kernel<T, Parts3>, p, stream);
    case 4:
      return Launch<T, Parts4>(wide_kernel<T, Parts4>, p, stream);
    case 5:
      return Launch<T, Tall0>(wide_kernel<T, Tall0>, p, stream);
    case 6:
      return Launch<T, Tall1>(wide_kernel<T, Tall1>, p, stream);
    case 7:
      return Launch<T, Tall2>(wide_kernel<T, Tall2>, p, stream);
    default:
      return Launch<T, Tall3>(wide_kernel<T, Tall3>, p, stream);
  }
}

}  // namespace

cudaError_t LaunchWideMatmul(const DecodeMatmulParams& p, int multiprocessors,
                             cudaStream_t stream) {
  return p.type == WeightType::kBFloat16
             ? LaunchForm<__nv_bfloat16>(p, multiprocessors, stream)
             : LaunchForm<__half>(p, multiprocessors, stream);
}

}  // namespace recurve
