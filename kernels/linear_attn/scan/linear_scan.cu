// Recurrent scan of linear attention in float32: one block a head and 32 to 128
// columns of a sequence's state, held in registers by eight warps (every eighth
// row each); one update a token, in order.
// Shapes: q, k [T, H, D], v, out [T, H, E]; states [slots, H, Dk, E]; all
// float32.
// Floor: 8 · sequences · H · Dk · E bytes of states, read and written once, and
// 8 · T · H · (D + E) of rows.
#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_attribute.h"
#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_vectors.cuh"
#include "kernels/linear_attn/scan/linear_scan_cuda.h"
#include "kernels/linear_attn/scan/linear_scan_plan.h"

namespace recurve {
namespace {

constexpr int kWarps = kLinearScanWarps;
constexpr int kThreads = 32 * kWarps;

// Blocks a multiprocessor that the register count must allow.
constexpr int MinBlocks(int rows, int columns) {
  return rows == 16 && columns == 2 ? 4 : 1;
}

// Grid: (runs of 32 kVector columns of E, heads, sequences). Warp w has rows w,
// w + 8, ... of the state, kRows of them; a lane has kVector columns, one
// access a row. Their number changes no bit.
template <int kRows, int kVector>
__global__ void __launch_bounds__(kThreads, MinBlocks(kRows, kVector))
    scan_kernel(const __grid_constant__ LinearAttentionParams p, int key_dim,
                int angles, bool early) {
  LaunchDependents();
  constexpr int kColumns = 32 * kVector;
  __shared__ float q_in[kLinearScanMaxKeyDim], k_in[kLinearScanMaxKeyDim];
  __shared__ float q[kLinearScanMaxKeyDim], k[kLinearScanMaxKeyDim];
  __shared__ __align__(16) float partial[kWarps][kColumns];
  __shared__ SoftmaxTerms terms[3];
  const int sequence = blockIdx.z;
  const int head = blockIdx.y;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int column = blockIdx.x * kColumns + lane * kVector;
  const int dim = static_cast<int>(p.head_dim);
  const int value_dim = static_cast<int>(p.value_dim);
  const bool exists = column < value_dim;
  if (!early) WaitForPrevious();
  const int64_t slot = p.slots[sequence];
  const int64_t begin = p.query_start[sequence];
  const int64_t end = p.query_start[sequence + 1];
  // A thread's column of the outputs.
  const int own = static_cast<int>(threadIdx.x);
  const int out_column = blockIdx.x * kColumns + own;
  const bool writes = own < kColumns && out_column < value_dim;
  float* const out = p.out + int64_t{head} * value_dim + out_column;
  if (slot == 0) {
    if (early) WaitForPrevious();
    for (int64_t row = begin; row < end; ++row) {
      if (writes) out[row * p.out_stride] = 0.0f;
    }
    return;
  }
  if (begin >= end) {
    if (early) WaitForPrevious();
    return;
  }
  float* state = p.states + slot * p.slot_stride +
                 int64_t{head} * key_dim * value_dim + column;
  float s[kRows][kVector] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = warp + kWarps * i;
    if (exists && r < key_dim) {
      Unpack(LoadPack<float, kVector>(state + int64_t{r} * value_dim), s[i]);
    }
  }
  const float decay = p.decay[head];
  if (early) WaitForPrevious();
  const bool softmax = p.q_activation == Activation::kSoftmax ||
                       p.k_activation == Activation::kSoftmax ||
                       p.v_activation == Activation::kSoftmax;

