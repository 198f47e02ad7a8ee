// Gated delta rule for generated tokens: one block one value head's state, or
// 64 or 128 columns of it, in shared memory. One pass gives Sᵀk and Sᵀq, from
// which both d and o follow; one updates. Convolution, unit norms, gates and
// the gated norm on the way: blocks of a cluster share last inputs and, if a
// head has several, the sum of squares. Few heads of usual sizes:
// gated_delta_few.cu; many: gated_delta_stream.cu.
// Shapes: q, k [T, Hk, D], v, z, out [T, Hv, E] of e bytes; states [slots, Hv,
// D, E] float32, last inputs [slots, W − 1, C] of e bytes.
// Floor: 8 · sequences · Hv · D · E bytes of states, read and written once, and
// rows and last inputs, some 2% more.
#include <cuda_bf16.h>

#include "kernels/common/alignment.h"
#include "kernels/common/cluster.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_attribute.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/hopper_kernel.h"
#include "kernels/linear_attn/gated_delta/gated_delta_few.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"
#include "kernels/linear_attn/gated_delta/gated_delta_stream.h"
#include "kernels/short_conv/short_conv.h"

namespace recurve {
namespace {

using delta_step::AddRow;
using delta_step::Channels;
using delta_step::Convolve;
using delta_step::FindUnits;
using delta_step::FinishColumn;
using delta_step::GatedNormOf;
using delta_step::kClasses;
using delta_step::kLast;
using delta_step::Row;
using delta_step::Units;
using delta_step::UpdatedRow;

constexpr int kPieces = 4;  // copies of a whole head's state
constexpr int kSquares = kDeltaStepMaxDim / 64;  // of each 64 columns

struct Shape {
  int dim, width;  // D, E
  int ratio;       // value heads of a key head
  int tiles;       // blocks of a head
  int cluster;     // blocks of a cluster
  int pitch;       // floats of a row in shared memory
  int piece;       // rows of a copy, a multiple of kClasses
};

// A head in one block is one piece of memory, which bulk copies bring.
__device__ __forceinline__ bool IsWhole(const Shape& s) { return s.tiles == 1; }

struct Shared {
  uint64_t arrived[kPieces];
  Units units;
  float beta;
  float warp_squares[kDeltaStepColumns / 32];
  float squares[2][kSquares];  // by the token's parity
};

// Dynamic: rows of the state, then a Row of each, then sums.
RECURVE_HOST_DEVICE constexpr int StateBytes(const Shape& s) {
  return (4 * s.dim * s.pitch + 15) / 16 * 16;
}
constexpr int SharedBytes(const Shape& s, int columns) {
  return StateBytes(s) + 16 * s.dim + kClasses * 2 * 4 * columns;
}

// Grid: (tiles of each value head, sequences). Thread: rows r of one class,
// four columns.
template <int kColumns, int kDim, typename T>
__global__ void __launch_bounds__(2 * kColumns, kColumns == 128 ? 3 : 5)
    delta_step_kernel(const __grid_constant__ GatedDeltaStepParams params,
                      const __grid_constant__ Shape s, bool early) {
  LaunchDependents();
  using Inputs = Channels<kColumns, kDim>;
  constexpr int kThreads = 2 * kColumns;
  constexpr int kCount = Inputs::kCount;
  const GatedDeltaParams& p = params.of;
  extern __shared__ __align__(128) char delta_memory[];
  __shared__ __align__(8) Shared sh;
  float* const cells = reinterpret_cast<float*>(delta_memory);
  Row* const rows = reinterpret_cast<Row*>(delta_memory + StateBytes(s));
  // Sums of Sᵀk and Sᵀq by class; then the first ones are k's share of the
  // update.
  float(*const partial)[2][kColumns] =
      reinterpret_cast<float(*)[2][kColumns]>(rows + s.dim);
  float* const deltas = partial[0][0];
  const int tid = threadIdx.x;
  const int head = blockIdx.x / s.tiles;
  const int tile = blockIdx.x % s.tiles;
  const int sequence = blockIdx.y;
  const int own = tid % (kColumns / 4) * 4;
  const int row_class = tid / (kColumns / 4);
  const bool exists = tile * kColumns + own < s.width;
  const bool convolves = params.conv_weight != nullptr;
  const bool norms = params.norm_weight != nullptr;
  const bool shares_norm = norms && s.tiles > 1;
  if (tid == 0) {
    for (int i = 0; i < kPieces; ++i)
      BarrierInit(SharedAddress(&sh.arrived[i]), 1);
    BarrierInitFence();
  }
  if (shares_norm) cluster::Begun();
  if (!early) WaitForPrevious();
  const int slot = LoadNow(p.slots + sequence);
  const int begin = LoadNow(p.query_start + sequence);
  const int end = LoadNow(p.query_start + sequence + 1);

  const Inputs inputs(params, s.ratio, head, tile);
  const bool writes = inputs.has_value;  // of this column
  if (slot == 0 || begin >= end) {
    if (early) WaitForPrevious();
    for (int row = begin; row < end; ++row) {
      if (writes) inputs.Write(row, 0.0f);
    }
    if (shares_norm) cluster::AwaitBegun();
    return;
  }

  float* const state = p.states + int64_t{slot} * p.slot_stride +
                       int64_t{head} * s.dim * s.width;
  if (IsWhole(s)) {
    if (tid == 0) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int count = min(s.piece, s.dim - i * s.piece);
        if (count <= 0) break;
        const uint32_t arrived = SharedAddress(&sh.arrived[i]);
        const uint32_t bytes = 4u * count * s.width;
        BarrierExpect(arrived, bytes);
        BulkCopy(SharedAddress(cells + i * s.piece * s.pitch),
                 state + i * s.piece * s.width, bytes, arrived);
      }
    }
  } else if (exists) {
    // Each thread the elements that it uses.
    const float* from = state + row_class * s.width + tile * kColumns + own;
    const uint32_t to = SharedAddress(cells + own);
    for (int r = row_class; r < s.dim; r += kClasses) {
      CopyAsync16(to + 4 * r * s.pitch, from);
      from += kClasses * s.width;
    }
  }

