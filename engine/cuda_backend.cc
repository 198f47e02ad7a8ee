#include "engine/cuda_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/glu/glu_cuda.h"
#include "kernels/linear_attn/linear_scan_cuda.h"
#include "kernels/lrpe/lrpe_table_cuda.h"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/sampling/greedy_cuda.h"
#include "kernels/tpa/expand_factors_cuda.h"

namespace recurve {
namespace {

constexpr auto kDevice = CudaMemory::Kind::kDevice;
constexpr auto kHost = CudaMemory::Kind::kHost;

// Prompt tokens attend by rows of so many, so many rows a launch: what the
// decode kernel takes at most, and a bound on its partial results.
constexpr int64_t kPieceTokens = 8;
constexpr int64_t kPieceRows = 32;
constexpr int64_t kMaxRows = 65535;        // of a launch
constexpr int64_t kLogitBytes = 64 << 20;  // of logits on the device, about

float* Floats(const Activations& a) { return reinterpret_cast<float*>(a.data); }

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

absl::Status Unsupported(size_t layer, absl::string_view field, int64_t value,
                         absl::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the GPU does not support layer ", layer, ": ", field, " is ", value,
      "; expected ", limit, " (--device cpu runs it)"));
}

absl::Status CheckTpa(size_t layer, const TpaConfig& config) {
  const TpaShape& s = config.shape;
  const auto within = [&](absl::string_view field, int64_t value, int64_t low,
                          int64_t high, int64_t step) -> absl::Status {
    if (value >= low && value <= high && value % step == 0)
      return absl::OkStatus();
    return Unsupported(
        layer, field, value,
        absl::StrCat(low, " to ", high,
                     step > 1 ? absl::StrCat(" in steps of ", step) : ""));
  };
  RECURVE_RETURN_IF_ERROR(within("num_heads", s.num_heads, 1, 128, 1));
  RECURVE_RETURN_IF_ERROR(within("head_dim", s.head_dim, 8, 256, 8));
  RECURVE_RETURN_IF_ERROR(within("value_dim", s.value_dim, 8, 256, 8));
  RECURVE_RETURN_IF_ERROR(within("q_rank", s.q_rank, 0, 32, 1));
  RECURVE_RETURN_IF_ERROR(within("kv_rank", s.kv_rank, 1, 4, 1));
  if (config.factor_activation == Activation::kSoftmax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the GPU does not support layer ", layer,
        ": softmax over factors; expected a pointwise activation (--device "
        "cpu runs it)"));
  }
  return absl::OkStatus();
}

absl::Status CheckLinear(size_t layer, const LinearConfig& config) {
  const int64_t key_dim = LrpeOutputDim(config.position.type, config.head_dim);
  if (key_dim > kLinearScanMaxKeyDim) {
    return Unsupported(layer, "encoded head_dim", key_dim,
                       absl::StrCat("at most ", kLinearScanMaxKeyDim));
  }
  if (config.value_dim > kLinearScanMaxValueDim) {
    return Unsupported(layer, "value_dim", config.value_dim,
                       absl::StrCat("at most ", kLinearScanMaxValueDim));
  }
  if (config.output_gate && *config.output_gate == Activation::kSoftmax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the GPU does not support layer ", layer,
        ": a softmax output gate; expected a pointwise one (--device cpu runs "
        "it)"));
  }
  return absl::OkStatus();
}

bool AlignedFloats(const float* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
}

}  // namespace

absl::StatusOr<CudaDevice> FindCudaDevice() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count);
      error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    return absl::UnavailableError(absl::StrCat(
        "no usable GPU: ",
        error == cudaSuccess ? "there is none" : cudaGetErrorString(error),
        error == cudaErrorInsufficientDriver ? " (no driver, or one too old)"
                                             : ""));
  }
  int id = 0;
  cudaDeviceProp properties;
  RECURVE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&id), "device"));
  RECURVE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, id), "device"));
  CudaDevice device;
  device.name = properties.name;
  if (properties.major < 8) {
    return absl::UnavailableError(absl::StrCat(
        "no usable GPU: ", device.name, " has compute capability ",
        properties.major, ".", properties.minor, "; 8.0 or higher is needed"));
  }
  size_t free = 0;
  size_t total = 0;
  if (const cudaError_t error = cudaMemGetInfo(&free, &total);
      error != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::UnavailableError(
        absl::StrCat("no usable GPU: ", cudaGetErrorString(error)));
  }
  device.free_bytes = static_cast<int64_t>(free);
  device.total_bytes = static_cast<int64_t>(total);
  return device;
}

absl::Status CudaBackend::CheckModel(const ModelDefinition& model) {
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (const auto* tpa = std::get_if<TpaLayer>(&model.layers[i].mixer)) {
      RECURVE_RETURN_IF_ERROR(CheckTpa(i, tpa->config));
    } else {
      RECURVE_RETURN_IF_ERROR(
          CheckLinear(i, std::get<LinearLayer>(model.layers[i].mixer).config));
    }
  }
  if (model.channel_activation == Activation::kSoftmax) {
    return absl::InvalidArgumentError(
        "the GPU does not support a softmax in the gated linear unit; expected "
        "a pointwise activation (--device cpu runs it)");
  }
  if (model.tpe &&
      model.hidden_size / model.tpe->num_heads > kLinearScanMaxValueDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("the GPU does not support the token position encoding: ",
                     model.hidden_size / model.tpe->num_heads,
                     " features a head; expected at most ",
                     kLinearScanMaxValueDim, " (--device cpu runs it)"));
  }
  return absl::OkStatus();
}

// ----------------------------------------------------------------------------
// Building a model

CudaBackend::CudaBackend(const Options& options)
    : options_(options), pool_(options.num_threads) {}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(
    const Options& options) {
  if (options.max_tokens > kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-num-batched-tokens is ", options.max_tokens,
                     "; the GPU supports at most ", kMaxRows));
  }
  if (options.max_sequences > kTpaMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-num-seqs is ", options.max_sequences,
                     "; the GPU supports at most ", kTpaMaxRows));
  }
  auto backend = std::unique_ptr<CudaBackend>(new CudaBackend(options));
  RECURVE_RETURN_IF_ERROR(backend->Init());
  return backend;
}

