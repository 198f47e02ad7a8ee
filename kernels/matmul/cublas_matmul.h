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
// Exactness: one algorithm that supports every row count is chosen for a shape,
// for kTunedRows rows and without splitting the inputs. Others serve other row
// counts only after Tune has seen the same bits from them, at some row counts
// and without adding. So a row's bits do not depend on other rows. Tests check
// it; cuBLASLt does not guarantee it.
//
// Thread safety: one thread at a time, one stream.
class CublasMatmul {
 public:
  // Row count that algorithms are chosen for.
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

  // Measures algorithms for the matrix `params.w` and up to `max_rows` rows (or
  // as many as kTuneBytes hold), on random rows of its own (x, y and rows are
  // not read), and keeps the fastest whose results are, bit for bit, those of
  // the algorithm for kTunedRows rows. Matrices of the same sizes and type
  // share the result. Without it, that algorithm serves every row count.
  // Allocates and waits.
  absl::Status Tune(const Params& params, int64_t max_rows,
                    cudaStream_t stream);
  static constexpr int64_t kTuneBytes = int64_t{512} << 20;  // of results

  // Enqueues the product. Neither allocates device memory nor synchronises.
  absl::Status Multiply(const Params& params, cudaStream_t stream);

 private:
  struct Impl;
  explicit CublasMatmul(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_CUBLAS_MATMUL_H_
