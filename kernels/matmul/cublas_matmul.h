#ifndef RECURVE_KERNELS_MATMUL_CUBLAS_MATMUL_H_
#define RECURVE_KERNELS_MATMUL_CUBLAS_MATMUL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/weight_type.h"

namespace recurve {

// y = x · wᵀ, or y += that, on the GPU by cuBLASLt. Sums are float32; factors
// are of one type, float32 without TF32.
//
// Exactness: the algorithm (tile, and with it the order of a sum) is chosen
// once for a shape, for kTunedRows rows and without splitting the inputs, and
// then used for every number of rows. So a row's bits do not depend on the rows
// beside it. A test holds it to that; cuBLASLt does not promise it in words.
//
// Thread safety: one thread at a time, one stream.
class CublasMatmul {
 public:
  // For how many rows algorithms are chosen.
  static constexpr int64_t kTunedRows = 512;

  struct Params {
    WeightType type;  // of w and x
    const void* w;    // [outputs, inputs]
    int64_t outputs;
    int64_t inputs;
    int64_t w_stride;  // elements
    const void* x;     // [rows, inputs]
    int64_t x_stride;
    float* y;  // [rows, outputs]
    int64_t y_stride;
    int64_t rows;
    bool add;
  };

  // Allocates workspace on the current device. Internal when cuBLASLt fails.
  static absl::StatusOr<std::unique_ptr<CublasMatmul>> Create();
  ~CublasMatmul();
  CublasMatmul(const CublasMatmul&) = delete;
  CublasMatmul& operator=(const CublasMatmul&) = delete;

  // Enqueues the product. Neither allocates device memory nor synchronises.
  absl::Status Multiply(const Params& params, cudaStream_t stream);

 private:
  struct Impl;
  explicit CublasMatmul(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_CUBLAS_MATMUL_H_
