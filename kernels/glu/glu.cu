// Gate of a gated linear unit: elementwise, 16 bytes of x1 and of x2 a thread.
// Shapes: x [T, 2 C] = (x1, x2), elements of e bytes; y [T, C], elements of e'
// bytes.
// Floor: T · C · (2 e + e') bytes: x read and y written once.
#include <cuda_bf16.h>

#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/glu/glu_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 128;

// ----------------------------------------------------------------------------
// CUDA kernels

template <typename T, int kVector>
__device__ __forceinline__ void Store(const float (&x)[kVector], T* y) {
  if constexpr (kVector == 1) {
    if constexpr (sizeof(T) == 2) {
      *y = Half<T>::From(x[0]);
    } else {
      *y = x[0];
    }
  } else if constexpr (sizeof(T) == 2 && kVector == 4) {
    *reinterpret_cast<uint2*>(y) =
        make_uint2(Half<T>::Pack(x[0], x[1]), Half<T>::Pack(x[2], x[3]));
  } else {
    StorePack<T, kVector>(x, y);
  }
}

// Grid: (runs of kThreads · kVector columns, rows).
template <typename T, typename TOut, int kVector>
__global__ void __launch_bounds__(kThreads)
    glu_kernel(const __grid_constant__ CudaGluParams p) {
  LaunchDependents();
  WaitForPrevious();
  const int64_t row = blockIdx.y;
  const int64_t column =
      (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVector;
  if (column >= p.cols) return;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride + column;
  TOut* y = static_cast<TOut*>(p.y) + row * p.y_stride + column;
  if constexpr (kVector == 1) {
    if (p.live_rows != nullptr && row >= *p.live_rows) return;
    const float out[1] = {DeviceActivate(p.activation, ToFloat(x[0])) *
                          ToFloat(x[p.cols])};
    Store<TOut>(out, y);
  } else {
    const Pack<T, kVector> in1 = LoadPack<T, kVector>(x);
    const Pack<T, kVector> in2 = LoadPack<T, kVector>(x + p.cols);
    if (p.live_rows != nullptr && row >= *p.live_rows) return;
    float out[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      out[j] = DeviceActivate(p.activation, in1.Get(j)) * in2.Get(j);
    }
    Store<TOut>(out, y);
  }
}

// ----------------------------------------------------------------------------
// Launchers

template <typename T, typename TOut, int kVector>
cudaError_t Launch(const CudaGluParams& p, cudaStream_t stream) {
  constexpr int64_t kColumns = kThreads * kVector;
  const dim3 grid(static_cast<unsigned>((p.cols + kColumns - 1) / kColumns),
                  static_cast<unsigned>(p.rows));
  return LaunchDependent(glu_kernel<T, TOut, kVector>, grid, kThreads, 0,
                         stream, p);
}

template <typename T, typename TOut = T>
cudaError_t LaunchAligned(const CudaGluParams& p, cudaStream_t stream) {
  constexpr int kVector = 16 / sizeof(T);
  const bool whole = IsAligned(p.x) && IsAligned(p.y) &&
                     p.x_stride % kVector == 0 && p.y_stride % kVector == 0 &&
                     p.cols % kVector == 0;
  return whole ? Launch<T, TOut, kVector>(p, stream)
               : Launch<T, TOut, 1>(p, stream);
}

bool Valid(const CudaGluParams& p) {
  return p.rows >= 0 && p.rows <= 65535 && p.cols >= 1 &&
         p.activation != Activation::kSoftmax;
}

}  // namespace

cudaError_t LaunchGlu(const CudaGluParams& p, cudaStream_t stream) {
  if (!Valid(p)) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  return p.type == ElementType::kBFloat16
             ? LaunchAligned<__nv_bfloat16>(p, stream)
             : LaunchAligned<float>(p, stream);
}

cudaError_t LaunchRoundedGlu(const CudaGluParams& p, WeightType y_type,
                             cudaStream_t stream) {
  if (!Valid(p) || p.type != ElementType::kFloat32 ||
      y_type == WeightType::kFloat32) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0) return cudaSuccess;
  return y_type == WeightType::kBFloat16
             ? LaunchAligned<float, __nv_bfloat16>(p, stream)
             : LaunchAligned<float, __half>(p, stream);
}

}  // namespace recurve
