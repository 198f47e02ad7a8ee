// Product of 1 row, or up to 8 float32 rows, with 16-bit weights: each warp
// streams its weights once through its own cp.async ring buffer, mma.m16n8k16
// with weights as rows.
// Shapes: w [O, I] 16-bit, x [T, I] 16-bit or float32 (e bytes), y [T, O]
// float32, or with a gate [T, O / 2].
// Floor: 2 · O · I bytes of weights, read once; the rows add
// T · (I · e + 4 · O).
#include "kernels/common/async_copy.cuh"
#include "kernels/common/copy_groups.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/host_device.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/matmul/decode_copies.cuh"
#include "kernels/matmul/decode_matmul_hopper.h"
#include "kernels/matmul/decode_matmul_order.h"
#include "kernels/matmul/decode_rows.cuh"
#include "kernels/matmul/stream_matmul_plan.h"

namespace recurve {
namespace {

using stream_matmul::FewOfOneRow;
using stream_matmul::kFewWarps;
using stream_matmul::kStep;
using stream_matmul::kStepBytes;
using stream_matmul::kSumBytes;
using stream_matmul::kThreads;
using stream_matmul::kTileOutputs;
using stream_matmul::kWarps;
using stream_matmul::ManyOfOneRow;
using stream_matmul::ManyOfRows;
using stream_matmul::PartsOfOneRow;
using stream_matmul::PartsOfOneRowPaired;
using stream_matmul::PartsOfRows;
using stream_matmul::RowBytes;

// One normalised row of up to kColumns columns: each thread keeps its own.
// Weights of the norm do not wait for the previous kernel.
template <typename T>
class NormedRow {
 public:
  static constexpr int kFours = 4;
  static constexpr int kColumns = 4 * kFours * kThreads;

  // Before WaitForPrevious().
  __device__ __forceinline__ void LoadWeights(const DecodeMatmulParams& p) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      weight_[i] =
          p.norm_weight == nullptr
              ? make_float4(1, 1, 1, 1)
              : LoadFour(p.norm_weight, Column(i), static_cast<int>(p.x_cols));
    }
  }
  // After it. `partial` is shared memory for kWarps floats.
  __device__ __forceinline__ void Load(const DecodeMatmulParams& p, char* to,
                                       float* partial) const {
    const int cols = static_cast<int>(p.x_cols);
    float4 v[1][kFours];
#pragma unroll
    for (int i = 0; i < kFours; ++i)
      v[0][i] = LoadFour(static_cast<const float*>(p.x), Column(i), cols);
    WriteNormed<T, kThreads>(v, weight_, cols, p.inputs, p.norm_eps, partial,
                             to, /*to_stride=*/0, [] { __syncthreads(); });
  }

 private:
  __device__ static int Column(int i) {
    return 4 * (static_cast<int>(threadIdx.x) + i * kThreads);
  }
  float4 weight_[kFours];
};

// Copies the block's rows of x, rounded, to shared memory. Sums of the norm are
// those of norm.cu bit for bit (WriteNormed).
template <typename T, int kRows>
__device__ __forceinline__ void LoadRows(const DecodeMatmulParams& p, char* to,
                                         int row_bytes, float* partial) {
  const int inputs = static_cast<int>(p.inputs);
  const int cols = static_cast<int>(p.x_cols);
  const int rows = static_cast<int>(p.rows);
  if (!p.x_is_float) {
    // A thread's loads of a row are issued together.
    constexpr int kTogether = 4;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const T* const x = static_cast<const T*>(p.x) + row * p.x_stride;
#pragma unroll 1
      for (int first = 8 * threadIdx.x; first < inputs;
           first += 8 * kTogether * kThreads) {
        uint4 v[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          v[i] = LoadEight(x, first + 8 * i * kThreads, cols);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int c = first + 8 * i * kThreads;
          if (c >= inputs) break;
          *reinterpret_cast<uint4*>(to + row * row_bytes + 2 * c) = v[i];
        }
      }
    }
    return;
  }
  // All rows' loads of one step are issued together.
  constexpr int kColumns = 4 * kThreads;
  constexpr int kUnroll = kRows == 1 ? 4 : 1;
  const auto load_rows = [&](int c, float4(&v)[kRows]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      v[row] = row < rows
                   ? LoadFour(static_cast<const float*>(p.x) + row * p.x_stride,
                              c, cols)
                   : make_float4(0, 0, 0, 0);
    }
  };
  float scale[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row) scale[row] = 1.0f;
  if (p.norm) {
    float squares[kRows] = {};
#pragma unroll kUnroll
    for (int c = 4 * threadIdx.x; c < cols; c += kColumns) {
      float4 v[kRows];
      load_rows(c, v);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        squares[row] = AddSquares(v[row], squares[row]);
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      squares[row] = LaneSum(squares[row]);
      if (threadIdx.x % 32 == 0)
        partial[row * kWarps + threadIdx.x / 32] = squares[row];
    }
    __syncthreads();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += partial[row * kWarps + w];
      scale[row] = 1.0f / sqrtf(sum / static_cast<float>(cols) + p.norm_eps);
    }
  }