absl::Status CudaBackend::Init() {
  RECURVE_RETURN_IF_ERROR(FindCudaDevice().status());
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
  RECURVE_RETURN_IF_ERROR(CudaStatus(GetTpaDevice(&tpa_device_), "device"));
  RECURVE_ASSIGN_OR_RETURN(loader_, CudaWeightLoader::Create(&pool_, stream_));
  RECURVE_ASSIGN_OR_RETURN(cublas_, CublasMatmul::Create());
  row_capacity_ =
      std::max(options_.max_tokens, BucketOf(options_.max_sequences));
  piece_capacity_ = options_.max_tokens + kPieceTokens * options_.max_sequences;
  return absl::OkStatus();
}

CudaBackend::~CudaBackend() {
  if (stream_ == nullptr) return;
  (void)cudaStreamSynchronize(stream_);
  for (auto& [bucket, graph] : graphs_) {
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
  loader_.reset();
  cudaStreamDestroy(stream_);
}

void CudaBackend::Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Check(CudaStatus(error, what));
}
void CudaBackend::Check(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

int64_t CudaBackend::BucketOf(int64_t sequences) const {
  int64_t bucket = 1;
  while (bucket < sequences) bucket *= 2;
  return bucket;
}

WeightType CudaBackend::StorageFor(absl::Span<const MatrixPart> parts) const {
  const auto all = [&](DType dtype) {
    return std::all_of(parts.begin(), parts.end(), [&](const MatrixPart& part) {
      return part.tensor.dtype == dtype;
    });
  };
  const auto chosen = [&](DType dtype) {
    return options_.weight_dtype ? *options_.weight_dtype == dtype : all(dtype);
  };
  if (chosen(DType::kBFloat16)) return WeightType::kBFloat16;
  if (chosen(DType::kFloat16)) return WeightType::kFloat16;
  return WeightType::kFloat32;
}

absl::string_view CudaBackend::weight_dtype() const {
  std::set<WeightType> types;
  for (const Matrix& matrix : matrices_) types.insert(matrix.type);
  if (types.size() > 1) return "mixed";
  return types.empty() ? "float32" : Name(ToDType(*types.begin()));
}

absl::StatusOr<MatrixId> CudaBackend::LoadMatrix(
    absl::Span<const MatrixPart> parts) {
  Matrix matrix;
  matrix.type = StorageFor(parts);
  matrix.outputs = 0;
  for (const MatrixPart& part : parts) matrix.outputs += part.rows();
  matrix.inputs = parts[0].tensor.shape.back();
  matrix.padded =
      RoundUp(matrix.inputs,
              matrix.type == WeightType::kFloat32 ? 4 : kDecodeMatmulInputs);
  const int64_t bytes =
      matrix.outputs * matrix.padded * WeightBytes(matrix.type);
  RECURVE_ASSIGN_OR_RETURN(matrix.memory,
                           CudaMemory::Allocate(kDevice, bytes, "weights"));
  RECURVE_RETURN_IF_ERROR(
      loader_->Load(parts, matrix.type, matrix.padded, matrix.memory.data()));
  weight_bytes_ += bytes;
  matrices_.push_back(std::move(matrix));
  return MatrixId{static_cast<int32_t>(matrices_.size()) - 1};
}

absl::StatusOr<VectorId> CudaBackend::LoadVector(
    absl::Span<const float> values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  RECURVE_ASSIGN_OR_RETURN(CudaMemory memory,
                           CudaMemory::Allocate(kDevice, bytes, "weights"));
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(memory.data(), values.data(), bytes, cudaMemcpyHostToDevice),
      "copying weights"));
  weight_bytes_ += bytes;
  vectors_.push_back(std::move(memory));
  return VectorId{static_cast<int32_t>(vectors_.size()) - 1};
}

absl::StatusOr<TableId> CudaBackend::LoadEmbedding(const TensorView& table) {
  Table copy;
  copy.type = StorageFor({table});
  copy.vocab = table.shape[0];
  copy.cols = table.shape[1];
  const int64_t bytes = copy.vocab * copy.cols * WeightBytes(copy.type);
  RECURVE_ASSIGN_OR_RETURN(copy.memory,
                           CudaMemory::Allocate(kDevice, bytes, "weights"));
  RECURVE_RETURN_IF_ERROR(
      loader_->Load({table}, copy.type, copy.cols, copy.memory.data()));
  weight_bytes_ += bytes;
  tables_.push_back(std::move(copy));
  return TableId{static_cast<int32_t>(tables_.size()) - 1};
}

absl::StatusOr<PositionId> CudaBackend::LoadPosition(
    const PositionConfig& config) {
  for (size_t i = 0; i < positions_.size(); ++i) {
    if (positions_[i].config == config) {
      return PositionId{static_cast<int32_t>(i)};
    }
  }
  Position position;
  position.config = config;
  position.angles = static_cast<int64_t>(config.theta.size());
  const auto copy = [](const auto& values, CudaMemory* memory) -> absl::Status {
    const auto bytes =
        static_cast<int64_t>(values.size() * sizeof(values.front()));
    RECURVE_ASSIGN_OR_RETURN(
        *memory, CudaMemory::Allocate(kDevice, bytes, "position angles"));
    return CudaStatus(cudaMemcpy(memory->data(), values.data(), bytes,
                                 cudaMemcpyHostToDevice),
                      "copying position angles");
  };
  if (position.angles > 0) {
    if (config.float32_angles) {
      const std::vector<float> theta(config.theta.begin(), config.theta.end());
      RECURVE_RETURN_IF_ERROR(copy(theta, &position.theta));
    } else {
      RECURVE_RETURN_IF_ERROR(
          copy(LrpePhaseSteps(config.theta), &position.phase_steps));
    }
  }
  const int64_t bytes = (row_capacity_ + piece_capacity_) * position.angles *
                        static_cast<int64_t>(sizeof(float));
  for (CudaMemory* table : {&position.cos, &position.sin}) {
    RECURVE_ASSIGN_OR_RETURN(
        *table, CudaMemory::Allocate(kDevice, bytes, "position tables"));
  }
  positions_.push_back(std::move(position));
  return PositionId{static_cast<int32_t>(positions_.size()) - 1};
}

TpaCacheId CudaBackend::AddTpaCache(const TpaShape& shape) {
  const auto same = [&](const TpaPlans& plans) {
    const TpaShape& s = plans.shape;
    return s.num_heads == shape.num_heads && s.head_dim == shape.head_dim &&
           s.value_dim == shape.value_dim && s.q_rank == shape.q_rank &&
           s.kv_rank == shape.kv_rank;
  };
  auto plans = std::find_if(tpa_plans_.begin(), tpa_plans_.end(), same);
  if (plans == tpa_plans_.end()) {
    tpa_plans_.emplace_back();
    plans = std::prev(tpa_plans_.end());
    plans->shape = shape;
  }
  tpa_caches_.push_back(
      {static_cast<size_t>(plans - tpa_plans_.begin()), page_elements_});
  // Every layer's part of a page begins at a multiple of 256 bytes.
  page_elements_ +=
      RoundUp(TpaPageLayout(shape, TpaPageOrder::kOctets).page_elements, 128);
  return {static_cast<int32_t>(tpa_caches_.size()) - 1};
}

