// Product of a few rows with 16-bit weights for devices other than Hopper:
// cp.async stages that each lane copies and reads itself, mma.m16n8k16, eight
// warps that split the inputs. Also checks parameters and dispatches on Hopper.
// Shapes: w [O, I] 16-bit, x [T, I] 16-bit or float32 (e bytes), y [T, O]
// float32.
// Floor: O · I · 2 + T · I · e + 4 · T · O bytes (4 · T · O more to add to y).
#include "kernels/common/alignment.h"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/copy_groups.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_attribute.h"
#include "kernels/common/host_device.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/matmul/decode_copies.cuh"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/matmul/decode_matmul_hopper.h"

namespace recurve {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kBlock = kDecodeMatmulInputs;

// CopyAsync that also fills L1 for other blocks of the multiprocessor: all
// blocks read the same few rows at the same time, and L2 would serve them one
// by one.
__device__ __forceinline__ void CopyAsyncShared(uint32_t to, const void* from,
                                                int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ uint4 LoadShared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

// Eight float32 inputs as pairs of T.
template <typename T>
__device__ __forceinline__ uint4 Rounded(const uint4& low, const uint4& high) {
  const auto pack = [](uint32_t x, uint32_t y) {
    return Half<T>::Pack(__uint_as_float(x), __uint_as_float(y));
  };
  return make_uint4(pack(low.x, low.y), pack(low.z, low.w),
                    pack(high.x, high.y), pack(high.z, high.w));
}

RECURVE_HOST_DEVICE constexpr int Chunks(bool is_float, int m, int n) {
  return 2 * m + (is_float ? 2 * n : n);
}
RECURVE_HOST_DEVICE constexpr int SharedBytes(bool is_float, int m, int n,
                                              int stages) {
  const int ring = kWarps * stages * Chunks(is_float, m, n) * 512;
  const int sums = kWarps * 16 * (8 * n + 1) * 4;
  return ring > sums ? ring : sums;
}

// A block has 16 · kM outputs by 8 · kN rows. Its warps take runs of 32 inputs
// in turn, with kStages in flight. Of a run, lane (g, t) copies inputs 8t to
// 8t + 7 of weight rows g and g + 8 and of input row g, and reads them back
// itself, so no barrier is needed: the place of an input in an mma does not
// matter while both operands agree.
//
// Weights do not wait for the previous kernel.
//
// Grid: (runs of outputs, runs of rows).
template <typename T, bool kFloat, int kM, int kN, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_kernel(const __grid_constant__ DecodeMatmulParams p) {
  constexpr int kChunks = Chunks(kFloat, kM, kN);
  extern __shared__ __align__(16) char memory[];
  LaunchDependents();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t first_output = int64_t{blockIdx.x} * 16 * kM;
  const int64_t first_row = int64_t{blockIdx.y} * 8 * kN;
  const int all = static_cast<int>(p.inputs / kBlock);
  const int runs = all > warp ? (all - warp + kWarps - 1) / kWarps : 0;
  const uint32_t ring =
      SharedAddress(memory) + warp * kStages * kChunks * 512 + lane * 16;
  const auto place = [&](int run, int chunk) {
    return ring + (run % kStages * kChunks + chunk) * 512;
  };
  const auto column = [&](int run) {
    return int64_t{warp + run * kWarps} * kBlock + 8 * t;
  };

  // Outputs beyond the last repeat the last, and are not written.
  const T* w[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t output =
          min(first_output + 16 * m + 8 * half + g, p.outputs - 1);
      w[m][half] = static_cast<const T*>(p.w) + output * p.inputs;
    }
  }
  const auto copy_weights = [&](int run) {
    if (run >= runs) return;
    const int64_t c = column(run);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      CopyAsync(place(run, 2 * m), w[m][0] + c, 16);
      CopyAsync(place(run, 2 * m + 1), w[m][1] + c, 16);
    }
  };
  // Rows and columns beyond the last are zeros.
  const auto copy_inputs = [&](int run) {
    if (run >= runs) return;
    const int64_t c = column(run);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int64_t row = first_row + 8 * n + g;
      const bool exists = row < p.rows;
      const int64_t from = exists ? row * p.x_stride : 0;
      if constexpr (kFloat) {
        const float* x = static_cast<const float*>(p.x) + from;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t at = c + 4 * half;
          const int left = exists ? static_cast<int>(p.x_cols - at) : 0;
          CopyAsyncShared(place(run, 2 * kM + 2 * n + half),
                          left > 0 ? x + at : x, 4 * min(max(left, 0), 4));
        }
      } else {
        const T* x = static_cast<const T*>(p.x) + from;
        const int left = exists ? static_cast<int>(p.x_cols - c) : 0;
        CopyAsync(place(run, 2 * kM + n), left > 0 ? x + c : x,
                  2 * min(max(left, 0), 8));
      }
    }
  };

#pragma unroll
  for (int s = 0; s < kStages; ++s) copy_weights(s);
  WaitForPrevious();
#pragma unroll
  for (int s = 0; s < kStages; ++s) {
    copy_inputs(s);
    if (s < runs) CommitCopies();
  }

  float acc[kM][kN][4] = {};
  for (int run = 0; run < runs; ++run) {
    WaitForAllBut<kStages - 1>(runs - 1 - run);
    uint4 b[kN];
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      if constexpr (kFloat) {
        b[n] = Rounded<T>(LoadShared(place(run, 2 * kM + 2 * n)),
                          LoadShared(place(run, 2 * kM + 2 * n + 1)));
      } else {
        b[n] = LoadShared(place(run, 2 * kM + n));
      }
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const uint4 low = LoadShared(place(run, 2 * m));
      const uint4 high = LoadShared(place(run, 2 * m + 1));
      const uint32_t first[4] = {low.x, high.x, low.y, high.y};
      const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        Half<T>::Mma(acc[m][n], first, b[n].x, b[n].y);
        Half<T>::Mma(acc[m][n], second, b[n].z, b[n].w);
      }
    }
    copy_weights(run + kStages);
    copy_inputs(run + kStages);
    if (run + kStages < runs) CommitCopies();
  }

  // Adds the warps' sums in order, in the ring buffer's memory.
  WaitForCopies<0>();
  auto* const sums = reinterpret_cast<float(*)[16][8 * kN + 1]>(memory);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    __syncthreads();
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

