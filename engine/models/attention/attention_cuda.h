#ifndef RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_CUDA_H_
#define RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_operations.h"
#include "engine/models/attention/attention_operation.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/prefill/attention_prefill_cuda.h"

namespace recurve {

// AttentionOperation on a GPU: the launch plans for the shapes of a model's
// layers, and the launches of each layer in a step.
//
// A step's rows are cut into segments of adjacent rows: tokens of
// TokenKind::kStep, for the decode kernel, and tokens of prompts, for the
// prefill kernel. Each segment is appended to the cache before it attends, in
// order. So a token is always attended by the same kernel, which gives it the
// same bits in any batch and for any split of its prompt.
class CudaAttention : public CudaOperations {
 public:
  explicit CudaAttention(const CudaOperationLimits& limits);

  void Add(const SequenceOperation& operation) override;
  absl::StatusOr<int64_t> DeviceBytes() override;
  int64_t StepBytes() const override;
  absl::Status Allocate() override;

  absl::Status BeginDecode(const CudaStep& step, const DecodeRows& rows,
                           int64_t variant, CudaStepBuffer* buffer) override;
  absl::Status BeginMixed(const CudaStep& step, const StepBatch& batch,
                          CudaStepBuffer* buffer) override;
  // Schedules the step's prompts, for all layers.
  absl::Status Prepare(cudaStream_t stream) override;
  absl::Status Launch(const SequenceOperation& operation, const CudaView& view,
                      const Output& output) override;

 private:
  // Rows [begin, end) of the step. Device pointers.
  struct Segment {
    bool prompt;
    int64_t begin, end;
    // Prompts only.
    int64_t rows;                // runs
    const int32_t* query_start;  // [rows + 1], rows of the step
    const int32_t* lengths;      // [rows]
    const int32_t* sequences;    // [rows] of the page table
  };
  // What layers of one shape share.
  struct Shape {
    AttentionShape shape;
    AttentionPlan decode;
    // For each segment of the step in progress: the schedule, and the plan of a
    // prompt's.
    std::vector<void*> schedules;
    std::vector<AttentionPrefillPlan> prefills;
  };
  // Sizes of the buffers that all shapes share, in bytes.
  struct Sizes {
    int64_t queries = 0;  // of decode
    int64_t scratch = 0;  // of decode
    int64_t prefill_schedules = 0;
    int64_t prefill_scratch = 0;

    int64_t all() const {
      return queries + scratch + prefill_schedules + prefill_scratch;
    }
  };

  // Rows of a decode launch, at most.
  int64_t max_rows() const { return limits_.max_sequences; }
  // Segments of a step, at most: a sequence has tokens of a prompt, then
  // generated ones, and long runs of these are cut.
  int64_t max_segments() const {
    return 2 * limits_.max_sequences + limits_.max_tokens / max_rows() + 1;
  }
  absl::StatusOr<Sizes> Measure();
  AttentionPrefillPlan PlanPrefill(const Shape& shape, int64_t rows,
                                   int64_t tokens) const;
  absl::Status AddDecode(const AttentionScheduleParams& of,
                         CudaStepBuffer* buffer);
  absl::Status AddSteps(const StepBatch& batch, int64_t begin, int64_t end,
                        CudaStepBuffer* buffer);
  absl::Status AddPrompts(const StepBatch& batch, size_t first, size_t last,
                          CudaStepBuffer* buffer);
  absl::Status Attend(const AttentionOperation::Params& p, const CudaView& view,
                      const Output& output, const Shape& shape, size_t index);

  const CudaOperationLimits limits_;
  const WeightType element_;
  const AttentionDevice device_;
  std::vector<Shape> shapes_;
  std::map<const SequenceOperation*, size_t> shape_of_;
  CudaMemory queries_;
  CudaMemory scratch_;
  CudaMemory prefill_schedules_;
  CudaMemory prefill_scratch_;

  // State of the step in progress.
  bool decode_ = false;
  std::vector<Segment> segments_;
  int64_t scheduled_ = 0;  // bytes of prefill_schedules_ in use
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_CUDA_H_