StateId CudaBackend::AddState(int64_t num_heads, int64_t key_dim,
                              int64_t value_dim) {
  states_.push_back({slot_elements_});
  slot_elements_ += RoundUp(num_heads * key_dim * value_dim, 64);
  return {static_cast<int32_t>(states_.size()) - 1};
}

absl::StatusOr<Activations> CudaBackend::AllocateActivations(int64_t cols) {
  const int64_t stride = RoundUp(cols, 64);
  RECURVE_ASSIGN_OR_RETURN(
      CudaMemory memory,
      CudaMemory::Allocate(
          kDevice, row_capacity_ * stride * static_cast<int64_t>(sizeof(float)),
          "activations"));
  activations_.push_back(std::move(memory));
  return Activations{activations_.back().data(), cols, stride, sizeof(float)};
}

absl::Status CudaBackend::AllocateCache(int32_t num_pages, int32_t num_slots) {
  RECURVE_RETURN_IF_ERROR(loader_->Finish());
  loader_.reset();
  const auto allocate = [](CudaMemory* memory, int64_t bytes,
                           absl::string_view what) -> absl::Status {
    RECURVE_ASSIGN_OR_RETURN(*memory,
                             CudaMemory::Allocate(kDevice, bytes, what));
    return absl::OkStatus();
  };
  RECURVE_RETURN_IF_ERROR(allocate(
      &pages_, (int64_t{num_pages} + 1) * page_bytes(),
      "factor cache; lower --kv-pages, --kv-pool-bytes or --max-num-seqs"));
  RECURVE_RETURN_IF_ERROR(allocate(&slots_,
                                   (int64_t{num_slots} + 1) * slot_bytes(),
                                   "recurrent state; lower --max-num-seqs"));

  int64_t max_inputs = 0;
  int64_t max_outputs = 0;
  for (const Matrix& matrix : matrices_) {
    max_inputs = std::max(max_inputs, matrix.padded);
    max_outputs = std::max(max_outputs, matrix.outputs);
  }
  const int64_t float_bytes = sizeof(float);
  RECURVE_RETURN_IF_ERROR(
      allocate(&x16_, row_capacity_ * max_inputs * 2,
               "rounded activations; lower --max-num-batched-tokens"));
  logit_capacity_ = std::clamp(kLogitBytes / (float_bytes * max_outputs),
                               BucketOf(options_.max_sequences), row_capacity_);
  RECURVE_RETURN_IF_ERROR(allocate(
      &head_rows_, logit_capacity_ * max_inputs * float_bytes, "activations"));
  RECURVE_RETURN_IF_ERROR(allocate(
      &logits_, logit_capacity_ * RoundUp(max_outputs, 4) * float_bytes,
      "logits"));
  RECURVE_RETURN_IF_ERROR(
      allocate(&greedy_, row_capacity_ * 4, "sampled tokens"));
  RECURVE_ASSIGN_OR_RETURN(
      greedy_host_,
      CudaMemory::Allocate(kHost, row_capacity_ * 4, "sampled tokens"));

  // Partial results and gathered queries of the largest attention launches.
  int64_t scratch = 0;
  int64_t queries = 0;
  int64_t formed = 0;
  int64_t attended = 0;
  for (TpaPlans& plans : tpa_plans_) {
    const int64_t bucket = BucketOf(options_.max_sequences);
    for (const auto& [rows, tokens] :
         {std::pair(bucket, int64_t{1}), std::pair(kPieceRows, kPieceTokens)}) {
      RECURVE_ASSIGN_OR_RETURN(const TpaDecodePlan* plan,
                               Plan(plans, rows, tokens));
      const int64_t pages = std::max<int64_t>(options_.max_pages, 1);
      if (!TpaDecodeHolds(*plan, static_cast<int>(rows), pages)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the GPU does not support ", rows, " sequences of ",
            kTpaPageTokens * pages, " tokens in a step: at most ", INT32_MAX,
            " tokens together, and a few million each (lower --max-num-seqs "
            "or --max-model-len)"));
      }
      plans.schedule_bytes =
          std::max(plans.schedule_bytes,
                   TpaScheduleBytes(*plan, static_cast<int>(rows), pages));
      scratch = std::max(
          scratch, TpaDecodeScratch(plans.shape, *plan, static_cast<int>(rows),
                                    static_cast<int>(tokens),
                                    kTpaPageTokens * options_.max_pages)
                       .bytes);
    }
    const TpaShape& s = plans.shape;
    const int64_t most = std::max(kPieceRows * kPieceTokens, bucket);
    queries = std::max(
        queries, most * (s.q_rank > 0 ? s.q_rank * (s.num_heads + s.head_dim)
                                      : s.num_heads * s.head_dim));
    formed = std::max(formed, TpaQueryBytes(s, most));
    attended = std::max(attended, most * s.num_heads * s.value_dim);
  }
  for (TpaPlans& plans : tpa_plans_) {
    plans.schedules.emplace_back();
    RECURVE_RETURN_IF_ERROR(
        allocate(&plans.schedules.back(), plans.schedule_bytes, "schedules"));
  }
  RECURVE_RETURN_IF_ERROR(
      allocate(&tpa_scratch_, scratch,
               "partial results of attention; lower --max-num-seqs or "
               "--max-model-len"));
  RECURVE_RETURN_IF_ERROR(
      allocate(&queries_, queries * float_bytes, "queries"));
  RECURVE_RETURN_IF_ERROR(allocate(&tpa_queries_, formed, "queries"));
  RECURVE_RETURN_IF_ERROR(
      allocate(&attended_, attended * float_bytes, "attention"));

  // A step: numbers of each row, of each sequence with its pages, and of each
  // piece's rows with theirs; some room for alignment.
  const int64_t sequences = BucketOf(options_.max_sequences);
  const int64_t piece_rows =
      piece_capacity_ / kPieceTokens + options_.max_sequences;
  const int64_t page_bytes = 4 * std::max<int64_t>(options_.max_pages, 1);
  RECURVE_RETURN_IF_ERROR(step_.Allocate(
      32 * row_capacity_ + (64 + page_bytes) * sequences +
      16 * piece_capacity_ + (64 + page_bytes) * piece_rows + 4096));
  return CudaStatus(cudaDeviceSynchronize(), "allocating");
}

