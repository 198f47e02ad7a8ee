#include "kernels/common/mma.cuh"
#include "kernels/matmul/decode_matmul_cuda.h"

namespace recurve {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kBlock = kDecodeMatmulInputs;

__device__ __forceinline__ uint4 LoadWeights(const void* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}

// Eight inputs of a row of x from column c on, as pairs of T.
template <typename T, bool kFloat>
__device__ __forceinline__ uint4 LoadInputs(const DecodeMatmulParams& p,
                                            int64_t row, int64_t c) {
  if constexpr (!kFloat) {
    return *reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) +
                                           row * p.x_stride + c);
  } else {
    const float* x = static_cast<const float*>(p.x) + row * p.x_stride + c;
    float v[8];
    if (c + 8 <= p.x_cols) {
      const float4 low = *reinterpret_cast<const float4*>(x);
      const float4 high = *reinterpret_cast<const float4*>(x + 4);
      v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
      v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = c + i < p.x_cols ? x[i] : 0.0f;
    }
    return make_uint4(Half<T>::Pack(v[0], v[1]), Half<T>::Pack(v[2], v[3]),
                      Half<T>::Pack(v[4], v[5]), Half<T>::Pack(v[6], v[7]));
  }
}

// A block has 16 · kM outputs by 8 · kN rows. Its warps take runs of 32 inputs
// in turn; kAhead of them are under way. Of a run a lane (g, t) loads inputs
// 8t ... 8t + 7 of weight rows g and g + 8 and of input row g: which input
// stands where in an mma does not matter while both operands agree.
//
// Grid: (runs of outputs, runs of rows).
template <typename T, bool kFloat, int kM, int kN, int kAhead>
__global__ void __launch_bounds__(kThreads)
    matmul_kernel(const __grid_constant__ DecodeMatmulParams p) {
  __shared__ float sums[kWarps][16][8 * kN + 1];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t first_output = int64_t{blockIdx.x} * 16 * kM;
  const int64_t first_row = int64_t{blockIdx.y} * 8 * kN;
  const int runs = static_cast<int>(p.inputs / kBlock);

  // Outputs and rows beyond the last are computed as the last, and not written.
  const T* w[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t output =
          min(first_output + 16 * m + 8 * half + g, p.outputs - 1);
      w[m][half] = static_cast<const T*>(p.w) + output * p.inputs + 8 * t;
    }
  }
  int64_t rows[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) rows[n] = first_row + 8 * n + g;

  float acc[kM][kN][4] = {};
  for (int run = warp; run < runs; run += kWarps * kAhead) {
    uint4 a[kAhead][kM][2];
    uint4 b[kAhead][kN];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t c = int64_t{run + u * kWarps} * kBlock;
      if (run + u * kWarps >= runs) continue;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        a[u][m][0] = LoadWeights(w[m][0] + c);
        a[u][m][1] = LoadWeights(w[m][1] + c);
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t c = int64_t{run + u * kWarps} * kBlock + 8 * t;
      if (run + u * kWarps >= runs) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        b[u][n] = rows[n] < p.rows ? LoadInputs<T, kFloat>(p, rows[n], c)
                                   : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (run + u * kWarps >= runs) continue;
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const uint4& low = a[u][m][0];
        const uint4& high = a[u][m][1];
        const uint32_t first[4] = {low.x, high.x, low.y, high.y};
        const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          Half<T>::Mma(acc[m][n], first, b[u][n].x, b[u][n].y);
          Half<T>::Mma(acc[m][n], second, b[u][n].z, b[u][n].w);
        }
      }
    }
  }

  // The warps' sums, in order.
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    if (m > 0) __syncthreads();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      sums[warp][g][8 * n + 2 * t] = acc[m][n][0];
      sums[warp][g][8 * n + 2 * t + 1] = acc[m][n][1];
      sums[warp][g + 8][8 * n + 2 * t] = acc[m][n][2];
      sums[warp][g + 8][8 * n + 2 * t + 1] = acc[m][n][3];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * 8 * kN; i += kThreads) {
      const int64_t output = first_output + 16 * m + i % 16;
      const int64_t row = first_row + i / 16;
      if (output >= p.outputs || row >= p.rows) continue;
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < kWarps; ++k) sum += sums[k][i % 16][i / 16];
      float* y = p.y + row * p.y_stride + output;
      *y = p.add ? *y + sum : sum;
    }
  }
}

template <typename T, bool kFloat, int kM, int kN, int kAhead>
cudaError_t Launch(const DecodeMatmulParams& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.outputs + 16 * kM - 1) / (16 * kM)),
                  static_cast<unsigned>((p.rows + 8 * kN - 1) / (8 * kN)));
  matmul_kernel<T, kFloat, kM, kN, kAhead><<<grid, kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

// Wide tiles once their operands are worth more than the blocks they cost.
template <typename T>
cudaError_t LaunchTyped(const DecodeMatmulParams& p, cudaStream_t stream) {
  if (p.x_is_float) {
    return p.rows <= 8 ? Launch<T, true, 1, 1, 4>(p, stream)
                       : Launch<T, true, 1, 2, 4>(p, stream);
  }
  if (p.rows <= 8) return Launch<T, false, 1, 1, 4>(p, stream);
  if (p.rows <= 16) return Launch<T, false, 1, 2, 4>(p, stream);
  if (p.rows <= 32) return Launch<T, false, 1, 4, 4>(p, stream);
  return Launch<T, false, 4, 8, 1>(p, stream);
}

bool Aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace

cudaError_t LaunchDecodeMatmul(const DecodeMatmulParams& p,
                               cudaStream_t stream) {
  if (p.type == WeightType::kFloat32 || p.outputs < 1 || p.inputs < 1 ||
      p.inputs % kBlock != 0 || p.inputs > INT32_MAX || p.x_cols > p.inputs ||
      p.rows < 0 || p.rows > 65535 || !Aligned(p.w) || !Aligned(p.x) ||
      p.x_stride % (p.x_is_float ? 4 : 8) != 0) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  return p.type == WeightType::kBFloat16 ? LaunchTyped<__nv_bfloat16>(p, stream)
                                         : LaunchTyped<__half>(p, stream);
}

}  // namespace recurve
