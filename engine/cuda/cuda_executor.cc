#include "engine/cuda/cuda_executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/cuda/cuda_device.h"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {
namespace {

constexpr int64_t kMaxRows = 65535;  // in a launch

}  // namespace

// ----------------------------------------------------------------------------
// Before any memory is allocated

absl::Status CudaExecutor::CheckOptions(const Options& options) {
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

int64_t CudaExecutor::BucketOf(int64_t sequences) {
  int64_t bucket = 1;
  while (bucket < sequences) bucket *= 2;
  return bucket;
}

int64_t CudaExecutor::RowCapacity(const Options& options) {
  return std::max(options.max_tokens, BucketOf(options.max_sequences));
}

absl::StatusOr<std::vector<CudaExecutor::Kind>> CudaExecutor::MakeKinds(
    const Program& program, const Plan& plan, const Options& options) {
  CudaOperationLimits limits;
  RECURVE_RETURN_IF_ERROR(CudaStatus(GetTpaDevice(&limits.device), "device"));
  limits.pages = plan.device.pages;
  limits.max_tokens = options.max_tokens;
  limits.max_sequences = BucketOf(options.max_sequences);
  limits.max_pages = options.max_pages;
  limits.table_rows = RowCapacity(options);
  limits.chunk_multiple = plan.chunk_multiple;
  limits.matrices = plan.matrix_type;
  std::vector<Kind> kinds;
  for (const Operation& operation : program.operations) {
    const auto* const sequence = std::get_if<SequenceOp>(&operation);
    if (sequence == nullptr) continue;
    const SequenceOperation& op = *sequence->operation;
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) {
      return k.name == op.name();
    });
    if (kind == kinds.end()) {
      kind = kinds.insert(
          kinds.end(), Kind{std::string(op.name()),
                            op.MakeCudaOperations(limits), limits.table_rows});
      limits.table_rows += kind->operations->table_rows();
    }
    kind->operations->Add(op);
  }
  return kinds;
}

int64_t CudaExecutor::TableRows(const Options& options,
                                const std::vector<Kind>& kinds) {
  int64_t rows = RowCapacity(options);
  for (const Kind& kind : kinds) rows += kind.operations->table_rows();
  return rows;
}

// The sum of what FillDecode or FillMixed, Begin, and the functions they call
// add for each row and sequence.
int64_t CudaExecutor::StepBytes(const Options& options,
                                const std::vector<Kind>& kinds) {
  using Buffer = CudaStepBuffer;
  const int64_t rows = RowCapacity(options);
  const int64_t sequences = BucketOf(options.max_sequences);
  const int64_t pages = std::max<int64_t>(options.max_pages, 1);
  int64_t bytes = Buffer::Room<int32_t>(rows) +           // tokens
                  Buffer::Room<int64_t>(rows) +           // positions
                  Buffer::Room<int32_t>(rows) +           // row_sequence
                  Buffer::Room<int32_t>(rows) +           // logit_rows
                  Buffer::Room<int32_t>(rows) +           // sources
                  Buffer::Room<int32_t>(sequences + 1) +  // query_start
                  Buffer::Room<int32_t>(sequences) +      // slots
                  Buffer::Room<int32_t>(sequences * pages) +
                  CudaSampler::StepBytes(sequences);
  for (const Kind& kind : kinds) bytes += kind.operations->StepBytes();
  return bytes;
}

absl::StatusOr<CudaExecutor::Workspaces> CudaExecutor::PlanWorkspaces(
    const Program& program, const Plan& plan, const Options& options) {
  RECURVE_RETURN_IF_ERROR(CheckOptions(options));
  RECURVE_ASSIGN_OR_RETURN(const std::vector<Kind> kinds,
                           MakeKinds(program, plan, options));
  const int64_t rows = RowCapacity(options);
  const int64_t bucket = BucketOf(options.max_sequences);
  Workspaces workspaces;
  for (const Kind& kind : kinds) {
    RECURVE_ASSIGN_OR_RETURN(const int64_t bytes,
                             kind.operations->DeviceBytes());
    workspaces.attention += bytes;
  }
  workspaces.attention +=
      CudaStepBuffer::DeviceBytes(StepBytes(options, kinds));
  for (const PositionConfig& position : program.positions) {
    workspaces.attention +=
        CudaPositions::DeviceBytes(position, TableRows(options, kinds));
  }
  workspaces.sampling =
      CudaSampler::DeviceBytes(options.max_sequences + 1, bucket,
                               program.vocab_size) +
      CudaLogits::DeviceBytes(bucket, rows, program.hidden_size,
                              program.vocab_size);
  workspaces.activations =
      rows * plan.row_bytes() + CudaProducts::DeviceBytes(plan, rows);
  return workspaces;
}

