// Steps of CudaBackend: from a batch to logits and tokens.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/cuda/cuda_activations.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/cuda_device.h"
#include "engine/models/warm_up.h"

namespace recurve {

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

std::vector<StepBatch> CudaBackend::WarmUpSteps() const {
  return recurve::WarmUpSteps(
      {options_.max_tokens, options_.max_sequences, options_.max_pages},
      [this](absl::Span<const int64_t> positions, int64_t rows) {
        return tpa_->ContextsOf(positions, rows);
      });
}

absl::Status CudaBackend::BeginStep(const StepBatch& batch) {
  RECURVE_RETURN_IF_ERROR(status_);
  RECURVE_RETURN_IF_ERROR(CheckBatch(batch));
  for (int32_t slot : batch.slots) {
    RECURVE_RETURN_IF_ERROR(memory_.AwaitSlot(slot));
  }
  batch_ = &batch;
  logits_status_ = absl::OkStatus();
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
  int32_t* const fed = step_.Add(rows_, &sources_);
  std::fill_n(fed, rows_, -1);
  for (const StepBatch::Fed& f : batch.fed) fed[f.row] = f.sample;
  if (status_.ok()) Check(step_.Copy(stream_));
  Check(cudaEventRecord(begins_[num_begun_ % kEvents], stream_), "a step");
  if (decode_ && options_.graphs) {
    graph_ = &graphs_[{rows_, contexts_}];
    replay_ = graph_->exec != nullptr;
    if (status_.ok() && !replay_ && graph_->warm) {
      Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            "capturing a step");
      capturing_ = status_.ok();
    }
  }
  if (active()) {
    ComputeTables();
    Check(tpa_->LaunchPrefillSchedules(stream_));
  }
  // Head is not called then.
  if (!status_.ok()) EndCapture();
  return status_;
}

void CudaBackend::EndCapture() {
  if (!capturing_) return;
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  Check(cudaStreamEndCapture(stream_, &graph), "capturing a step");
  if (status_.ok()) {
    Check(cudaGraphInstantiate(&graph_->exec, graph, 0),
          "instantiating a step");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
}

// A decode step computes logits for all rows, including padding; other steps
// only the wanted ones, logits_.capacity() at a time.
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

// One row per sequence, and padding up to the bucket.
void CudaBackend::FillDecode(const StepBatch& batch) {
  const int64_t count = batch.num_sequences();
  rows_ = sequences_ = BucketOf(count);
  page_stride_ = std::max<int64_t>(options_.max_pages, 1);
  int32_t* const tokens = step_.Add(rows_, &tokens_);
  int64_t* const positions = step_.Add(rows_, &row_positions_);
  int32_t* const row_sequence = step_.Add(rows_, &row_sequence_);
  int32_t* const query_start = step_.Add(rows_ + 1, &query_start_);
  int32_t* const slots = step_.Add(rows_, &slots_of_);
  std::vector<int32_t> lengths(rows_);
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
      // The rest is not read: a row uses only the pages that its tokens need.
    } else {
      row[0] = 0;
    }
  }
  query_start[rows_] = static_cast<int32_t>(rows_);
  products_->BeginDecode(rows_);
  contexts_ = tpa_->ContextsOf(batch.positions, rows_);
  Check(tpa_->BeginDecode(
      {lengths.data(), pages, page_stride_, static_cast<int>(rows_)}, contexts_,
      page_table_, &step_));
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

// Tables hold the step's rows, then those of TPA's pieces.
void CudaBackend::ComputeTables() {
  Check(positions_.Compute(row_positions_, 0, rows_, stream_));
  Check(positions_.Compute(tpa_->piece_positions(), row_capacity_,
                           tpa_->num_piece_positions(), stream_));
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

bool CudaBackend::ReserveHostLogits(int64_t vocab) {
  if (!batch_->wants_logits) return false;
  // No work in flight writes there: a step with logits begins only after the
  // previous one has ended.
  const absl::Status status = logits_.ReserveHost(
      static_cast<int64_t>(batch_->logit_rows.size()), vocab);
  if (absl::IsResourceExhausted(status)) {
    logits_status_ = status;
  } else {
    Check(status);
  }
  return status.ok();
}

void CudaBackend::HeadOfDecode(Activations in, const NormArgs& norm,
                               MatrixId head) {
  const int64_t vocab = products_->outputs(head);
  if (active()) {
    ComputeLogits(in, nullptr, rows_, norm, head);
    Draw(vocab, 0, rows_);
  }
  EndCapture();
  if (!status_.ok()) return;
  if (graph_ != nullptr && graph_->exec != nullptr) {
    Check(cudaGraphLaunch(graph_->exec, stream_), "launching a step");
  } else if (graph_ != nullptr) {
    graph_->warm = true;
  }
  // Only now: page-locked memory cannot be allocated during capture.
  if (!status_.ok() || !ReserveHostLogits(vocab)) return;
  // Logits row i is row logit_rows[i] of the step.
  const auto& rows = batch_->logit_rows;
  for (size_t i = 0; i < rows.size(); ++i)
    Check(logits_.CopyToHost(rows[i], static_cast<int64_t>(i), 1, vocab,
                             stream_));
}

void CudaBackend::HeadOfMixed(Activations in, const NormArgs& norm,
                              MatrixId head) {
  const int64_t vocab = products_->outputs(head);
  const auto rows = static_cast<int64_t>(batch_->logit_rows.size());
  const bool to_host = ReserveHostLogits(vocab);
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
    if (to_host) Check(logits_.CopyToHost(0, first, count, vocab, stream_));
  }
}

void CudaBackend::Head(Activations in, const NormArgs& norm, MatrixId head) {
  RECURVE_CHECK(products_->outputs(head) == options_.vocab_size &&
                in.cols == options_.hidden_size);
  if (decode_) {
    HeadOfDecode(in, norm, head);
  } else if (status_.ok()) {
    HeadOfMixed(in, norm, head);
  }
  if (status_.ok()) Check(sampler_.CopyTop(stream_), "copying tokens");
  Begun begun = {num_begun_++, {}, logits_status_};
  if (status_.ok()) {
    Check(cudaEventRecord(dones_[begun.number % kEvents], stream_), "a step");
  }
  if (status_.ok() && logits_status_.ok() && batch_->wants_logits) {
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
  output->logits_status = begun.logits_status;
  sampler_.Read(output);
  return absl::OkStatus();
}

}  // namespace recurve