  // What no kernel before this one writes, if `early`.
  const int width = static_cast<int>(params.conv_width);
  const int64_t channels = 2 * p.key_heads * s.dim + p.value_heads * s.width;
  float window[kCount][kLast] = {};  // last inputs, oldest first
  float weight[kCount][kLast + 1] = {};
  float bias[kCount] = {};
  T* const last =
      static_cast<T*>(params.conv_states) + slot * params.conv_slot_stride;
  if (convolves) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (!inputs.Has(j)) continue;
      const int channel = inputs.Channel(j);
#pragma unroll
      for (int i = 0; i < kLast; ++i) {
        if (i + 1 < width) window[j][i] = ToFloat(last[i * channels + channel]);
      }
#pragma unroll
      for (int i = 0; i <= kLast; ++i) {
        if (i < width) {
          weight[j][i] = params.conv_weight[int64_t{channel} * width + i];
        }
      }
      if (params.conv_bias != nullptr) bias[j] = params.conv_bias[channel];
    }
  }
  const int column = tile * kColumns + tid;
  const float norm_weight = norms && writes ? params.norm_weight[column] : 0.0f;
  const float speed = DeltaSpeed(p.gate, head);
  float decay_bias[Inputs::kKeys];
#pragma unroll
  for (int j = 0; j < Inputs::kKeys; ++j) {
    decay_bias[j] = DeltaBias(p.gate, inputs.DecayAt(j, head));
  }
  if (early) WaitForPrevious();

  for (int row = begin; row < end; ++row) {
    float x[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      x[j] = inputs.Has(j) ? ToFloat(inputs.template Load<T>(row, j)) : 0.0f;
    }
    float raw[Inputs::kKeys];
#pragma unroll
    for (int j = 0; j < Inputs::kKeys; ++j) {
      raw[j] = ToFloat((static_cast<const T*>(p.a) +
                        row * p.a_stride)[inputs.DecayAt(j, head)]);
    }
    const float beta_input =
        ToFloat((static_cast<const T*>(p.b) + row * p.b_stride)[head]);
    float z = 0.0f;
    if (norms && writes) {
      z = ToFloat((static_cast<const T*>(params.z) +
                   row * params.z_stride)[inputs.value]);
    }
    float decay[Inputs::kKeys];
#pragma unroll
    for (int j = 0; j < Inputs::kKeys; ++j) {
      decay[j] =
          inputs.Index(j) < s.dim
              ? expf(DeltaLogDecayOf(p.gate, speed, raw[j] + decay_bias[j]))
              : 0.0f;
    }
    if (convolves) Convolve(width, weight, bias, window, x);
    if (row > begin) __syncthreads();  // the previous token's have been used
#pragma unroll
    for (int j = 0; j < Inputs::kKeys; ++j) {
      const int i = inputs.Index(j);
      if (i < s.dim) {
        rows[i].q = x[j];
        rows[i].decay = decay[j];
      } else if (i < 2 * s.dim) {
        rows[i - s.dim].k = x[j];
      }
    }
    __syncthreads();
    if (row == begin && convolves && s.cluster > 1 && !shares_norm) {
      // Last inputs have been read, which one block will write.
      __syncwarp();
      cluster::Arrive();
    }
    if (tid / 32 == kThreads / 32 - 1) {
      const Units units = FindUnits(p, s.dim, rows);
      const float beta = DeltaBeta(p.gate, beta_input);
      if (tid % 32 == 0) {
        sh.units = units;
        sh.beta = beta;
      }
    }
    // Before anything is sent to a block.
    if (row == begin && shares_norm) cluster::AwaitBegun();

    float4 keys = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 queries = keys;
    if (row == begin && !IsWhole(s)) CopyAsyncWait();
#pragma unroll 1
    for (int i = 0; i < kPieces; ++i) {
      const int stop = min(s.dim, (i + 1) * s.piece);
      if (stop <= i * s.piece) break;
      if (row == begin && IsWhole(s)) {
        BarrierWait(SharedAddress(&sh.arrived[i]), 0);
      }
      if (!exists) continue;
#pragma unroll 4
      for (int r = i * s.piece + row_class; r < stop; r += kClasses) {
        AddRow(*reinterpret_cast<const float4*>(cells + r * s.pitch + own),
               rows[r], keys, queries);
      }
    }
    *reinterpret_cast<float4*>(&partial[row_class][0][own]) = keys;
    *reinterpret_cast<float4*>(&partial[row_class][1][own]) = queries;
    __syncthreads();
    float out = 0.0f;
    if (tid < kColumns) {
      // deltas[tid]: partial[0][0][tid], which no other thread has read.
      out = FinishColumn<kColumns>(partial, tid, sh.units, sh.beta,
                                   x[Inputs::kKeys], &deltas[tid]);
      if (norms) {
        const float squares = LaneSum(out * out);
        if (tid % 32 == 0) sh.warp_squares[tid / 32] = squares;
      } else if (writes) {
        inputs.Write(row, out);
      }
    }
    __syncthreads();
    const int parity = (row - begin) % 2;
    if (shares_norm) {
      // A float for each 64 columns, to each block.
      constexpr int kOwn = kColumns / 64;
      if (tid < kOwn * s.tiles) {
        const int half = tid % kOwn;
        const uint32_t to =
            SharedAddress(&sh.squares[parity][tile * kOwn + half]);
        const int rank =
            static_cast<int>(blockIdx.x) % s.cluster - tile + tid / kOwn;
        cluster::StoreOne(
            cluster::InBlock(to, rank),
            sh.warp_squares[2 * half] + sh.warp_squares[2 * half + 1]);
      }
      __syncwarp();
      cluster::Publish();
    }
    if (exists) {
      const float4 delta = *reinterpret_cast<const float4*>(deltas + own);
      const auto update = [&](int r) {
        return UpdatedRow(
            *reinterpret_cast<const float4*>(cells + r * s.pitch + own),
            rows[r], delta);
      };
      // Rows together, so that loads do not wait for stores.
      const auto update_all = [&](const auto& store) {
        constexpr int kBatch = 4;
#pragma unroll 1
        for (int r = row_class; r < s.dim; r += kBatch * kClasses) {
          float4 next[kBatch];
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            if (r + i * kClasses < s.dim) next[i] = update(r + i * kClasses);
          }
#pragma unroll
          for (int i = 0; i < kBatch; ++i) {
            if (r + i * kClasses < s.dim) store(r + i * kClasses, next[i]);
          }
        }
      };
      if (row + 1 < end) {
        update_all([&](int r, const float4& cell) {
          *reinterpret_cast<float4*>(cells + r * s.pitch + own) = cell;
        });
      } else {
        float* const to = state + tile * kColumns + own;
        update_all([&](int r, const float4& cell) {
          *reinterpret_cast<float4*>(to + r * s.width) = cell;
        });
      }
    }
    if (!norms) continue;
    float squares = 0.0f;
    if (shares_norm) {
      cluster::AwaitPublished();
      const int count = (s.width + 63) / 64;
      for (int i = 0; i < count; ++i) squares += sh.squares[parity][i];
    } else {
#pragma unroll
      for (int i = 0; i < kColumns / 64; ++i) {
        squares += sh.warp_squares[2 * i] + sh.warp_squares[2 * i + 1];
      }
    }
    if (writes) {
      inputs.Write(row,
                   GatedNormOf(params, squares, s.width, out, norm_weight, z));
    }
  }
  if (!convolves) return;
  // Last inputs of q and k are read by all of the cluster, written by one.
  if (s.cluster > 1 && !shares_norm) {
    __syncwarp();
    cluster::Wait();
  }
  const bool first = static_cast<int>(blockIdx.x) % s.cluster == 0;
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (!inputs.Has(j) || (j < Inputs::kKeys && !first)) continue;
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      if (i + 1 < width) {
        last[i * channels + inputs.Channel(j)] = FromFloat<T>(window[j][i]);
      }
    }
  }
}

