#ifndef RECURVE_ENGINE_CUDA_CUDA_PRODUCTS_H_
#define RECURVE_ENGINE_CUDA_CUDA_PRODUCTS_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/cuda/cuda_memory.h"
#include "engine/cuda/cuda_weights.h"
#include "engine/models/backend.h"
#include "kernels/common/weight_type.h"
#include "kernels/matmul/cublas_matmul.h"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/matmul/product_chain_cuda.h"

namespace recurve {

// The matrices of a CudaBackend and their products: which kernel computes which
// rows, what is rounded and when, and which norm or gate is fused into a
// product.
//
// - float32 weights: cuBLASLt, every row.
// - 16-bit weights and rows of TokenKind::kStep, on Hopper also those of short
//   prompts: LaunchDecodeMatmul. ("Steps" below.)
// - 16-bit weights and other rows of prompts: cuBLASLt with rounded
//   activations. Exception: on Hopper, if LaunchDecodeMatmul is faster with a
//   channel mixer's gate, it computes that mixer's first product for every row,
//   in one launch.
// Each has one summation order for every number of rows, and a row is of one
// kind whenever it is computed.
//
// Activations that only products read (Activations::for_products) hold values
// of the weights' type, not floats, if their writer supports it (RoundsInto,
// SetRounded); a norm that is fused into the next product is not launched. Both
// are recorded by address from BeginStep on.
//
// In a step of few rows, a product that adds to the residual is deferred until
// the next operation is known: with the channel mixer after it, and the
// projection of the next layer, it is one launch (LaunchProductChain). Other
// code that reads or writes activations calls Flush() first.
//
// Not thread-safe; one stream.
class CudaProducts {
 public:
  // A Backend::NormArgs with its weights on the device, null if absent.
  struct NormWeights {
    NormKind kind;
    int64_t groups;
    float eps;
    const float* weight;
    const float* bias;
  };

  static absl::StatusOr<std::unique_ptr<CudaProducts>> Create(
      cudaStream_t stream);
  ~CudaProducts();

  // --- Building a model ---

  // Concatenates the rows of `parts`, stored as `type`.
  absl::StatusOr<MatrixId> Load(absl::Span<const MatrixPart> parts,
                                WeightType type, CudaWeightLoader* loader);
  // Bytes of matrices so far.
  uint64_t bytes() const { return bytes_; }
  // The type of all matrices, or "mixed".
  absl::string_view weight_dtype() const;
  // Its device memory.
  absl::Span<const char> data(MatrixId id) const {
    const CudaMemory& memory = matrices_[id.value].memory;
    return {memory.as<const char>(), static_cast<size_t>(memory.bytes())};
  }
  // For the first matrices of Project and ChannelMixer: the matrix that
  // followed `id` at its last product; -1 before the first step.
  MatrixId after(MatrixId id) const { return matrices_[id.value].after; }
  int64_t outputs(MatrixId id) const { return matrices_[id.value].outputs; }
  // Including the padding that aligns rows.
  int64_t max_inputs() const;

  // To be called after all matrices are loaded: chooses cuBLASLt's algorithms,
  // for outputs that begin `column_multiple` columns apart and at most
  // `row_capacity` rows. Waits.
  absl::Status Tune(int64_t row_capacity, int64_t column_multiple);
  // Memory for the rows of a step.
  absl::Status Allocate(int64_t row_capacity);

  // --- A step ---

  // Launches deferred products.
  absl::Status Flush();

  // Every row is of TokenKind::kStep.
  void BeginDecode(int64_t rows);
  void BeginMixed(const StepBatch& batch);

