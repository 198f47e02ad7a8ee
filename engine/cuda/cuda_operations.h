#ifndef RECURVE_ENGINE_CUDA_CUDA_OPERATIONS_H_
#define RECURVE_ENGINE_CUDA_CUDA_OPERATIONS_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "engine/cuda/cuda_positions.h"
#include "engine/cuda/cuda_step_buffer.h"
#include "engine/program/activations.h"
#include "engine/program/program.h"
#include "engine/program/step.h"
#include "kernels/common/weight_type.h"
#include "kernels/matmul/product_chain_cuda.h"
#include "kernels/tpa/decode/tpa_plan.h"

namespace recurve {

// The step being put on the stream. Pointers are to the device.
struct CudaStep {
  bool decode = false;    // every sequence has one generated token
  int64_t rows = 0;       // in a launch, with padding
  int64_t sequences = 0;  // in a launch, with padding
  int64_t page_stride = 0;
  const int32_t* tokens = nullptr;
  const int64_t* positions = nullptr;
  const int32_t* row_sequence = nullptr;
  const int32_t* query_start = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* sources = nullptr;  // of fed tokens
  const int32_t* page_table = nullptr;
  const int32_t* logit_rows = nullptr;
};

// What an operation sees of the executor when it is launched.
class CudaView {
 public:
  virtual ~CudaView() = default;

  // A layer's part of page or slot i begins at data + i · stride.
  struct Pages {
    void* data;
    int64_t stride;  // elements
  };
  struct States {
    float* data;
    int64_t stride;
  };

  virtual cudaStream_t stream() const = 0;
  virtual const CudaStep& step() const = 0;
  virtual Activations View(const Slice& slice) const = 0;
  virtual const float* vector(VectorId id) const = 0;  // null for none
  virtual const CudaPositions::Encoding& position(PositionId id) const = 0;
  virtual Pages pages(PagesId id) const = 0;
  virtual States states(StateId id) const = 0;
};

// Limits of a model on a device.
struct CudaOperationLimits {
  TpaDevice device = {};
  DType pages = DType::kBFloat16;
  int64_t max_tokens = 0;      // in a step
  int64_t max_sequences = 0;   // in a step, a power of two
  int64_t max_pages = 0;       // of a sequence
  int64_t table_rows = 0;      // rows of position tables before this kind's own
  int64_t chunk_multiple = 1;  // Plan
  std::optional<DType> matrices;  // of all of them, if they share a type
};

// All operations of one kind on a GPU (SequenceOperation::name): what they
// share in memory, and their launches in a step.
//
// Order of calls: Add; DeviceBytes, perhaps, or Allocate; then, for each step,
// BeginDecode or BeginMixed, Prepare, Launch. Not thread-safe.
class CudaOperations {
 public:
  virtual ~CudaOperations() = default;

  virtual void Add(const SequenceOperation& operation) = 0;
  // Rows of the position tables that it needs in addition to a step's own.
  virtual int64_t table_rows() const { return 0; }
  // Device memory that Allocate will take. InvalidArgument, with the limit.
  virtual absl::StatusOr<int64_t> DeviceBytes() = 0;
  // Upper bound on what it adds to a step in a CudaStepBuffer; after
  // DeviceBytes or Allocate.
  virtual int64_t StepBytes() const = 0;
  // InvalidArgument or ResourceExhausted, with the limit.
  virtual absl::Status Allocate() = 0;

  // --- A step ---

  // Which of several ways, with the same results, a decode step of `rows` rows
  // is launched, with a new token at each of these positions. A captured step
  // is replayed for equal numbers only.
  virtual int64_t Variant(absl::Span<const int64_t> /*positions*/,
                          int64_t /*rows*/) const {
    return 0;
  }
  // The rows' lengths and pages on the host, as those of `step` on the device.
  struct DecodeRows {
    const int32_t* lengths;
    const int32_t* pages;        // [rows, step.page_stride]
    const int64_t* prompt_ends;  // StepRun
  };
  // Adds the inputs of its launches to `buffer`.
  virtual absl::Status BeginDecode(const CudaStep& step, const DecodeRows& rows,
                                   int64_t variant, CudaStepBuffer* buffer) = 0;
  virtual absl::Status BeginMixed(const CudaStep& step, const StepBatch& batch,
                                  CudaStepBuffer* buffer) = 0;
  // Positions whose angles its table_rows() get in this step; on the device.
  struct Positions {
    const int64_t* positions = nullptr;
    int64_t count = 0;
  };
  virtual Positions table_positions() const { return {}; }
  // Launches what all layers of the step share.
  virtual absl::Status Prepare(cudaStream_t /*stream*/) {
    return absl::OkStatus();
  }

  struct Output {
    // kFloat32, or the 16-bit type of SequenceOperation::RoundedOutput, with
    // the row stride of floats.
    WeightType type = WeightType::kFloat32;
    absl::Span<const char> prefetch = {};  // device memory to be read next
  };
  virtual absl::Status Launch(const SequenceOperation& operation,
                              const CudaView& view, const Output& output) = 0;
  // The blocks of that launch in this step, for the products after it.
  virtual WorkingBlocks Working(const SequenceOperation& /*operation*/) const {
    return {};
  }
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_OPERATIONS_H_