int64_t Blocks(const DecodeMatmulParams& p, int m, int n) {
  return (p.outputs + 16 * m - 1) / (16 * m) * ((p.rows + 8 * n - 1) / (8 * n));
}

template <typename T, bool kFloat, int kM, int kN, int kStages>
cudaError_t Launch(const DecodeMatmulParams& p, cudaStream_t stream) {
  constexpr int kBytes = SharedBytes(kFloat, kM, kN, kStages);
  const auto kernel = matmul_kernel<T, kFloat, kM, kN, kStages>;
  const cudaError_t error = AllowSharedMemory(kernel, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>((p.outputs + 16 * kM - 1) / (16 * kM)),
                  static_cast<unsigned>((p.rows + 8 * kN - 1) / (8 * kN)));
  return LaunchDependent(kernel, grid, kThreads, kBytes, stream, p);
}

// Tiles are as wide as this many blocks allow; two blocks share a
// multiprocessor if the ring buffer is small.
constexpr int64_t kEnoughBlocks = 96;

// Whether a tile of 16-bit inputs fits a block's shared memory. The order of
// sums does not depend on the tile.
bool Fits(int shared_memory, int m, int n, int stages) {
  return SharedBytes(false, m, n, stages) <= shared_memory;
}

template <typename T>
cudaError_t LaunchTyped(const DecodeMatmulParams& p, cudaStream_t stream) {
  if (p.x_is_float) return Launch<T, true, 1, 1, 6>(p, stream);
  if (p.rows <= 16) return Launch<T, false, 1, 2, 6>(p, stream);
  if (p.rows <= 32) {
    return Blocks(p, 2, 4) >= kEnoughBlocks
               ? Launch<T, false, 2, 4, 3>(p, stream)
               : Launch<T, false, 1, 4, 4>(p, stream);
  }
  int memory = 0;
  const cudaError_t error =
      DeviceAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &memory);
  if (error != cudaSuccess) return error;
  if (Blocks(p, 4, 8) >= kEnoughBlocks && Fits(memory, 4, 8, 3))
    return Launch<T, false, 4, 8, 3>(p, stream);
  if (Blocks(p, 2, 8) >= kEnoughBlocks && Fits(memory, 2, 8, 4))
    return Launch<T, false, 2, 8, 4>(p, stream);
  if (Fits(memory, 1, 8, 4)) return Launch<T, false, 1, 8, 4>(p, stream);
  return Blocks(p, 2, 4) >= kEnoughBlocks
             ? Launch<T, false, 2, 4, 3>(p, stream)
             : Launch<T, false, 1, 4, 4>(p, stream);
}

bool IsHopper() {
  int major = 0;
  return DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major) ==
             cudaSuccess &&
         major == 9;
}

cudaError_t LaunchHopper(const DecodeMatmulParams& p, cudaStream_t stream) {
  int multiprocessors = 0;
  const cudaError_t error =
      DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (error != cudaSuccess) return error;
  if (GatedMatmulTakes(p)) return LaunchGatedMatmul(p, multiprocessors, stream);
  // Measured: tiles are faster from the second 16-bit row on.
  if ((!p.x_is_float && p.rows > 1) || !StreamMatmulFits(p.inputs, p.rows))
    return LaunchTileMatmul(p, multiprocessors, stream);
  return LaunchStreamMatmul(p, multiprocessors, stream);
}

}  // namespace

bool DecodeMatmulFuses() { return IsHopper(); }

bool DecodeMatmulTakesFloats(int64_t inputs, int64_t rows) {
  return DecodeMatmulTakesFloats(inputs, rows, IsHopper());
}

cudaError_t LaunchDecodeMatmul(const DecodeMatmulParams& p,
                               cudaStream_t stream) {
  if (p.type == WeightType::kFloat32 || p.outputs < 1 || p.inputs < 1 ||
      p.inputs % kBlock != 0 || p.inputs > INT32_MAX / 8 ||
      p.outputs > INT32_MAX / 8 || p.x_cols < 0 || p.x_cols > p.inputs ||
      p.rows < 0 || p.rows > kDecodeMatmulMaxRows ||
      (p.x_is_float && !DecodeMatmulTakesFloats(p.inputs, p.rows)) ||
      !IsAligned(p.w) || !IsAligned(p.x) || !IsAligned(p.norm_weight) ||
      p.x_stride % (p.x_is_float ? 4 : 8) != 0) {
    return cudaErrorInvalidValue;
  }
  const bool hopper = IsHopper();
  if (p.norm && (!hopper || !p.x_is_float || p.x_cols <= kNormWarpCols))
    return cudaErrorInvalidValue;
  if (p.gate && (!hopper || p.outputs % 2 != 0 || p.add ||
                 p.activation == Activation::kSoftmax)) {
    return cudaErrorInvalidValue;
  }
  if (p.y_is_half && !p.gate) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  if (p.w == nullptr || p.x == nullptr || p.y == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (hopper) return LaunchHopper(p, stream);
  return p.type == WeightType::kBFloat16 ? LaunchTyped<__nv_bfloat16>(p, stream)
                                         : LaunchTyped<__half>(p, stream);
}

}  // namespace recurve