  // Rows of a whole prompt are visited twice, as in linear_attn.cc.
  const int64_t whole = p.whole == nullptr ? 0 : p.whole[sequence];
  for (int64_t step = 0; step < end - begin + whole; ++step) {
    const int64_t row = begin + (step < whole ? step : step - whole);
    const bool update = step < whole || step >= 2 * whole;
    const float* q_row = p.q + row * p.stride + int64_t{head} * dim;
    const float* k_row = p.k + row * p.stride + int64_t{head} * dim;
    const float* v_row = p.v + row * p.v_stride + int64_t{head} * value_dim;
    if (softmax) {
      if (warp == 0) terms[0] = WarpSoftmax(q_row, dim);
      if (warp == 1) terms[1] = WarpSoftmax(k_row, dim);
      if (warp == 2) terms[2] = WarpSoftmax(v_row, value_dim);
      __syncthreads();
    }
    for (int i = threadIdx.x; i < dim; i += kThreads) {
      q_in[i] = Apply(p.q_activation, terms[0], q_row[i]);
      k_in[i] = Apply(p.k_activation, terms[1], k_row[i]);
    }
    float v[kVector] = {};
    if (exists) {
      Unpack(LoadPack<float, kVector>(v_row + column), v);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        v[j] = Apply(p.v_activation, terms[2], v[j]);
      }
    }
    __syncthreads();
    const float* cos = p.cos + row * angles;
    const float* sin = p.sin + row * angles;
    for (int i = threadIdx.x; i < key_dim; i += kThreads) {
      q[i] = Encode(p.position, q_in, i, dim, cos, sin);
      k[i] = Encode(p.position, k_in, i, dim, cos, sin);
    }
    __syncthreads();
    float sum[kVector] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = warp + kWarps * i;
      if (r >= key_dim) break;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (update) s[i][j] = fmaf(decay, s[i][j], __fmul_rn(k[r], v[j]));
        sum[j] = fmaf(q[r], s[i][j], sum[j]);
      }
    }
    StorePack<float, kVector>(sum, &partial[warp][lane * kVector]);
    __syncthreads();
    if (writes) {
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += partial[w][own];
      out[row * p.out_stride] = total;
    }
    // The next token's inputs are loaded from here, between two barriers, so
    // that partial and terms are read before they are overwritten.
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = warp + kWarps * i;
    if (exists && r < key_dim) {
      StorePack<float, kVector>(s[i], state + int64_t{r} * value_dim);
    }
  }
}

// Whether runs of four columns are one access each.
bool Aligned(const LinearAttentionParams& p) {
  return p.value_dim % 4 == 0 && p.v_stride % 4 == 0 &&
         p.slot_stride % 4 == 0 && IsAligned(p.v) && IsAligned(p.states);
}

// Whether all pointers are set.
bool Complete(const LinearAttentionParams& p) {
  return p.q != nullptr && p.k != nullptr && p.v != nullptr &&
         p.out != nullptr && p.query_start != nullptr && p.slots != nullptr &&
         p.states != nullptr && p.decay != nullptr &&
         (p.position == LrpeType::kNone ||
          (p.cos != nullptr && p.sin != nullptr));
}

template <int kRows, int kVector>
cudaError_t Launch(const LinearAttentionParams& p, int key_dim, int angles,
                   bool early, cudaStream_t stream) {
  const int64_t columns = 32 * kVector;
  const dim3 grid(static_cast<unsigned>((p.value_dim + columns - 1) / columns),
                  static_cast<unsigned>(p.num_heads),
                  static_cast<unsigned>(p.sequences));
  return LaunchDependent(scan_kernel<kRows, kVector>, grid, kThreads, 0, stream,
                         p, key_dim, angles, early);
}

}  // namespace

cudaError_t LaunchLinearScan(const LinearAttentionParams& p, bool early,
                             cudaStream_t stream) {
  const int64_t key_dim = LrpeOutputDim(p.position, p.head_dim);
  if (p.num_heads < 1 || p.num_heads > 65535 || p.head_dim < 1 ||
      key_dim > kLinearScanMaxKeyDim || p.value_dim < 1 ||
      p.value_dim > kLinearScanMaxValueDim || p.sequences < 0 ||
      p.sequences > 65535 ||
      (p.position == LrpeType::kRotate && p.head_dim % 2 != 0)) {
    return cudaErrorInvalidValue;
  }
  if (p.sequences == 0) return cudaSuccess;
  if (!Complete(p)) return cudaErrorInvalidValue;
  int multiprocessors = 0;
  const cudaError_t error =
      DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (error != cudaSuccess) return error;
  const int keys = static_cast<int>(key_dim);
  const int angles = static_cast<int>(LrpeAngles(p.position, p.head_dim));
  LinearScanPlan plan = PlanLinearScan(key_dim, p.value_dim, p.num_heads,
                                       p.sequences, multiprocessors);
  if (!Aligned(p)) plan.columns = 1;
  const auto is = [&plan](int rows, int columns) {
    return plan.rows == rows && plan.columns == columns;
  };
  if (is(2, 1)) return Launch<2, 1>(p, keys, angles, early, stream);
  if (is(8, 1)) return Launch<8, 1>(p, keys, angles, early, stream);
  if (is(8, 4)) return Launch<8, 4>(p, keys, angles, early, stream);
  if (is(16, 1)) return Launch<16, 1>(p, keys, angles, early, stream);
  if (is(16, 2)) return Launch<16, 2>(p, keys, angles, early, stream);
  if (is(32, 1)) return Launch<32, 1>(p, keys, angles, early, stream);
  if (is(32, 2)) return Launch<32, 2>(p, keys, angles, early, stream);
  return Launch<64, 1>(p, keys, angles, early, stream);
}

}  // namespace recurve
