// Gated delta rule for generated tokens of few heads: a block has some columns
// of one value head's state, in registers. One token of one sequence is a chain
// of waits for memory and of instructions that one warp issues, so this form
// has few of either: sizes are constants, the state is asked for as soon as its
// slot is known, a token has two barriers (and one before the next token), and
// other warps than those of the state find the units and finish columns.
// Shapes: those of gated_delta_step.cu, with D = E = 128, one decay a value
// head, and either both a convolution of width 4 and a norm or neither.
// Floor: that of gated_delta_step.cu.
#include <cuda_bf16.h>

#include "kernels/common/cluster.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/hopper_kernel.h"
#include "kernels/common/host_device.h"
#include "kernels/linear_attn/gated_delta/gated_delta_few.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step.cuh"
#include "kernels/short_conv/short_conv.h"

namespace recurve {
namespace {

using delta_step::Convolve;
using delta_step::Error;
using delta_step::FindUnits;
using delta_step::FinishColumn;
using delta_step::GatedNormOf;
using delta_step::kClasses;
using delta_step::kLast;
using delta_step::Units;
using delta_step::WriteOut;

constexpr int kDim = kDeltaFewDim;
constexpr int kRows = kDim / kClasses;  // of a thread
constexpr int kWidth = kDeltaFewConv;   // of the convolution
static_assert(kWidth == kLast + 1);
// Squares are summed by 32 columns, then in pairs, as blocks of more columns
// do.
constexpr int kSums = kDim / 32;

// Threads of a block: those that hold the state, and one a column.
RECURVE_HOST_DEVICE constexpr int FewHolders(int columns) {
  return kClasses * columns / 2;
}
RECURVE_HOST_DEVICE constexpr int FewThreads(int columns) {
  return FewHolders(columns) + columns;
}

// Blocks of a multiprocessor, so that two sequences of 32 heads, in clusters of
// eight blocks, find room at once.
constexpr int FewBlocks(int columns) { return 128 / columns; }

// Barriers of the block: 0 is __syncthreads.
enum Named {
  kRowsWritten = 1,
  kSumsWritten,
  kTokenDone,
};

// A row of the state: k and q, and both times decay, as the sums have them.
struct alignas(16) FewRow {
  float faded_k, k, faded_q, q;
};

template <int kColumns>
struct FewShared {
  FewRow rows[kDim];
  float values[kColumns];                // v
  float partial[kClasses][2][kColumns];  // sums of Sᵀk and Sᵀq by class
  Units units;
  float beta;
  float squares[2][kSums];  // by the token's parity
  uint64_t sent[2];         // to `squares`
};

// Where a block is, and its sequence.
struct Place {
  int key_head, head, tile;
  int slot, begin, end;
};

__device__ __forceinline__ float2 LoadPair(const float* x) {
  return *reinterpret_cast<const float2*>(x);
}
__device__ __forceinline__ float2 LoadPair(const __nv_bfloat16* x) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(x));
}
__device__ __forceinline__ void StorePair(float* to, float a, float b) {
  *reinterpret_cast<float2*>(to) = make_float2(a, b);
}
__device__ __forceinline__ void StorePair(__nv_bfloat16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

// Last inputs, weights and bias of a thread's kCount channels.
template <int kCount>
struct Conv {
  float window[kCount][kLast] = {};  // oldest first
  float weight[kCount][kWidth];
  float bias[kCount] = {};

  __device__ __forceinline__ void LoadWeights(
      const GatedDeltaStepParams& params, int channel) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float4 w =
          reinterpret_cast<const float4*>(params.conv_weight)[channel + j];
      weight[j][0] = w.x;
      weight[j][1] = w.y;
      weight[j][2] = w.z;
      weight[j][3] = w.w;
      if (params.conv_bias != nullptr) bias[j] = params.conv_bias[channel + j];
    }
  }
  __device__ __forceinline__ void Run(float (&x)[kCount]) {
    Convolve(kWidth, weight, bias, window, x);
  }
};

