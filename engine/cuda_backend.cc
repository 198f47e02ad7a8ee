#include "engine/cuda_backend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/cuda_activations.h"
#include "engine/cuda_device.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/tpa/expand_factors_cuda.h"

namespace recurve {
namespace {

constexpr auto kDevice = CudaMemory::Kind::kDevice;

constexpr int64_t kMaxRows = 65535;  // of a launch
// Rows of a step of decoding during whose attention the next weights are asked
// for, at most.
constexpr int64_t kNextRows = 64;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

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
  for (auto* events : {&begins_, &dones_}) {
    for (cudaEvent_t& event : *events) {
      RECURVE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "event"));
    }
  }
  RECURVE_RETURN_IF_ERROR(CudaStatus(GetTpaDevice(&device_), "device"));
  RECURVE_ASSIGN_OR_RETURN(loader_, CudaWeightLoader::Create(&pool_, stream_));
  RECURVE_ASSIGN_OR_RETURN(products_, CudaProducts::Create(stream_));
  row_capacity_ =
      std::max(options_.max_tokens, BucketOf(options_.max_sequences));
  tpa_.emplace(CudaTpa::Options{tpa_element(), options_.max_tokens,
                                BucketOf(options_.max_sequences),
                                options_.max_pages, row_capacity_},
               device_);
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
                              int64_t value_dim) {
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
          "activations"));
  activations_.push_back(std::move(memory));
  return Activations{activations_.back().data(), cols, stride, sizeof(float)};
}

absl::Status CudaBackend::AllocateCache(int32_t num_pages, int32_t num_slots) {
  RECURVE_RETURN_IF_ERROR(loader_->Finish());
  loader_.reset();
  RECURVE_RETURN_IF_ERROR(products_->Tune(row_capacity_, kColumns));
  RECURVE_RETURN_IF_ERROR(memory_.Allocate(
      {num_pages, num_slots, page_bytes(), slot_bytes()}, stream_));

  RECURVE_RETURN_IF_ERROR(products_->Allocate(row_capacity_));
  const int64_t max_outputs = products_->max_outputs();
  RECURVE_RETURN_IF_ERROR(
      logits_.Allocate(BucketOf(options_.max_sequences), row_capacity_,
                       products_->max_inputs(), max_outputs));
  RECURVE_RETURN_IF_ERROR(sampler_.Allocate(
      num_slots + 1, BucketOf(options_.max_sequences), max_outputs));

  if (!tpa_->empty()) RECURVE_RETURN_IF_ERROR(tpa_->Allocate());
  // The kernel for prompts rounds what it multiplies to bfloat16, which would
  // show in models of finer weights.
  if (!states_.empty() && weight_dtype() == "bfloat16") linear_->UseChunks();

  // A step: numbers of each row and run, of each sequence with its pages, and
  // what attention and sampling add; some room for alignment.
  const int64_t sequences = BucketOf(options_.max_sequences);
  const int64_t page_bytes = 4 * std::max<int64_t>(options_.max_pages, 1);
  RECURVE_RETURN_IF_ERROR(
      step_.Allocate((36 + 96) * row_capacity_ + (64 + page_bytes) * sequences +
                     tpa_->step_bytes() + sampler_.step_bytes() + 4096));
  return CudaStatus(cudaDeviceSynchronize(), "allocating");
}

absl::Status CudaBackend::AllocateHost(int32_t num_blocks,
                                       int64_t block_bytes) {
  RECURVE_CHECK(block_bytes == HostBlockBytes(memory_.spec()));
  return memory_.AllocateHost(num_blocks);
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
  for (int32_t slot : batch.slots) {
    RECURVE_RETURN_IF_ERROR(memory_.AwaitSlot(slot));
  }
  batch_ = &batch;
  decode_ =
      batch.num_tokens() == batch.num_sequences() &&
      static_cast<int64_t>(batch.kinds.size()) == batch.num_tokens() &&
      std::all_of(batch.kinds.begin(), batch.kinds.end(),
                  [](TokenKind kind) { return kind == TokenKind::kStep; });
  graph_ = nullptr;
  replay_ = capturing_ = false;
  step_.Clear();
  if (decode_) {
    FillDecode(batch);
  } else {
    FillMixed(batch);
    const std::vector<StepRun> runs = StepRuns(batch);
    Check(tpa_->BeginMixed(batch, runs, &step_));
    linear_->BeginMixed({sequences_, query_start_, slots_of_, nullptr}, batch,
                        runs, &step_);
  }
  BeginSamples(batch);
  const int32_t* sources = nullptr;
  int32_t* const fed = step_.Add(rows_, &sources);
  std::fill_n(fed, rows_, -1);
  for (const StepBatch::Fed& f : batch.fed) fed[f.row] = f.sample;
  Check(step_.Copy(stream_), "copying a step");
  if (!batch.fed.empty()) {
    // The one thing in the step's memory that the device writes.
    Check(LaunchFeedTokens({sources, sampler_.results(),
                            const_cast<int32_t*>(tokens_), rows_},
                           stream_),
          "feeding tokens");
  }
  Check(cudaEventRecord(begins_[num_begun_ % kEvents], stream_), "a step");
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
    Check(tpa_->LaunchSchedules(stream_));
  }
  return status_;
}

