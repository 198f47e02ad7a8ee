#ifndef RECURVE_ENGINE_MODELS_TPA_TPA_OPERATION_H_
#define RECURVE_ENGINE_MODELS_TPA_TPA_OPERATION_H_

#include <memory>
#include <optional>
#include <vector>

#include "engine/program/sequence_operation.h"
#include "kernels/common/activation.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// Appends the step's tokens to the factor cache and attends
// (kernels/tpa/tpa.h).
class TpaOperation : public SequenceOperation {
 public:
  struct Params {
    TpaShape shape;
    Activation factor_activation = Activation::kNone;  // for a_k and a_v
    PositionId position;
    PagesId pages;
    Slice a_q, b_q, a_k, b_k, a_v, b_v;  // of one value
    Slice out;                           // [T, H·E]
  };
  explicit TpaOperation(const Params& params) : params_(params) {}

  const Params& params() const { return params_; }

  absl::string_view name() const override { return "tpa"; }
  std::vector<Slice> inputs() const override {
    return {params_.a_q, params_.b_q, params_.a_k,
            params_.b_k, params_.a_v, params_.b_v};
  }
  Slice output() const override { return params_.out; }
  // The decode kernel writes the pages' type or float32, the prefill kernel
  // bfloat16 or float32.
  std::optional<DType> RoundedOutput(bool decode, DType pages) const override {
    return decode ? pages : DType::kBFloat16;
  }
  bool Prefetches() const override { return true; }
  void Run(const CpuStep& step) const override;
#ifdef RECURVE_HAVE_CUDA
  std::unique_ptr<CudaOperations> MakeCudaOperations(
      const CudaOperationLimits& limits) const override;
#endif

 private:
  const Params params_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_TPA_TPA_OPERATION_H_
