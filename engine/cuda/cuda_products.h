#ifndef RECURVE_ENGINE_CUDA_CUDA_PRODUCTS_H_
#define RECURVE_ENGINE_CUDA_CUDA_PRODUCTS_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_weights.h"
#include "engine/program/activations.h"
#include "engine/program/plan.h"
#include "engine/program/program.h"
#include "engine/program/step.h"
#include "kernels/common/weight_type.h"
#include "kernels/matmul/cublas_matmul.h"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/matmul/product_chain_cuda.h"

namespace recurve {

// The matrices of a program on a GPU and their products: which kernel computes
// which rows. What is rounded and what is fused, the plan says (PlanLaunches).
//
// - float32 weights: cuBLASLt, every row.
// - 16-bit weights and rows of TokenKind::kStep, on Hopper also those of short
//   prompts: LaunchDecodeMatmul. ("Steps" below.)
// - 16-bit weights and other rows of prompts: cuBLASLt with rounded
//   activations. Exception: on Hopper, if LaunchDecodeMatmul is faster with a
//   gated unit's gate, it computes that unit's first product for every row, in
//   one launch.
// Each has one summation order for every number of rows, and a row is of one
// kind whenever it is computed.
//
// Not thread-safe; one stream.
class CudaProducts {
 public:
  // NormWeights with their vectors on the device, null if absent.
  struct Norm {
    NormKind kind;
    int64_t groups;
    float eps;
    const float* weight;
    const float* bias;
  };
  // norm(in)
  struct Normed {
    Activations in;
    Norm norm;
  };
  // residual += (act(g) ⊙ u) · downᵀ, (g, u) = norm(residual) · upᵀ
  struct GatedUnit {
    Activations residual;
    Norm norm;
    MatrixId up;
    Activation activation;
    MatrixId down;
    Activations normed;  // space for norm(residual)
    Activations gated;   // and for the inputs of `down`
  };
  // residual += x · outᵀ, with 16-bit x; the unit; and, with `next`, y =
  // norm(residual) · nextᵀ.
  struct Chain {
    MatrixId out;
    Activations x;
    GatedUnit unit;
    MatrixId next;  // -1: none
    Norm next_norm;
    Activations y;
    WorkingBlocks working;  // of the launch before it
  };

  static absl::StatusOr<std::unique_ptr<CudaProducts>> Create(
      cudaStream_t stream);
  ~CudaProducts();

  // --- Building a model ---

  // Device memory of Allocate, at most.
  static int64_t DeviceBytes(const Plan& plan, int64_t row_capacity);
  // The rows of `source`, as `planned`.
  absl::Status Load(const MatrixSource& source, const Plan::Matrix& planned,
                    CudaWeightLoader* loader);
  // Its device memory.
  absl::Span<const char> data(MatrixId id) const {
    const CudaMemory& memory = matrices_[id.value].memory;
    return {memory.as<const char>(), static_cast<size_t>(memory.bytes())};
  }
  int64_t outputs(MatrixId id) const { return matrices_[id.value].outputs; }

  // To be called after all matrices are loaded: chooses cuBLASLt's algorithms,
  // for outputs that begin `column_multiple` columns apart and at most
  // `row_capacity` rows. Waits.
  absl::Status Tune(int64_t row_capacity, int64_t column_multiple);
  // Memory for the rows of a step.
  absl::Status Allocate(const Plan& plan, int64_t row_capacity);
  // Whether this is the one user of LaunchProductChain in the process, on a
  // device that runs it; after Allocate. Others launch the products one by one.
  bool chains() const { return exchange_.bytes() > 0; }

  // --- A step ---

  // Every row is of TokenKind::kStep.
  void BeginDecode(int64_t rows);
  void BeginMixed(const StepBatch& batch);
  // Whether every row is multiplied as those of steps.
  bool all_steps() const { return runs_.size() == 1 && runs_[0].step; }