// A decode step has logits of all rows, with those of padding; another those
// that are wanted, logits_.capacity() at a time.
void CudaBackend::BeginSamples(const StepBatch& batch) {
  std::vector<int32_t> rows;
  for (const SampleRequest& sample : batch.samples) {
    rows.push_back(decode_ ? batch.logit_rows[sample.logit_index]
                           : static_cast<int32_t>(sample.logit_index %
                                                  logits_.capacity()));
  }
  Check(sampler_.Begin(batch, rows,
                       decode_ ? rows_ : static_cast<int64_t>(rows.size()),
                       &step_, stream_));
}

// One row a sequence, and padding up to the bucket.
void CudaBackend::FillDecode(const StepBatch& batch) {
  const int64_t count = batch.num_sequences();
  rows_ = sequences_ = BucketOf(count);
  page_stride_ = std::max<int64_t>(options_.max_pages, 1);
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
  products_->BeginDecode(rows_);
  tpa_->BeginDecode(rows_, lengths_, page_table_, page_stride_);
  linear_->BeginDecode({sequences_, query_start_, slots_of_, nullptr});
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
  products_->BeginMixed(batch);
}

// Tables have the step's rows, then those of TPA's pieces.
void CudaBackend::ComputeTables() {
  Check(positions_.Compute(row_positions_, 0, rows_, stream_));
  Check(positions_.Compute(tpa_->piece_positions(), row_capacity_,
                           tpa_->num_piece_positions(), stream_));
}

const float* CudaBackend::Vector(VectorId id) const {
  return id.value < 0 ? nullptr : vectors_[id.value].as<const float>();
}

void CudaBackend::Embed(TableId table, float scale, Activations out) {
  if (!active()) return;
  Check(products_->Flush());
  const Table& t = tables_[table.value];
  Check(LaunchEmbed({t.type, t.memory.data(), t.vocab, tokens_, Floats(out),
                     out.stride, rows_, t.cols, scale},
                    stream_),
        "embedding");
}

void CudaBackend::Fill(VectorId values, Activations out) {
  if (!active()) return;
  Check(products_->Flush());
  Check(
      LaunchFillRows({Vector(values), Floats(out), out.stride, rows_, out.cols},
                     stream_),
      "fill");
}

CudaProducts::NormWeights CudaBackend::WeightsOf(const NormArgs& norm) const {
  return {norm.kind, norm.groups, static_cast<float>(norm.eps),
          Vector(norm.weight), Vector(norm.bias)};
}

void CudaBackend::Norm(Activations in, const NormArgs& norm, Activations out) {
  if (active()) Check(products_->Norm(in, WeightsOf(norm), out));
}

void CudaBackend::GatedNorm(const GatedNormArgs& args) {
  if (!active()) return;
  Check(products_->Flush());
  CudaGatedNormParams params = {};
  const std::optional<WeightType> type =
      args.out.data == args.in.data || args.out.data == args.gate.data
          ? std::nullopt
          : products_->RoundsInto(args.out);
  products_->SetRounded(args.out, type.has_value());
  params.norm = {ElementType::kFloat32,
                 Floats(args.in),
                 args.in.stride,
                 Vector(args.norm.weight),
                 args.out.data,
                 type ? 2 * args.out.stride : args.out.stride,
                 rows_,
                 nullptr,
                 args.in.cols,
                 args.norm.groups,
                 static_cast<float>(args.norm.eps)};
  params.gate = Floats(args.gate);
  params.gate_stride = args.gate.stride;
  params.activation = args.activation;
  params.gate_after_norm = args.gate_after_norm;
  Check(type ? LaunchRoundedGatedNorm(params, *type, stream_)
             : LaunchGatedNorm(params, stream_),
        "gated norm");
}

