// What all forms of the gated delta step compute: inputs and convolution,
// sums over the rows of a state, update, norm. Sums have one order here, so
// that no bit depends on the form. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_CUH_

#include <cuda_bf16.h>

#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"
#include "kernels/short_conv/short_conv.h"

namespace recurve {
namespace delta_step {

constexpr int kClasses = 8;  // of rows: r % 8
constexpr int kLast = kShortConvMaxWidth - 1;

// Column `value` of a row of the output, [Hv, E].
__device__ __forceinline__ void WriteOut(const GatedDeltaParams& p, int row,
                                         int value, float y) {
  const int64_t to = row * p.out_stride + value;
  if (p.out_type == ElementType::kFloat32) {
    static_cast<float*>(p.out)[to] = y;
  } else {
    static_cast<__nv_bfloat16*>(p.out)[to] = __float2bfloat16_rn(y);
  }
}

// A thread's inputs, one a token each: channels of q and k, D up to kDim, then
// a column of v for the first threads.
template <int kColumns, int kDim>
struct Channels {
  static constexpr int kThreads = 2 * kColumns;
  static constexpr int kKeys = 2 * kDim / kThreads;
  static constexpr int kCount = kKeys + 1;

  // `ratio`: value heads of a key head.
  __device__ Channels(const GatedDeltaStepParams& params, int ratio, int head,
                      int tile)
      : p(params),
        dim(static_cast<int>(params.of.head_dim)),
        key(head / ratio * dim),
        value(head * static_cast<int>(params.of.value_dim) + tile * kColumns +
              static_cast<int>(threadIdx.x)),
        has_value(threadIdx.x < kColumns &&
                  tile * kColumns + static_cast<int>(threadIdx.x) <
                      static_cast<int>(params.of.value_dim)) {}

  // Features of q and k together, D of each; j < kKeys.
  __device__ int Index(int j) const {
    return j * kThreads + static_cast<int>(threadIdx.x);
  }
  __device__ bool Has(int j) const {
    return j == kKeys ? has_value : Index(j) < 2 * dim;
  }
  // Inputs of the convolution.
  __device__ int Channel(int j) const {
    const int keys = static_cast<int>(p.of.key_heads) * dim;
    if (j == kKeys) return 2 * keys + value;
    const int i = Index(j);
    return i < dim ? key + i : keys + key + i - dim;
  }
  template <typename T>
  __device__ T Load(int64_t row, int j) const {
    const int i = Index(j);
    const void* const x = j == kKeys ? p.of.v : i < dim ? p.of.q : p.of.k;
    const int at = j == kKeys ? value : i < dim ? key + i : key + i - dim;
    return static_cast<const T*>(x)[row * p.of.stride + at];
  }
  // The raw decay of a head: a thread of a feature of q has its own by channel.
  __device__ int DecayAt(int j, int head) const {
    return p.of.gate.by_channel ? head * dim + min(Index(j), dim - 1) : head;
  }
  // This thread's column of the output.
  __device__ void Write(int row, float y) const {
    WriteOut(p.of, row, value, y);
  }

  const GatedDeltaStepParams& p;
  const int dim, key, value;
  const bool has_value;
};

// A token's convolution and SiLU in place, of `width` inputs; `window` has the
// last ones, oldest first, then the token's too.
template <int kCount>
__device__ __forceinline__ void Convolve(
    int width, const float (&weight)[kCount][kLast + 1],
    const float (&bias)[kCount], float (&window)[kCount][kLast],
    float (&x)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    float sum = bias[j];
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      if (i + 1 < width) sum = fmaf(weight[j][i], window[j][i], sum);
    }
    const float newest = width == 2   ? weight[j][1]
                         : width == 3 ? weight[j][2]
                                      : weight[j][3];
    sum = fmaf(newest, x[j], sum);
#pragma unroll
    for (int i = 0; i < kLast; ++i) {
      window[j][i] = i + 2 < width && i + 1 < kLast ? window[j][i + 1]
                     : i + 1 < width                ? x[j]
                                                    : 0.0f;
    }
    x[j] = FastSilu(sum);
  }
}

