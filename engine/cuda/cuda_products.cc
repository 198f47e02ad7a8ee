#include "engine/cuda/cuda_products.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "engine/cuda/cuda_activations.h"
#include "kernels/glu/glu_cuda.h"
#include "kernels/matmul/gated_matmul_plan.h"
#include "kernels/matmul/product_chain_plan.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rows/rows_cuda.h"

namespace recurve {
namespace {

// Granularity of the outputs of a 16-bit matrix; divides
// CudaBackend::column_multiple().
constexpr int64_t kMatrixRowMultiple = 16;
// Columns of 16-bit matrices are padded to a multiple that all kernels support,
// including LaunchProductChain.
constexpr int64_t kMatrixColumnMultiple = 64;
static_assert(kMatrixColumnMultiple % kDecodeMatmulInputs == 0 &&
              kMatrixColumnMultiple % kChainChunk == 0);

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaProducts>> CudaProducts::Create(
    cudaStream_t stream) {
  RECURVE_ASSIGN_OR_RETURN(auto cublas, CublasMatmul::Create());
  return std::unique_ptr<CudaProducts>(
      new CudaProducts(std::move(cublas), stream));
}

CudaProducts::~CudaProducts() {
  if (exchange_.bytes() > 0) chain_user_.clear();
}

// ----------------------------------------------------------------------------
// Building a model

absl::StatusOr<MatrixId> CudaProducts::Load(absl::Span<const MatrixPart> parts,
                                            WeightType type,
                                            CudaWeightLoader* loader) {
  Matrix matrix;
  matrix.type = type;
  matrix.outputs = 0;
  for (const MatrixPart& part : parts) matrix.outputs += part.rows();
  matrix.inputs = parts[0].tensor.shape.back();
  matrix.padded = RoundUp(
      matrix.inputs, type == WeightType::kFloat32 ? 4 : kMatrixColumnMultiple);
  matrix.padded_outputs = type == WeightType::kFloat32
                              ? matrix.outputs
                              : RoundUp(matrix.outputs, kMatrixRowMultiple);
  const int64_t row_bytes = matrix.padded * WeightBytes(type);
  const int64_t bytes = matrix.padded_outputs * row_bytes;
  RECURVE_ASSIGN_OR_RETURN(
      matrix.memory,
      CudaMemory::Allocate(CudaMemory::Kind::kDevice, bytes, "weights"));
  RECURVE_RETURN_IF_ERROR(
      loader->Load(parts, type, matrix.padded, matrix.memory.data()));
  bytes_ += bytes;
  matrices_.push_back(std::move(matrix));
  return MatrixId{static_cast<int32_t>(matrices_.size()) - 1};
}

absl::string_view CudaProducts::weight_dtype() const {
  std::set<WeightType> types;
  for (const Matrix& matrix : matrices_) types.insert(matrix.type);
  if (types.size() > 1) return "mixed";
  return types.empty() ? "float32" : Name(ToDType(*types.begin()));
}

int64_t CudaProducts::max_inputs() const {
  int64_t most = 0;
  for (const Matrix& matrix : matrices_) most = std::max(most, matrix.padded);
  return most;
}

absl::Status CudaProducts::Tune(int64_t row_capacity, int64_t column_multiple) {
  for (const Matrix& matrix : matrices_) {
    RECURVE_RETURN_IF_ERROR(cublas_->Tune(
        {matrix.type, matrix.memory.data(), matrix.padded_outputs,
         matrix.padded, matrix.padded, nullptr, matrix.padded, nullptr,
         RoundUp(matrix.outputs, column_multiple), 0, false},
        row_capacity, stream_));
  }
  return absl::OkStatus();
}

absl::Status CudaProducts::Allocate(int64_t row_capacity) {
  if (const WeightType type = matrices_.front().type;
      type != WeightType::kFloat32 &&
      std::all_of(matrices_.begin(), matrices_.end(),
                  [&](const Matrix& matrix) { return matrix.type == type; })) {
    type_ = type;
  }
  RECURVE_ASSIGN_OR_RETURN(
      rounded_rows_,
      CudaMemory::Allocate(
          CudaMemory::Kind::kDevice, row_capacity * max_inputs() * 2,
          "rounded activations; lower --max-num-batched-tokens"));
  if (!type_ || !DecodeMatmulFuses()) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(
      CudaMemory exchange,
      CudaMemory::Allocate(CudaMemory::Kind::kDevice,
                           kProductChainExchangeBytes, "products"));
  if (chain_user_.test_and_set()) return absl::OkStatus();
  exchange_ = std::move(exchange);
  return CudaStatus(
      cudaMemsetAsync(exchange_.data(), 0xff, exchange_.bytes(), stream_),
      "products");
}

// ----------------------------------------------------------------------------
// What is rounded, and what is left to the next product

void CudaProducts::BeginDecode(int64_t rows) {
  decode_ = true;
  rows_ = rows;
  runs_ = {{0, rows, true}};
  rounded_.clear();
  fused_norms_.clear();
  chain_.reset();
  working_ = {};
}

void CudaProducts::BeginMixed(const StepBatch& batch) {
  decode_ = false;
  rows_ = batch.num_tokens();
  runs_.clear();
  rounded_.clear();
  fused_norms_.clear();
  chain_.reset();
  const bool hopper = DecodeMatmulFuses();
  const auto is_step = [&](int64_t row) {
    if (batch.kinds.empty()) return false;
    const TokenKind kind = batch.kinds[row];
    return kind == TokenKind::kStep || (hopper && IsShortPrompt(kind));
  };
  for (int64_t row = 0; row < rows_; ++row) {
    if (row == 0 || is_step(row) != is_step(row - 1))
      runs_.push_back({row, 0, is_step(row)});
    ++runs_.back().count;
  }
}

// The columns after `out` must not be read by cuBLASLt. (Inputs that are an odd
// multiple of 32 are therefore rounded by a separate kernel.)
std::optional<WeightType> CudaProducts::RoundsInto(
    const Activations& out) const {
  if (!out.for_products || out.cols % kMatrixColumnMultiple != 0 ||
      !AlignedFloats(Floats(out), out.stride)) {
    return std::nullopt;
  }
  return type_;
}

void CudaProducts::SetRounded(const Activations& out, bool rounded) {
  // New contents: a norm deferred to the product that reads this buffer is for
  // other rows. Layers share the buffer.
  fused_norms_.erase(out.data);
  if (!rounded) {
    rounded_.erase(out.data);
  } else {
    rounded_.insert(out.data);
  }
}

bool CudaProducts::IsRounded(const Activations& in) const {
  return in.for_products && rounded_.count(in.data) > 0;
}

bool CudaProducts::FusesNorm(const Activations& in,
                             const NormWeights& norm) const {
  return decode_ && rows_ == 1 && type_ && DecodeMatmulFuses() &&
         norm.kind == NormKind::kRms && norm.groups == 1 &&
         in.cols > kNormWarpCols &&
         DecodeMatmulTakesFloats(RoundUp(in.cols, kMatrixColumnMultiple),
                                 rows_) &&
         AlignedFloats(Floats(in), in.stride);
}

void CudaProducts::FuseNorm(const Activations& in, const NormWeights& norm,
                            DecodeMatmulParams* params) {
  params->x = in.data;
  params->x_is_float = true;
  params->x_stride = in.stride;
  params->norm = true;
  params->norm_weight = norm.weight;
  params->norm_eps = norm.eps;
}

// ----------------------------------------------------------------------------
// Norms and gates before a product

absl::Status CudaProducts::NormRows(const float* in, int64_t in_stride,
                                    const NormWeights& norm, float* out,
                                    int64_t out_stride, int64_t rows,
                                    int64_t cols) {
  const cudaError_t error =
      norm.kind == NormKind::kLayer
          ? LaunchLayerNorm({in, in_stride, norm.weight, norm.bias, out,
                             out_stride, rows, cols, norm.eps},
                            stream_)
          : LaunchRmsNorm(
                {ElementType::kFloat32, in, in_stride, norm.weight, out,
                 out_stride, rows, nullptr, cols, norm.groups, norm.eps},
                stream_);
  return CudaStatus(error, "norm");
}

absl::Status CudaProducts::Norm(Activations in, const NormWeights& norm,
                                Activations out) {
  if (chain_ && chain_->mixer && !chain_->next_norm && out.for_products &&
      in.data == chain_->residual.data && ChainsNorm(norm)) {
    chain_->next_norm = {norm, out};
    return absl::OkStatus();
  }
  RECURVE_RETURN_IF_ERROR(Flush());
  return NormNow(in, norm, out);
}

absl::Status CudaProducts::NormNow(Activations in, const NormWeights& norm,
                                   Activations out) {
  fused_norms_.erase(out.data);
  if (out.for_products && FusesNorm(in, norm)) {
    fused_norms_[out.data] = {in, norm};
    return absl::OkStatus();
  }
  const std::optional<WeightType> type =
      norm.kind == NormKind::kRms ? RoundsInto(out) : std::nullopt;
  SetRounded(out, type.has_value());
  if (!type) {
    return NormRows(Floats(in), in.stride, norm, Floats(out), out.stride, rows_,
                    in.cols);
  }
  return CudaStatus(
      LaunchRoundedRmsNorm(
          {ElementType::kFloat32, Floats(in), in.stride, norm.weight, out.data,
           2 * out.stride, rows_, nullptr, in.cols, norm.groups, norm.eps},
          *type, stream_),
      "norm");
}

absl::Status CudaProducts::Glu(Activations in, Activation activation,
                               Activations out) {
  RECURVE_RETURN_IF_ERROR(Flush());
  const std::optional<WeightType> type = RoundsInto(out);
  SetRounded(out, type.has_value());
  const CudaGluParams params = {ElementType::kFloat32,
                                Floats(in),
                                in.stride,
                                out.data,
                                type ? 2 * out.stride : out.stride,
                                rows_,
                                nullptr,
                                out.cols,
                                activation};
  return CudaStatus(type ? LaunchRoundedGlu(params, *type, stream_)
                         : LaunchGlu(params, stream_),
                    "gated linear unit");
}

// ----------------------------------------------------------------------------
// Products

DecodeMatmulParams CudaProducts::ProductOf(const Matrix& matrix, float* y,
                                           int64_t y_stride, int64_t rows,
                                           int64_t cols) {
  DecodeMatmulParams params = {};
  params.type = matrix.type;
  params.w = matrix.memory.data();
  params.outputs = matrix.outputs;
  params.inputs = matrix.padded;
  params.x_cols = cols;
  params.y = y;
  params.y_stride = y_stride;
  params.rows = rows;
  return params;
}

absl::Status CudaProducts::Launch(const DecodeMatmulParams& params) {
  return CudaStatus(LaunchDecodeMatmul(params, stream_), "projection");
}

absl::Status CudaProducts::RoundRows(const float* x, int64_t x_stride,
                                     WeightType type, int64_t rows,
                                     int64_t cols, int64_t cols_to) {
  return CudaStatus(
      LaunchGatherRows({x, x_stride, nullptr, type, rounded_rows_.data(),
                        cols_to, rows, cols, cols_to},
                       stream_),
      "rounding activations");
}

absl::Status CudaProducts::MultiplySteps(DecodeMatmulParams params,
                                         const float* x, int64_t x_stride) {
  params.x_is_float = DecodeMatmulTakesFloats(params.inputs, params.rows) &&
                      AlignedFloats(x, x_stride);
  params.x = x;
  params.x_stride = x_stride;
  if (!params.x_is_float) {
    RECURVE_RETURN_IF_ERROR(RoundRows(x, x_stride, params.type, params.rows,
                                      params.x_cols, params.inputs));
    params.x = rounded_rows_.data();
    params.x_stride = params.inputs;
  }
  return Launch(params);
}

absl::Status CudaProducts::MultiplyFloats(const Matrix& matrix,
                                          const Operands& o) {
  const auto* const x = static_cast<const float*>(o.x);
  if (matrix.type == WeightType::kFloat32) {
    return cublas_->Multiply(
        {matrix.type, matrix.memory.data(), matrix.outputs, matrix.inputs,
         matrix.padded, x, o.x_stride, o.y, o.y_stride, o.rows, o.add},
        stream_);
  }
  if (o.step) {
    DecodeMatmulParams params =
        ProductOf(matrix, o.y, o.y_stride, o.rows, o.cols);
    params.add = o.add;
    return MultiplySteps(params, x, o.x_stride);
  }
  RECURVE_RETURN_IF_ERROR(
      RoundRows(x, o.x_stride, matrix.type, o.rows, o.cols, matrix.padded));
  Operands rounded = o;
  rounded.x = rounded_rows_.data();
  rounded.x_stride = matrix.padded;
  return MultiplyRounded(matrix, rounded);
}

absl::Status CudaProducts::MultiplyRounded(const Matrix& matrix,
                                           const Operands& o) {
  if (o.step) {
    DecodeMatmulParams params =
        ProductOf(matrix, o.y, o.y_stride, o.rows, o.cols);
    params.add = o.add;
    params.x = o.x;
    params.x_stride = o.x_stride;
    return Launch(params);
  }
  return cublas_->Multiply(
      {matrix.type, matrix.memory.data(), matrix.padded_outputs, matrix.padded,
       matrix.padded, o.x, o.x_stride, o.y, o.y_stride, o.rows, o.add},
      stream_);
}

absl::Status CudaProducts::Project(Activations in, MatrixId id, Activations out,
                                   bool add) {
  if (chain_ && chain_->next_norm && !add && in.for_products &&
      in.data == chain_->next_norm->out.data && Chains(*chain_, id)) {
    const Chain chain = *chain_;
    chain_.reset();
    RECURVE_RETURN_IF_ERROR(LaunchChain(chain, id, out));
    // In case another product fuses the norm, too.
    fused_norms_[in.data] = {chain.residual, chain.next_norm->norm};
    return absl::OkStatus();
  }
  RECURVE_RETURN_IF_ERROR(Flush());
  if (add && decode_ && rows_ <= kProductChainMaxRows &&
      exchange_.bytes() > 0 && IsRounded(in) &&
      fused_norms_.count(in.data) == 0) {
    chain_ = Chain{id, in, out, std::nullopt, std::nullopt};
    return absl::OkStatus();
  }
  return ProjectNow(in, id, out, add);
}

absl::Status CudaProducts::ProjectNow(Activations in, MatrixId id,
                                      Activations out, bool add) {
  Note(id);
  const Matrix& matrix = matrices_[id.value];
  if (const auto fused = fused_norms_.find(in.data);
      in.for_products && fused != fused_norms_.end()) {
    const FusedNorm norm = fused->second;
    if (FusesNorm(norm.in, norm.norm)) {
      DecodeMatmulParams params =
          ProductOf(matrix, Floats(out), out.stride, rows_, in.cols);
      params.add = add;
      FuseNorm(norm.in, norm.norm, &params);
      return Launch(params);
    }
    // A chain of several rows has already fused this norm. Its rows are
    // unchanged: nothing adds to the residual between two products of one norm.
    RECURVE_RETURN_IF_ERROR(NormNow(norm.in, norm.norm, in));
  }
  if (matrix.type == WeightType::kFloat32) {
    return MultiplyFloats(matrix, {in.data, in.stride, Floats(out), out.stride,
                                   rows_, in.cols, /*step=*/false, add});
  }
  return MultiplyRuns(matrix, in, IsRounded(in), out, add);
}

absl::Status CudaProducts::MultiplyRuns(const Matrix& matrix, Activations in,
                                        bool rounded, Activations out,
                                        bool add) {
  // Prompts first: the weights they read are in the L2 cache when rows of steps
  // need them, and steps' launches can begin while prompts' end.
  for (const bool step : {false, true}) {
    for (const Run& run : runs_) {
      if (run.step != step) continue;
      // The row stride in bytes is the same for rounded and float rows.
      const char* const x =
          in.data + run.begin * in.stride * static_cast<int64_t>(sizeof(float));
      const Operands operands = {x,
                                 rounded ? 2 * in.stride : in.stride,
                                 Floats(out) + run.begin * out.stride,
                                 out.stride,
                                 run.count,
                                 in.cols,
                                 run.step,
                                 add};
      RECURVE_RETURN_IF_ERROR(rounded ? MultiplyRounded(matrix, operands)
                                      : MultiplyFloats(matrix, operands));
    }
  }
  return absl::OkStatus();
}

bool CudaProducts::FusesChannelMixer(
    const Backend::ChannelMixerArgs& args) const {
  const Matrix& up = matrices_[args.w1_w2.value];
  if (up.type == WeightType::kFloat32 || !DecodeMatmulFuses()) return false;
  if (runs_.size() == 1 && runs_[0].step) return true;
  return IsGatedMatmul(up.outputs, args.activation) &&
         matrices_[args.w3.value].type == up.type;
}

absl::Status CudaProducts::ChannelMixer(const Backend::ChannelMixerArgs& args,
                                        const NormWeights& norm) {
  if (chain_ && !chain_->mixer && ChainsNorm(norm) &&
      args.residual.data == chain_->residual.data) {
    chain_->mixer = {args, norm};
    if (Chains(*chain_, MatrixId{})) return absl::OkStatus();
    chain_->mixer.reset();
  }
  RECURVE_RETURN_IF_ERROR(Flush());
  return ChannelMixerNow(args, norm);
}

// With more rows than the few-row kernel supports, 16-bit inputs are faster,
// although a separate kernel has to write them.
absl::Status CudaProducts::ChannelMixerNow(
    const Backend::ChannelMixerArgs& args, const NormWeights& norm) {
  Note(args.w1_w2);
  const Matrix& matrix = matrices_[args.w1_w2.value];
  const Matrix& next = matrices_[args.w3.value];
  const Activations in = args.residual;
  DecodeMatmulParams up = ProductOf(matrix, Floats(args.hidden),
                                    args.hidden.stride, rows_, in.cols);
  up.gate = true;
  up.activation = args.activation;
  // The input type of the next product, so that it needs no rounding. (All
  // padded columns are written, so that cuBLASLt reads zeros there.)
  up.y_is_half = next.type == matrix.type && AlignedFloats(up.y, up.y_stride);
  if (up.y_is_half) up.y_stride *= 2;
  if (FusesNorm(in, norm)) {
    FuseNorm(in, norm, &up);
    RECURVE_RETURN_IF_ERROR(Launch(up));
  } else if (norm.kind == NormKind::kRms) {
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        LaunchRoundedRmsNorm({ElementType::kFloat32, Floats(in), in.stride,
                              norm.weight, rounded_rows_.data(), matrix.padded,
                              rows_, nullptr, in.cols, norm.groups, norm.eps},
                             matrix.type, stream_),
        "norm"));
    up.x = rounded_rows_.data();
    up.x_stride = matrix.padded;
    RECURVE_RETURN_IF_ERROR(Launch(up));
  } else {
    RECURVE_RETURN_IF_ERROR(NormRows(Floats(in), in.stride, norm,
                                     Floats(args.normed), args.normed.stride,
                                     rows_, in.cols));
    RECURVE_RETURN_IF_ERROR(
        MultiplySteps(up, Floats(args.normed), args.normed.stride));
  }
  return MultiplyRuns(next, args.hidden, up.y_is_half, in, /*add=*/true);
}

absl::Status CudaProducts::Logits(Activations in, const int32_t* index,
                                  int64_t rows, const NormWeights& norm,
                                  MatrixId head, float* normed, float* logits,
                                  int64_t logits_stride) {
  RECURVE_RETURN_IF_ERROR(Flush());
  const Matrix& matrix = matrices_[head.value];
  if (index == nullptr && FusesNorm(in, norm)) {
    DecodeMatmulParams params =
        ProductOf(matrix, logits, logits_stride, rows, in.cols);
    FuseNorm(in, norm, &params);
    return Launch(params);
  }
  const int64_t width = RoundUp(in.cols, 4);
  const float* from = Floats(in);
  int64_t from_stride = in.stride;
  if (index != nullptr) {
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        LaunchGatherRows({Floats(in), in.stride, index, WeightType::kFloat32,
                          normed, width, rows, in.cols, in.cols},
                         stream_),
        "gathering rows"));
    from = normed;
    from_stride = width;
  }
  RECURVE_RETURN_IF_ERROR(
      NormRows(from, from_stride, norm, normed, width, rows, in.cols));
  return MultiplyFloats(matrix, {normed, width, logits, logits_stride, rows,
                                 in.cols, /*step=*/true, /*add=*/false});
}

}  // namespace recurve
