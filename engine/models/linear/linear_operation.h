#ifndef RECURVE_ENGINE_MODELS_LINEAR_LINEAR_OPERATION_H_
#define RECURVE_ENGINE_MODELS_LINEAR_LINEAR_OPERATION_H_

#include <memory>
#include <optional>
#include <vector>

#include "engine/program/sequence_operation.h"
#include "kernels/common/activation.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// Linear attention with a decaying state (kernels/linear_attn/linear_attn.h).
class LinearOperation : public SequenceOperation {
 public:
  struct Params {
    int64_t num_heads = 0;
    int64_t head_dim = 0;
    int64_t value_dim = 0;
    Activation q_activation = Activation::kNone;
    Activation k_activation = Activation::kNone;
    Activation v_activation = Activation::kNone;
    bool causal = true;  // LinearConfig
    LrpeType position_type = LrpeType::kNone;
    PositionId position;
    VectorId decay;  // λ per head
    StateId state;
    // LinearRingElements, where chunk_multiple is above 1; -1 for none: sizes
    // that the deferred step does not take, or a layer that is not causal.
    StateId ring;
    Slice q, k, v;
    Slice out;  // [T, H·E]
    // [T, (H·(2·LrpeOutputDim + E) + 1) / 2], or no value for D = 1: space for
    // 16-bit factors.
    Slice workspace;

    // Columns of an encoded q or k.
    int64_t key_dim() const { return LrpeOutputDim(position_type, head_dim); }
  };
  explicit LinearOperation(const Params& params) : params_(params) {}

  const Params& params() const { return params_; }

  absl::string_view name() const override { return "linear attention"; }
  std::vector<Slice> inputs() const override {
    return {params_.q, params_.k, params_.v};
  }
  Slice output() const override { return params_.out; }
  Slice workspace() const override { return params_.workspace; }
  // Hopper's chunk kernels round their operands to bfloat16, which would be
  // visible in models with finer weights; those scan, and cut anywhere.
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

#endif  // RECURVE_ENGINE_MODELS_LINEAR_LINEAR_OPERATION_H_