// Factors that make q and k of unit length, and the product of what they are.
struct Units {
  float q, k;
  float both;  // q̂ · k̂
};

// A row of the state: decay, k and q. (The update uses the first two, which are
// then one load.)
struct alignas(16) Row {
  float decay, k, q, unused;
};

// By one warp, from the q and k of each row.
template <typename RowOf>
__device__ __forceinline__ Units FindUnits(const GatedDeltaParams& p, int dim,
                                           const RowOf* rows) {
  float qq = 0.0f, kk = 0.0f, qk = 0.0f;
  for (int i = threadIdx.x % 32; i < dim; i += 32) {
    const RowOf row = rows[i];
    qq = fmaf(row.q, row.q, qq);
    kk = fmaf(row.k, row.k, kk);
    qk = fmaf(row.q, row.k, qk);
  }
  Units units;
  units.q = p.scale / sqrtf(LaneSum(qq) + p.unit_eps);
  units.k = 1.0f / sqrtf(LaneSum(kk) + p.unit_eps);
  units.both = units.q * units.k * LaneSum(qk);
  return units;
}

// Adds a row of a thread's four columns to Sᵀk and Sᵀq.
__device__ __forceinline__ void AddRow(const float4& cell, const Row& of,
                                       float4& keys, float4& queries) {
  const float q = of.q * of.decay;
  const float k = of.k * of.decay;
  keys.x = fmaf(k, cell.x, keys.x);
  keys.y = fmaf(k, cell.y, keys.y);
  keys.z = fmaf(k, cell.z, keys.z);
  keys.w = fmaf(k, cell.w, keys.w);
  queries.x = fmaf(q, cell.x, queries.x);
  queries.y = fmaf(q, cell.y, queries.y);
  queries.z = fmaf(q, cell.z, queries.z);
  queries.w = fmaf(q, cell.w, queries.w);
}

// The same cells after the token, `delta` k's share of the update.
__device__ __forceinline__ float4 UpdatedRow(float4 cell, const Row& of,
                                             const float4& delta) {
  cell.x = fmaf(of.decay, cell.x, of.k * delta.x);
  cell.y = fmaf(of.decay, cell.y, of.k * delta.y);
  cell.z = fmaf(of.decay, cell.z, of.k * delta.z);
  cell.w = fmaf(of.decay, cell.w, of.k * delta.w);
  return cell;
}

// d of a column, from its sum of Sᵀk.
__device__ __forceinline__ float Error(const Units& units, float beta, float v,
                                       float key) {
  return beta * (v - units.k * key);
}

// A column from its sums by class: o, and k's share of the update in `*delta`.
template <int kColumns>
__device__ __forceinline__ float FinishColumn(
    const float (*partial)[2][kColumns], int column, const Units& units,
    float beta, float v, float* delta) {
  float key = 0.0f, out = 0.0f;
#pragma unroll
  for (int c = 0; c < kClasses; ++c) {
    key += partial[c][0][column];
    out += partial[c][1][column];
  }
  const float d = Error(units, beta, v, key);
  *delta = units.k * d;
  return fmaf(units.both, d, units.q * out);
}

// The gated norm of one output, `squares` the sum over its head.
__device__ __forceinline__ float GatedNormOf(const GatedDeltaStepParams& params,
                                             float squares, int width,
                                             float out, float weight, float z) {
  const float scale =
      1.0f / sqrtf(squares / static_cast<float>(width) + params.norm_eps);
  const float sigmoid = DeviceSigmoid(z);
  const float gate =
      params.activation == Activation::kSilu ? z * sigmoid : sigmoid;
  return out * scale * weight * gate;
}

}  // namespace delta_step
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_GATED_DELTA_GATED_DELTA_STEP_CUH_