template <typename T>
__device__ __forceinline__ T* LastInputs(const GatedDeltaStepParams& params,
                                         int slot) {
  return static_cast<T*>(params.conv_states) + slot * params.conv_slot_stride;
}
__device__ __forceinline__ int64_t ChannelsOf(const GatedDeltaParams& p) {
  return (2 * p.key_heads + p.value_heads) * kDim;
}

// The threads that have the state: rows of one class, two columns each. The
// first ones bring a pair of channels of q or k, too.
template <int kColumns, bool kFused, typename T>
__device__ __forceinline__ void Compute(const GatedDeltaStepParams& params,
                                        const Place& place, bool early,
                                        FewShared<kColumns>& sh) {
  constexpr int kPairs = kColumns / 2;
  constexpr int kAll = FewThreads(kColumns);
  const GatedDeltaParams& p = params.of;
  const int tid = threadIdx.x;
  const int own = tid % kPairs * 2;
  const int row_class = tid / kPairs;
  float* const state = p.states + int64_t{place.slot} * p.slot_stride +
                       (place.head * kDim + row_class) * kDim +
                       place.tile * kColumns + own;
  float2 cells[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    cells[i] =
        __ldcg(reinterpret_cast<const float2*>(state + i * kClasses * kDim));
  }

  const bool brings = tid < kDim;
  const bool is_q = tid < kDim / 2;
  const int feature = 2 * tid % kDim;
  const int at = place.key_head * kDim + feature;
  const int channel = at + (is_q ? 0 : static_cast<int>(p.key_heads) * kDim);
  Conv<2> conv;
  T* const last = LastInputs<T>(params, place.slot) + channel;
  const int64_t channels = ChannelsOf(p);
  if (kFused && brings) {
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      const float2 pair = LoadPair(last + i * channels);
      conv.window[0][i] = pair.x;
      conv.window[1][i] = pair.y;
    }
    conv.LoadWeights(params, channel);
  }
  const float a_log =
      p.gate.decay == DeltaDecay::kLog ? 0.0f : p.gate.a_log[place.head];
  const float gate_bias = DeltaBias(p.gate, place.head);
  const T* const x_of = static_cast<const T*>(is_q ? p.q : p.k) + at;
  const T* const a_of = static_cast<const T*>(p.a) + place.head;
  if (early) WaitForPrevious();

  for (int row = place.begin; row < place.end; ++row) {
    float x[2] = {};
    if (brings) {
      const float2 pair = LoadPair(x_of + row * p.stride);
      x[0] = pair.x;
      x[1] = pair.y;
    }
    const float raw = ToFloat(a_of[row * p.a_stride]);
    if (kFused && brings) conv.Run(x);
    const float decay = expf(
        DeltaLogDecayOf(p.gate, DeltaSpeedOf(p.gate, a_log), raw + gate_bias));
    if (row > place.begin) NamedBarrier(kTokenDone, kAll);
    if (brings) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        FewRow& to = sh.rows[feature + j];
        *reinterpret_cast<float2*>(is_q ? &to.faded_q : &to.faded_k) =
            make_float2(x[j] * decay, x[j]);
      }
    }
    NamedBarrier(kRowsWritten, kAll);
    // Last inputs have been read, which one block will write.
    if (kFused && row == place.begin) cluster::Arrive();

    // In the order of the other forms: AddRow, FinishColumn, UpdatedRow.
    float2 keys = make_float2(0.0f, 0.0f);
    float2 queries = keys;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const FewRow of = sh.rows[i * kClasses + row_class];
      keys.x = fmaf(of.faded_k, cells[i].x, keys.x);
      keys.y = fmaf(of.faded_k, cells[i].y, keys.y);
      queries.x = fmaf(of.faded_q, cells[i].x, queries.x);
      queries.y = fmaf(of.faded_q, cells[i].y, queries.y);
    }
    *reinterpret_cast<float2*>(&sh.partial[row_class][0][own]) = keys;
    *reinterpret_cast<float2*>(&sh.partial[row_class][1][own]) = queries;
    NamedBarrier(kSumsWritten, kAll);
    keys = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int c = 0; c < kClasses; ++c) {
      const float2 sum =
          *reinterpret_cast<const float2*>(&sh.partial[c][0][own]);
      keys.x += sum.x;
      keys.y += sum.y;
    }
    const Units units = sh.units;
    const float2 v = *reinterpret_cast<const float2*>(&sh.values[own]);
    const float delta_x = units.k * Error(units, sh.beta, v.x, keys.x);
    const float delta_y = units.k * Error(units, sh.beta, v.y, keys.y);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float k = sh.rows[i * kClasses + row_class].k;
      cells[i].x = fmaf(decay, cells[i].x, k * delta_x);
      cells[i].y = fmaf(decay, cells[i].y, k * delta_y);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    *reinterpret_cast<float2*>(state + i * kClasses * kDim) = cells[i];
  }
  // Last inputs of q and k are read by all of the cluster, written by one.
  if constexpr (kFused) {
    if (blockIdx.x != 0 || !brings) return;
    __syncwarp();
    cluster::Wait();
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      StorePair(last + i * channels, conv.window[0][i], conv.window[1][i]);
    }
  }
}