// ----------------------------------------------------------------------------
// A step

absl::Status CudaBackend::CheckBatch(const StepBatch& batch) const {
  if (batch.num_tokens() > options_.max_tokens ||
      batch.num_sequences() > options_.max_sequences ||
      batch.page_table_stride > options_.max_pages) {
    return absl::InternalError(absl::StrCat(
        "a step of ", batch.num_tokens(), " tokens, ", batch.num_sequences(),
        " sequences and ", batch.page_table_stride,
        " pages a sequence; there is room for ", options_.max_tokens, ", ",
        options_.max_sequences, " and ", options_.max_pages));
  }
  return absl::OkStatus();
}

absl::Status CudaBackend::BeginStep(const StepBatch& batch) {
  RECURVE_RETURN_IF_ERROR(status_);
  RECURVE_RETURN_IF_ERROR(CheckBatch(batch));
  batch_ = &batch;
  decode_ =
      batch.num_tokens() == batch.num_sequences() &&
      static_cast<int64_t>(batch.generated.size()) == batch.num_tokens() &&
      std::all_of(batch.generated.begin(), batch.generated.end(),
                  [](uint8_t generated) { return generated != 0; });
  graph_ = nullptr;
  replay_ = capturing_ = false;
  runs_.clear();
  pieces_.clear();
  piece_rows_ = 0;
  step_.Clear();
  if (decode_) {
    FillDecode(batch);
  } else {
    FillMixed(batch);
    if (!tpa_caches_.empty()) FillPieces(batch);
  }
  Check(step_.Copy(stream_), "copying a step");
  if (decode_ && options_.graphs) {
    graph_ = &graphs_[rows_];
    replay_ = graph_->exec != nullptr;
    capturing_ = !replay_ && graph_->warm;
    if (capturing_) {
      Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            "capturing a step");
    }
  }
  if (active()) {
    ComputeTables();
    ComputeSchedules();
  }
  return status_;
}

// One row a sequence, and padding up to the bucket.
void CudaBackend::FillDecode(const StepBatch& batch) {
  const int64_t count = batch.num_sequences();
  rows_ = sequences_ = BucketOf(count);
  page_stride_ = std::max<int64_t>(options_.max_pages, 1);
  runs_.push_back({0, rows_, true});
  int32_t* const tokens = step_.Add(rows_, &tokens_);
  int64_t* const positions = step_.Add(rows_, &row_positions_);
  int32_t* const row_sequence = step_.Add(rows_, &row_sequence_);
  int32_t* const query_start = step_.Add(rows_ + 1, &query_start_);
  int32_t* const slots = step_.Add(rows_, &slots_of_);
  int32_t* const lengths = step_.Add(rows_, &lengths_);
  int32_t* const pages = step_.Add(rows_ * page_stride_, &page_table_);
  for (int64_t i = 0; i < rows_; ++i) {
    const bool live = i < count;
    tokens[i] = live ? batch.tokens[i] : 0;
    positions[i] = live ? batch.positions[i] : -1;
    row_sequence[i] = static_cast<int32_t>(i);
    query_start[i] = static_cast<int32_t>(i);
    slots[i] = live ? batch.slots[i] : 0;
    lengths[i] = live ? static_cast<int32_t>(batch.positions[i] + 1) : 0;
    int32_t* const row = pages + i * page_stride_;
    if (live) {
      std::copy_n(batch.page_table.data() + i * batch.page_table_stride,
                  batch.page_table_stride, row);
      // What is behind is not read: a row has as many pages as tokens need.
    } else {
      row[0] = 0;
    }
  }
  query_start[rows_] = static_cast<int32_t>(rows_);
}

void CudaBackend::FillMixed(const StepBatch& batch) {
  rows_ = batch.num_tokens();
  sequences_ = batch.num_sequences();
  page_stride_ = std::max<int64_t>(batch.page_table_stride, 1);
  const auto copy = [&](const auto& values, const auto** on_device) {
    std::copy(values.begin(), values.end(),
              step_.Add(static_cast<int64_t>(values.size()), on_device));
  };
  copy(batch.tokens, &tokens_);
  copy(batch.positions, &row_positions_);
  copy(batch.row_sequence, &row_sequence_);
  copy(batch.query_start, &query_start_);
  copy(batch.slots, &slots_of_);
  copy(batch.page_table, &page_table_);
  copy(batch.logit_rows, &logit_rows_);
  const auto generated = [&](int64_t row) {
    return !batch.generated.empty() && batch.generated[row] != 0;
  };
  for (int64_t row = 0; row < rows_; ++row) {
    if (row == 0 || generated(row) != generated(row - 1)) {
      runs_.push_back({row, 0, generated(row)});
    }
    ++runs_.back().count;
  }
}

// Cuts the step's tokens into rows of attention launches: sequences with one
// token together, the tokens of others by kPieceTokens, the last of which ends
// a row.
void CudaBackend::FillPieces(const StepBatch& batch) {
  struct Row {
    int64_t sequence;
    int64_t end;    // behind its last row of the step
    int64_t count;  // rows of the step
  };
  std::vector<Row> single, several;
  for (int64_t b = 0; b < batch.num_sequences(); ++b) {
    const int64_t begin = batch.query_start[b];
    const int64_t end = batch.query_start[b + 1];
    if (end - begin == 1) single.push_back({b, end, 1});
    if (end - begin <= 1) continue;
    for (int64_t i = begin; i < end; i += kPieceTokens) {
      const int64_t count = std::min(kPieceTokens, end - i);
      several.push_back({b, i + count, count});
    }
  }
  int64_t all = 0;
  for (const auto* rows : {&single, &several}) {
    all += static_cast<int64_t>(rows->size()) *
           (rows == &single ? 1 : kPieceTokens);
  }
  int64_t* const positions = step_.Add(all, &piece_positions_);
  std::fill_n(positions, all, 0);
  const auto add = [&](absl::Span<const Row> rows, int64_t tokens) {
    TpaPiece piece = {};
    piece.rows = static_cast<int64_t>(rows.size());
    piece.tokens = tokens;
    piece.table_row = row_capacity_ + piece_rows_;
    int32_t* const index = step_.Add(piece.rows * tokens, &piece.index);
    int32_t* const lengths = step_.Add(piece.rows, &piece.lengths);
    int32_t* const pages = step_.Add(piece.rows * page_stride_, &piece.pages);
    for (int64_t r = 0; r < piece.rows; ++r) {
      const Row& row = rows[r];
      for (int64_t t = 0; t < tokens; ++t) {
        // Queries stand last in their row.
        const int64_t from = row.end - tokens + t;
        const bool exists = t >= tokens - row.count;
        index[r * tokens + t] = exists ? static_cast<int32_t>(from) : -1;
        if (exists) {
          positions[piece_rows_ + r * tokens + t] = batch.positions[from];
        }
      }
      lengths[r] = static_cast<int32_t>(batch.positions[row.end - 1] + 1);
      std::copy_n(
          batch.page_table.data() + row.sequence * batch.page_table_stride,
          batch.page_table_stride, pages + r * page_stride_);
    }
    piece_rows_ += piece.rows * tokens;
    pieces_.push_back(piece);
  };
  const auto add_all = [&](absl::Span<const Row> rows, int64_t most,
                           int64_t tokens) {
    for (size_t i = 0; i < rows.size(); i += most)
      add(rows.subspan(i, most), tokens);
  };
  add_all(single, BucketOf(options_.max_sequences), 1);
  add_all(several, kPieceRows, kPieceTokens);
}

