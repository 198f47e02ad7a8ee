// Factors of linear attention for prompts: a lane activates and encodes 4
// feature pairs of a token for up to 8 heads, four heads' loads in flight, and
// rounds once to bfloat16.
// Shapes: q, k [T, H, D], v [T, H, E] float32; factors [T, H, Dk] and [T, H, E]
// bfloat16 (Dk = D, or 2 D for cosine).
// Floor: T · H · (4 · (2 D + E) + 2 · (2 Dk + E)) bytes, and 8 · T · angles of
// the tables.
#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/common/alignment.h"
#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_dims.h"
#include "kernels/linear_attn/linear_factors_cuda.h"
#include "kernels/lrpe/lrpe_device.cuh"

namespace recurve {
namespace {

constexpr int kThreads = 128;
// Features of the first half of a head, a thread, with as many partners.
constexpr int kVector = 4;
constexpr int kHeadsPerThread = 8;  // share one set of angles
constexpr int kHeadsAtOnce = 4;     // whose loads are in flight

// One of q, k and v.
struct Tensor {
  const float* x;
  Activation activation;
  int dim;
  int factor_dim;
  int lanes;  // threads that share a token
  __nv_bfloat16* y;
};

// Grid: (runs of tokens, runs of kHeadsPerThread heads, q, k and v).
template <LrpeType kPosition>
__global__ void __launch_bounds__(kThreads)
    linear_factors_kernel(const __grid_constant__ LinearFactorsParams p,
                          const __grid_constant__ int key_lanes,
                          const __grid_constant__ int value_lanes) {
  const bool values = blockIdx.z == 2;
  const bool encodes = kPosition != LrpeType::kNone && !values;
  Tensor t;
  t.dim = static_cast<int>(values ? p.value_dim : p.head_dim);
  t.factor_dim = kPosition == LrpeType::kCosine && !values ? 2 * t.dim : t.dim;
  t.lanes = values ? value_lanes : key_lanes;
  t.x = values ? p.v : blockIdx.z == 0 ? p.q : p.k;
  t.activation = values            ? p.v_activation
                 : blockIdx.z == 0 ? p.q_activation
                                   : p.k_activation;
  t.y = reinterpret_cast<__nv_bfloat16*>(values            ? p.v_factors
                                         : blockIdx.z == 0 ? p.q_factors
                                                           : p.k_factors);

  const int half = t.dim / 2;
  const int column = threadIdx.x % t.lanes * kVector;
  const int64_t token =
      int64_t{blockIdx.x} * (kThreads / t.lanes) + threadIdx.x / t.lanes;
  // All lanes of a warp take part in the sums of a softmax.
  const bool active = token < p.tokens && column < half;
  const float* const x = t.x + token * p.stride + column;
  __nv_bfloat16* const y = t.y + token * p.factors_stride + column;

  constexpr int kAngles =
      kPosition == LrpeType::kCosine ? 2 * kVector : kVector;
  float cos[kAngles];
  float sin[kAngles];
  if (encodes && active) {
    const int64_t at =
        token * (kPosition == LrpeType::kCosine ? t.dim : half) + column;
#pragma unroll
    for (int i = 0; i < kAngles; i += kVector) {
      const int64_t from = at + (i == 0 ? 0 : half);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        cos[i + j] = __ldg(p.cos + from + j);
        sin[i + j] = __ldg(p.sin + from + j);
      }
    }
  }

  const int first_head = blockIdx.y * kHeadsPerThread;
  const int end_head =
      min(static_cast<int>(p.num_heads), first_head + kHeadsPerThread);
  for (int first = first_head; first < end_head; first += kHeadsAtOnce) {
    Pack<float, kVector> in1[kHeadsAtOnce] = {};
    Pack<float, kVector> in2[kHeadsAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (!active || first + i >= end_head) continue;
      const float* const from = x + (first + i) * t.dim;
      in1[i] = LoadPack<float, kVector>(from);
      in2[i] = LoadPack<float, kVector>(from + half);
    }
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      if (first + i >= end_head) break;
      float x1[kVector];
      float x2[kVector];
      Unpack(in1[i], x1);
      Unpack(in2[i], x2);
      if (t.activation == Activation::kSoftmax) {
        lrpe::SoftmaxFeatures(t.lanes, active, x1, x2);
      } else {
        lrpe::ActivateAll(t.activation, x1);
        lrpe::ActivateAll(t.activation, x2);
      }
      if (!active) continue;
      __nv_bfloat16* const to = y + (first + i) * t.factor_dim;
      if constexpr (kPosition == LrpeType::kRotate) {
        if (encodes) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) {
            const float y = x1[j] * cos[j] - x2[j] * sin[j];
            x2[j] = x1[j] * sin[j] + x2[j] * cos[j];
            x1[j] = y;
          }
        }
      } else if constexpr (kPosition == LrpeType::kCosine) {
        if (encodes) {
          float sines[2][kVector];
#pragma unroll
          for (int j = 0; j < kVector; ++j) {
            sines[0][j] = x1[j] * sin[j];
            sines[1][j] = x2[j] * sin[kVector + j];
            x1[j] *= cos[j];
            x2[j] *= cos[kVector + j];
          }
          StorePack<__nv_bfloat16, kVector>(sines[0], to + 2 * half);
          StorePack<__nv_bfloat16, kVector>(sines[1], to + 3 * half);
        }
      }
      StorePack<__nv_bfloat16, kVector>(x1, to);
      StorePack<__nv_bfloat16, kVector>(x2, to + half);
    }
  }
}

bool Valid(const LinearFactorsParams& p) {
  return p.tokens >= 0 && p.tokens <= INT32_MAX && p.num_heads >= 1 &&
         p.num_heads <= 65535 && ValidLinearDim(p.head_dim) &&
         ValidLinearDim(p.value_dim) && IsThere(p.q) && IsThere(p.k) &&
         IsThere(p.v) && p.stride % 4 == 0 &&
         (p.position == LrpeType::kNone ||
          (p.cos != nullptr && p.sin != nullptr)) &&
         IsThere(p.q_factors) && IsThere(p.k_factors) && IsThere(p.v_factors) &&
         p.factors_stride % 8 == 0;
}

}  // namespace

cudaError_t LaunchLinearFactors(const LinearFactorsParams& p,
                                cudaStream_t stream) {
  if (!Valid(p)) return cudaErrorInvalidValue;
  if (p.tokens == 0) return cudaSuccess;
  const int key_lanes = lrpe::LanesPerToken(p.head_dim, kVector);
  const int value_lanes = lrpe::LanesPerToken(p.value_dim, kVector);
  const int64_t tokens_a_block = kThreads / std::max(key_lanes, value_lanes);
  const dim3 grid(
      static_cast<unsigned>((p.tokens + tokens_a_block - 1) / tokens_a_block),
      static_cast<unsigned>((p.num_heads + kHeadsPerThread - 1) /
                            kHeadsPerThread),
      3);
  const auto launch = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, stream>>>(p, key_lanes, value_lanes);
    return cudaGetLastError();
  };
  switch (p.position) {
    case LrpeType::kRotate:
      return launch(linear_factors_kernel<LrpeType::kRotate>);
    case LrpeType::kCosine:
      return launch(linear_factors_kernel<LrpeType::kCosine>);
    case LrpeType::kNone:
      break;
  }
  return launch(linear_factors_kernel<LrpeType::kNone>);
}

}  // namespace recurve
