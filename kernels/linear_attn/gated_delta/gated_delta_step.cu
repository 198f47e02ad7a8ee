// Gated delta rule for generated tokens: one block 64 columns of one value
// head's state, in registers: 8 classes of rows, 16 bytes of each row a thread.
// One pass gives Sᵀk and Sᵀq, from which both d and o follow; one updates.
// Convolution, unit norms, gates and the gated norm on the way: blocks of a
// cluster share last inputs and the sum of squares.
// Shapes: q, k [T, Hk, D], v, z, out [T, Hv, E] of e bytes; states [slots, Hv,
// D, E] float32, last inputs [slots, W − 1, C] of e bytes.
// Floor: 8 · sequences · Hv · D · E bytes of states, read and written once, and
// rows and last inputs, some 2% more.
#include <cuda_bf16.h>

#include "kernels/common/alignment.h"
#include "kernels/common/cluster.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"
#include "kernels/short_conv/short_conv.h"

namespace recurve {
namespace {

constexpr int kColumns = kDeltaStepColumns;
constexpr int kThreads = 128;
constexpr int kRun = kColumns / 16;                     // columns of a thread
constexpr int kClasses = kThreads / (kColumns / kRun);  // of rows
constexpr int kTiles = kDeltaStepMaxDim / kColumns;
constexpr int kInputs = 2 * kDeltaStepMaxDim + kColumns;

struct Shape {
  int dim, width;  // D, E
  int ratio;       // value heads of a key head
  int tiles;       // blocks of a head
  int cluster;     // blocks of a cluster
};

// Factors that make q and k of unit length, and the product of what they are.
struct Units {
  float q, k;
  float both;  // q̂ · k̂
};

struct Shared {
  float4 row[kDeltaStepMaxDim];  // q, k and decay of each row
  float value[kColumns];
  float z[kColumns];
  float beta;
  Units units;
  float delta[kColumns];
  float partial[kClasses][2][kColumns];           // of Sᵀk and Sᵀq
  float window[kShortConvMaxWidth - 1][kInputs];  // last inputs, oldest first
  float warp_squares[2];
  float squares[2][kTiles];  // by the token's parity, of each tile
};

// The block's inputs: D of q, D of k and its columns of v, by number.
template <typename T>
class Inputs {
 public:
  __device__ Inputs(const GatedDeltaStepParams& params, const Shape& s,
                    int head, int tile)
      : p_(params),
        dim_(s.dim),
        key_(head / s.ratio * s.dim),
        value_(head * s.width + tile * kColumns),
        count_(2 * s.dim + min(kColumns, s.width - tile * kColumns)) {}

  __device__ int count() const { return count_; }
  // The channel of the convolution.
  __device__ int Channel(int i) const {
    const int keys = static_cast<int>(p_.of.key_heads) * dim_;
    return i < dim_       ? key_ + i
           : i < 2 * dim_ ? keys + key_ + i - dim_
                          : 2 * keys + value_ + i - 2 * dim_;
  }
  __device__ float Load(int64_t row, int i) const {
    const void* x = i < dim_ ? p_.of.q : i < 2 * dim_ ? p_.of.k : p_.of.v;
    const int at = i < dim_       ? key_ + i
                   : i < 2 * dim_ ? key_ + i - dim_
                                  : value_ + i - 2 * dim_;
    return ToFloat(static_cast<const T*>(x)[row * p_.of.stride + at]);
  }