void CudaBackend::ComputeTables() {
  for (const Position& position : positions_) {
    if (position.angles == 0) continue;
    CudaLrpeTableParams params = {};
    params.phase_steps = position.phase_steps.as<const uint64_t>();
    params.theta = position.theta.as<const float>();
    params.angles = position.angles;
    params.log_decay = position.config.log_decay;
    params.round_to_bfloat16 = position.config.bfloat16_tables;
    params.positions = row_positions_;
    params.cos = position.cos.as<float>();
    params.sin = position.sin.as<float>();
    params.rows = rows_;
    Check(LaunchLrpeTable(params, stream_), "position tables");
    if (piece_rows_ == 0) continue;
    params.positions = piece_positions_;
    params.cos += row_capacity_ * position.angles;
    params.sin += row_capacity_ * position.angles;
    params.rows = piece_rows_;
    Check(LaunchLrpeTable(params, stream_), "position tables");
  }
}

absl::StatusOr<const TpaDecodePlan*> CudaBackend::Plan(TpaPlans& plans,
                                                       int64_t rows,
                                                       int64_t tokens) {
  auto& known = tokens == 1 ? plans.decode : plans.pieces;
  auto it = known.find(rows);
  if (it == known.end()) {
    const TpaDecodePlan plan = PlanTpaDecode(
        plans.shape, TpaDecodeForm::kParallelBn, static_cast<int>(rows),
        static_cast<int>(tokens), tpa_device_);
    if (plan.blocks == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the GPU does not support attention with ", plans.shape.num_heads,
          " heads of ", plans.shape.head_dim, " and ", plans.shape.value_dim,
          ": it does not fit the ", tpa_device_.shared_memory,
          " bytes of shared memory of this one (--device cpu runs it)"));
    }
    it = known.emplace(rows, plan).first;
  }
  return &it->second;
}

void CudaBackend::LaunchSchedule(TpaPlans& plans, size_t index, int64_t rows,
                                 int64_t tokens, const int32_t* lengths,
                                 const int32_t* pages) {
  const auto plan = Plan(plans, rows, tokens);
  if (!plan.ok()) return Check(plan.status());
  const int64_t bytes =
      TpaScheduleBytes(**plan, static_cast<int>(rows), page_stride_);
  // The first is there from the start, and none ever moves: graphs hold its
  // address.
  while (plans.schedules.size() <= index) {
    auto memory =
        CudaMemory::Allocate(kDevice, plans.schedule_bytes, "schedules");
    if (!memory.ok()) return Check(memory.status());
    plans.schedules.push_back(*std::move(memory));
  }
  const CudaMemory& schedule = plans.schedules[index];
  if (schedule.bytes() < bytes) {
    return Check(absl::InternalError(absl::StrCat("a schedule of ", bytes,
                                                  " bytes; there is room for ",
                                                  schedule.bytes())));
  }
  const TpaCudaScheduleParams params = {lengths,         pages,
                                        page_stride_,    static_cast<int>(rows),
                                        schedule.data(), schedule.bytes()};
  Check(LaunchTpaSchedule(params, **plan, stream_), "schedule of attention");
}

void CudaBackend::ComputeSchedules() {
  for (TpaPlans& plans : tpa_plans_) {
    if (decode_) {
      LaunchSchedule(plans, 0, rows_, 1, lengths_, page_table_);
      continue;
    }
    for (size_t i = 0; i < pieces_.size(); ++i) {
      LaunchSchedule(plans, i + 1, pieces_[i].rows, pieces_[i].tokens,
                     pieces_[i].lengths, pieces_[i].pages);
    }
  }
}

const float* CudaBackend::Vector(VectorId id) const {
  return id.value < 0 ? nullptr : vectors_[id.value].as<const float>();
}

void CudaBackend::Embed(TableId table, float scale, Activations out) {
  if (!active()) return;
  const Table& t = tables_[table.value];
  Check(LaunchEmbed({t.type, t.memory.data(), t.vocab, tokens_, Floats(out),
                     out.stride, rows_, t.cols, scale},
                    stream_),
        "embedding");
}

void CudaBackend::Fill(VectorId values, Activations out) {
  if (!active()) return;
  Check(
      LaunchFillRows({Vector(values), Floats(out), out.stride, rows_, out.cols},
                     stream_),
      "fill");
}

void CudaBackend::NormRows(const float* in, int64_t in_stride,
                           const NormArgs& norm, float* out, int64_t out_stride,
                           int64_t rows, int64_t cols) {
  const auto eps = static_cast<float>(norm.eps);
  if (norm.kind == NormKind::kLayer) {
    Check(LaunchLayerNorm({in, in_stride, Vector(norm.weight),
                           Vector(norm.bias), out, out_stride, rows, cols, eps},
                          stream_),
          "norm");
    return;
  }
  Check(
      LaunchRmsNorm({ElementType::kFloat32, in, in_stride, Vector(norm.weight),
                     out, out_stride, rows, nullptr, cols, norm.groups, eps},
                    stream_),
      "norm");
}

void CudaBackend::Norm(Activations in, const NormArgs& norm, Activations out) {
  if (!active()) return;
  NormRows(Floats(in), in.stride, norm, Floats(out), out.stride, rows_,
           in.cols);
}

