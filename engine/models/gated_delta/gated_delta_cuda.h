#ifndef RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_CUDA_H_
#define RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_operations.h"
#include "engine/models/gated_delta/gated_delta_operation.h"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_cuda.h"

namespace recurve {

// GatedDeltaOperation on a GPU: the launches of a layer in a step.
//
// - Tokens of TokenKind::kStep: the step kernel, with convolution and norm.
// - Prompts: the convolution, the chunk kernels and the norm, if the plan has
//   chunks; else as above, token by token.
//
// So a token is always computed by the same kernels, which gives it the same
// bits in any batch and for any split of its prompt at multiples of the chunk.
class CudaGatedDelta : public CudaOperations {
 public:
  explicit CudaGatedDelta(const CudaOperationLimits& limits);

  void Add(const SequenceOperation& operation) override;
  absl::StatusOr<int64_t> DeviceBytes() override;
  int64_t StepBytes() const override;
  absl::Status Allocate() override;

  absl::Status BeginDecode(const CudaStep& step, const DecodeRows& rows,
                           int64_t variant, CudaStepBuffer* buffer) override;
  absl::Status BeginMixed(const CudaStep& step, const StepBatch& batch,
                          CudaStepBuffer* buffer) override;
  absl::Status Launch(const SequenceOperation& operation, const CudaView& view,
                      const Output& output) override;

 private:
  // One launch: consecutive runs of the step. Device pointers.
  struct Segment {
    bool chunks;
    int64_t count;
    const int32_t* query_start;  // [count + 1], rows of the segment
    const int32_t* slots;        // [count]
    const int64_t* positions;    // [count] of the first tokens; chunks only
    int64_t begin, end;          // rows of the step
  };

  absl::Status Step(const GatedDeltaOperation::Params& p, const CudaView& view,
                    const Segment& rows, WeightType out_type, bool early) const;
  absl::Status Prefill(const GatedDeltaOperation::Params& p,
                       const CudaView& view, const Segment& rows) const;

  const CudaOperationLimits limits_;
  const bool chunks_;
  int64_t workspace_bytes_ = 0;  // of the largest layer
  CudaMemory workspace_;

  // State of the step in progress.
  bool decode_ = false;
  std::vector<Segment> segments_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_CUDA_H_