void CudaBackend::Project(Activations in, MatrixId matrix, Activations out,
                          bool add) {
  if (active()) Check(products_->Project(in, matrix, out, add));
}

void CudaBackend::Glu(Activations in, Activation activation, Activations out) {
  if (active()) Check(products_->Glu(in, activation, out));
}

void CudaBackend::ChannelMixer(const ChannelMixerArgs& args) {
  if (!products_->FusesChannelMixer(args.w1_w2)) {
    Backend::ChannelMixer(args);
  } else if (active()) {
    Check(products_->ChannelMixer(args, WeightsOf(args.norm)));
  }
}

TpaElement CudaBackend::tpa_element() const {
  return options_.kv_dtype == DType::kFloat16 ? TpaElement::kFloat16
                                              : TpaElement::kBFloat16;
}

TpaCudaCache CudaBackend::CacheView(const TpaCache& cache) const {
  return {tpa_element(),
          reinterpret_cast<uint16_t*>(memory_.pages()) + cache.offset,
          page_elements_, page_table_, page_stride_};
}

void CudaBackend::Tpa(const TpaArgs& args) {
  if (!active()) return;
  Check(products_->Flush());
  const TpaCache& cache = tpa_caches_[args.cache.value];
  const CudaPositions::Encoding& position = positions_[args.position];
  TpaCudaAppendParams append = {};
  append.shape = tpa_->shape(cache.shape);
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
    append.queries = tpa_->queries();
  }
  Check(LaunchTpaAppend(append, stream_), "appending factors");

  // The decode kernel writes the factors' type or float32, that of prompts
  // bfloat16 or float32.
  const std::optional<WeightType> type = products_->RoundsInto(args.out);
  const bool rounded = type && *type == (decode_ ? TpaWeightType(tpa_element())
                                                 : WeightType::kBFloat16);
  products_->SetRounded(args.out, rounded);
  // What is brought to the second-level cache during attention: of one row, the
  // blocks of the next product have their weights themselves by then.
  // (Measured; docs/kernels/matmul.md. With many rows memory has no time for
  // it.)
  MatrixId next = args.next;
  if (next.value >= 0 && rows_ == 1) next = products_->after(next);
  if (rows_ > kNextRows) next = {};
  Check(tpa_->Attend(
      {cache.shape, append.cache, args.a_q, args.b_q, position.config.type,
       position.angles, append.cos, append.sin, args.out,
       rounded ? *type : WeightType::kFloat32,
       next.value < 0 ? absl::Span<const char>() : products_->data(next)},
      stream_));
}

void CudaBackend::ExpandFactors(const ExpandArgs& args) {
  if (!active()) return;
  Check(products_->Flush());
  Check(
      LaunchExpandFactors({Floats(args.a), Floats(args.b), args.a.stride,
                           Floats(args.out), args.out.stride, rows_, args.rank,
                           args.num_heads, args.b.cols / args.rank},
                          stream_),
      "expanding factors");
}

void CudaBackend::LinearAttention(const LinearAttentionArgs& args) {
  if (!active()) return;
  Check(products_->Flush());
  const CudaPositions::Encoding& position = positions_[args.position];
  Check(linear_->Attend(
      {args.config, position.phase_steps.as<const uint64_t>(),
       position.cos.as<const float>(), position.sin.as<const float>(),
       Vector(args.decay),
       reinterpret_cast<float*>(memory_.slots()) +
           states_[args.state.value].offset,
       slot_elements_, args.q, args.k, args.v, args.out, args.scratch},
      stream_));
}

// ----------------------------------------------------------------------------
// Logits

void CudaBackend::ComputeLogits(Activations in, const int32_t* index,
                                int64_t rows, const NormArgs& norm,
                                MatrixId head) {
  Check(products_->Logits(in, index, rows, WeightsOf(norm), head,
                          logits_.inputs(), logits_.data(),
                          CudaLogits::Stride(products_->outputs(head))));
}