#pragma unroll kUnroll
  for (int c = 4 * threadIdx.x; c < inputs; c += kColumns) {
    float4 v[kRows];
    load_rows(c, v);
    float4 weight = make_float4(1, 1, 1, 1);
    if (p.norm_weight != nullptr) weight = LoadFour(p.norm_weight, c, cols);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row >= rows) break;
      if (p.norm) {
        v[row].x = v[row].x * scale[row] * weight.x;
        v[row].y = v[row].y * scale[row] * weight.y;
        v[row].z = v[row].z * scale[row] * weight.z;
        v[row].w = v[row].w * scale[row] * weight.w;
      }
      *reinterpret_cast<uint2*>(to + row * row_bytes + 2 * c) = make_uint2(
          Half<T>::Pack(v[row].x, v[row].y), Half<T>::Pack(v[row].z, v[row].w));
    }
  }
}

// A step's fragments: 16 outputs by 64 inputs, and the same inputs of x.
struct Fragments {
  uint32_t w[4][4];
  uint32_t x[2][4];
};

// A warp takes tiles of 16 outputs, each in steps of 64 inputs, through its own
// ring buffer: the only barrier is that for x. Without splits each warp has its
// own tiles; with 8, the block has one tile, and warp s part s of its inputs.
//
// Weights do not wait for the previous kernel, and are evict-first in L2.
template <typename T, typename S>
__global__ void __launch_bounds__(kThreads, S::kBlocks)
    stream_kernel(const __grid_constant__ DecodeMatmulParams p) {
  extern __shared__ __align__(128) char memory[];
  constexpr int kSplits = S::kSplits;
  constexpr int kRows = S::kRows;
  constexpr int kTileWarps = S::kTileWarps;
  LaunchDependents();
  const int ring_bytes = S::Places(p.inputs) * kStepBytes;  // of a warp
  float* const sums =
      reinterpret_cast<float*>(memory + kTileWarps * ring_bytes);
  char* const rows_of_x = memory + kTileWarps * ring_bytes + kSumBytes;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int inputs = static_cast<int>(p.inputs);
  const int rows = static_cast<int>(p.rows);
  const int row_bytes = static_cast<int>(RowBytes(inputs));
  const int tiles =
      static_cast<int>((p.outputs + kTileOutputs - 1) / kTileOutputs);
  const int grid = static_cast<int>(gridDim.x);

  int begin = 0, end = inputs;
  int tile = static_cast<int>(blockIdx.x);
  int tile_step = tiles;  // no other tile
  if constexpr (kSplits == 1) {
    tile = warp < kTileWarps ? tile + grid * warp : tiles;
    tile_step = grid * kTileWarps;
  } else {
    begin = DecodeMatmulSplitBegin(inputs, kSplits, warp);
    end = DecodeMatmulSplitBegin(inputs, kSplits, warp + 1);
  }
  const int steps = (end - begin + kStep - 1) / kStep;  // of a tile
  const int my_tiles = tile < tiles ? (tiles - 1 - tile) / tile_step + 1 : 0;
  const int all = my_tiles * steps;

  // ---- copying: lane l takes 16 bytes of rows l / 8 + 4 i ----
  const uint32_t ring = SharedAddress(memory) + warp * ring_bytes;
  const int chunk = lane % 8;
  const uint64_t policy = EvictFirst();
  const T* from[4];
  int copy_tile = tile;
  int copy_step = 0;
  int copied = 0;
  uint32_t copy_slot = ring;
  const auto point = [&] {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      from[i] =
          static_cast<const T*>(p.w) +
          TileOutput(p, int64_t{copy_tile} * kTileOutputs, lane / 8 + 4 * i) *
              p.inputs +
          begin + 8 * chunk;
    }
  };
  const auto copy = [&] {
    if (copied == all) return;
    if (!S::kOneTile && copy_step == 0) point();
    if (begin + copy_step * kStep + 8 * chunk < end) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 8 + 4 * i;
        CopyWeights(copy_slot + row * 128 + (chunk ^ row % 8) * 16,
                    from[i] + copy_step * kStep, policy);
      }
    }
    CommitCopies();
    ++copied;
    ++copy_step;
    if (!S::kOneTile && copy_step == steps) {
      copy_step = 0;
      copy_tile += tile_step;
    }
    copy_slot += kStepBytes;
    if (copy_slot == ring + ring_bytes) copy_slot = ring;
  };
  // Requested first: the ring buffer is megabytes of requests to queue behind.
  NormedRow<T> normed;
  const bool one_row = kRows == 1 && p.norm &&
                       p.x_cols <= NormedRow<T>::kColumns &&
                       p.inputs <= NormedRow<T>::kColumns;
  if (one_row) normed.LoadWeights(p);
  if (S::kOneTile) point();
