#include "engine/models/attention/attention_cuda.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr int64_t kScheduleAlignment = 128;

int64_t AlignSchedule(int64_t bytes) {
  return (bytes + kScheduleAlignment - 1) / kScheduleAlignment *
         kScheduleAlignment;
}

WeightType ElementOf(DType pages) {
  switch (pages) {
    case DType::kFloat16:
      return WeightType::kFloat16;
    case DType::kFloat32:
      return WeightType::kFloat32;
    default:
      return WeightType::kBFloat16;
  }
}

bool Same(const AttentionShape& a, const AttentionShape& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim && a.value_dim == b.value_dim;
}

// The tables' rows from `first` on.
AttentionCudaPosition PositionFrom(AttentionCudaPosition all, int64_t first,
                                   int64_t angles) {
  all.cos += first * angles;
  all.sin += first * angles;
  return all;
}

}  // namespace

std::unique_ptr<CudaOperations> AttentionOperation::MakeCudaOperations(
    const CudaOperationLimits& limits) const {
  return std::make_unique<CudaAttention>(limits);
}

CudaAttention::CudaAttention(const CudaOperationLimits& limits)
    : limits_(limits),
      element_(ElementOf(limits.pages)),
      device_{limits.device.multiprocessors, limits.device.shared_memory,
              limits.device.hopper} {}

void CudaAttention::Add(const SequenceOperation& operation) {
  const AttentionShape& of =
      static_cast<const AttentionOperation&>(operation).params().shape;
  const auto known =
      std::find_if(shapes_.begin(), shapes_.end(),
                   [&](const Shape& shape) { return Same(shape.shape, of); });
  shape_of_[&operation] = known - shapes_.begin();
  if (known != shapes_.end()) return;
  Shape shape = {};
  shape.shape = of;
  shape.decode = PlanAttention(of, element_, device_);
  shapes_.push_back(std::move(shape));
}

int64_t CudaAttention::max_runs() const {
  return std::min(
      max_tokens(),
      5 * limits_.max_sequences + 2 * max_tokens() / int64_t{kMinPromptTokens});
}

AttentionPrefillPlan CudaAttention::PlanPrefill(const Shape& shape,
                                                int64_t runs,
                                                int64_t tokens) const {
  return PlanAttentionPrefill(shape.shape, element_,
                              {static_cast<int>(runs), tokens});
}

absl::StatusOr<CudaAttention::Sizes> CudaAttention::Measure() {
  if (max_rows() > kAttentionMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-num-seqs is ", max_rows(),
                     " to the next power of two; the GPU supports attention "
                     "of at most ",
                     kAttentionMaxRows));
  }
  Sizes sizes;
  const int64_t pages = std::max<int64_t>(limits_.max_pages, 1);
  for (const Shape& shape : shapes_) {
    const AttentionPrefillPlan prompts =
        PlanPrefill(shape, max_rows(), max_tokens());
    if (shape.decode.blocks == 0 || prompts.query_tiles == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the GPU does not support attention with ", shape.shape.num_heads,
          " heads of ", shape.shape.head_dim, " and ", shape.shape.value_dim,
          " features in ", Name(limits_.pages), " pages for ", max_rows(),
          " sequences of ", max_tokens(),
          " tokens in a step (--device cpu runs it)"));
    }
    sizes.queries = std::max(
        sizes.queries, AttentionQueryBytes(shape.shape, element_, max_rows()));
    sizes.scratch = std::max(
        sizes.scratch, AttentionScratchBytes(
                           shape.decode, static_cast<int>(max_rows()), pages));
    sizes.prefill_schedules +=
        max_prompt_launches() * AlignSchedule(prompts.schedule_bytes);
    sizes.prefill_scratch =
        std::max(sizes.prefill_scratch, prompts.scratch_bytes);
  }
  return sizes;
}

absl::StatusOr<int64_t> CudaAttention::DeviceBytes() {
  RECURVE_ASSIGN_OR_RETURN(const Sizes sizes, Measure());
  return sizes.all();
}

