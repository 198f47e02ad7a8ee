// Rows of float32: gather, scatter, fill and add rows, copy bytes. Gather and
// scatter keep four loads a thread in flight.
// Shapes: x [T, C] float32; y [T, C'] with elements of e bytes.
// Floor in bytes: gather T · (4 C + e C'), scatter T · C · (4 + e), fill
// 4 C · (T + 1), add 12 C · T, copy twice its bytes.
#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/weight_math.cuh"
#include "kernels/rows/rows_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 256;

// ----------------------------------------------------------------------------
// CUDA kernels. Grid: rows; gather and scatter: (rows, runs of columns).

// A thread loads all of its columns before it writes one.
constexpr int kColumns = 4;

template <typename T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ CudaGatherRowsParams p) {
  LaunchDependents();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const int64_t from = p.index == nullptr ? row : p.index[row];
  const float* x = p.x + (from < 0 ? 0 : from) * p.x_stride;
  T* y = static_cast<T*>(p.y) + row * p.y_stride;
  const int64_t first = int64_t{blockIdx.y} * kThreads * kColumns + threadIdx.x;
  float values[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int64_t c = first + i * kThreads;
    values[i] = from >= 0 && c < p.cols ? x[c] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int64_t c = first + i * kThreads;
    if (c < p.y_cols) FloatToWeight(values[i], y + c);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const __grid_constant__ CudaScatterRowsParams p) {
  LaunchDependents();
  WaitForPrevious();
  const int64_t row = blockIdx.x;
  const int64_t to = p.index[row];
  if (to < 0) return;
  const float* x = p.x + row * p.x_stride;
  T* y = static_cast<T*>(p.y) + to * p.y_stride;
  const int64_t first = int64_t{blockIdx.y} * kThreads * kColumns + threadIdx.x;
  float values[kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int64_t c = first + i * kThreads;
    values[i] = c < p.cols ? x[c] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int64_t c = first + i * kThreads;
    if (c < p.cols) FloatToWeight(values[i], y + c);
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_kernel(const __grid_constant__ CudaFillRowsParams p) {
  float* y = p.y + blockIdx.x * p.y_stride;
  for (int64_t c = threadIdx.x; c < p.cols; c += kThreads) y[c] = p.values[c];
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(const __grid_constant__ CudaAddRowsParams p) {
  const float* const x = p.x + blockIdx.x * p.x_stride;
  float* const y = p.y + blockIdx.x * p.y_stride;
  for (int64_t c = threadIdx.x; c < p.cols; c += kThreads) y[c] += x[c];
}

// Grid: as many blocks as the bytes need, up to kCopyBlocks.
constexpr int kCopyBlocks = 1056;  // eight for each SM of an H100 or H200

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ CudaCopyParams p) {
  const auto* const from = static_cast<const uint4*>(p.from);
  auto* const to = static_cast<uint4*>(p.to);
  const int64_t count = p.bytes / kCopyMultiple;
#pragma unroll 4
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    to[i] = __ldcg(from + i);
  }
  // Attention reads its schedule before it waits for the previous launch. That
  // is safe: without LaunchDependents here, dependent kernels start after this
  // one has ended, when its writes are visible.
  __threadfence();
}

// A block has a run of columns; the grid's second dimension is limited.
constexpr int64_t kRun = int64_t{kThreads} * kColumns;

int64_t Runs(int64_t cols) { return (cols + kRun - 1) / kRun; }

bool Valid(int64_t rows, int64_t cols) {
  return rows >= 0 && rows <= INT32_MAX && cols >= 0 && Runs(cols) <= 65535;
}

}  // namespace

// ----------------------------------------------------------------------------
// Launchers

cudaError_t LaunchGatherRows(const CudaGatherRowsParams& p,
                             cudaStream_t stream) {
  if (!Valid(p.rows, p.y_cols) || p.cols < 0 || p.y_cols < p.cols) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0 || p.y_cols == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(p.rows),
                  static_cast<unsigned>(Runs(p.y_cols)));
  const auto launch = [&](auto kernel) {
    return LaunchDependent(kernel, grid, kThreads, 0, stream, p);
  };
  switch (p.type) {
    case WeightType::kFloat32:
      return launch(gather_kernel<float>);
    case WeightType::kBFloat16:
      return launch(gather_kernel<__nv_bfloat16>);
    case WeightType::kFloat16:
      return launch(gather_kernel<__half>);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchScatterRows(const CudaScatterRowsParams& p,
                              cudaStream_t stream) {
  if (!Valid(p.rows, p.cols)) return cudaErrorInvalidValue;
  if (p.rows == 0 || p.cols == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(p.rows),
                  static_cast<unsigned>(Runs(p.cols)));
  const auto launch = [&](auto kernel) {
    return LaunchDependent(kernel, grid, kThreads, 0, stream, p);
  };
  switch (p.type) {
    case WeightType::kFloat32:
      return launch(scatter_kernel<float>);
    case WeightType::kBFloat16:
      return launch(scatter_kernel<__nv_bfloat16>);
    case WeightType::kFloat16:
      return launch(scatter_kernel<__half>);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchCopy(const CudaCopyParams& p, cudaStream_t stream) {
  if (p.bytes < 0 || p.bytes % kCopyMultiple != 0 || !IsAligned(p.from) ||
      !IsAligned(p.to)) {
    return cudaErrorInvalidValue;
  }
  if (p.bytes == 0) return cudaSuccess;
  if (p.from == nullptr || p.to == nullptr) return cudaErrorInvalidValue;
  const int64_t blocks = (p.bytes / kCopyMultiple + kThreads - 1) / kThreads;
  copy_kernel<<<static_cast<unsigned>(blocks < kCopyBlocks ? blocks
                                                           : kCopyBlocks),
                kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t LaunchAddRows(const CudaAddRowsParams& p, cudaStream_t stream) {
  if (!Valid(p.rows, p.cols)) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  add_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t LaunchFillRows(const CudaFillRowsParams& p, cudaStream_t stream) {
  if (!Valid(p.rows, p.cols)) return cudaErrorInvalidValue;
  if (p.rows == 0) return cudaSuccess;
  fill_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace recurve
