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
// Exactness: an algorithm that takes every number of rows is chosen once for a
// shape, for kTunedRows rows and without splitting the inputs. Others are used
// for other numbers of rows only after Tune has seen them give the same bits.
// So a row's bits do not depend on the rows beside it. Tests hold it to that;
// cuBLASLt does not promise it in words.
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

  // Measures algorithms for the matrix `params.w` and up to `max_rows` rows (or
  // as many as kTuneBytes hold), on random rows of its own (x, y and rows are
  // not read), and keeps the fastest whose results are, bit for bit, those of
  // the one for kTunedRows rows. Matrices of the same sizes and type share what
  // is found. Without this, every number of rows has that one. Allocates, and
  // waits.
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