void CudaBackend::GatedNorm(const GatedNormArgs& args) {
  if (!active()) return;
  CudaGatedNormParams params = {};
  params.norm = {ElementType::kFloat32,
                 Floats(args.in),
                 args.in.stride,
                 Vector(args.norm.weight),
                 Floats(args.out),
                 args.out.stride,
                 rows_,
                 nullptr,
                 args.in.cols,
                 args.norm.groups,
                 static_cast<float>(args.norm.eps)};
  params.gate = Floats(args.gate);
  params.gate_stride = args.gate.stride;
  params.activation = args.activation;
  params.gate_after_norm = args.gate_after_norm;
  Check(LaunchGatedNorm(params, stream_), "gated norm");
}

void CudaBackend::ProjectRun(const Matrix& matrix, const float* x,
                             int64_t x_stride, float* y, int64_t y_stride,
                             int64_t rows, int64_t cols, bool generated,
                             bool add) {
  if (matrix.type == WeightType::kFloat32) {
    Check(cublas_->Multiply(
        {matrix.type, matrix.memory.data(), matrix.outputs, matrix.inputs,
         matrix.padded, x, x_stride, y, y_stride, rows, add},
        stream_));
    return;
  }
  const bool as_float =
      generated && rows <= kDecodeMatmulFloatRows && AlignedFloats(x, x_stride);
  if (!as_float) {
    Check(LaunchGatherRows({x, x_stride, nullptr, matrix.type, x16_.data(),
                            matrix.padded, rows, cols, matrix.padded},
                           stream_),
          "rounding activations");
  }
  if (generated) {
    Check(
        LaunchDecodeMatmul(
            {matrix.type, matrix.memory.data(), matrix.outputs, matrix.padded,
             as_float ? static_cast<const void*>(x) : x16_.data(), as_float,
             cols, as_float ? x_stride : matrix.padded, y, y_stride, rows, add},
            stream_),
        "projection");
  } else {
    Check(cublas_->Multiply(
        {matrix.type, matrix.memory.data(), matrix.outputs, matrix.padded,
         matrix.padded, x16_.data(), matrix.padded, y, y_stride, rows, add},
        stream_));
  }
}

void CudaBackend::Project(Activations in, MatrixId id, Activations out,
                          bool add) {
  if (!active()) return;
  const Matrix& matrix = matrices_[id.value];
  if (matrix.type == WeightType::kFloat32) {
    ProjectRun(matrix, Floats(in), in.stride, Floats(out), out.stride, rows_,
               in.cols, false, add);
    return;
  }
  for (const Run& run : runs_) {
    ProjectRun(matrix, Floats(in) + run.begin * in.stride, in.stride,
               Floats(out) + run.begin * out.stride, out.stride, run.count,
               in.cols, run.generated, add);
  }
}

void CudaBackend::Glu(Activations in, Activation activation, Activations out) {
  if (!active()) return;
  Check(LaunchGlu({ElementType::kFloat32, Floats(in), in.stride, Floats(out),
                   out.stride, rows_, nullptr, out.cols, activation},
                  stream_),
        "gated linear unit");
}

TpaElement CudaBackend::tpa_element() const {
  return options_.kv_dtype == DType::kFloat16 ? TpaElement::kFloat16
                                              : TpaElement::kBFloat16;
}

TpaCudaCache CudaBackend::CacheView(const TpaCache& cache) const {
  return {tpa_element(), pages_.as<uint16_t>() + cache.offset, page_elements_,
          page_table_, page_stride_};
}

void CudaBackend::Attend(const TpaArgs& args, TpaPlans& plans, size_t index,
                         int64_t rows, int64_t tokens, const int32_t* pages,
                         float* out, int64_t out_stride) {
  const auto plan = Plan(plans, rows, tokens);
  if (!plan.ok()) return Check(plan.status());
  TpaCudaDecodeParams params = {};
  params.shape = plans.shape;
  params.cache = CacheView(tpa_caches_[args.cache.value]);
  params.cache.page_table = pages;
  params.rows = static_cast<int>(rows);
  params.new_tokens = static_cast<int>(tokens);
  params.queries = tpa_queries_.data();
  // Tokens of other pieces may be of the same sequence.
  params.fresh_tokens = decode_ ? 1 : INT32_MAX;
  params.out = out;
  params.out_stride = out_stride;
  params.schedule = plans.schedules[index].data();
  params.scratch = tpa_scratch_.data();
  params.scratch_bytes = tpa_scratch_.bytes();
  Check(LaunchTpaDecode(params, **plan, stream_), "attention");
}

void CudaBackend::Tpa(const TpaArgs& args) {
  if (!active()) return;
  const TpaCache& cache = tpa_caches_[args.cache.value];
  TpaPlans& plans = tpa_plans_[cache.plans];
  const TpaShape& shape = plans.shape;
  const Position& position = positions_[args.position.value];
  TpaCudaAppendParams append = {};
  append.shape = shape;
  append.cache = CacheView(cache);
  append.row_sequence = row_sequence_;
  append.positions = row_positions_;
  append.rows = static_cast<int>(rows_);
  append.a_k = Floats(args.a_k);
  append.b_k = Floats(args.b_k);
  append.a_v = Floats(args.a_v);
  append.b_v = Floats(args.b_v);
  append.stride = args.a_k.stride;
  append.position = position.config.type;
  append.cos = position.cos.as<const float>();
  append.sin = position.sin.as<const float>();
  append.activation = args.factor_activation;
  if (decode_) {
    append.a_q = Floats(args.a_q);
    append.b_q = Floats(args.b_q);
    append.query_stride = args.b_q.stride;
    append.queries = tpa_queries_.data();
  }
  Check(LaunchTpaAppend(append, stream_), "appending factors");

  if (decode_) {
    Attend(args, plans, 0, rows_, 1, page_table_, Floats(args.out),
           args.out.stride);
    return;
  }
  const int64_t a_cols = shape.q_rank * shape.num_heads;
  const int64_t b_cols =
      (shape.q_rank > 0 ? shape.q_rank : shape.num_heads) * shape.head_dim;
  const int64_t width = shape.num_heads * shape.value_dim;
  const Activations gathered = {queries_.data(), a_cols + b_cols,
                                a_cols + b_cols, sizeof(float)};
  for (size_t i = 0; i < pieces_.size() && status_.ok(); ++i) {
    const TpaPiece& piece = pieces_[i];
    const int64_t rows = piece.rows * piece.tokens;
    const auto gather = [&](Activations from, Activations to) {
      Check(LaunchGatherRows(
                {Floats(from), from.stride, piece.index, WeightType::kFloat32,
                 to.data, to.stride, rows, to.cols, to.cols},
                stream_),
            "gathering queries");
    };
    const Activations a_q = gathered.Columns(0, a_cols);
    const Activations b_q = gathered.Columns(a_cols, b_cols);
    if (a_cols > 0) gather(args.a_q, a_q);
    gather(args.b_q, b_q);
    TpaCudaQueryParams form = {};
    form.shape = shape;
    form.element = tpa_element();
    form.tokens = static_cast<int>(rows);
    form.a_q = Floats(a_q);
    form.b_q = Floats(b_q);
    form.stride = b_q.stride;
    form.position = position.config.type;
    form.cos = position.cos.as<float>() + piece.table_row * position.angles;
    form.sin = position.sin.as<float>() + piece.table_row * position.angles;
    form.queries = tpa_queries_.data();
    Check(LaunchTpaQueries(form, stream_), "forming queries");
    Attend(args, plans, i + 1, piece.rows, piece.tokens, piece.pages,
           attended_.as<float>(), width);
    Check(LaunchScatterRows({attended_.as<float>(), width, piece.index,
                             Floats(args.out), args.out.stride, rows, width},
                            stream_),
          "scattering attention");
  }
}