// The threads of a column each: they bring v and β, find the units, and finish
// the output.
template <int kColumns, bool kFused, typename T>
__device__ __forceinline__ void Finish(const GatedDeltaStepParams& params,
                                       const Place& place, bool early,
                                       FewShared<kColumns>& sh) {
  constexpr int kAll = FewThreads(kColumns);
  const GatedDeltaParams& p = params.of;
  const int own = static_cast<int>(threadIdx.x) - FewHolders(kColumns);
  const int lane = own % 32;
  const int column = place.tile * kColumns + own;
  const int value = place.head * kDim + column;
  const int channel = 2 * static_cast<int>(p.key_heads) * kDim + value;
  Conv<1> conv;
  T* const last = LastInputs<T>(params, place.slot) + channel;
  const int64_t channels = ChannelsOf(p);
  float norm_weight = 0.0f;
  if (kFused) {
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      conv.window[0][i] = ToFloat(last[i * channels]);
    }
    conv.LoadWeights(params, channel);
    norm_weight = params.norm_weight[column];
  }
  if (early) WaitForPrevious();

  for (int row = place.begin; row < place.end; ++row) {
    float x[1] = {
        ToFloat((static_cast<const T*>(p.v) + row * p.stride)[value])};
    const float beta_input =
        ToFloat((static_cast<const T*>(p.b) + row * p.b_stride)[place.head]);
    float z = 0.0f;
    if (kFused) {
      z = ToFloat(
          (static_cast<const T*>(params.z) + row * params.z_stride)[value]);
      conv.Run(x);
    }
    const float beta = DeltaBeta(p.gate, beta_input);
    if (row > place.begin) NamedBarrier(kTokenDone, kAll);
    sh.values[own] = x[0];
    if (own == 0) sh.beta = beta;
    const int parity = (row - place.begin) % 2;
    const uint32_t sent = SharedAddress(&sh.sent[parity]);
    if (kFused && own == 0) BarrierExpect(sent, sizeof(sh.squares[0]));
    NamedBarrier(kRowsWritten, kAll);
    if (kFused && row == place.begin) cluster::Arrive();
    if (own < 32) {
      const Units units = FindUnits(p, kDim, sh.rows);
      if (lane == 0) sh.units = units;
    }
    if (kFused && row == place.begin) cluster::AwaitBegun();
    NamedBarrier(kSumsWritten, kAll);
    float unused;
    float out =
        FinishColumn<kColumns>(sh.partial, own, sh.units, beta, x[0], &unused);
    if (kFused) {
      const float sum = LaneSum(out * out);
      if (lane < kDim / kColumns) {
        const int rank = static_cast<int>(blockIdx.x) - place.tile + lane;
        const float* const to = &sh.squares[parity][column / 32];
        cluster::SendOne(cluster::InBlock(SharedAddress(to), rank),
                         cluster::InBlock(sent, rank), sum);
      }
      BarrierWait(sent, (row - place.begin) / 2 % 2);
      float squares = 0.0f;
#pragma unroll
      for (int i = 0; i < kSums; i += 2) {
        squares += sh.squares[parity][i] + sh.squares[parity][i + 1];
      }
      out = GatedNormOf(params, squares, kDim, out, norm_weight, z);
    }
    WriteOut(p, row, value, out);
  }
  if constexpr (kFused) {
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      last[i * channels] = FromFloat<T>(conv.window[0][i]);
    }
  }
}