#pragma unroll 1
  for (int s = 0; s < S::kStages; ++s) copy();

  WaitForPrevious();
  // The addend of this thread: loaded early.
  float before = 0.0f;
  const int out_row = threadIdx.x / 16;
  const int64_t out = int64_t{blockIdx.x} * kTileOutputs + threadIdx.x % 16;
  if constexpr (kSplits > 1) {
    if (p.add && out_row < rows && out < p.outputs)
      before = p.y[out_row * p.y_stride + out];
  }
  if (one_row) {
    normed.Load(p, rows_of_x, sums);
  } else {
    LoadRows<T, kRows>(p, rows_of_x, row_bytes, sums);
  }
  __syncthreads();

  // ---- multiplying ----
  const uint32_t x_at = SharedAddress(rows_of_x) +
                        min(lane % 8, rows - 1) * row_bytes + lane / 8 * 16 +
                        2 * begin;
  // ldmatrix: rows 0-7 and 8-15 of a chunk, then of the next.
  const int w_row = lane % 16;
  const int w_chunk = lane / 16;
  const int g = lane / 4;
  const int t = lane % 4;
  // Fragments of the next step are read from shared memory during the products
  // of this one.
  uint32_t slot = ring;
  int taken = 0;
  const auto read = [&](Fragments& f, int step) {
    WaitForAllBut<S::kStages - 2>(copied - ++taken);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      LoadMatrices(f.w[j],
                   slot + w_row * 128 + ((2 * j + w_chunk) ^ w_row % 8) * 16);
    }
    LoadMatrices(f.x[0], x_at + 2 * step * kStep);
    LoadMatrices(f.x[1], x_at + 2 * step * kStep + 64);
    slot += kStepBytes;
    if (slot == ring + ring_bytes) slot = ring;
  };
  float acc[4] = {};
  int step = 0;
  const auto multiply = [&](const Fragments& f) {
    Half<T>::Mma(acc, f.w[0], f.x[0][0], f.x[0][1]);
    Half<T>::Mma(acc, f.w[1], f.x[0][2], f.x[0][3]);
    if (begin + step * kStep + 32 < end) {
      Half<T>::Mma(acc, f.w[2], f.x[1][0], f.x[1][1]);
      Half<T>::Mma(acc, f.w[3], f.x[1][2], f.x[1][3]);
    }
  };
  const auto finish = [&] {
    if constexpr (kSplits == 1) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = 2 * t + j;
        if (row >= rows) continue;
        if (p.gate) {
          const int64_t feature = int64_t{tile} * 8 + g;
          if (feature < p.outputs / 2) {
            WriteGated<T>(p, row, feature, acc[j], acc[2 + j]);
          }
          continue;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t output = int64_t{tile} * 16 + 8 * half + g;
          if (output >= p.outputs) continue;
          float* y = p.y + row * p.y_stride + output;
          *y = p.add ? *y + acc[2 * half + j] : acc[2 * half + j];
        }
      }
    } else {
      // The block's only tile.
      float* const mine = sums + warp * 16 * (kStreamRows + 1);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        mine[(g + j / 2 * 8) * (kStreamRows + 1) + 2 * t + j % 2] = acc[j];
      }
    }
  };
  // The products of a step, then copies into its stage.
  const auto advance = [&](const Fragments& now, Fragments& next, int i) {
    if (i + 1 < all)
      read(next, !S::kOneTile && step + 1 == steps ? 0 : step + 1);
    if (!S::kOneTile && step == 0) {
#pragma unroll
      for (float& a : acc) a = 0.0f;
    }
    multiply(now);
    __syncwarp();
    copy();
    ++step;
    if (!S::kOneTile && step == steps) {
      finish();
      step = 0;
      tile += tile_step;
    }
  };
  Fragments even, odd;
  if (all > 0) read(even, 0);
