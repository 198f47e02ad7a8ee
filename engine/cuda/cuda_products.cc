#include "engine/cuda/cuda_products.h"

#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "kernels/glu/glu_cuda.h"
#include "kernels/matmul/product_chain_plan.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rows/rows_cuda.h"

namespace recurve {
namespace {

// The plan pads columns to this, which all kernels support, including
// LaunchProductChain.
constexpr int64_t kMatrixColumnMultiple = 64;
static_assert(kMatrixColumnMultiple % kDecodeMatmulInputs == 0 &&
              kMatrixColumnMultiple % kChainChunk == 0);

// Appends rows of zeros to `part`, up to `rows` in total.
MatrixPart WithZeroRows(MatrixPart part, int64_t rows) {
  if (part.rows() == rows) return part;
  if (part.row_order.empty()) {
    part.row_order.resize(part.rows());
    std::iota(part.row_order.begin(), part.row_order.end(), 0);
  }
  part.row_order.resize(rows, -1);
  return part;
}

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Whether rows can be accessed with 16-byte loads and stores.
bool AlignedFloats(const float* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
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

absl::Status CudaProducts::Load(const MatrixSource& source,
                                const Plan::Matrix& planned,
                                CudaWeightLoader* loader) {
  Matrix matrix;
  matrix.type = ToWeightType(planned.type);
  matrix.outputs = planned.outputs;
  matrix.inputs = planned.inputs;
  matrix.padded = planned.padded_inputs;
  matrix.padded_outputs = planned.padded_outputs;
  RECURVE_ASSIGN_OR_RETURN(matrix.memory,
                           CudaMemory::Allocate(CudaMemory::Kind::kDevice,
                                                planned.bytes(), "weights"));
  std::vector<MatrixPart> parts = source.parts;
  if (source.padded) {
    const auto rows =
        matrix.outputs / static_cast<int64_t>(source.parts.size());
    for (MatrixPart& part : parts) part = WithZeroRows(std::move(part), rows);
  }
  RECURVE_RETURN_IF_ERROR(
      loader->Load(parts, matrix.type, matrix.padded, matrix.memory.data()));
  matrices_.push_back(std::move(matrix));
  return absl::OkStatus();
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

int64_t CudaProducts::DeviceBytes(const Plan& plan, int64_t row_capacity) {
  const bool chains = plan.device.hopper && plan.matrix_type &&
                      *plan.matrix_type != DType::kFloat32;
  return row_capacity * plan.max_inputs() * 2 +
         (chains ? kProductChainExchangeBytes : 0);
}

absl::Status CudaProducts::Allocate(const Plan& plan, int64_t row_capacity) {
  if (plan.matrix_type && *plan.matrix_type != DType::kFloat32) {
    type_ = ToWeightType(*plan.matrix_type);
  }
  RECURVE_ASSIGN_OR_RETURN(
      rounded_rows_,
      CudaMemory::Allocate(
          CudaMemory::Kind::kDevice, row_capacity * plan.max_inputs() * 2,
          "rounded activations; lower --max-num-batched-tokens"));
  if (!type_ || !ProductChainRuns()) return absl::OkStatus();
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
// A step

void CudaProducts::BeginDecode(int64_t rows) {
  rows_ = rows;
  runs_ = {{0, rows, true}};
}

void CudaProducts::BeginMixed(const StepBatch& batch) {
  rows_ = batch.num_tokens();
  runs_.clear();
  const bool hopper = DecodeMatmulFuses();
  for (const StepRun& run : batch.runs) {
    const bool step =
        run.step() || (hopper && run.kind == TokenKind::kShortPrompt);
    if (runs_.empty() || runs_.back().step != step) {
      runs_.push_back({run.begin, 0, step});
    }
    runs_.back().count += run.count();
  }
}

void CudaProducts::FuseNorm(const Normed& in, DecodeMatmulParams* params) {
  params->x = in.in.data;
  params->x_is_float = true;
  params->x_stride = in.in.stride;
  params->norm = true;
  params->norm_weight = in.norm.weight;
  params->norm_eps = in.norm.eps;
}

absl::Status CudaProducts::NormRows(const float* in, int64_t in_stride,
                                    const Norm& norm, float* out,
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

absl::Status CudaProducts::Normalise(const Normed& in, Activations out,
                                     bool rounded) {
  const Norm& norm = in.norm;
  if (!rounded) {
    return NormRows(in.in.data, in.in.stride, norm, out.data, out.stride, rows_,
                    in.in.cols);
  }
  return CudaStatus(
      LaunchRoundedRmsNorm({ElementType::kFloat32, in.in.data, in.in.stride,
                            norm.weight, out.data, 2 * out.stride, rows_,
                            nullptr, in.in.cols, norm.groups, norm.eps},
                           *type_, stream_),
      "norm");
}

absl::Status CudaProducts::Glu(Activations in, Activation activation,
                               Activations out, bool rounded) {
  const CudaGluParams params = {ElementType::kFloat32,
                                in.data,
                                in.stride,
                                out.data,
                                rounded ? 2 * out.stride : out.stride,
                                rows_,
                                nullptr,
                                out.cols,
                                activation};
  return CudaStatus(rounded ? LaunchRoundedGlu(params, *type_, stream_)
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

absl::Status CudaProducts::Project(Activations in, bool rounded, MatrixId id,
                                   Activations out, bool add) {
  const Matrix& matrix = matrices_[id.value];
  if (matrix.type == WeightType::kFloat32) {
    return MultiplyFloats(matrix, {in.data, in.stride, out.data, out.stride,
                                   rows_, in.cols, /*step=*/false, add});
  }
  return MultiplyRuns(matrix, in, rounded, out, add);
}

absl::Status CudaProducts::ProjectNormed(const Normed& in, MatrixId matrix,
                                         Activations out, bool add) {
  DecodeMatmulParams params = ProductOf(matrices_[matrix.value], out.data,
                                        out.stride, rows_, in.in.cols);
  params.add = add;
  FuseNorm(in, &params);
  return Launch(params);
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
      const float* const x = in.data + run.begin * in.stride;
      const Operands operands = {x,
                                 rounded ? 2 * in.stride : in.stride,
                                 out.data + run.begin * out.stride,
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

// With more rows than the few-row kernel supports, 16-bit inputs are faster,
// although a separate kernel has to write them.
absl::Status CudaProducts::RunUnit(const GatedUnit& unit, bool fuses_norm) {
  const Matrix& matrix = matrices_[unit.up.value];
  const Matrix& next = matrices_[unit.down.value];
  const Activations in = unit.residual;
  const Norm& norm = unit.norm;
  DecodeMatmulParams up =
      ProductOf(matrix, unit.gated.data, unit.gated.stride, rows_, in.cols);
  up.gate = true;
  up.activation = unit.activation;
  // The input type of the next product, so that it needs no rounding. (All
  // padded columns are written, so that cuBLASLt reads zeros there.)
  up.y_is_half = next.type == matrix.type && AlignedFloats(up.y, up.y_stride);
  if (up.y_is_half) up.y_stride *= 2;
  if (fuses_norm) {
    FuseNorm({in, norm}, &up);
    RECURVE_RETURN_IF_ERROR(Launch(up));
  } else if (norm.kind == NormKind::kRms) {
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        LaunchRoundedRmsNorm({ElementType::kFloat32, in.data, in.stride,
                              norm.weight, rounded_rows_.data(), matrix.padded,
                              rows_, nullptr, in.cols, norm.groups, norm.eps},
                             matrix.type, stream_),
        "norm"));
    up.x = rounded_rows_.data();
    up.x_stride = matrix.padded;
    RECURVE_RETURN_IF_ERROR(Launch(up));
  } else {
    RECURVE_RETURN_IF_ERROR(NormRows(in.data, in.stride, norm, unit.normed.data,
                                     unit.normed.stride, rows_, in.cols));
    RECURVE_RETURN_IF_ERROR(
        MultiplySteps(up, unit.normed.data, unit.normed.stride));
  }
  return MultiplyRuns(next, unit.gated, up.y_is_half, in, /*add=*/true);
}

absl::Status CudaProducts::RunChain(const Chain& chain) {
  const Matrix& out = matrices_[chain.out.value];
  const GatedUnit& unit = chain.unit;
  const Matrix& up = matrices_[unit.up.value];
  const Matrix& down = matrices_[unit.down.value];
  ProductChainParams p = {};
  p.type = out.type;
  p.rows = rows_;
  p.width = out.outputs;
  p.x = chain.x.data;
  p.x_stride = 2 * chain.x.stride;
  p.x_cols = chain.x.cols;
  p.out = out.memory.data();
  p.out_inputs = out.padded;
  p.residual = unit.residual.data;
  p.residual_stride = unit.residual.stride;
  p.up_norm = unit.norm.weight;
  p.up_eps = unit.norm.eps;
  p.up = up.memory.data();
  p.up_inputs = up.padded;
  p.features = up.outputs / 2;
  p.activation = unit.activation;
  p.down = down.memory.data();
  p.down_cols = unit.gated.cols;
  p.down_inputs = down.padded;
  p.working = chain.working;
  p.exchange = exchange_.data();
  if (chain.next.value >= 0) {
    const Matrix& next = matrices_[chain.next.value];
    p.next_norm = chain.next_norm.weight;
    p.next_eps = chain.next_norm.eps;
    p.next = next.memory.data();
    p.next_outputs = next.outputs;
    p.next_inputs = next.padded;
    p.y = chain.y.data;
    p.y_stride = chain.y.stride;
  }
  return CudaStatus(LaunchProductChain(p, stream_), "products of a layer");
}

absl::Status CudaProducts::Logits(const Normed& in, bool fuses_norm,
                                  const int32_t* index, int64_t rows,
                                  MatrixId head, float* normed, float* logits,
                                  int64_t logits_stride) {
  const Matrix& matrix = matrices_[head.value];
  if (fuses_norm) {
    DecodeMatmulParams params =
        ProductOf(matrix, logits, logits_stride, rows, in.in.cols);
    FuseNorm(in, &params);
    return Launch(params);
  }
  const int64_t width = RoundUp(in.in.cols, 4);
  const float* from = in.in.data;
  int64_t from_stride = in.in.stride;
  if (index != nullptr) {
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        LaunchGatherRows({from, from_stride, index, WeightType::kFloat32,
                          normed, width, rows, in.in.cols, in.in.cols},
                         stream_),
        "gathering rows"));
    from = normed;
    from_stride = width;
  }
  RECURVE_RETURN_IF_ERROR(
      NormRows(from, from_stride, in.norm, normed, width, rows, in.in.cols));
  return MultiplyFloats(matrix, {normed, width, logits, logits_stride, rows,
                                 in.in.cols, /*step=*/true, /*add=*/false});
}

}  // namespace recurve
