#include "engine/cuda/cuda_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/cuda/cuda_device.h"

namespace recurve {
namespace {

constexpr auto kDevice = CudaMemory::Kind::kDevice;

constexpr int64_t kMaxRows = 65535;  // in a launch

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

// ----------------------------------------------------------------------------
// Building a model

CudaBackend::CudaBackend(const Options& options,
                         std::unique_ptr<ThreadPool> threads)
    : options_(options),
      threads_(std::move(threads)),
      row_capacity_(RowCapacity(options)) {}

absl::Status CudaBackend::CheckOptions(const Options& options) {
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
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CudaBackend::AttentionBytes(
    const Options& options, absl::Span<const TpaShape> shapes) {
  RECURVE_RETURN_IF_ERROR(CheckOptions(options));
  TpaDevice device = {};
  RECURVE_RETURN_IF_ERROR(CudaStatus(GetTpaDevice(&device), "device"));
  CudaTpa tpa(TpaOptions(options), device);
  for (const TpaShape& shape : shapes) tpa.AddShape(shape);
  int64_t bytes = 0;
  if (!tpa.empty()) {
    RECURVE_ASSIGN_OR_RETURN(bytes, tpa.DeviceBytes());
  }
  return bytes +
         CudaStepBuffer::DeviceBytes(StepBytes(options, tpa.step_bytes()));
}

int64_t CudaBackend::SamplingBytes(const Options& options) {
  const int64_t rows = BucketOf(options.max_sequences);
  return CudaSampler::DeviceBytes(options.max_sequences + 1, rows,
                                  options.vocab_size) +
         CudaLogits::DeviceBytes(rows, RowCapacity(options),
                                 options.hidden_size, options.vocab_size);
}

int64_t CudaBackend::LinearBytes() { return CudaLinear::WholeBytes(); }

int64_t CudaBackend::ActivationBytes(const Options& options, int64_t cols) {
  return RowCapacity(options) * cols * static_cast<int64_t>(sizeof(float));
}

// The sum of what FillDecode or FillMixed, BeginStep, and the functions they
// call add for each row and sequence.
int64_t CudaBackend::StepBytes(const Options& options, int64_t tpa) {
  using Buffer = CudaStepBuffer;
  const int64_t rows = RowCapacity(options);
  const int64_t sequences = BucketOf(options.max_sequences);
  const int64_t pages = std::max<int64_t>(options.max_pages, 1);
  return Buffer::Room<int32_t>(rows) +           // tokens
         Buffer::Room<int64_t>(rows) +           // positions
         Buffer::Room<int32_t>(rows) +           // row_sequence
         Buffer::Room<int32_t>(rows) +           // logit_rows
         Buffer::Room<int32_t>(rows) +           // sources
         Buffer::Room<int32_t>(sequences + 1) +  // query_start
         Buffer::Room<int32_t>(sequences) +      // slots
         Buffer::Room<int32_t>(sequences * pages) + tpa +
         CudaLinear::StepBytes(rows, sequences) +
         CudaSampler::StepBytes(sequences);
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(
    const Options& options, std::unique_ptr<ThreadPool> threads) {
  RECURVE_RETURN_IF_ERROR(CheckOptions(options));
  auto backend = std::unique_ptr<CudaBackend>(
      new CudaBackend(options, std::move(threads)));
  RECURVE_RETURN_IF_ERROR(backend->Init());
  return backend;
}

absl::Status CudaBackend::Init() {
  RECURVE_RETURN_IF_ERROR(FindCudaDevice().status());
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
  for (auto* events : {&begins_, &dones_}) {
    for (cudaEvent_t& event : *events) {
      RECURVE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "event"));
    }
  }
  RECURVE_RETURN_IF_ERROR(CudaStatus(GetTpaDevice(&device_), "device"));
  RECURVE_ASSIGN_OR_RETURN(loader_,
                           CudaWeightLoader::Create(threads_.get(), stream_));
  RECURVE_ASSIGN_OR_RETURN(products_, CudaProducts::Create(stream_));
  tpa_.emplace(TpaOptions(options_), device_);
  linear_.emplace(device_);
  return absl::OkStatus();
}

CudaBackend::~CudaBackend() {
  if (stream_ == nullptr) return;
  (void)cudaStreamSynchronize(stream_);
  for (auto& [bucket, graph] : graphs_) {
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
  loader_.reset();
  for (auto* events : {&begins_, &dones_}) {
    for (cudaEvent_t event : *events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  cudaStreamDestroy(stream_);
}

void CudaBackend::Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Check(CudaStatus(error, what));
}
void CudaBackend::Check(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

int64_t CudaBackend::BucketOf(int64_t sequences) {
  int64_t bucket = 1;
  while (bucket < sequences) bucket *= 2;
  return bucket;
}

int64_t CudaBackend::RowCapacity(const Options& options) {
  return std::max(options.max_tokens, BucketOf(options.max_sequences));
}

TpaElement CudaBackend::ElementOf(DType kv_dtype) {
  return kv_dtype == DType::kFloat16 ? TpaElement::kFloat16
                                     : TpaElement::kBFloat16;
}

CudaTpa::Options CudaBackend::TpaOptions(const Options& options) {
  return {ElementOf(options.kv_dtype), options.max_tokens,
          BucketOf(options.max_sequences), options.max_pages,
          RowCapacity(options)};
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

absl::StatusOr<MatrixId> CudaBackend::LoadMatrix(
    absl::Span<const MatrixPart> parts) {
  return products_->Load(parts, StorageFor(parts), loader_.get());
}

absl::StatusOr<VectorId> CudaBackend::LoadVector(
    absl::Span<const float> values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  RECURVE_ASSIGN_OR_RETURN(CudaMemory memory,
                           CudaMemory::Allocate(kDevice, bytes, "weights"));
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(memory.data(), values.data(), bytes, cudaMemcpyHostToDevice),
      "copying weights"));
  other_weight_bytes_ += bytes;
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
  other_weight_bytes_ += bytes;
  tables_.push_back(std::move(copy));
  return TableId{static_cast<int32_t>(tables_.size()) - 1};
}

absl::StatusOr<PositionId> CudaBackend::LoadPosition(
    const PositionConfig& config) {
  return positions_.Load(config, row_capacity_ + tpa_->piece_rows());
}

TpaCacheId CudaBackend::AddTpaCache(const TpaShape& shape) {
  tpa_caches_.push_back({tpa_->AddShape(shape), page_elements_});
  // Every layer's part of a page begins at a multiple of 256 bytes.
  page_elements_ +=
      RoundUp(TpaPageLayout(shape, TpaPageOrder::kOctets).page_elements, 128);
  return {static_cast<int32_t>(tpa_caches_.size()) - 1};
}

StateId CudaBackend::AddState(int64_t num_heads, int64_t key_dim,
                              int64_t value_dim, bool causal) {
  if (!causal) whole_prompts_ = true;
  states_.push_back({slot_elements_});
  slot_elements_ += RoundUp(num_heads * key_dim * value_dim, 64);
  return {static_cast<int32_t>(states_.size()) - 1};
}

absl::StatusOr<Activations> CudaBackend::AllocateActivations(int64_t cols) {
  const int64_t stride = RoundUp(cols, kColumns);
  RECURVE_ASSIGN_OR_RETURN(
      CudaMemory memory,
      CudaMemory::Allocate(
          kDevice, row_capacity_ * stride * static_cast<int64_t>(sizeof(float)),
          "activations; lower --max-num-batched-tokens"));
  activations_.push_back(std::move(memory));
  return Activations{activations_.back().data(), cols, stride, sizeof(float)};
}

absl::Status CudaBackend::AllocateCache(int32_t num_pages, int32_t num_slots) {
  RECURVE_RETURN_IF_ERROR(loader_->Finish());
  loader_.reset();
  RECURVE_RETURN_IF_ERROR(products_->Tune(row_capacity_, kColumns));
  RECURVE_RETURN_IF_ERROR(memory_.Allocate(
      {num_pages, num_slots, page_bytes(), slot_bytes()}, stream_));
  const absl::Status others = AllocateWorkspaces(num_slots);
  // A smaller cache would not free host memory.
  if (num_pages > 0 && CudaMemory::LacksDevice(others)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(others.message(),
                     "; or leave it more, by a smaller factor cache "
                     "(--kv-pool-bytes, --kv-pages)"));
  }
  RECURVE_RETURN_IF_ERROR(others);
  return CudaStatus(cudaDeviceSynchronize(), "allocating");
}

absl::Status CudaBackend::AllocateWorkspaces(int32_t num_slots) {
  RECURVE_RETURN_IF_ERROR(products_->Allocate(row_capacity_));
  RECURVE_RETURN_IF_ERROR(logits_.Allocate(BucketOf(options_.max_sequences),
                                           row_capacity_, options_.hidden_size,
                                           options_.vocab_size));
  RECURVE_RETURN_IF_ERROR(sampler_.Allocate(
      num_slots + 1, BucketOf(options_.max_sequences), options_.vocab_size));

  if (!tpa_->empty()) RECURVE_RETURN_IF_ERROR(tpa_->Allocate());
  if (CudaLinear::ChunkMultiple(device_.hopper, !states_.empty(),
                                weight_dtype() == "bfloat16") > 1) {
    RECURVE_RETURN_IF_ERROR(linear_->UseChunks(whole_prompts_));
  }

  return step_.Allocate(StepBytes(options_, tpa_->step_bytes()));
}

absl::Status CudaBackend::AllocateHost(int32_t num_blocks,
                                       int64_t block_bytes) {
  RECURVE_CHECK(block_bytes == HostBlockBytes(memory_.spec()));
  return memory_.AllocateHost(num_blocks);
}

// ----------------------------------------------------------------------------
// Memory of sequences: ordered before the next step by the stream

absl::Status CudaBackend::ClearPage(int32_t page) {
  return memory_.SetPage(page, 0);
}
absl::Status CudaBackend::ClearSlot(int32_t slot) {
  return memory_.SetSlot(slot, 0);
}
// 0xff in every byte is a NaN in each of the types.
absl::Status CudaBackend::PoisonPage(int32_t page) {
  return memory_.SetPage(page, 0xff);
}
absl::Status CudaBackend::PoisonSlot(int32_t slot) {
  return memory_.SetSlot(slot, 0xff);
}
absl::Status CudaBackend::Save(const SavedMemory& memory) {
  return memory_.Save(memory);
}
absl::Status CudaBackend::Restore(const SavedMemory& memory) {
  return memory_.Restore(memory);
}
bool CudaBackend::Restored(int32_t slot) { return memory_.Restored(slot); }

absl::Status CudaBackend::FillCacheAtRandom() {
  return memory_.FillAtRandom(options_.kv_dtype);
}

}  // namespace recurve