absl::Status CudaAttention::Allocate() {
  RECURVE_ASSIGN_OR_RETURN(const Sizes sizes, Measure());
  for (const auto& [memory, bytes] :
       {std::pair(&queries_, sizes.queries),
        std::pair(&scratch_, sizes.scratch),
        std::pair(&prefill_schedules_, sizes.prefill_schedules),
        std::pair(&prefill_scratch_, sizes.prefill_scratch)}) {
    RECURVE_ASSIGN_OR_RETURN(
        *memory, CudaMemory::Allocate(
                     CudaMemory::Kind::kDevice, bytes,
                     "attention; lower --max-num-seqs, --max-model-len or "
                     "--max-num-batched-tokens"));
  }
  return absl::OkStatus();
}

int64_t CudaAttention::StepBytes() const {
  using Buffer = CudaStepBuffer;
  int64_t bytes = max_prompt_launches() * 3 * Buffer::Room<int32_t>(1) +
                  Buffer::Room<int32_t>(3 * max_runs());
  for (const Shape& shape : shapes_) {
    bytes += max_windows() *
             (AttentionScheduleParts(shape.decode, static_cast<int>(max_rows()))
                  .bytes +
              kScheduleAlignment);
  }
  return bytes;
}

// ----------------------------------------------------------------------------
// A step

absl::Status CudaAttention::AddDecode(const AttentionScheduleParams& of,
                                      CudaStepBuffer* buffer) {
  for (Shape& shape : shapes_) {
    char* on_device = nullptr;
    char* const schedule =
        buffer->Add(AttentionScheduleParts(shape.decode, of.rows).bytes,
                    &on_device, kScheduleAlignment);
    if (!MakeAttentionSchedule(of, shape.decode, schedule)) {
      return absl::InternalError(
          absl::StrCat("attention of ", of.rows, " rows of ",
                       *std::max_element(of.lengths, of.lengths + of.rows),
                       " tokens at most; there is room for ",
                       of.page_table_stride, " pages each"));
    }
    shape.schedules.push_back(on_device);
  }
  return absl::OkStatus();
}

absl::Status CudaAttention::BeginDecode(const CudaStep& step,
                                        const DecodeRows& rows,
                                        int64_t /*variant*/,
                                        CudaStepBuffer* buffer) {
  decode_ = true;
  rows_ = step.rows;
  windows_ = {{0, step.rows}};
  prompts_.clear();
  for (Shape& shape : shapes_) shape.schedules.clear();
  return AddDecode({rows.lengths, nullptr, static_cast<int>(step.rows),
                    rows.pages, step.page_stride},
                   buffer);
}

absl::Status CudaAttention::BeginMixed(const CudaStep& step,
                                       const StepBatch& batch,
                                       CudaStepBuffer* buffer) {
  decode_ = false;
  rows_ = step.rows;
  windows_.clear();
  prompts_.clear();
  scheduled_ = 0;
  for (Shape& shape : shapes_) {
    shape.schedules.clear();
    shape.prompt_schedules.clear();
    shape.prompt_plans.clear();
  }
  const auto num_runs = static_cast<int64_t>(batch.runs.size());
  if (num_runs > max_runs()) {
    return absl::InternalError(absl::StrCat("a step of ", num_runs,
                                            " runs of tokens; there is room "
                                            "for ",
                                            max_runs()));
  }
  for (int64_t begin = 0; begin < batch.num_tokens(); begin += max_rows()) {
    RECURVE_RETURN_IF_ERROR(
        AddWindow(batch, begin,
                  std::min(begin + max_rows(), batch.num_tokens()), buffer));
  }
  for (int64_t first = 0; first < num_runs; first += max_rows()) {
    RECURVE_RETURN_IF_ERROR(AddPrompts(
        batch, first, std::min(first + max_rows(), num_runs), buffer));
  }
  return absl::OkStatus();
}

absl::Status CudaAttention::AddWindow(const StepBatch& batch, int64_t begin,
                                      int64_t end, CudaStepBuffer* buffer) {
  std::vector<int32_t> lengths(end - begin, 0);
  int64_t first = end;
  int64_t last = begin;
  for (const StepRun& run : batch.runs) {
    if (!run.step()) continue;
    for (int64_t row = std::max(run.begin, begin); row < std::min(run.end, end);
         ++row) {
      lengths[row - begin] = static_cast<int32_t>(batch.positions[row] + 1);
      first = std::min(first, row);
      last = std::max(last, row + 1);
    }
  }
  if (first >= last) return absl::OkStatus();
  windows_.push_back({first, last});
  return AddDecode(
      {lengths.data() + (first - begin), batch.row_sequence.data() + first,
       static_cast<int>(last - first), batch.page_table.data(),
       batch.page_table_stride},
      buffer);
}

