#ifndef RECURVE_ENGINE_MODELS_LINEAR_LINEAR_CUDA_H_
#define RECURVE_ENGINE_MODELS_LINEAR_LINEAR_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_operations.h"
#include "engine/models/linear/linear_operation.h"
#include "kernels/linear_attn/linear_attn.h"

namespace recurve {

// LinearOperation on a GPU: the launches of a layer in a step.
//
// - Tokens of TokenKind::kStep: the deferred step, if there is one for the
//   layer and chunks are used; else the scan, one update a token in float32.
// - Prompts: the chunk kernel, if there is one for the device and the layer,
//   and chunks are used; else the scan.
// - Whole prompts of a non-causal layer: under the same conditions the
//   non-causal kernel, else the scan.
//
// Both kernels take factors that a separate pass has activated, encoded and
// rounded (LaunchLinearFactors), unless the encoded factors are too wide: then
// the kernels encode. A layer's sizes alone decide which path it takes. So a
// token is always computed by the same kernel, which gives it the same bits in
// any batch and for any split of its prompt at multiples of the plan's chunk,
// where it may be split.
class CudaLinear : public CudaOperations {
 public:
  explicit CudaLinear(const CudaOperationLimits& limits) : limits_(limits) {}

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
  // Every row's tokens, for the scan. Device pointers, here and below.
  struct Rows {
    int64_t count;
    const int32_t* query_start;  // [count + 1]
    const int32_t* slots;        // [count]
    const int32_t* whole;        // [count] LinearAttentionParams, or null
  };
  // One launch of an operation.
  struct Layer {
    const LinearOperation::Params* of;
    const PositionConfig* position;
    const uint64_t* phase_steps;  // null unless angles are exact
    const float* cos;             // for the step's rows
    const float* sin;
    const float* decay;  // [num_heads]
    float* states;       // LinearAttentionParams
    float* rings;        // LinearDeferredParams, or null
    int64_t slot_stride;
    Activations q, k, v;
    Activations out;
    Activations workspace;
  };
  // One launch: consecutive runs of the step.
  struct Segment {
    Rows rows;
    const int64_t* positions;    // [rows.count] positions of the first tokens
    const int64_t* prompt_ends;  // [rows.count] StepRun
  };
  // For a non-causal layer, runs [first, first + count) of a group: either all
  // begin a prompt, or none does.
  struct Stretch {
    bool whole;
    int64_t first, count;
    int64_t begin, end;  // rows of the step
  };
  struct Group {
    bool prompt;
    bool pending;  // some ring may hold tokens that a state lacks
    Segment launch;
    std::vector<Stretch> stretches;  // for prompts
  };
  // q̃, k̃ and ṽ in bfloat16, as rows of the step.
  struct Factors {
    const uint16_t* q;
    const uint16_t* k;
    const uint16_t* v;
    int64_t stride;
  };

  absl::Status Attend(const Layer& layer, cudaStream_t stream);
  // Whether the layer computes prompts in chunks.
  bool PrefillsByChunks(const Layer& layer) const;
  // Whether the non-causal kernel supports the layer, if it does.
  static bool FusesWhole(const Layer& layer);
  // Computes the factors of rows [begin, end) of the step, encoded if `encode`.
  static absl::Status MakeFactors(const Layer& layer, bool encode,
                                  int64_t begin, int64_t end, Factors* factors,
                                  cudaStream_t stream);
  static LinearAttentionParams ScanParams(const Layer& layer, const Rows& rows);
  static absl::Status Scan(const Layer& layer, const Rows& rows, bool early,
                           cudaStream_t stream);
  static absl::Status Defer(const Layer& layer, const Segment& launch,
                            bool early, cudaStream_t stream);
  // Makes the states cover all tokens before the launch's.
  static absl::Status Fold(const Layer& layer, const Segment& launch,
                           cudaStream_t stream);
  // Rows [begin, end) of the step.
  static absl::Status Prefill(const Layer& layer, const Segment& launch,
                              int64_t begin, int64_t end, cudaStream_t stream);
  absl::Status PrefillStretches(const Layer& layer, const Group& group,
                                cudaStream_t stream) const;
  absl::Status PrefillWhole(const Layer& layer, const Segment& launch,
                            const Stretch& stretch, cudaStream_t stream) const;

  const CudaOperationLimits limits_;
  bool whole_prompts_ = false;  // some layer processes them
  CudaMemory whole_workspace_;  // LinearNoncausalParams

  // State of the step in progress.
  bool decode_ = false;
  Rows rows_ = {};
  Segment steps_ = {};  // of a decode step
  std::vector<Group> groups_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_LINEAR_LINEAR_CUDA_H_
