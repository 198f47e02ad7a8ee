#ifndef RECURVE_KERNELS_ROWS_ROWS_CUDA_H_
#define RECURVE_KERNELS_ROWS_ROWS_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/weight_type.h"

namespace recurve {

// Moves rows of float32 activations on the GPU: copies, conversions, gathers
// and scatters. Every pointer is device memory. None allocates or synchronises.
// cudaErrorInvalidValue for negative sizes, and for pointers that are missing
// or unaligned where alignment is required.

// y[i] = x[index[i]], rounded to `type`; zeros for a negative index, and in
// columns cols to y_cols.
struct CudaGatherRowsParams {
  const float* x;  // [.., cols]
  int64_t x_stride;
  const int32_t* index;  // [rows], or null: row i
  WeightType type;       // of y
  void* y;               // [rows, y_cols]; must not overlap x
  int64_t y_stride;
  int64_t rows;
  int64_t cols;
  int64_t y_cols;  // >= cols
};
cudaError_t LaunchGatherRows(const CudaGatherRowsParams& params,
                             cudaStream_t stream);

// y[index[i]] = x[i], rounded to `type`; rows with a negative index are
// skipped. The other indices are distinct.
struct CudaScatterRowsParams {
  const float* x;  // [rows, cols]
  int64_t x_stride;
  const int32_t* index;  // [rows]
  WeightType type;       // of y
  void* y;               // must not overlap x
  int64_t y_stride;
  int64_t rows;
  int64_t cols;
};
cudaError_t LaunchScatterRows(const CudaScatterRowsParams& params,
                              cudaStream_t stream);

// Copies bytes: 3 us for a megabyte (the copy engines take longer to start),
// and large copies at the memory's rate. `to` may be page-locked memory of the
// host. The next kernel in the stream starts after it has ended.
struct CudaCopyParams {
  const void* from;  // 16-byte aligned, like `to`; they do not overlap
  void* to;
  int64_t bytes;  // a multiple of kCopyMultiple
};
inline constexpr int64_t kCopyMultiple = 16;
cudaError_t LaunchCopy(const CudaCopyParams& params, cudaStream_t stream);

// y += x.
struct CudaAddRowsParams {
  const float* x;  // [rows, cols]
  int64_t x_stride;
  float* y;  // must not overlap x
  int64_t y_stride;
  int64_t rows;
  int64_t cols;
};
cudaError_t LaunchAddRows(const CudaAddRowsParams& params, cudaStream_t stream);

// Every row of y = values.
struct CudaFillRowsParams {
  const float* values;  // [cols]
  float* y;             // [rows, cols]
  int64_t y_stride;
  int64_t rows;
  int64_t cols;
};
cudaError_t LaunchFillRows(const CudaFillRowsParams& params,
                           cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_ROWS_ROWS_CUDA_H_