template <int kColumns, int kDim, typename T>
cudaError_t Launch(const GatedDeltaStepParams& params, const Shape& s,
                   bool early, cudaStream_t stream) {
  const int bytes = SharedBytes(s, kColumns);
  const auto kernel = delta_step_kernel<kColumns, kDim, T>;
  const cudaError_t error = PrepareHopperKernel(kernel, bytes);
  if (error != cudaSuccess) return error;
  // As many blocks on a multiprocessor as there is memory for.
  static const cudaError_t carved = cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
      cudaSharedmemCarveoutMaxShared);
  if (carved != cudaSuccess) return carved;
  return LaunchDependentCluster(
      kernel,
      dim3(static_cast<unsigned>(params.of.value_heads * s.tiles),
           static_cast<unsigned>(params.of.sequences)),
      2 * kColumns, bytes, s.cluster, stream, params, s, early);
}

template <int kColumns, typename T>
cudaError_t LaunchDim(const GatedDeltaStepParams& params, const Shape& s,
                      bool early, cudaStream_t stream) {
  constexpr int kUsual = kDeltaStepMaxDim / 2;
  return s.dim <= kUsual
             ? Launch<kColumns, kUsual, T>(params, s, early, stream)
             : Launch<kColumns, kDeltaStepMaxDim, T>(params, s, early, stream);
}