absl::Status CudaAttention::AddPrompts(const StepBatch& batch, size_t first,
                                       size_t last, CudaStepBuffer* buffer) {
  while (first < last && batch.runs[first].step()) ++first;
  while (first < last && batch.runs[last - 1].step()) --last;
  if (first == last) return absl::OkStatus();
  Prompts prompts = {};
  prompts.runs = static_cast<int64_t>(last - first);
  prompts.begin = batch.runs[first].begin;
  prompts.end = batch.runs[last - 1].end;
  int32_t* const query_start =
      buffer->Add(prompts.runs + 1, &prompts.query_start);
  int32_t* const lengths = buffer->Add(prompts.runs, &prompts.lengths);
  int32_t* const sequences = buffer->Add(prompts.runs, &prompts.sequences);
  for (int64_t i = 0; i < prompts.runs; ++i) {
    const StepRun& run = batch.runs[first + i];
    query_start[i] = static_cast<int32_t>(run.begin - prompts.begin);
    query_start[i + 1] = static_cast<int32_t>(run.end - prompts.begin);
    lengths[i] =
        run.step() ? 0 : static_cast<int32_t>(batch.positions[run.end - 1] + 1);
    sequences[i] = run.sequence;
  }
  for (Shape& shape : shapes_) {
    const AttentionPrefillPlan plan =
        PlanPrefill(shape, prompts.runs, prompts.end - prompts.begin);
    const int64_t at = scheduled_;
    scheduled_ += AlignSchedule(plan.schedule_bytes);
    if (plan.query_tiles == 0 || scheduled_ > prefill_schedules_.bytes() ||
        plan.scratch_bytes > prefill_scratch_.bytes()) {
      return absl::InternalError(absl::StrCat(
          "attention of a step's prompts takes ", scheduled_, " and ",
          plan.scratch_bytes, " bytes; there is room for ",
          prefill_schedules_.bytes(), " and ", prefill_scratch_.bytes()));
    }
    shape.prompt_schedules.push_back(prefill_schedules_.data() + at);
    shape.prompt_plans.push_back(plan);
  }
  prompts_.push_back(prompts);
  return absl::OkStatus();
}

