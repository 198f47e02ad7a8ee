#ifndef RECURVE_ENGINE_CUDA_CUDA_WEIGHTS_H_
#define RECURVE_ENGINE_CUDA_CUDA_WEIGHTS_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/thread_pool.h"
#include "engine/cuda/cuda_memory.h"
#include "kernels/common/weight_type.h"
#include "kernels/matmul/packed_matrix.h"

namespace recurve {

// The kernels' name for a checkpoint's type, and back.
WeightType ToWeightType(DType type);
DType ToDType(WeightType type);

// Copies weights from a mapped checkpoint to the device: the pool orders and
// converts rows in page-locked memory, in two alternating buffers, while the
// previous one is in transit.
class CudaWeightLoader {
 public:
  // `pool` outlives the loader. Copies go on `stream`.
  static absl::StatusOr<std::unique_ptr<CudaWeightLoader>> Create(
      ThreadPool* pool, cudaStream_t stream);
  ~CudaWeightLoader();
  CudaWeightLoader(const CudaWeightLoader&) = delete;
  CudaWeightLoader& operator=(const CudaWeightLoader&) = delete;

  // Writes the rows of `parts`, each [n_i, inputs], one after the other to
  // `to`, as `type`, `row_elements` (>= inputs) apart with zeros between.
  // InvalidArgument if a part is not such a matrix.
  absl::Status Load(absl::Span<const MatrixPart> parts, WeightType type,
                    int64_t row_elements, void* to);

  // Waits for all copies.
  absl::Status Finish();

 private:
  CudaWeightLoader(ThreadPool* pool, cudaStream_t stream)
      : pool_(pool), stream_(stream) {}

  struct Piece {
    CudaMemory memory;
    cudaEvent_t copied = nullptr;
  };

  ThreadPool* const pool_;
  const cudaStream_t stream_;
  std::array<Piece, 2> pieces_;
  int next_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_WEIGHTS_H_