template <typename T>
cudaError_t LaunchTyped(const GatedDeltaStepParams& params, const Shape& s,
                        int columns, bool early, cudaStream_t stream) {
  return columns == kDeltaStepColumns
             ? LaunchDim<kDeltaStepColumns, T>(params, s, early, stream)
             : LaunchDim<kDeltaStepNarrowColumns, T>(params, s, early, stream);
}

bool Complete(const GatedDeltaStepParams& params) {
  const GatedDeltaParams& p = params.of;
  const bool has_gate =
      p.gate.decay == DeltaDecay::kLog || p.gate.a_log != nullptr;
  const bool has_conv = params.conv_weight == nullptr ||
                        (params.conv_states != nullptr &&
                         params.conv_width >= kShortConvMinWidth &&
                         params.conv_width <= kShortConvMaxWidth);
  const bool has_norm =
      params.norm_weight == nullptr ||
      (params.z != nullptr && (params.activation == Activation::kSilu ||
                               params.activation == Activation::kSigmoid));
  return p.q != nullptr && p.k != nullptr && p.v != nullptr && p.a != nullptr &&
         p.b != nullptr && p.out != nullptr && p.query_start != nullptr &&
         p.slots != nullptr && IsThere(p.states) && p.slot_stride % 4 == 0 &&
         has_gate && has_conv && has_norm;
}

