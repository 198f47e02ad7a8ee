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

// The matrices of a CudaBackend and what is multiplied by them: which kernel,
// for which rows, what is rounded and when, and which norm or gate a product
// takes on its way.
//
//  - float32 weights: cuBLASLt, every row.
//  - 16-bit weights and rows of TokenKind::kStep, on Hopper those of short
//    prompts, too: LaunchDecodeMatmul. ("Steps" below.)
//  - 16-bit weights and other rows of prompts: cuBLASLt with activations
//    rounded; but on Hopper a channel mixer's first product, if its gate is
//    one that LaunchDecodeMatmul is faster at, is that for every row, in one
//    launch.
// Each has one order of sums for every number of rows, and a row is of one kind
// whenever it is computed.
//
// Activations that only products read (Activations::for_products) hold values
// of the weights' type, not floats, if whoever writes them can (RoundsInto,
// SetRounded); a norm that the next product takes on its way is not launched at
// all. Both are kept by address from BeginStep on.
//
// Of a step of few rows, a product that adds to the residual is put off until
// what follows is known: with the channel mixer behind it, and the projection
// of the next layer, it is one launch (LaunchProductChain). Who reads or writes
// activations otherwise calls Flush() before.
//
// Not thread-safe; one stream.
class CudaProducts {
 public:
  // A Backend::NormArgs with its weights on the device, null for none.
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

  // The rows of `parts` one after the other, held as `type`.
  absl::StatusOr<MatrixId> Load(absl::Span<const MatrixPart> parts,
                                WeightType type, CudaWeightLoader* loader);
  // Bytes of matrices so far.
  uint64_t bytes() const { return bytes_; }
  // That of all matrices, or "mixed".
  absl::string_view weight_dtype() const;
  // Its memory on the device.
  absl::Span<const char> data(MatrixId id) const {
    const CudaMemory& memory = matrices_[id.value].memory;
    return {memory.as<const char>(), static_cast<size_t>(memory.bytes())};
  }
  // Of those that Project and ChannelMixer begin with: the matrix that came
  // after `id` when it last was multiplied; -1 before the first step.
  MatrixId after(MatrixId id) const { return matrices_[id.value].after; }
  int64_t outputs(MatrixId id) const { return matrices_[id.value].outputs; }
  // With what is added so that rows are aligned.
  int64_t max_inputs() const;

  // Once all matrices are there: chooses cuBLASLt's algorithms, for outputs
  // that begin `column_multiple` columns apart and at most `row_capacity` rows.
  // Waits.
  absl::Status Tune(int64_t row_capacity, int64_t column_multiple);
  // Memory for the rows of a step.
  absl::Status Allocate(int64_t row_capacity);

  // --- A step ---

  // Launches what has been put off.
  absl::Status Flush();

  // Every row is of TokenKind::kStep.
  void BeginDecode(int64_t rows);
  void BeginMixed(const StepBatch& batch);

  absl::Status Norm(Activations in, const NormWeights& norm, Activations out);
  absl::Status Glu(Activations in, Activation activation, Activations out);
  absl::Status Project(Activations in, MatrixId matrix, Activations out,
                       bool add);
  // Whether ChannelMixer below is for the step; else it is the operations one
  // by one. Rows of steps have the same bits either way, and those of other
  // prompts the way that matrices and activation decide.
  bool FusesChannelMixer(const Backend::ChannelMixerArgs& args) const;
  absl::Status ChannelMixer(const Backend::ChannelMixerArgs& args,
                            const NormWeights& norm);
  // The product of the head with norm(in): `rows` rows of `in`, all in order or
  // those of `index` (on the device). `normed`: room for them in float32, 4
  // columns at most behind each. Rows of `logits` are `logits_stride` apart.
  absl::Status Logits(Activations in, const int32_t* index, int64_t rows,
                      const NormWeights& norm, MatrixId head, float* normed,
                      float* logits, int64_t logits_stride);

  // The type that who writes `out` is to round to, rows as far apart as those
  // of floats; absent: float32.
  std::optional<WeightType> RoundsInto(const Activations& out) const;
  // Of the attention that was launched last.
  void SetWorking(const WorkingBlocks& working) { working_ = working; }
  // What was written to `out` is of that type, or float32.
  void SetRounded(const Activations& out, bool rounded);