  absl::Status Norm(Activations in, const NormWeights& norm, Activations out);
  absl::Status Glu(Activations in, Activation activation, Activations out);
  absl::Status Project(Activations in, MatrixId matrix, Activations out,
                       bool add);
  // Whether ChannelMixer below applies to the step; otherwise its operations
  // are called one by one. Rows of steps have the same bits either way; for
  // rows of other prompts, matrices and activation decide.
  bool FusesChannelMixer(const Backend::ChannelMixerArgs& args) const;
  absl::Status ChannelMixer(const Backend::ChannelMixerArgs& args,
                            const NormWeights& norm);
  // The product of the head with norm(in): `rows` rows of `in`, all in order or
  // those of `index` (on the device). `normed`: space for them in float32, each
  // with up to 4 columns of padding. Rows of `logits` are `logits_stride`
  // apart.
  absl::Status Logits(Activations in, const int32_t* index, int64_t rows,
                      const NormWeights& norm, MatrixId head, float* normed,
                      float* logits, int64_t logits_stride);

  // The type to which the writer of `out` must round, with the row stride of
  // floats; absent: float32.
  std::optional<WeightType> RoundsInto(const Activations& out) const;
  // The blocks of the latest attention launch.
  void SetWorking(const WorkingBlocks& working) { working_ = working; }
  // Whether the values written to `out` have that type, or are float32.
  void SetRounded(const Activations& out, bool rounded);

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
    MatrixId after;  // see after()
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
  struct FusedNorm {
    Activations in;
    NormWeights norm;
  };

  // Deferred products: residual += x · outᵀ, a channel mixer on the residual,
  // and the norm before the next product.
  struct Chain {
    MatrixId out;
    Activations x, residual;
    struct Mixer {
      Backend::ChannelMixerArgs args;
      NormWeights norm;
    };
    std::optional<Mixer> mixer;
    struct NextNorm {
      NormWeights norm;
      Activations out;
    };
    std::optional<NextNorm> next_norm;
  };

  // Whether the products of the chain, and of its norm with `next` (-1: none),
  // can be one launch.
  bool Chains(const Chain& chain, MatrixId next) const;
  static bool ChainsNorm(const NormWeights& norm) {
    return norm.kind == NormKind::kRms && norm.groups == 1;
  }
  ProductChainParams ChainParams(const Chain& chain, MatrixId next) const;
  absl::Status LaunchChain(const Chain& chain, MatrixId next,
                           const Activations& y);
  // Always writes float32 to `out`.
  absl::Status NormRows(const float* in, int64_t in_stride,
                        const NormWeights& norm, float* out, int64_t out_stride,
                        int64_t rows, int64_t cols);
  // The member functions of the same name, without deferral.
  absl::Status NormNow(Activations in, const NormWeights& norm,
                       Activations out);
  absl::Status ProjectNow(Activations in, MatrixId matrix, Activations out,
                          bool add);
  absl::Status ChannelMixerNow(const Backend::ChannelMixerArgs& args,
                               const NormWeights& norm);

  CudaProducts(std::unique_ptr<CublasMatmul> cublas, cudaStream_t stream)
      : stream_(stream), cublas_(std::move(cublas)) {}

  bool IsRounded(const Activations& in) const;
  // Whether a product of a decode step can fuse the norm of `in`.
  bool FusesNorm(const Activations& in, const NormWeights& norm) const;
  static void FuseNorm(const Activations& in, const NormWeights& norm,
                       DecodeMatmulParams* params);
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
  // Records that `id` is multiplied now.
  void Note(MatrixId id) {
    if (last_.value >= 0) matrices_[last_.value].after = id;
    last_ = id;
  }

  std::vector<Matrix> matrices_;
  MatrixId last_;
  uint64_t bytes_ = 0;
  // The 16-bit type of all matrices, if they share one.
  std::optional<WeightType> type_;
  CudaMemory rounded_rows_;  // rows rounded to the type of the weights
  // Workspace of LaunchProductChain, if this is its only user in the process.
  // Others launch the products one by one.
  CudaMemory exchange_;
  inline static std::atomic_flag chain_user_;

  // State of the step in progress.
  bool decode_ = false;
  int64_t rows_ = 0;
  std::vector<Run> runs_;
  std::set<const char*> rounded_;
  std::map<const char*, FusedNorm> fused_norms_;  // by address of their output
  std::optional<Chain> chain_;
  WorkingBlocks working_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_PRODUCTS_H_
