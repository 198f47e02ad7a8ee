#include "kernels/common/device_math.cuh"
#include "kernels/linear_attn/linear_scan_cuda.h"

namespace recurve {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kColumns = 32;  // of the state, of a block

// What softmax takes from the row it is over.
struct SoftmaxTerms {
  float max;
  float sum;
};

// By one warp: those of x[0 .. n).
__device__ SoftmaxTerms WarpSoftmax(const float* x, int n) {
  const int lane = threadIdx.x % 32;
  float max = -INFINITY;
  for (int i = lane; i < n; i += 32) max = fmaxf(max, x[i]);
  max = LaneMax(max);
  float sum = 0.0f;
  for (int i = lane; i < n; i += 32) sum += expf(x[i] - max);
  return {max, LaneSum(sum)};
}

__device__ __forceinline__ float Apply(Activation activation,
                                       const SoftmaxTerms& softmax, float x) {
  return activation == Activation::kSoftmax
             ? expf(x - softmax.max) / softmax.sum
             : DeviceActivate(activation, x);
}

// Element i of an encoded vector, from the activated one.
__device__ __forceinline__ float Encode(LrpeType type, const float* x, int i,
                                        int dim, const float* cos,
                                        const float* sin) {
  switch (type) {
    case LrpeType::kNone:
      return x[i];
    case LrpeType::kRotate: {
      const int half = dim / 2;
      const int k = i < half ? i : i - half;
      return i < half ? __fsub_rn(__fmul_rn(x[k], cos[k]),
                                  __fmul_rn(x[half + k], sin[k]))
                      : __fadd_rn(__fmul_rn(x[k], sin[k]),
                                  __fmul_rn(x[half + k], cos[k]));
    }
    case LrpeType::kCosine:
      return i < dim ? x[i] * cos[i] : x[i - dim] * sin[i - dim];
  }
  return 0.0f;
}

// Grid: (runs of kColumns of E, heads, sequences). Warp w has rows w, w + 8,
// ... of the state, kRows of them; a lane has a column.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const __grid_constant__ LinearAttentionParams p, int key_dim,
                int angles) {
  __shared__ float q_in[kLinearScanMaxKeyDim], k_in[kLinearScanMaxKeyDim];
  __shared__ float q[kLinearScanMaxKeyDim], k[kLinearScanMaxKeyDim];
  __shared__ float partial[kWarps][kColumns];
  __shared__ SoftmaxTerms terms[3];
  const int sequence = blockIdx.z;
  const int head = blockIdx.y;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int column = blockIdx.x * kColumns + lane;
  const int dim = static_cast<int>(p.head_dim);
  const int value_dim = static_cast<int>(p.value_dim);
  const bool exists = column < value_dim;
  const int64_t slot = p.slots[sequence];
  const int64_t begin = p.query_start[sequence];
  const int64_t end = p.query_start[sequence + 1];
  if (slot == 0) {
    for (int64_t row = begin; row < end; ++row) {
      if (warp == 0 && exists) {
        p.out[row * p.out_stride + int64_t{head} * value_dim + column] = 0.0f;
      }
    }
    return;
  }
  if (begin >= end) return;
  float* state = p.states + slot * p.slot_stride +
                 int64_t{head} * key_dim * value_dim + column;
  float s[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = warp + kWarps * i;
    s[i] = exists && r < key_dim ? state[int64_t{r} * value_dim] : 0.0f;
  }
  const float decay = p.decay[head];
  const bool softmax = p.q_activation == Activation::kSoftmax ||
                       p.k_activation == Activation::kSoftmax ||
                       p.v_activation == Activation::kSoftmax;

  // The rows of a whole prompt come twice: for their updates (what is written
  // to `out` then is written over), and for their outputs.
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
    const float v =
        exists ? Apply(p.v_activation, terms[2], v_row[column]) : 0.0f;
    __syncthreads();
    const float* cos = p.cos + row * angles;
    const float* sin = p.sin + row * angles;
    for (int i = threadIdx.x; i < key_dim; i += kThreads) {
      q[i] = Encode(p.position, q_in, i, dim, cos, sin);
      k[i] = Encode(p.position, k_in, i, dim, cos, sin);
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int r = warp + kWarps * i;
      if (r < key_dim) {
        if (update) s[i] = fmaf(decay, s[i], __fmul_rn(k[r], v));
        sum = fmaf(q[r], s[i], sum);
      }
    }
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && exists) {
      float total = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += partial[w][lane];
      p.out[row * p.out_stride + int64_t{head} * value_dim + column] = total;
    }
    // The next token's inputs are read between two barriers from here, so that
    // partial and terms are not written before they are read.
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int r = warp + kWarps * i;
    if (exists && r < key_dim) state[int64_t{r} * value_dim] = s[i];
  }
}

}  // namespace

cudaError_t LaunchLinearScan(const LinearAttentionParams& p,
                             cudaStream_t stream) {
  const int64_t key_dim = LrpeOutputDim(p.position, p.head_dim);
  if (p.num_heads < 1 || p.num_heads > 65535 || p.head_dim < 1 ||
      key_dim > kLinearScanMaxKeyDim || p.value_dim < 1 ||
      p.value_dim > kLinearScanMaxValueDim || p.sequences < 0 ||
      p.sequences > 65535) {
    return cudaErrorInvalidValue;
  }
  if (p.sequences == 0) return cudaSuccess;
  const dim3 grid(
      static_cast<unsigned>((p.value_dim + kColumns - 1) / kColumns),
      static_cast<unsigned>(p.num_heads), static_cast<unsigned>(p.sequences));
  const int keys = static_cast<int>(key_dim);
  const int angles = static_cast<int>(LrpeAngles(p.position, p.head_dim));
  if (keys <= 2 * kWarps) {
    scan_kernel<2><<<grid, kThreads, 0, stream>>>(p, keys, angles);
  } else if (keys <= 8 * kWarps) {
    scan_kernel<8><<<grid, kThreads, 0, stream>>>(p, keys, angles);
  } else if (keys <= 16 * kWarps) {
    scan_kernel<16><<<grid, kThreads, 0, stream>>>(p, keys, angles);
  } else if (keys <= 32 * kWarps) {
    scan_kernel<32><<<grid, kThreads, 0, stream>>>(p, keys, angles);
  } else {
    scan_kernel<64><<<grid, kThreads, 0, stream>>>(p, keys, angles);
  }
  return cudaGetLastError();
}

}  // namespace recurve