 private:
  struct Matrix {
    WeightType type;
    int64_t outputs;
    int64_t inputs;
    int64_t padded;  // elements between rows; zeros from `inputs` on
    // Rows in memory: zeros from `outputs` on, so that cuBLASLt may use kernels
    // that take multiples of 16 only.
    int64_t padded_outputs;
    CudaMemory memory;
    MatrixId after;  // of the member function
  };
  // Rows [begin, begin + count) of the step, all multiplied as steps or none.
  struct Run {
    int64_t begin;
    int64_t count;
    bool step;
  };
  // Where rows of a product come from and go to.
  struct Operands {
    const void* x;
    int64_t x_stride;
    float* y;
    int64_t y_stride;
    int64_t rows;
    int64_t cols;  // of x
    bool step;     // as Run's
    bool add;
  };
  struct FusedNorm {
    Activations in;
    NormWeights norm;
  };

  // Products put off: residual += x · outᵀ, a channel mixer on the residual,
  // and the norm of what is multiplied next.
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

  // Whether the products of the chain, and of its norm with `next`, -1: none,
  // are one launch.
  bool Chains(const Chain& chain, MatrixId next) const;
  static bool ChainsNorm(const NormWeights& norm) {
    return norm.kind == NormKind::kRms && norm.groups == 1;
  }
  ProductChainParams ChainParams(const Chain& chain, MatrixId next) const;
  absl::Status LaunchChain(const Chain& chain, MatrixId next,
                           const Activations& y);
  // `out` in float32, whatever it is for.
  absl::Status NormRows(const float* in, int64_t in_stride,
                        const NormWeights& norm, float* out, int64_t out_stride,
                        int64_t rows, int64_t cols);
  // The member functions of like names, at once.
  absl::Status NormNow(Activations in, const NormWeights& norm,
                       Activations out);
  absl::Status ProjectNow(Activations in, MatrixId matrix, Activations out,
                          bool add);
  absl::Status ChannelMixerNow(const Backend::ChannelMixerArgs& args,
                               const NormWeights& norm);

  CudaProducts(std::unique_ptr<CublasMatmul> cublas, cudaStream_t stream)
      : stream_(stream), cublas_(std::move(cublas)) {}

  bool IsRounded(const Activations& in) const;
  // Whether a product of a step of decoding takes the norm of `in` on its way.
  bool FusesNorm(const Activations& in, const NormWeights& norm) const;
  static void FuseNorm(const Activations& in, const NormWeights& norm,
                       DecodeMatmulParams* params);
  static DecodeMatmulParams ProductOf(const Matrix& matrix, float* y,
                                      int64_t y_stride, int64_t rows,
                                      int64_t cols);
  // x is float32, or of the matrix's type.
  absl::Status MultiplyFloats(const Matrix& matrix, const Operands& operands);
  absl::Status MultiplyRounded(const Matrix& matrix, const Operands& operands);
  // All rows of the step, each as its kind is; `rounded`: of the matrix's type.
  absl::Status MultiplyRuns(const Matrix& matrix, Activations in, bool rounded,
                            Activations out, bool add);
  // By LaunchDecodeMatmul, rows of any kind: float32 x is rounded on the way,
  // or before.
  absl::Status MultiplySteps(DecodeMatmulParams params, const float* x,
                             int64_t x_stride);
  absl::Status Launch(const DecodeMatmulParams& params);
  // Floats x, rounded to `type` with zeros up to `cols_to`, into rounded_rows_.
  absl::Status RoundRows(const float* x, int64_t x_stride, WeightType type,
                         int64_t rows, int64_t cols, int64_t cols_to);

  const cudaStream_t stream_;
  const std::unique_ptr<CublasMatmul> cublas_;
  // `id` is multiplied now.
  void Note(MatrixId id) {
    if (last_.value >= 0) matrices_[last_.value].after = id;
    last_ = id;
  }

  std::vector<Matrix> matrices_;
  MatrixId last_;
  uint64_t bytes_ = 0;
  // The 16-bit type of all matrices, if it is one.
  std::optional<WeightType> type_;
  CudaMemory rounded_rows_;  // rows rounded to the type of the weights
  // Of LaunchProductChain, if this is its one user in the process. Others
  // launch the products one by one.
  CudaMemory exchange_;
  inline static std::atomic_flag chain_user_;

  // Of the step in progress.
  bool decode_ = false;
  int64_t rows_ = 0;
  std::vector<Run> runs_;
  std::set<const char*> rounded_;
  std::map<const char*, FusedNorm> fused_norms_;  // by where they would be
  std::optional<Chain> chain_;
  WorkingBlocks working_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_PRODUCTS_H_
