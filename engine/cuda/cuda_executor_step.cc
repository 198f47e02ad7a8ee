// Steps of CudaExecutor: from a batch to logits and tokens.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/cuda/cuda_device.h"
#include "engine/cuda/cuda_executor.h"
#include "engine/program/warm_up.h"

namespace recurve {
namespace {

// One number for the variants of all kinds.
template <typename Kinds, typename VariantOf>
int64_t CombineVariants(const Kinds& kinds, VariantOf variant_of) {
  constexpr int64_t kMostOfAKind = 256;
  int64_t number = 0;
  for (const auto& kind : kinds) {
    number = number * kMostOfAKind + variant_of(kind);
  }
  return number;
}

}  // namespace

// ----------------------------------------------------------------------------
// A step

absl::Status CudaExecutor::CheckBatch(const StepBatch& batch) const {
  if (static_cast<int64_t>(batch.kept.size()) > kMaxKeptRows) {
    return absl::InternalError(absl::StrCat("a step keeps ", batch.kept.size(),
                                            " rows of logits; at most ",
                                            kMaxKeptRows, " are possible"));
  }
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

std::vector<StepBatch> CudaExecutor::WarmUpSteps() const {
  return recurve::WarmUpSteps(
      {options_.max_tokens, options_.max_sequences, options_.max_pages},
      [this](absl::Span<const int64_t> positions, int64_t rows) {
        return CombineVariants(kinds_, [&](const auto& kind) {
          return kind.operations->Variant(positions, rows);
        });
      });
}

absl::Status CudaExecutor::Begin(const StepBatch& batch) {
  RECURVE_RETURN_IF_ERROR(status_);
  RECURVE_RETURN_IF_ERROR(CheckBatch(batch));
  for (int32_t slot : batch.slots) {
    RECURVE_RETURN_IF_ERROR(memory_.AwaitSlot(slot));
  }
  if (probe_ != nullptr) {
    probe_->BeforeStep();
    probe_->Before("begin (copy, tables, schedules)");
  }
  batch_ = &batch;
  logits_status_ = absl::OkStatus();
  step_ = {};
  step_.decode = batch.num_tokens() == batch.num_sequences() &&
                 std::all_of(batch.runs.begin(), batch.runs.end(),
                             [](const StepRun& run) { return run.step(); });
  if (step_.decode && !batch.kept.empty()) {
    return absl::InternalError("a decode step keeps no logits");
  }
  graph_ = nullptr;
  replay_ = capturing_ = false;
  buffer_.Clear();
  if (step_.decode) {
    FillDecode(batch);
  } else {
    FillMixed(batch);
  }
  BeginSamples(batch);
  int32_t* const fed = buffer_.Add(step_.rows, &step_.sources);
  std::fill_n(fed, step_.rows, -1);
  for (const StepBatch::Fed& f : batch.fed) fed[f.row] = f.sample;
  if (status_.ok()) Check(buffer_.Copy(stream_));
  Check(cudaEventRecord(begins_[num_begun_ % kEvents], stream_), "a step");
  if (step_.decode && options_.graphs) {
    graph_ =
        &graphs_[{step_.rows, CombineVariants(kinds_, [](const auto& kind) {
                    return kind.variant;
                  })}];
    replay_ = graph_->exec != nullptr;
    if (status_.ok() && !replay_ && graph_->warm) {
      Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
            "capturing a step");
      capturing_ = status_.ok();
    }
  }
  if (active()) {
    ComputeTables();
    for (const Kind& kind : kinds_) Check(kind.operations->Prepare(stream_));
  }
  if (probe_ != nullptr) probe_->After();
  if (!status_.ok()) {
    EndCapture();
    if (probe_ != nullptr) probe_->AfterStep();
    return status_;
  }
  LaunchAll();
  return absl::OkStatus();  // End returns what fails from here on
}

void CudaExecutor::EndCapture() {
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

void CudaExecutor::BeginSamples(const StepBatch& batch) {
  std::vector<int32_t> rows;
  for (const SampleRequest& sample : batch.samples) {
    rows.push_back(step_.decode ? batch.logit_rows[sample.logit_index]
                                : static_cast<int32_t>(sample.logit_index %
                                                       logits_.capacity()));
  }
  Check(sampler_.Begin(
      batch, rows,
      step_.decode ? step_.rows : static_cast<int64_t>(rows.size()), &buffer_,
      stream_));
}

// One row per sequence, and padding up to the bucket.
void CudaExecutor::FillDecode(const StepBatch& batch) {
  const int64_t count = batch.num_sequences();
  const int64_t rows = BucketOf(count);
  step_.rows = step_.sequences = rows;
  step_.page_stride = std::max<int64_t>(options_.max_pages, 1);
  int32_t* const tokens = buffer_.Add(rows, &step_.tokens);
  int64_t* const positions = buffer_.Add(rows, &step_.positions);
  int32_t* const row_sequence = buffer_.Add(rows, &step_.row_sequence);
  int32_t* const query_start = buffer_.Add(rows + 1, &step_.query_start);
  int32_t* const slots = buffer_.Add(rows, &step_.slots);
  std::vector<int32_t> lengths(rows);
  std::vector<int64_t> prompt_ends(rows, 0);
  for (int64_t i = 0; i < count; ++i) prompt_ends[i] = batch.runs[i].prompt_end;
  int32_t* const pages =
      buffer_.Add(rows * step_.page_stride, &step_.page_table);
  for (int64_t i = 0; i < rows; ++i) {
    const bool live = i < count;
    tokens[i] = live ? batch.tokens[i] : 0;
    positions[i] = live ? batch.positions[i] : -1;
    row_sequence[i] = static_cast<int32_t>(i);
    query_start[i] = static_cast<int32_t>(i);
    slots[i] = live ? batch.slots[i] : 0;
    lengths[i] = live ? static_cast<int32_t>(batch.positions[i] + 1) : 0;
    int32_t* const row = pages + i * step_.page_stride;
    if (live) {
      std::copy_n(batch.page_table.data() + i * batch.page_table_stride,
                  batch.page_table_stride, row);
      // The rest is not read: a row uses only the pages that its tokens need.
    } else {
      row[0] = 0;
    }
  }
  query_start[rows] = static_cast<int32_t>(rows);
  products_->BeginDecode(rows);
  for (Kind& kind : kinds_) {
    kind.variant = kind.operations->Variant(batch.positions, rows);
    Check(kind.operations->BeginDecode(
        step_, {lengths.data(), pages, prompt_ends.data()}, kind.variant,
        &buffer_));
  }
}

void CudaExecutor::FillMixed(const StepBatch& batch) {
  step_.rows = batch.num_tokens();
  step_.sequences = batch.num_sequences();
  step_.page_stride = std::max<int64_t>(batch.page_table_stride, 1);
  const auto copy = [&](const auto& values, const auto** on_device) {
    std::copy(values.begin(), values.end(),
              buffer_.Add(static_cast<int64_t>(values.size()), on_device));
  };
  copy(batch.tokens, &step_.tokens);
  copy(batch.positions, &step_.positions);
  copy(batch.row_sequence, &step_.row_sequence);
  copy(batch.query_start, &step_.query_start);
  copy(batch.slots, &step_.slots);
  copy(batch.page_table, &step_.page_table);
  copy(batch.logit_rows, &step_.logit_rows);
  products_->BeginMixed(batch);
  for (const Kind& kind : kinds_) {
    Check(kind.operations->BeginMixed(step_, batch, &buffer_));
  }
}

// Tables hold the step's rows, then those of each kind of operation.
void CudaExecutor::ComputeTables() {
  Check(positions_.Compute(step_.positions, 0, step_.rows, stream_));
  for (const Kind& kind : kinds_) {
    const auto [positions, count] = kind.operations->table_positions();
    Check(positions_.Compute(positions, kind.table_row, count, stream_));
  }
}

void CudaExecutor::LaunchAll() {
  const std::vector<Launch>& launches =
      step_.decode ? decode_launches_.at(step_.rows)
                   : mixed_launches_[products_->all_steps()];
  for (const Launch& launch : launches) Run(launch);
  if (step_.decode) {
    EndCapture();
    if (status_.ok() && graph_ != nullptr && graph_->exec != nullptr) {
      Check(cudaGraphLaunch(graph_->exec, stream_), "launching a step");
    } else if (status_.ok() && graph_ != nullptr) {
      graph_->warm = true;
    }
    // Only now: page-locked memory cannot be allocated during capture.
    if (status_.ok()) CopyLogits();
  }
  if (status_.ok()) Check(sampler_.CopyTop(stream_), "copying tokens");
  Begun begun = {num_begun_++,
                 {},
                 logits_status_,
                 static_cast<int64_t>(batch_->kept.size())};
  if (status_.ok()) {
    Check(cudaEventRecord(dones_[begun.number % kEvents], stream_), "a step");
  }
  if (status_.ok() && logits_status_.ok() && batch_->wants_logits) {
    begun.logits = logits_.host(static_cast<int64_t>(batch_->logit_rows.size()),
                                program_.vocab_size);
  }
  begun_.push_back(begun);
  if (probe_ != nullptr) probe_->AfterStep();
}

// ----------------------------------------------------------------------------
// Logits

void CudaExecutor::Draw(int64_t first, int64_t count) {
  Check(sampler_.Launch(logits_.data(), CudaLogits::Stride(program_.vocab_size),
                        program_.vocab_size, first, count, stream_),
        "sampling");
}

bool CudaExecutor::ReserveHostLogits() {
  if (!batch_->wants_logits) return false;
  // No work in flight writes there: a step with logits begins only after the
  // previous one has ended.
  const absl::Status status = logits_.ReserveHost(
      static_cast<int64_t>(batch_->logit_rows.size()), program_.vocab_size);
  if (absl::IsResourceExhausted(status)) {
    logits_status_ = status;
  } else {
    Check(status);
  }
  return status.ok();
}

// Logits row i is row logit_rows[i] of a decode step.
void CudaExecutor::CopyLogits() {
  if (!ReserveHostLogits()) return;
  const auto& rows = batch_->logit_rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    Check(logits_.CopyToHost(rows[i], static_cast<int64_t>(i), 1,
                             program_.vocab_size, stream_));
  }
}

absl::Status CudaExecutor::End(StepOutput* output) {
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
  output->kept.clear();
  for (int64_t row = 0; row < begun.kept; ++row) {
    output->kept.push_back(
        logits_.kept(begun.number, row, program_.vocab_size));
  }
  sampler_.Read(output);
  return absl::OkStatus();
}

}  // namespace recurve
