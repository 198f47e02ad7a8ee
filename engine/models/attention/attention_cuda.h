#ifndef RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_CUDA_H_
#define RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_CUDA_H_

#include <cuda_runtime_api.h>

#include <algorithm>
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
// All tokens of a step are appended to the cache. Then those of
// TokenKind::kStep attend by the decode kernel, and those of prompts by the
// prefill kernel. So a token is always attended by the same kernel, which gives
// it the same bits in any batch and for any split of its prompt.
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
  // Rows [begin, end) of the step, for the decode kernel. Those of prompts have
  // length 0; it writes zeros for them, and the prefill kernel comes later.
  struct Window {
    int64_t begin, end;
  };
  // Runs of the step, for the prefill kernel. Those of TokenKind::kStep have
  // length 0, and are skipped. Device pointers.
  struct Prompts {
    int64_t runs;
    int64_t begin, end;          // rows of the step
    const int32_t* query_start;  // [runs + 1], from `begin` on
    const int32_t* lengths;      // [runs]
    const int32_t* sequences;    // [runs] of the page table
  };
  // What layers of one shape share.
  struct Shape {
    AttentionShape shape;
    AttentionPlan decode;
    // For the step in progress: of each window, and of each launch of prompts.
    std::vector<void*> schedules;
    std::vector<void*> prompt_schedules;
    std::vector<AttentionPrefillPlan> prompt_plans;
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

  // Rows of a decode launch, and runs of a prefill launch, at most. Few
  // sequences do not cut short prompts into many launches.
  int64_t max_rows() const {
    return std::min(max_tokens(),
                    std::max(limits_.max_sequences, int64_t{kMinPromptTokens}));
  }
  int64_t max_tokens() const {
    return std::max(limits_.max_tokens, limits_.max_sequences);
  }
  // Runs of a step, at most: a sequence that is computed again may have several
  // prompts, of kMinPromptTokens at least, with generated tokens between them.
  int64_t max_runs() const;
  int64_t max_windows() const { return max_tokens() / max_rows() + 1; }
  int64_t max_prompt_launches() const { return max_runs() / max_rows() + 1; }
  absl::StatusOr<Sizes> Measure();
  AttentionPrefillPlan PlanPrefill(const Shape& shape, int64_t runs,
                                   int64_t tokens) const;
  absl::Status AddDecode(const AttentionScheduleParams& of,
                         CudaStepBuffer* buffer);
  absl::Status AddWindow(const StepBatch& batch, int64_t begin, int64_t end,
                         CudaStepBuffer* buffer);
  absl::Status AddPrompts(const StepBatch& batch, size_t first, size_t last,
                          CudaStepBuffer* buffer);

  // One layer in a step.
  struct Layer {
    const AttentionOperation::Params* of;
    const Shape* shape;
    AttentionCudaCache cache;
    Activations q, k, v, gate, out;  // all rows
    WeightType out_type;
    AttentionCudaPosition position;
    int64_t angles;
    AttentionCudaNorm q_norm, k_norm;
  };
  // Rows [begin, end), and the queries of rows [first, last) of them.
  absl::Status Append(const Layer& layer, const CudaStep& step, int64_t begin,
                      int64_t end, int64_t first, int64_t last,
                      cudaStream_t stream);
  absl::Status Decode(const Layer& layer, size_t window, cudaStream_t stream);
  absl::Status Prefill(const Layer& layer, size_t launch, cudaStream_t stream);
  static AttentionCudaOutput OutputFrom(const Layer& layer, int64_t row);

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
  int64_t rows_ = 0;
  std::vector<Window> windows_;
  std::vector<Prompts> prompts_;
  int64_t scheduled_ = 0;  // bytes of prefill_schedules_ in use
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_CUDA_H_
