#ifndef RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_OPERATION_H_
#define RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_OPERATION_H_

#include <memory>
#include <optional>
#include <vector>

#include "engine/program/sequence_operation.h"
#include "kernels/attention/attention_layout.h"

namespace recurve {

// Appends the step's keys and values to the cache and attends
// (kernels/attention/attention.h).
class AttentionOperation : public SequenceOperation {
 public:
  struct Params {
    AttentionShape shape = {};
    float scale = 0;
    PositionId position;
    PagesId pages;
    VectorId q_norm, k_norm;  // [D] of each head, or none
    float norm_eps = 0;
    Slice q, k, v;
    Slice gate;  // [T, H·E], or no value
    Slice out;   // [T, H·E]
  };
  explicit AttentionOperation(const Params& params) : params_(params) {}

  const Params& params() const { return params_; }

  absl::string_view name() const override { return "attention"; }
  std::vector<Slice> inputs() const override {
    std::vector<Slice> inputs = {params_.q, params_.k, params_.v};
    if (gated()) inputs.push_back(params_.gate);
    return inputs;
  }
  Slice output() const override { return params_.out; }
  // The kernels write every type; those for prompts the pages'.
  std::optional<DType> RoundedOutput(bool /*decode*/,
                                     DType pages) const override {
    if (pages == DType::kFloat32) return std::nullopt;
    return pages;
  }
  bool gated() const { return params_.gate.value.value >= 0; }
  void Run(const CpuStep& step) const override;
#ifdef RECURVE_HAVE_CUDA
  std::unique_ptr<CudaOperations> MakeCudaOperations(
      const CudaOperationLimits& limits) const override;
#endif

 private:
  const Params params_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_ATTENTION_ATTENTION_OPERATION_H_
