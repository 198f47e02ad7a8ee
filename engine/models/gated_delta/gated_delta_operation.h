#ifndef RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_OPERATION_H_
#define RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_OPERATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/program/sequence_operation.h"
#include "kernels/common/activation.h"
#include "kernels/linear_attn/gated_delta/delta_gate.h"

namespace recurve {

// Short convolution, gated delta rule and gated norm of each head
// (kernels/linear_attn/gated_delta/gated_delta.h). The last inputs of the
// convolution are part of a sequence's state.
class GatedDeltaOperation : public SequenceOperation {
 public:
  struct Params {
    int64_t key_heads = 0;
    int64_t value_heads = 0;
    int64_t head_dim = 0;
    int64_t value_dim = 0;
    int64_t conv_width = 0;
    DeltaDecay decay = DeltaDecay::kSoftplus;
    float beta_scale = 1;
    float unit_eps = 0;
    float scale = 0;
    float norm_eps = 0;
    Activation gate = Activation::kSilu;
    VectorId conv_weight;  // [channels, W]
    VectorId a_log;        // [Hv]
    VectorId dt_bias;      // [Hv]
    VectorId norm_weight;  // [Hv, E], the same for each head
    StateId state;         // [Hv, D, E]
    StateId conv_state;    // [W − 1, channels]
    Slice qkv;             // [T, channels], before the convolution
    Slice z;               // [T, Hv·E]
    Slice b, a;            // [T, Hv]
    Slice convolved;       // [T, channels], overwritten
    Slice out;             // [T, Hv·E]

    int64_t channels() const {
      return 2 * key_heads * head_dim + value_heads * value_dim;
    }
  };
  explicit GatedDeltaOperation(const Params& params) : params_(params) {}

  const Params& params() const { return params_; }

  absl::string_view name() const override { return "gated delta"; }
  std::vector<Slice> inputs() const override {
    return {params_.qkv, params_.z, params_.b, params_.a};
  }
  Slice output() const override { return params_.out; }
  Slice workspace() const override { return params_.convolved; }
  // The step kernel writes it.
  std::optional<DType> RoundedOutput(bool decode,
                                     DType /*pages*/) const override {
    if (!decode) return std::nullopt;
    return DType::kBFloat16;
  }
  // The GPU computes prompts by chunks at multiples of the position. What these
  // round would be visible in models with finer weights, which take their
  // prompts token by token.
  int64_t ChunkMultiple(const Device& device,
                        std::optional<DType> matrices) const override;
  void Run(const CpuStep& step) const override;
#ifdef RECURVE_HAVE_CUDA
  std::unique_ptr<CudaOperations> MakeCudaOperations(
      const CudaOperationLimits& limits) const override;
#endif

 private:
  const Params params_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_GATED_DELTA_GATED_DELTA_OPERATION_H_