// Grid: (blocks of a key head, key heads, sequences); the blocks of a key head
// are a cluster if `kFused`.
template <int kColumns, bool kFused, typename T>
__global__ void __launch_bounds__(FewThreads(kColumns), FewBlocks(kColumns))
    delta_few_kernel(bool early,
                     const __grid_constant__ GatedDeltaStepParams params) {
  LaunchDependents();
  constexpr int kTiles = kDim / kColumns;
  const GatedDeltaParams& p = params.of;
  __shared__ FewShared<kColumns> sh;
  if (kFused && threadIdx.x == 0) {
    BarrierInit(SharedAddress(&sh.sent[0]), 1);
    BarrierInit(SharedAddress(&sh.sent[1]), 1);
    BarrierInitFence();
  }
  if (!early) WaitForPrevious();
  const int sequence = static_cast<int>(blockIdx.z);
  Place place;
  place.slot = LoadNow(p.slots + sequence);
  place.begin = LoadNow(p.query_start + sequence);
  place.end = LoadNow(p.query_start + sequence + 1);
  place.key_head = static_cast<int>(blockIdx.y);
  place.tile = static_cast<int>(blockIdx.x) % kTiles;
  place.head = place.key_head * static_cast<int>(gridDim.x / kTiles) +
               static_cast<int>(blockIdx.x) / kTiles;
  if (place.slot == 0 || place.begin >= place.end) {
    if (early) WaitForPrevious();
    if (threadIdx.x >= kColumns) return;
    const int value = place.head * kDim + place.tile * kColumns +
                      static_cast<int>(threadIdx.x);
    for (int row = place.begin; row < place.end; ++row) {
      WriteOut(p, row, value, 0.0f);
    }
    return;
  }
  if (kFused) __syncthreads();  // `sent` is initialised
  if (threadIdx.x < FewHolders(kColumns)) {
    Compute<kColumns, kFused, T>(params, place, early, sh);
  } else {
    Finish<kColumns, kFused, T>(params, place, early, sh);
  }
}

template <int kColumns, bool kFused, typename T>
cudaError_t Launch(const GatedDeltaStepParams& params, bool early,
                   cudaStream_t stream) {
  const auto kernel = delta_few_kernel<kColumns, kFused, T>;
  const cudaError_t error = PrepareHopperKernel(kernel, 0);
  if (error != cudaSuccess) return error;
  const GatedDeltaParams& p = params.of;
  const auto blocks =
      static_cast<unsigned>(p.value_heads / p.key_heads * (kDim / kColumns));
  return LaunchDependentCluster(kernel,
                                dim3(blocks, static_cast<unsigned>(p.key_heads),
                                     static_cast<unsigned>(p.sequences)),
                                FewThreads(kColumns), 0,
                                kFused ? static_cast<int>(blocks) : 1, stream,
                                early, params);
}

template <typename T>
cudaError_t LaunchTyped(const GatedDeltaStepParams& params, int columns,
                        bool early, cudaStream_t stream) {
  if (params.norm_weight == nullptr) {
    return Launch<32, false, T>(params, early, stream);
  }
  return columns == 32 ? Launch<32, true, T>(params, early, stream)
                       : Launch<64, true, T>(params, early, stream);
}

}  // namespace

cudaError_t LaunchGatedDeltaFew(const GatedDeltaStepParams& params, int columns,
                                bool early, cudaStream_t stream) {
  return params.of.type == ElementType::kFloat32
             ? LaunchTyped<float>(params, columns, early, stream)
             : LaunchTyped<__nv_bfloat16>(params, columns, early, stream);
}

}  // namespace recurve