// ----------------------------------------------------------------------------
// Loading

CudaExecutor::CudaExecutor(Program program, Plan plan, const Options& options,
                           std::unique_ptr<ThreadPool> threads)
    : program_(std::move(program)),
      plan_(std::move(plan)),
      options_(options),
      threads_(std::move(threads)),
      row_capacity_(RowCapacity(options)) {}

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(
    Program program, Plan plan, const Options& options,
    std::unique_ptr<ThreadPool> threads) {
  RECURVE_RETURN_IF_ERROR(CheckOptions(options));
  auto executor = std::unique_ptr<CudaExecutor>(new CudaExecutor(
      std::move(program), std::move(plan), options, std::move(threads)));
  RECURVE_RETURN_IF_ERROR(executor->Init());
  return executor;
}

absl::Status CudaExecutor::Init() {
  RECURVE_RETURN_IF_ERROR(FindCudaDevice().status());
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"));
  for (auto* events : {&begins_, &dones_}) {
    for (cudaEvent_t& event : *events) {
      RECURVE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "event"));
    }
  }
  RECURVE_ASSIGN_OR_RETURN(products_, CudaProducts::Create(stream_));
  RECURVE_ASSIGN_OR_RETURN(kinds_, MakeKinds(program_, plan_, options_));
  return absl::OkStatus();
}