absl::Status CudaAttention::Prepare(cudaStream_t stream) {
  for (const Shape& shape : shapes_) {
    for (size_t i = 0; i < prompts_.size(); ++i) {
      RECURVE_RETURN_IF_ERROR(
          CudaStatus(LaunchAttentionPrefillSchedule(
                         {prompts_[i].query_start, prompts_[i].lengths,
                          prompts_[i].sequences, shape.prompt_schedules[i]},
                         shape.prompt_plans[i], stream),
                     "schedule of a prompt's attention"));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaAttention::Append(const Layer& layer, const CudaStep& step,
                                   int64_t begin, int64_t end, int64_t first,
                                   int64_t last, cudaStream_t stream) {
  const Activations k = layer.k.RowsFrom(begin);
  const Activations q = layer.q.RowsFrom(begin);
  AttentionCudaAppendParams params = {};
  params.shape = layer.of->shape;
  params.cache = layer.cache;
  params.row_sequence = step.row_sequence + begin;
  params.positions = step.positions + begin;
  params.rows = static_cast<int>(end - begin);
  params.k = k.data;
  params.v = layer.v.RowsFrom(begin).data;
  params.stride = k.stride;
  params.position = PositionFrom(layer.position, begin, layer.angles);
  params.k_norm = layer.k_norm;
  params.q = q.data;
  params.query_stride = q.stride;
  params.q_norm = layer.q_norm;
  params.scale = layer.of->scale;
  params.queries = queries_.data();
  params.first_query = static_cast<int>(first - begin);
  params.query_rows = static_cast<int>(last - first);
  return CudaStatus(LaunchAttentionAppend(params, stream), "appending keys");
}

AttentionCudaOutput CudaAttention::OutputFrom(const Layer& layer, int64_t row) {
  const Activations out = layer.out.RowsFrom(row);
  AttentionCudaOutput to = {};
  to.type = layer.out_type;
  to.data = out.data;
  // The row stride in bytes is the same for rounded and float rows.
  to.stride = out.stride * (layer.out_type == WeightType::kFloat32 ? 1 : 2);
  if (layer.gate.data != nullptr) {
    const Activations gate = layer.gate.RowsFrom(row);
    to.gate = gate.data;
    to.gate_stride = gate.stride;
  }
  return to;
}

absl::Status CudaAttention::Decode(const Layer& layer, size_t window,
                                   cudaStream_t stream) {
  const Window& rows = windows_[window];
  AttentionCudaDecodeParams params = {};
  params.shape = layer.of->shape;
  params.cache = layer.cache;
  params.rows = static_cast<int>(rows.end - rows.begin);
  params.queries = queries_.data();
  // In other steps a row's sequence may have more new tokens.
  params.fresh_tokens = decode_ ? 1 : INT32_MAX;
  params.out = OutputFrom(layer, rows.begin);
  params.schedule = layer.shape->schedules[window];
  params.scratch = scratch_.data();
  params.scratch_bytes = scratch_.bytes();
  return CudaStatus(LaunchAttentionDecode(params, layer.shape->decode, stream),
                    "attention");
}

absl::Status CudaAttention::Prefill(const Layer& layer, size_t launch,
                                    cudaStream_t stream) {
  const Prompts& prompts = prompts_[launch];
  const Activations q = layer.q.RowsFrom(prompts.begin);
  AttentionPrefillParams params = {};
  params.shape = layer.of->shape;
  params.cache = layer.cache;
  params.q = q.data;
  params.stride = q.stride;
  params.position = PositionFrom(layer.position, prompts.begin, layer.angles);
  params.norm = layer.q_norm;
  params.scale = layer.of->scale;
  params.out = OutputFrom(layer, prompts.begin);
  params.schedule = layer.shape->prompt_schedules[launch];
  params.scratch = prefill_scratch_.data();
  return CudaStatus(
      LaunchAttentionPrefill(params, layer.shape->prompt_plans[launch], stream),
      "attention of prompts");
}

absl::Status CudaAttention::Launch(const SequenceOperation& operation,
                                   const CudaView& view, const Output& output) {
  const auto& attention = static_cast<const AttentionOperation&>(operation);
  const AttentionOperation::Params& p = attention.params();
  const CudaStep& step = view.step();
  const CudaPositions::Encoding& position = view.position(p.position);
  const CudaView::Pages pages = view.pages(p.pages);
  Layer layer = {};
  layer.of = &p;
  layer.shape = &shapes_[shape_of_.at(&operation)];
  layer.cache = {element_, pages.data, pages.stride, step.page_table,
                 step.page_stride};
  layer.q = view.View(p.q);
  layer.k = view.View(p.k);
  layer.v = view.View(p.v);
  if (attention.gated()) layer.gate = view.View(p.gate);
  layer.out = view.View(p.out);
  layer.out_type = output.type;
  layer.position = {position.config.type, position.cos.as<const float>(),
                    position.sin.as<const float>()};
  layer.angles = position.angles;
  layer.q_norm = {view.vector(p.q_norm), p.norm_eps};
  layer.k_norm = {view.vector(p.k_norm), p.norm_eps};

  const cudaStream_t stream = view.stream();
  // With the queries of the first window. Those of others overwrite them, one
  // after the other; their keys are then written again, the same.
  const Window first = windows_.empty() ? Window{0, 0} : windows_[0];
  RECURVE_RETURN_IF_ERROR(
      Append(layer, step, 0, rows_, first.begin, first.end, stream));
  for (size_t i = 0; i < windows_.size(); ++i) {
    const Window& rows = windows_[i];
    if (i > 0) {
      RECURVE_RETURN_IF_ERROR(Append(layer, step, rows.begin, rows.end,
                                     rows.begin, rows.end, stream));
    }
    RECURVE_RETURN_IF_ERROR(Decode(layer, i, stream));
  }
  for (size_t i = 0; i < prompts_.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(Prefill(layer, i, stream));
  }
  return absl::OkStatus();
}

}  // namespace recurve