void CudaBackend::Draw(int64_t vocab, int64_t first, int64_t count) {
  Check(sampler_.Launch(logits_.data(), CudaLogits::Stride(vocab), vocab, first,
                        count, stream_),
        "sampling");
}

void CudaBackend::ReserveHostLogits(int64_t vocab) {
  // Nothing is under way that writes there: no step with logits begins before
  // the one before it has ended.
  if (batch_->wants_logits)
    Check(logits_.ReserveHost(static_cast<int64_t>(batch_->logit_rows.size()),
                              vocab));
}

void CudaBackend::HeadOfDecode(Activations in, const NormArgs& norm,
                               MatrixId head) {
  const int64_t vocab = products_->outputs(head);
  if (active()) {
    ComputeLogits(in, nullptr, rows_, norm, head);
    Draw(vocab, 0, rows_);
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
  ReserveHostLogits(vocab);
  if (!status_.ok() || !batch_->wants_logits) return;
  // Logit i is of row logit_rows[i].
  const auto& rows = batch_->logit_rows;
  for (size_t i = 0; i < rows.size(); ++i)
    Check(logits_.CopyToHost(rows[i], static_cast<int64_t>(i), 1, vocab,
                             stream_));
}

void CudaBackend::HeadOfMixed(Activations in, const NormArgs& norm,
                              MatrixId head) {
  const int64_t vocab = products_->outputs(head);
  const auto rows = static_cast<int64_t>(batch_->logit_rows.size());
  ReserveHostLogits(vocab);
  const auto& samples = batch_->samples;  // in the order of their logits
  size_t drawn = 0;
  for (int64_t first = 0; first < rows && status_.ok();
       first += logits_.capacity()) {
    const int64_t count = std::min(logits_.capacity(), rows - first);
    ComputeLogits(in, logit_rows_ + first, count, norm, head);
    size_t end = drawn;
    while (end < samples.size() && samples[end].logit_index < first + count)
      ++end;
    Draw(vocab, static_cast<int64_t>(drawn), static_cast<int64_t>(end - drawn));
    drawn = end;
    if (batch_->wants_logits)
      Check(logits_.CopyToHost(0, first, count, vocab, stream_));
  }
}

void CudaBackend::Head(Activations in, const NormArgs& norm, MatrixId head) {
  if (decode_) {
    HeadOfDecode(in, norm, head);
  } else if (status_.ok()) {
    HeadOfMixed(in, norm, head);
  }
  if (status_.ok()) Check(sampler_.CopyResults(stream_), "copying tokens");
  Begun begun = {num_begun_++, {}};
  if (status_.ok()) {
    Check(cudaEventRecord(dones_[begun.number % kEvents], stream_), "a step");
  }
  if (status_.ok() && batch_->wants_logits) {
    begun.logits = logits_.host(static_cast<int64_t>(batch_->logit_rows.size()),
                                products_->outputs(head));
  }
  begun_.push_back(begun);
}

absl::Status CudaBackend::EndStep(StepOutput* output) {
  const Begun begun = begun_.front();
  begun_.pop_front();
  if (status_.ok()) {
    Check(cudaEventSynchronize(dones_[begun.number % kEvents]), "a step");
  }
  const auto seconds = [&](cudaEvent_t begin, cudaEvent_t end) {
    float milliseconds = 0;
    if (status_.ok()) {
      Check(cudaEventElapsedTime(&milliseconds, begin, end), "a step's time");
    }
    return milliseconds * 1e-3;
  };
  const int64_t i = begun.number % kEvents;
  if (begun.number > 0) {
    output->device_idle_seconds =
        seconds(dones_[(begun.number - 1) % kEvents], begins_[i]);
  }
  output->device_seconds = seconds(begins_[i], dones_[i]);
  RECURVE_RETURN_IF_ERROR(status_);
  output->logits = begun.logits;
  sampler_.Read(output);
  return absl::OkStatus();
}

// ----------------------------------------------------------------------------
// Memory of sequences: ordered before the next step by the stream

absl::Status CudaBackend::ClearPage(int32_t page) {
  return memory_.SetPage(page, 0);
}
absl::Status CudaBackend::ClearSlot(int32_t slot) {
  return memory_.SetSlot(slot, 0);
}
// Every byte 0xff is a NaN in each of the types.
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