// Whether pairs of q, k and last inputs are aligned, as LaunchGatedDeltaFew
// requires.
bool HasPairs(const GatedDeltaStepParams& params) {
  const GatedDeltaParams& p = params.of;
  const size_t pair = p.type == ElementType::kFloat32 ? 8 : 4;
  const bool rows =
      IsAligned(p.q, pair) && IsAligned(p.k, pair) && p.stride % 2 == 0;
  return rows && (params.conv_weight == nullptr ||
                  (IsAligned(params.conv_weight, 16) &&
                   IsAligned(params.conv_states, pair) &&
                   params.conv_slot_stride % 2 == 0));
}

}  // namespace

cudaError_t LaunchGatedDeltaStep(const GatedDeltaStepParams& params, bool early,
                                 cudaStream_t stream) {
  const GatedDeltaParams& p = params.of;
  if (!DeltaStepDoes(p.key_heads, p.value_heads, p.head_dim, p.value_dim) ||
      p.sequences < 0 || p.sequences > 65535) {
    return cudaErrorInvalidValue;
  }
  const bool convolves = params.conv_weight != nullptr;
  const bool norms = params.norm_weight != nullptr;
  const int columns = DeltaStepColumns(p.key_heads, p.value_heads, p.value_dim,
                                       p.sequences, convolves, norms);
  Shape s = {};
  s.dim = static_cast<int>(p.head_dim);
  s.width = static_cast<int>(p.value_dim);
  s.ratio = static_cast<int>(p.value_heads / p.key_heads);
  s.tiles = DeltaStepTiles(p.value_dim, columns);
  s.cluster = DeltaStepCluster(p.key_heads, p.value_heads, p.value_dim,
                               convolves, norms, columns);
  s.pitch = s.tiles == 1 ? s.width : columns;
  s.piece = (s.dim + kPieces * kClasses - 1) / (kPieces * kClasses) * kClasses;
  if (s.cluster > kDeltaStepMaxCluster) return cudaErrorInvalidValue;
  if (p.sequences == 0) return cudaSuccess;
  if (!Complete(params)) return cudaErrorInvalidValue;
  const int few = DeltaFewColumns(
      p.key_heads, p.value_heads, p.head_dim, p.value_dim, p.sequences,
      convolves ? params.conv_width : 0, norms, p.gate.by_channel);
  if (few != 0 && HasPairs(params)) {
    return LaunchGatedDeltaFew(params, few, early, stream);
  }
  int multiprocessors = 0;
  const cudaError_t error =
      DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (error != cudaSuccess) return error;
  if (DeltaStepStreams(p.key_heads, p.value_heads, p.head_dim, p.value_dim,
                       p.sequences, convolves, multiprocessors)) {
    return LaunchGatedDeltaStream(params, early, multiprocessors, stream);
  }
  return p.type == ElementType::kFloat32
             ? LaunchTyped<float>(params, s, columns, early, stream)
             : LaunchTyped<__nv_bfloat16>(params, s, columns, early, stream);
}

}  // namespace recurve