CudaExecutor::~CudaExecutor() {
  if (stream_ == nullptr) return;
  (void)cudaStreamSynchronize(stream_);
  for (auto& [key, graph] : graphs_) {
    if (graph.exec != nullptr) cudaGraphExecDestroy(graph.exec);
  }
  for (auto* events : {&begins_, &dones_}) {
    for (cudaEvent_t event : *events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  cudaStreamDestroy(stream_);
}

void CudaExecutor::Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Check(CudaStatus(error, what));
}
void CudaExecutor::Check(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

absl::Status CudaExecutor::LoadVector(const std::vector<float>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
  RECURVE_ASSIGN_OR_RETURN(CudaMemory memory,
                           CudaMemory::Allocate(kDevice, bytes, "weights"));
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(memory.data(), values.data(), bytes, cudaMemcpyHostToDevice),
      "copying weights"));
  vectors_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::Status CudaExecutor::LoadTable(const TensorView& table, DType type,
                                     CudaWeightLoader* loader) {
  Table copy;
  copy.type = ToWeightType(type);
  copy.vocab = table.shape[0];
  copy.cols = table.shape[1];
  const int64_t bytes = copy.vocab * copy.cols * WeightBytes(copy.type);
  RECURVE_ASSIGN_OR_RETURN(copy.memory,
                           CudaMemory::Allocate(kDevice, bytes, "weights"));
  RECURVE_RETURN_IF_ERROR(
      loader->Load({table}, copy.type, copy.cols, copy.memory.data()));
  tables_.push_back(std::move(copy));
  return absl::OkStatus();
}

absl::Status CudaExecutor::LoadWeights(CudaWeightLoader* loader) {
  for (size_t i = 0; i < program_.matrices.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(
        products_->Load(program_.matrices[i], plan_.matrices[i], loader));
  }
  for (const std::vector<float>& values : program_.vectors) {
    RECURVE_RETURN_IF_ERROR(LoadVector(values));
  }
  for (size_t i = 0; i < program_.tables.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(
        LoadTable(program_.tables[i], plan_.tables[i].type, loader));
  }
  return loader->Finish();
}

absl::Status CudaExecutor::Load() {
  RECURVE_ASSIGN_OR_RETURN(const std::unique_ptr<CudaWeightLoader> loader,
                           CudaWeightLoader::Create(threads_.get(), stream_));
  RECURVE_RETURN_IF_ERROR(LoadWeights(loader.get()));
  program_.matrices.clear();
  program_.vectors.clear();
  program_.tables.clear();
  const int64_t table_rows = TableRows(options_, kinds_);
  for (const PositionConfig& position : program_.positions) {
    RECURVE_RETURN_IF_ERROR(positions_.Load(position, table_rows).status());
  }
  for (const int64_t cols : plan_.buffers) {
    RECURVE_ASSIGN_OR_RETURN(
        CudaMemory memory,
        CudaMemory::Allocate(
            kDevice, row_capacity_ * cols * static_cast<int64_t>(sizeof(float)),
            "activations; lower --max-num-batched-tokens"));
    buffers_.push_back(std::move(memory));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::AllocateCache(int32_t num_pages, int32_t num_slots) {
  RECURVE_RETURN_IF_ERROR(
      products_->Tune(row_capacity_, ColumnMultiple(plan_.device)));
  RECURVE_RETURN_IF_ERROR(memory_.Allocate(
      {num_pages, num_slots, plan_.page_bytes, plan_.slot_bytes}, stream_));
  const absl::Status others = AllocateWorkspaces(num_slots);
  // A smaller cache would not free host memory.
  if (num_pages > 0 && CudaMemory::LacksDevice(others)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(others.message(),
                     "; or leave it more, by a smaller KV cache "
                     "(--kv-pool-bytes, --kv-pages)"));
  }
  RECURVE_RETURN_IF_ERROR(others);
  PlanSteps();
  return CudaStatus(cudaDeviceSynchronize(), "allocating");
}

absl::Status CudaExecutor::AllocateWorkspaces(int32_t num_slots) {
  const int64_t bucket = BucketOf(options_.max_sequences);
  RECURVE_RETURN_IF_ERROR(products_->Allocate(plan_, row_capacity_));
  RECURVE_RETURN_IF_ERROR(logits_.Allocate(
      bucket, row_capacity_, program_.hidden_size, program_.vocab_size));
  RECURVE_RETURN_IF_ERROR(
      sampler_.Allocate(num_slots + 1, bucket, program_.vocab_size));
  for (const Kind& kind : kinds_) {
    RECURVE_RETURN_IF_ERROR(kind.operations->Allocate());
  }
  return buffer_.Allocate(StepBytes(options_, kinds_));
}

void CudaExecutor::PlanSteps() {
  StepForm form;
  form.chains = products_->chains();
  for (const bool all_steps : {false, true}) {
    form.all_steps = all_steps;
    mixed_launches_[all_steps] = PlanLaunches(program_, plan_, form);
  }
  form.decode = true;
  const int64_t most = BucketOf(options_.max_sequences);
  for (form.rows = 1; form.rows <= most; form.rows *= 2) {
    decode_launches_[form.rows] = PlanLaunches(program_, plan_, form);
  }
}

absl::Status CudaExecutor::AllocateHost(int32_t num_blocks,
                                        int64_t block_bytes) {
  RECURVE_CHECK(block_bytes == HostBlockBytes(memory_.spec()));
  return memory_.AllocateHost(num_blocks);
}

// ----------------------------------------------------------------------------
// Memory of sequences: ordered before the next step by the stream

absl::Status CudaExecutor::ClearPage(int32_t page) {
  return memory_.SetPage(page, 0);
}
absl::Status CudaExecutor::ClearSlot(int32_t slot) {
  return memory_.SetSlot(slot, 0);
}
// 0xff in every byte is a NaN in each of the types.
absl::Status CudaExecutor::PoisonPage(int32_t page) {
  return memory_.SetPage(page, 0xff);
}
absl::Status CudaExecutor::PoisonSlot(int32_t slot) {
  return memory_.SetSlot(slot, 0xff);
}
absl::Status CudaExecutor::Save(const SavedMemory& memory) {
  return memory_.Save(memory);
}
absl::Status CudaExecutor::Restore(const SavedMemory& memory) {
  return memory_.Restore(memory);
}
absl::Span<char> CudaExecutor::HostBlock(int32_t block) {
  return memory_.HostBlock(block);
}
absl::Status CudaExecutor::FinishCopies() { return memory_.FinishCopies(); }
bool CudaExecutor::Restored(int32_t slot) { return memory_.Restored(slot); }

absl::Status CudaExecutor::FillCacheAtRandom() {
  return memory_.FillAtRandom(plan_.device.pages);
}

}  // namespace recurve