void CudaBackend::ExpandFactors(const ExpandArgs& args) {
  if (!active()) return;
  Check(
      LaunchExpandFactors({Floats(args.a), Floats(args.b), args.a.stride,
                           Floats(args.out), args.out.stride, rows_, args.rank,
                           args.num_heads, args.b.cols / args.rank},
                          stream_),
      "expanding factors");
}

void CudaBackend::LinearAttention(const LinearAttentionArgs& args) {
  if (!active()) return;
  const Position& position = positions_[args.position.value];
  const LinearConfig& config = *args.config;
  Check(LaunchLinearScan({config.num_heads,
                          config.head_dim,
                          config.value_dim,
                          Floats(args.q),
                          Floats(args.k),
                          Floats(args.v),
                          args.q.stride,
                          args.v.stride,
                          Floats(args.out),
                          args.out.stride,
                          query_start_,
                          sequences_,
                          config.q_activation,
                          config.k_activation,
                          config.v_activation,
                          position.config.type,
                          position.cos.as<const float>(),
                          position.sin.as<const float>(),
                          Vector(args.decay),
                          slots_.as<float>() + states_[args.state.value].offset,
                          slot_elements_,
                          slots_of_},
                         stream_),
        "linear attention");
}

// ----------------------------------------------------------------------------
// Logits and samples

bool CudaBackend::NeedsHost(const SampleRequest& sample) const {
  const SamplingParams& p = *sample.params;
  return p.temperature > 0 || p.repetition_penalty != 1 ||
         p.presence_penalty != 0 || p.frequency_penalty != 0 ||
         !p.logit_bias.empty() || p.num_logprobs >= 0;
}

void CudaBackend::ComputeLogits(Activations in, const int32_t* index,
                                int64_t rows, const NormArgs& norm,
                                const Matrix& head) {
  const int64_t width = RoundUp(in.cols, 4);
  float* const normed = head_rows_.as<float>();
  if (index != nullptr) {
    Check(LaunchGatherRows({Floats(in), in.stride, index, WeightType::kFloat32,
                            normed, width, rows, in.cols, in.cols},
                           stream_),
          "gathering rows");
    NormRows(normed, width, norm, normed, width, rows, in.cols);
  } else {
    NormRows(Floats(in), in.stride, norm, normed, width, rows, in.cols);
  }
  const int64_t stride = RoundUp(head.outputs, 4);
  ProjectRun(head, normed, width, logits_.as<float>(), stride, rows, in.cols,
             /*generated=*/true, /*add=*/false);
  Check(LaunchGreedy({logits_.as<float>(), stride, rows, head.outputs,
                      greedy_.as<int32_t>()},
                     stream_),
        "sampling");
}

bool CudaBackend::AnyNeedsHost() const {
  return std::any_of(
      batch_->samples.begin(), batch_->samples.end(),
      [&](const SampleRequest& sample) { return NeedsHost(sample); });
}

void CudaBackend::ReserveHostLogits(int64_t vocab) {
  if (!batch_->wants_logits && !AnyNeedsHost()) return;
  const auto rows = static_cast<int64_t>(batch_->logit_rows.size());
  const auto row_bytes = vocab * static_cast<int64_t>(sizeof(float));
  if (rows * row_bytes <= logits_host_.bytes()) return;
  // Nothing is under way that reads the old one: a step ends with a wait.
  auto memory =
      CudaMemory::Allocate(kHost, BucketOf(rows) * row_bytes, "logits");
  if (!memory.ok()) return Check(memory.status());
  logits_host_ = *std::move(memory);
}

void CudaBackend::CopyLogits(int64_t device_row, int64_t host_row,
                             int64_t count, int64_t vocab) {
  const int64_t stride = RoundUp(vocab, 4);
  Check(cudaMemcpy2DAsync(
            logits_host_.as<float>() + host_row * vocab, vocab * sizeof(float),
            logits_.as<float>() + device_row * stride, stride * sizeof(float),
            vocab * sizeof(float), count, cudaMemcpyDeviceToHost, stream_),
        "copying logits");
}

void CudaBackend::HeadOfDecode(Activations in, const NormArgs& norm,
                               const Matrix& head) {
  if (active()) {
    ComputeLogits(in, nullptr, rows_, norm, head);
    Check(cudaMemcpyAsync(greedy_host_.data(), greedy_.data(), 4 * rows_,
                          cudaMemcpyDeviceToHost, stream_),
          "copying tokens");
  }
  if (capturing_) {
    cudaGraph_t graph = nullptr;
    // Ends the capture whatever went wrong.
    Check(cudaStreamEndCapture(stream_, &graph), "capturing a step");
    if (status_.ok()) {
      Check(cudaGraphInstantiate(&graph_->exec, graph, 0),
            "instantiating a step");
    }
    if (graph != nullptr) cudaGraphDestroy(graph);
    capturing_ = false;
  }
  if (!status_.ok()) return;
  if (graph_ != nullptr && graph_->exec != nullptr) {
    Check(cudaGraphLaunch(graph_->exec, stream_), "launching a step");
  } else if (graph_ != nullptr) {
    graph_->warm = true;
  }
  // Not before: page-locked memory is not to be had while capturing.
  ReserveHostLogits(head.outputs);
  if (!status_.ok()) return;
  // Logit i is of row logit_rows[i].
  const auto& rows = batch_->logit_rows;
  if (batch_->wants_logits) {
    for (size_t i = 0; i < rows.size(); ++i)
      CopyLogits(rows[i], static_cast<int64_t>(i), 1, head.outputs);
    return;
  }
  for (const SampleRequest& sample : batch_->samples) {
    if (NeedsHost(sample)) {
      CopyLogits(rows[sample.logit_index], sample.logit_index, 1, head.outputs);
    }
  }
}