#pragma unroll 1
  for (int i = 0; i < all; i += 2) {
    advance(even, odd, i);
    if (i + 1 < all) advance(odd, even, i + 1);
  }
  if (S::kOneTile && my_tiles > 0) finish();
  if constexpr (kSplits > 1) {
    __syncthreads();
    if (out_row >= rows) return;
    const auto sum = [&](int output) {
      float total = sums[output * (kStreamRows + 1) + out_row];
#pragma unroll
      for (int s = 1; s < kSplits; ++s) {
        total += sums[(s * 16 + output) * (kStreamRows + 1) + out_row];
      }
      return total;
    };
    if (p.gate) {
      const int64_t feature = int64_t{blockIdx.x} * 8 + threadIdx.x % 16;
      if (threadIdx.x % 16 < 8 && feature < p.outputs / 2) {
        WriteGated<T>(p, out_row, feature, sum(threadIdx.x % 8),
                      sum(threadIdx.x % 8 + 8));
      }
    } else if (out < p.outputs) {
      const float total = sum(threadIdx.x % 16);
      p.y[out_row * p.y_stride + out] = p.add ? before + total : total;
    }
  }
}

template <typename T, typename S>
cudaError_t Launch(const DecodeMatmulParams& p, int multiprocessors,
                   cudaStream_t stream) {
  const auto kernel = stream_kernel<T, S>;
  const auto bytes = static_cast<int>(S::SharedBytes(p.inputs, p.rows));
  const cudaError_t error = AllowSharedMemory(kernel, bytes);
  if (error != cudaSuccess) return error;
  const int64_t tiles = (p.outputs + kTileOutputs - 1) / kTileOutputs;
  const int64_t grid =
      S::kSplits == 1 && tiles > multiprocessors ? multiprocessors : tiles;
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(grid)), kThreads,
                         bytes, stream, p);
}

template <typename S>
bool Fits(const DecodeMatmulParams& p) {
  return p.rows <= S::kRows &&
         S::SharedBytes(p.inputs, p.rows) <= S::kMostShared;
}

template <typename T>
cudaError_t LaunchTyped(const DecodeMatmulParams& p, int multiprocessors,
                        cudaStream_t stream) {
  if (DecodeMatmulSplits(p.outputs, p.inputs) > 1) {
    if (p.outputs > int64_t{kTileOutputs} * multiprocessors &&
        Fits<PartsOfOneRowPaired>(p)) {
      return Launch<T, PartsOfOneRowPaired>(p, multiprocessors, stream);
    }
    return Fits<PartsOfOneRow>(p)
               ? Launch<T, PartsOfOneRow>(p, multiprocessors, stream)
               : Launch<T, PartsOfRows>(p, multiprocessors, stream);
  }
  if (p.outputs <= int64_t{kFewWarps} * kTileOutputs * multiprocessors &&
      Fits<FewOfOneRow>(p)) {
    return Launch<T, FewOfOneRow>(p, multiprocessors, stream);
  }
  return Fits<ManyOfOneRow>(p)
             ? Launch<T, ManyOfOneRow>(p, multiprocessors, stream)
             : Launch<T, ManyOfRows>(p, multiprocessors, stream);
}
static_assert(kWarps == kDecodeMatmulMaxSplits);

}  // namespace

cudaError_t LaunchStreamMatmul(const DecodeMatmulParams& p, int multiprocessors,
                               cudaStream_t stream) {
  return p.type == WeightType::kBFloat16
             ? LaunchTyped<__nv_bfloat16>(p, multiprocessors, stream)
             : LaunchTyped<__half>(p, multiprocessors, stream);
}

}  // namespace recurve
