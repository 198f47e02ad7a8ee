#include <cuda_bf16.h>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/glu/glu_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 128;

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (runs of kThreads · kVector columns, rows).
template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    glu_kernel(const __grid_constant__ CudaGluParams p) {
  LaunchDependents();
  WaitForPrevious();
  const int64_t row = blockIdx.y;
  const int64_t column =
      (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  if (column >= p.cols) return;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride + column;
  T* y = static_cast<T*>(p.y) + row * p.y_stride + column;
  if constexpr (kVector == 1) {
    if (p.live_rows != nullptr && row >= *p.live_rows) return;
    *y = FromFloat<T>(DeviceActivate(p.activation, ToFloat(x[0])) *
                      ToFloat(x[p.cols]));
  } else {
    const Pack<T, kVector> in1 = LoadPack<T, kVector>(x);
    const Pack<T, kVector> in2 = LoadPack<T, kVector>(x + p.cols);
    if (p.live_rows != nullptr && row >= *p.live_rows) return;
    float out[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      out[j] = DeviceActivate(p.activation, in1.Get(j)) * in2.Get(j);
    }
    StorePack<T, kVector>(out, y);
  }
}

// ----------------------------------------------------------------------------
// Launchers

template <typename T, int kVector>
cudaError_t Launch(const CudaGluParams& p, cudaStream_t stream) {
  constexpr int64_t kColumns = kThreads * kVector;
  const dim3 grid(static_cast<unsigned>((p.cols + kColumns - 1) / kColumns),
                  static_cast<unsigned>(p.rows));
  return LaunchDependent(glu_kernel<T, kVector>, grid, kThreads, 0, stream, p);
}

template <typename T>
cudaError_t LaunchAligned(const CudaGluParams& p, cudaStream_t stream) {
  constexpr int kVector = 16 / sizeof(T);
  const bool whole = reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(p.y) % 16 == 0 &&
                     p.x_stride % kVector == 0 && p.y_stride % kVector == 0 &&
                     p.cols % kVector == 0;
  return whole ? Launch<T, kVector>(p, stream) : Launch<T, 1>(p, stream);
}

}  // namespace

cudaError_t LaunchGlu(const CudaGluParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.rows > 65535 || p.cols < 1 ||
      p.activation == Activation::kSoftmax) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  return p.type == ElementType::kBFloat16
             ? LaunchAligned<__nv_bfloat16>(p, stream)
             : LaunchAligned<float>(p, stream);
}

}  // namespace recurve