  // `rounded`: `out` gets 16-bit values of the matrices' type, with the row
  // stride of floats.
  absl::Status Normalise(const Normed& in, Activations out, bool rounded);
  absl::Status Glu(Activations in, Activation activation, Activations out,
                   bool rounded);
  // `rounded`: `in` has such values.
  absl::Status Project(Activations in, bool rounded, MatrixId matrix,
                       Activations out, bool add);
  // The same of norm(in), for one row of a decode step.
  absl::Status ProjectNormed(const Normed& in, MatrixId matrix, Activations out,
                             bool add);
  // `fuses_norm`: as ProjectNormed.
  absl::Status RunUnit(const GatedUnit& unit, bool fuses_norm);
  absl::Status RunChain(const Chain& chain);
  // The product of the head with norm(in): `rows` rows of `in`, all in order or
  // those of `index` (on the device). `normed`: space for them in float32, each
  // with up to 4 columns of padding. Rows of `logits` are `logits_stride`
  // apart. `fuses_norm`: as ProjectNormed, with all rows in order.
  absl::Status Logits(const Normed& in, bool fuses_norm, const int32_t* index,
                      int64_t rows, MatrixId head, float* normed, float* logits,
                      int64_t logits_stride);

  // The 16-bit type of all matrices, if they share one.
  std::optional<WeightType> type() const { return type_; }

 private:
  struct Matrix {
    WeightType type;
    int64_t outputs;
    int64_t inputs;
    int64_t padded;  // elements between rows; zeros from `inputs` on
    // Rows in memory: zeros from `outputs` on, so that cuBLASLt may use kernels
    // that require multiples of 16.
    int64_t padded_outputs;
    CudaMemory memory;
  };
  // Rows [begin, begin + count) of the step, either all multiplied as steps or
  // none.
  struct Run {
    int64_t begin;
    int64_t count;
    bool step;
  };
  // Input and output rows of a product.
  struct Operands {
    const void* x;
    int64_t x_stride;
    float* y;
    int64_t y_stride;
    int64_t rows;
    int64_t cols;  // columns of x
    bool step;     // as in Run
    bool add;
  };
  // Always writes float32 to `out`.
  absl::Status NormRows(const float* in, int64_t in_stride, const Norm& norm,
                        float* out, int64_t out_stride, int64_t rows,
                        int64_t cols);

  CudaProducts(std::unique_ptr<CublasMatmul> cublas, cudaStream_t stream)
      : stream_(stream), cublas_(std::move(cublas)) {}

  static void FuseNorm(const Normed& in, DecodeMatmulParams* params);
  static DecodeMatmulParams ProductOf(const Matrix& matrix, float* y,
                                      int64_t y_stride, int64_t rows,
                                      int64_t cols);
  // x is float32, or of the matrix's type in MultiplyRounded.
  absl::Status MultiplyFloats(const Matrix& matrix, const Operands& operands);
  absl::Status MultiplyRounded(const Matrix& matrix, const Operands& operands);
  // All rows of the step, by kind; `rounded`: `in` is of the matrix's type.
  absl::Status MultiplyRuns(const Matrix& matrix, Activations in, bool rounded,
                            Activations out, bool add);
  // Uses LaunchDecodeMatmul, for rows of any kind: float32 x is rounded in the
  // kernel or before it.
  absl::Status MultiplySteps(DecodeMatmulParams params, const float* x,
                             int64_t x_stride);
  absl::Status Launch(const DecodeMatmulParams& params);
  // Rounds float x to `type`, with zeros up to `cols_to`, into rounded_rows_.
  absl::Status RoundRows(const float* x, int64_t x_stride, WeightType type,
                         int64_t rows, int64_t cols, int64_t cols_to);

  const cudaStream_t stream_;
  const std::unique_ptr<CublasMatmul> cublas_;
  std::vector<Matrix> matrices_;
  std::optional<WeightType> type_;
  CudaMemory rounded_rows_;  // rows rounded to the type of the weights
  // Workspace of LaunchProductChain, if this is its only user in the process.
  // Others launch the products one by one.
  CudaMemory exchange_;
  inline static std::atomic_flag chain_user_;

  // State of the step in progress.
  int64_t rows_ = 0;
  std::vector<Run> runs_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_PRODUCTS_H_