void CudaBackend::HeadOfMixed(Activations in, const NormArgs& norm,
                              const Matrix& head) {
  const auto rows = static_cast<int64_t>(batch_->logit_rows.size());
  ReserveHostLogits(head.outputs);
  for (int64_t first = 0; first < rows && status_.ok();
       first += logit_capacity_) {
    const int64_t count = std::min(logit_capacity_, rows - first);
    ComputeLogits(in, logit_rows_ + first, count, norm, head);
    Check(cudaMemcpyAsync(greedy_host_.as<int32_t>() + first, greedy_.data(),
                          4 * count, cudaMemcpyDeviceToHost, stream_),
          "copying tokens");
    if (batch_->wants_logits) {
      CopyLogits(0, first, count, head.outputs);
      continue;
    }
    for (const SampleRequest& sample : batch_->samples) {
      const int64_t row = sample.logit_index - first;
      if (row >= 0 && row < count && NeedsHost(sample))
        CopyLogits(row, sample.logit_index, 1, head.outputs);
    }
  }
}

void CudaBackend::Head(Activations in, const NormArgs& norm, MatrixId head,
                       StepOutput* output) {
  const Matrix& matrix = matrices_[head.value];
  if (decode_) {
    HeadOfDecode(in, norm, matrix);
  } else if (status_.ok()) {
    HeadOfMixed(in, norm, matrix);
  }
  if (status_.ok()) Check(cudaStreamSynchronize(stream_), "a step");
  Sample(matrix.outputs, output);
}

void CudaBackend::Sample(int64_t vocab, StepOutput* output) {
  const auto samples = static_cast<int64_t>(batch_->samples.size());
  output->logits = {};
  if (!status_.ok()) {
    output->samples.assign(samples, status_);
    return;
  }
  if (batch_->wants_logits) {
    output->logits = absl::MakeConstSpan(
        logits_host_.as<const float>(),
        static_cast<size_t>(vocab) * batch_->logit_rows.size());
  }
  output->samples.assign(samples, absl::UnknownError("not sampled"));
  if (static_cast<int64_t>(sampling_scratch_.size()) < samples)
    sampling_scratch_.resize(samples);
  const auto host_samples = [&](int64_t i) {
    const SampleRequest& request = batch_->samples[i];
    if (!NeedsHost(request)) {
      const int64_t row = decode_ ? batch_->logit_rows[request.logit_index]
                                  : request.logit_index;
      const int32_t token = greedy_host_.as<const int32_t>()[row];
      if (token == kNonFiniteLogits) {
        output->samples[i] = absl::InternalError(
            "non-finite logits: a NaN, an infinity, or nothing but -inf");
      } else {
        SampleResult result;
        result.token = token;
        output->samples[i] = std::move(result);
      }
      return;
    }
    const auto row = absl::MakeConstSpan(
        logits_host_.as<const float>() + request.logit_index * vocab,
        static_cast<size_t>(vocab));
    output->samples[i] = SampleRow(
        {row, request.prompt, request.output, request.index, request.params},
        &sampling_scratch_[i]);
  };
  if (AnyNeedsHost()) {
    pool_.ParallelFor(samples, host_samples);
  } else {  // not worth waking anybody
    for (int64_t i = 0; i < samples; ++i) host_samples(i);
  }
}

// ----------------------------------------------------------------------------
// Memory of sequences: ordered before the next step by the stream

absl::Status CudaBackend::SetBytes(const CudaMemory& memory, int64_t number,
                                   int64_t bytes, int value) {
  if (bytes == 0) return absl::OkStatus();  // a model without such memory
  return CudaStatus(
      cudaMemsetAsync(memory.data() + number * bytes, value, bytes, stream_),
      "setting the memory of a sequence");
}

absl::Status CudaBackend::ClearPage(int32_t page) {
  return SetBytes(pages_, page, page_bytes(), 0);
}
absl::Status CudaBackend::ClearSlot(int32_t slot) {
  return SetBytes(slots_, slot, slot_bytes(), 0);
}

// Every byte 0xff is a NaN in each of the types.
absl::Status CudaBackend::PoisonPage(int32_t page) {
  return SetBytes(pages_, page, page_bytes(), 0xff);
}
absl::Status CudaBackend::PoisonSlot(int32_t slot) {
  return SetBytes(slots_, slot, slot_bytes(), 0xff);
}

absl::Status CudaBackend::FillCacheAtRandom() {
  const int64_t count = int64_t{8} << 20;
  // 16-bit values of [-1, 1), or float32 ones, whose sum of squares is sane.
  const auto fill = [&](const CudaMemory& memory, bool halves) -> absl::Status {
    if (memory.bytes() == 0) return absl::OkStatus();
    std::vector<uint32_t> words(count);
    uint64_t state = 1;
    for (uint32_t& word : words) {
      const auto next = [&] {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
      };
      if (!halves) {
        const float value = next();
        std::memcpy(&word, &value, sizeof(word));
        continue;
      }
      for (int half = 0; half < 2; ++half) {
        const uint32_t bits = options_.kv_dtype == DType::kFloat16
                                  ? FloatToFloat16(next())
                                  : FloatToBFloat16(next());
        word = half == 0 ? bits : word | bits << 16;
      }
    }
    int64_t filled = std::min(count * static_cast<int64_t>(sizeof(uint32_t)),
                              memory.bytes());
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(memory.data(), words.data(), filled, cudaMemcpyHostToDevice),
        "filling the cache"));
    while (filled < memory.bytes()) {
      const int64_t more = std::min(filled, memory.bytes() - filled);
      RECURVE_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpy(memory.data() + filled, memory.data(), more,
                                cudaMemcpyDeviceToDevice),
                     "filling the cache"));
      filled += more;
    }
    return absl::OkStatus();
  };
  RECURVE_RETURN_IF_ERROR(fill(pages_, true));
  RECURVE_RETURN_IF_ERROR(fill(slots_, false));
  return CudaStatus(cudaDeviceSynchronize(), "filling the cache");
}

}  // namespace recurve