 private:
  const GatedDeltaStepParams& p_;
  const int dim_, key_, value_, count_;
};

// One input's convolution; its window moves on.
__device__ __forceinline__ float Convolve(const GatedDeltaStepParams& p,
                                          int channel, int i, float x,
                                          Shared& sh) {
  const int width = static_cast<int>(p.conv_width);
  const float* weight = p.conv_weight + int64_t{channel} * width;
  float sum = p.conv_bias == nullptr ? 0.0f : p.conv_bias[channel];
#pragma unroll
  for (int j = 0; j < kShortConvMaxWidth - 1; ++j) {
    if (j + 1 >= width) break;
    sum = fmaf(weight[j], sh.window[j][i], sum);
    sh.window[j][i] = j + 2 < width ? sh.window[j + 1][i] : x;
  }
  sum = fmaf(weight[width - 1], x, sum);
  return sum * DeviceSigmoid(sum);
}

template <typename T>
__device__ void LoadWindow(const GatedDeltaStepParams& p,
                           const Inputs<T>& inputs, const T* slot, Shared& sh) {
  const int64_t channels =
      2 * p.of.key_heads * p.of.head_dim + p.of.value_heads * p.of.value_dim;
  for (int i = threadIdx.x; i < inputs.count(); i += kThreads) {
    const T* x = slot + inputs.Channel(i);
#pragma unroll
    for (int j = 0; j < kShortConvMaxWidth - 1; ++j) {
      if (j + 1 < p.conv_width) sh.window[j][i] = ToFloat(x[j * channels]);
    }
  }
}

// The inputs from `first` on.
template <typename T>
__device__ void StoreWindow(const GatedDeltaStepParams& p,
                            const Inputs<T>& inputs, int first,
                            const Shared& sh, T* slot) {
  const int64_t channels =
      2 * p.of.key_heads * p.of.head_dim + p.of.value_heads * p.of.value_dim;
  for (int i = threadIdx.x; i < inputs.count(); i += kThreads) {
    T* x = slot + inputs.Channel(i);
#pragma unroll
    for (int j = 0; j < kShortConvMaxWidth - 1; ++j) {
      if (i >= first && j + 1 < p.conv_width) {
        x[j * channels] = FromFloat<T>(sh.window[j][i]);
      }
    }
  }
}

__device__ __forceinline__ Units FindUnits(const GatedDeltaParams& p, int dim,
                                           const Shared& sh) {
  float qq = 0.0f, kk = 0.0f, qk = 0.0f;
  for (int i = threadIdx.x % 32; i < dim; i += 32) {
    const float4 row = sh.row[i];
    qq = fmaf(row.x, row.x, qq);
    kk = fmaf(row.y, row.y, kk);
    qk = fmaf(row.x, row.y, qk);
  }
  Units units;
  units.q = p.scale / sqrtf(LaneSum(qq) + p.unit_eps);
  units.k = 1.0f / sqrtf(LaneSum(kk) + p.unit_eps);
  units.both = units.q * units.k * LaneSum(qk);
  return units;
}

// q, k, decay and v of a token, each thread those inputs whose windows it has.
// A call, since the state is in registers after the first token.
template <typename T>
__device__ __noinline__ void LoadToken(const GatedDeltaStepParams& params,
                                       const Shape& s, int head, int tile,
                                       int row, Shared& sh) {
  const Inputs<T> inputs(params, s, head, tile);
  const GatedDeltaParams& p = params.of;
  const T* a = static_cast<const T*>(p.a) + int64_t{row} * p.a_stride;
  const float speed = DeltaSpeed(p.gate, head);
  float decay = 0.0f;
  if (!p.gate.by_channel) {
    decay = expf(DeltaLogDecay(p.gate, speed, head, ToFloat(a[head])));
  }
  for (int i = threadIdx.x; i < inputs.count(); i += kThreads) {
    float x = inputs.Load(row, i);
    if (params.conv_weight != nullptr) {
      x = Convolve(params, inputs.Channel(i), i, x, sh);
    }
    if (i < s.dim) {
      sh.row[i].x = x;
      const int at = head * s.dim + i;
      sh.row[i].z = p.gate.by_channel
                        ? expf(DeltaLogDecay(p.gate, speed, at, ToFloat(a[at])))
                        : decay;
    } else if (i < 2 * s.dim) {
      sh.row[i - s.dim].y = x;
    } else {
      sh.value[i - 2 * s.dim] = x;
    }
  }
  const int column = tile * kColumns + threadIdx.x;
  if (params.norm_weight != nullptr && threadIdx.x < kColumns &&
      column < s.width) {
    const T* z = static_cast<const T*>(params.z) + row * params.z_stride;
    sh.z[threadIdx.x] = ToFloat(z[head * s.width + column]);
  }
  const T* b = static_cast<const T*>(p.b) + row * p.b_stride;
  const float beta = DeltaBeta(p.gate, ToFloat(b[head]));
  __syncthreads();
  if (threadIdx.x / 32 == kThreads / 32 - 1) {
    const Units units = FindUnits(p, s.dim, sh);
    if (threadIdx.x % 32 == 0) {
      sh.units = units;
      sh.beta = beta;
    }
  }
}

constexpr int MinBlocks(int rows) { return rows <= 16 ? 5 : 2; }

// Grid: (tiles of each value head, sequences). A thread has rows class + 8 i,
// i < kRows, and kRun columns.
template <int kRows, typename T>
__global__ void __launch_bounds__(kThreads, MinBlocks(kRows))
    delta_step_kernel(const __grid_constant__ GatedDeltaStepParams params,
                      const __grid_constant__ Shape s, bool early) {
  LaunchDependents();
  const GatedDeltaParams& p = params.of;
  __shared__ Shared sh;
  const int tid = threadIdx.x;
  const int head = blockIdx.x / s.tiles;
  const int tile = blockIdx.x % s.tiles;
  const int sequence = blockIdx.y;
  const int own = tid % (kColumns / kRun) * kRun;
  const int row_class = tid / (kColumns / kRun);
  const bool exists = tile * kColumns + own < s.width;
  // A column each, for the threads that finish outputs.
  const int column = tile * kColumns + tid;
  const bool writes = tid < kColumns && column < s.width;
  const int64_t at = int64_t{head} * s.width + column;
  if (s.cluster > 1) cluster::Begun();
  if (!early) WaitForPrevious();
  const int slot = LoadNow(p.slots + sequence);
  const int begin = LoadNow(p.query_start + sequence);
  const int end = LoadNow(p.query_start + sequence + 1);
  const auto write = [&](int row, float y) {
    const int64_t to = row * p.out_stride + at;
    if (p.out_type == ElementType::kFloat32) {
      static_cast<float*>(p.out)[to] = y;
    } else {
      static_cast<__nv_bfloat16*>(p.out)[to] = __float2bfloat16_rn(y);
    }
  };
  if (slot == 0 || begin >= end) {
    if (early) WaitForPrevious();
    for (int row = begin; row < end; ++row) {
      if (writes) write(row, 0.0f);
    }
    if (s.cluster > 1) cluster::AwaitBegun();
    return;
  }
  float* const state = p.states + int64_t{slot} * p.slot_stride +
                       (int64_t{head} * s.dim + row_class) * s.width +
                       tile * kColumns + own;
  // The state comes to L2 while inputs are made; a row's 64 columns a thread.
  for (int r = tid; r < s.dim; r += kThreads) {
    PrefetchL2(state + int64_t{r - row_class} * s.width - own,
               sizeof(float) * min(kColumns, s.width - tile * kColumns));
  }
  T* const last =
      static_cast<T*>(params.conv_states) + slot * params.conv_slot_stride;
  if (params.conv_weight != nullptr)
    LoadWindow(params, Inputs<T>(params, s, head, tile), last, sh);
  for (int i = s.dim + tid; i < kClasses * kRows; i += kThreads) {
    sh.row[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  if (tid < kColumns) sh.value[tid] = 0.0f;
  const bool norms = params.norm_weight != nullptr;
  if (early) WaitForPrevious();
  __syncthreads();
  LoadToken<T>(params, s, head, tile, begin, sh);
  float4 cells[kRows];
  const int64_t step = int64_t{kClasses} * s.width;
  {
    const float* from = state;
#pragma unroll
    for (int i = 0; i < kRows; ++i, from += step) {
      cells[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (exists && row_class + kClasses * i < s.dim) {
        cells[i] = __ldcg(reinterpret_cast<const float4*>(from));
      }
    }
  }

  // Before anything is sent to a block.
  if (s.cluster > 1) cluster::AwaitBegun();
  for (int row = begin; row < end; ++row) {
    if (row > begin) {
      __syncthreads();  // the previous token's rows have been used
      LoadToken<T>(params, s, head, tile, row, sh);
    }
    __syncthreads();
    float4 keys = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 queries = keys;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 x = sh.row[row_class + kClasses * i];
      const float q = x.x * x.z;
      const float k = x.y * x.z;
      keys.x = fmaf(k, cells[i].x, keys.x);
      keys.y = fmaf(k, cells[i].y, keys.y);
      keys.z = fmaf(k, cells[i].z, keys.z);
      keys.w = fmaf(k, cells[i].w, keys.w);
      queries.x = fmaf(q, cells[i].x, queries.x);
      queries.y = fmaf(q, cells[i].y, queries.y);
      queries.z = fmaf(q, cells[i].z, queries.z);
      queries.w = fmaf(q, cells[i].w, queries.w);
    }
    *reinterpret_cast<float4*>(&sh.partial[row_class][0][own]) = keys;
    *reinterpret_cast<float4*>(&sh.partial[row_class][1][own]) = queries;
    __syncthreads();
    float out = 0.0f;
    if (tid < kColumns) {
      float key = 0.0f;
#pragma unroll
      for (int c = 0; c < kClasses; ++c) {
        key += sh.partial[c][0][tid];
        out += sh.partial[c][1][tid];
      }
      const float delta = sh.beta * (sh.value[tid] - sh.units.k * key);
      out = fmaf(sh.units.both, delta, sh.units.q * out);
      sh.delta[tid] = sh.units.k * delta;
      if (norms) {
        const float squares = LaneSum(out * out);
        if (tid % 32 == 0) sh.warp_squares[tid / 32] = squares;
      } else if (writes) {
        write(row, out);
      }
    }
    __syncthreads();
    const int parity = static_cast<int>(row - begin) % 2;
    if (norms && s.tiles > 1) {
      if (tid < s.tiles) {
        const uint32_t to = static_cast<uint32_t>(
            __cvta_generic_to_shared(&sh.squares[parity][tile]));
        const int rank = static_cast<int>(blockIdx.x) % s.cluster - tile + tid;
        cluster::StoreOne(cluster::InBlock(to, rank),
                          sh.warp_squares[0] + sh.warp_squares[1]);
      }
      __syncwarp();
      cluster::Publish();
    }
    const float4 delta = *reinterpret_cast<const float4*>(&sh.delta[own]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 x = sh.row[row_class + kClasses * i];
      cells[i].x = fmaf(x.z, cells[i].x, x.y * delta.x);
      cells[i].y = fmaf(x.z, cells[i].y, x.y * delta.y);
      cells[i].z = fmaf(x.z, cells[i].z, x.y * delta.z);
      cells[i].w = fmaf(x.z, cells[i].w, x.y * delta.w);
    }
    if (exists && row + 1 == end) {
      // Made again here: the addresses would take half as many registers as
      // the state.
      float* to = state;
      asm volatile("" : "+l"(to));
#pragma unroll
      for (int i = 0; i < kRows; ++i, to += step) {
        if (row_class + kClasses * i < s.dim) {
          *reinterpret_cast<float4*>(to) = cells[i];
        }
      }
    }
    if (!norms) continue;
    float squares = sh.warp_squares[0] + sh.warp_squares[1];
    if (s.tiles > 1) {
      cluster::AwaitPublished();
      squares = 0.0f;
      for (int i = 0; i < s.tiles; ++i) squares += sh.squares[parity][i];
    }
    if (writes) {
      const float scale =
          1.0f / sqrtf(squares / static_cast<float>(s.width) + params.norm_eps);
      const float z = sh.z[tid];
      const float sigmoid = DeviceSigmoid(z);
      const float gate =
          params.activation == Activation::kSilu ? z * sigmoid : sigmoid;
      write(row, out * scale * params.norm_weight[column] * gate);
    }
  }
  if (params.conv_weight == nullptr) return;
  // Last inputs of q and k are read by all of the cluster, written by one.
  if (s.cluster > 1 && !(norms && s.tiles > 1)) cluster::Meet();
  const bool first = static_cast<int>(blockIdx.x) % s.cluster == 0;
  __syncthreads();
  StoreWindow(params, Inputs<T>(params, s, head, tile), first ? 0 : 2 * s.dim,
              sh,
              static_cast<T*>(params.conv_states) +
                  int64_t{slot} * params.conv_slot_stride);
}

template <typename T>
cudaError_t Launch(const GatedDeltaStepParams& params, const Shape& s,
                   bool early, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(params.of.value_heads * s.tiles),
                  static_cast<unsigned>(params.of.sequences));
  const auto launch = [&](auto kernel) {
    return LaunchDependentCluster(kernel, grid, kThreads, 0, s.cluster, stream,
                                  params, s, early);
  };
  if (s.dim <= 64) return launch(delta_step_kernel<8, T>);
  if (s.dim <= 128) return launch(delta_step_kernel<16, T>);
  return launch(delta_step_kernel<32, T>);
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

}  // namespace

cudaError_t LaunchGatedDeltaStep(const GatedDeltaStepParams& params, bool early,
                                 cudaStream_t stream) {
  const GatedDeltaParams& p = params.of;
  if (!DeltaStepDoes(p.key_heads, p.value_heads, p.head_dim, p.value_dim) ||
      p.sequences < 0 || p.sequences > 65535) {
    return cudaErrorInvalidValue;
  }
  Shape s = {};
  s.dim = static_cast<int>(p.head_dim);
  s.width = static_cast<int>(p.value_dim);
  s.ratio = static_cast<int>(p.value_heads / p.key_heads);
  s.tiles = DeltaStepTiles(p.value_dim);
  s.cluster = DeltaStepCluster(p.key_heads, p.value_heads, p.value_dim,
                               params.conv_weight != nullptr,
                               params.norm_weight != nullptr);
  if (s.cluster > kDeltaStepMaxCluster) return cudaErrorInvalidValue;
  if (p.sequences == 0) return cudaSuccess;
  if (!Complete(params)) return cudaErrorInvalidValue;
  int major = 0;
  const cudaError_t error =
      DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error != cudaSuccess) return error;
  if (major != 9) return cudaErrorNotSupported;
  return p.type == ElementType::kFloat32
             ? Launch<float>(params, s, early, stream)
             : Launch<__nv_bfloat16>(params, s, early, stream);
}

}  // namespace recurve
