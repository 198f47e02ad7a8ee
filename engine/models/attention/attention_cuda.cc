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

// Rows of a value from `first` on.
Activations From(Activations all, int64_t first) {
  all.data += first * all.stride;
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

AttentionPrefillPlan CudaAttention::PlanPrefill(const Shape& shape,
                                                int64_t rows,
                                                int64_t tokens) const {
  return PlanAttentionPrefill(shape.shape, element_,
                              {static_cast<int>(rows), tokens});
}

absl::StatusOr<CudaAttention::Sizes> CudaAttention::Measure() {
  Sizes sizes;
  const int64_t pages = std::max<int64_t>(limits_.max_pages, 1);
  const int64_t tokens = std::max(limits_.max_tokens, limits_.max_sequences);
  for (const Shape& shape : shapes_) {
    const AttentionPrefillPlan prompts =
        PlanPrefill(shape, limits_.max_sequences, tokens);
    if (shape.decode.blocks == 0 || prompts.query_tiles == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the GPU does not support attention with ", shape.shape.num_heads,
          " heads of ", shape.shape.head_dim, " and ", shape.shape.value_dim,
          " features in ", Name(limits_.pages), " pages for ",
          limits_.max_sequences, " sequences of ", tokens,
          " tokens in a step (--device cpu runs it)"));
    }
    sizes.queries = std::max(
        sizes.queries, AttentionQueryBytes(shape.shape, element_, max_rows()));
    sizes.scratch = std::max(
        sizes.scratch, AttentionScratchBytes(
                           shape.decode, static_cast<int>(max_rows()), pages));
    // Those of several segments have no more tiles than one row for each run.
    sizes.prefill_schedules +=
        AlignSchedule(prompts.schedule_bytes) +
        max_segments() * AlignSchedule(PlanPrefill(shape, 1, 1).schedule_bytes);
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
  const int64_t tokens = std::max(limits_.max_tokens, limits_.max_sequences);
  // Those of prompts.
  int64_t bytes = max_segments() * 3 * Buffer::Room<int32_t>(1) +
                  Buffer::Room<int32_t>(3 * 2 * limits_.max_sequences);
  for (const Shape& shape : shapes_) {
    const auto room = [&](int64_t rows) {
      return AlignSchedule(
          AttentionScheduleParts(shape.decode, static_cast<int>(rows)).bytes);
    };
    bytes += max_segments() * (room(1) + kScheduleAlignment) +
             room(std::min<int64_t>(tokens, kAttentionMaxRows));
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
    shape.prefills.emplace_back();
  }
  return absl::OkStatus();
}

absl::Status CudaAttention::BeginDecode(const CudaStep& step,
                                        const DecodeRows& rows,
                                        int64_t /*variant*/,
                                        CudaStepBuffer* buffer) {
  decode_ = true;
  segments_ = {{false, 0, step.rows, 0, nullptr, nullptr, nullptr}};
  for (Shape& shape : shapes_) {
    shape.schedules.clear();
    shape.prefills.clear();
  }
  return AddDecode({rows.lengths, nullptr, static_cast<int>(step.rows),
                    rows.pages, step.page_stride},
                   buffer);
}

absl::Status CudaAttention::BeginMixed(const CudaStep& /*step*/,
                                       const StepBatch& batch,
                                       CudaStepBuffer* buffer) {
  decode_ = false;
  segments_.clear();
  scheduled_ = 0;
  for (Shape& shape : shapes_) {
    shape.schedules.clear();
    shape.prefills.clear();
  }
  for (size_t i = 0; i < batch.runs.size();) {
    size_t last = i + 1;
    while (last < batch.runs.size() &&
           batch.runs[last].step() == batch.runs[i].step()) {
      ++last;
    }
    if (batch.runs[i].step()) {
      const int64_t end = batch.runs[last - 1].end;
      for (int64_t begin = batch.runs[i].begin; begin < end;
           begin += max_rows()) {
        RECURVE_RETURN_IF_ERROR(
            AddSteps(batch, begin, std::min(begin + max_rows(), end), buffer));
      }
    } else {
      RECURVE_RETURN_IF_ERROR(AddPrompts(batch, i, last, buffer));
    }
    i = last;
  }
  return absl::OkStatus();
}

absl::Status CudaAttention::AddSteps(const StepBatch& batch, int64_t begin,
                                     int64_t end, CudaStepBuffer* buffer) {
  std::vector<int32_t> lengths;
  for (int64_t row = begin; row < end; ++row) {
    lengths.push_back(static_cast<int32_t>(batch.positions[row] + 1));
  }
  segments_.push_back({false, begin, end, 0, nullptr, nullptr, nullptr});
  return AddDecode({lengths.data(), batch.row_sequence.data() + begin,
                    static_cast<int>(end - begin), batch.page_table.data(),
                    batch.page_table_stride},
                   buffer);
}

absl::Status CudaAttention::AddPrompts(const StepBatch& batch, size_t first,
                                       size_t last, CudaStepBuffer* buffer) {
  Segment segment = {};
  segment.prompt = true;
  segment.rows = static_cast<int64_t>(last - first);
  segment.begin = batch.runs[first].begin;
  segment.end = batch.runs[last - 1].end;
  int32_t* const query_start =
      buffer->Add(segment.rows + 1, &segment.query_start);
  int32_t* const lengths = buffer->Add(segment.rows, &segment.lengths);
  int32_t* const sequences = buffer->Add(segment.rows, &segment.sequences);
  for (int64_t i = 0; i < segment.rows; ++i) {
    const StepRun& run = batch.runs[first + i];
    query_start[i] = static_cast<int32_t>(run.begin - segment.begin);
    query_start[i + 1] = static_cast<int32_t>(run.end - segment.begin);
    lengths[i] = static_cast<int32_t>(batch.positions[run.end - 1] + 1);
    sequences[i] = run.sequence;
  }
  for (Shape& shape : shapes_) {
    const AttentionPrefillPlan plan =
        PlanPrefill(shape, segment.rows, segment.end - segment.begin);
    const int64_t at = scheduled_;
    scheduled_ += AlignSchedule(plan.schedule_bytes);
    if (plan.query_tiles == 0 || scheduled_ > prefill_schedules_.bytes() ||
        plan.scratch_bytes > prefill_scratch_.bytes()) {
      return absl::InternalError(absl::StrCat(
          "attention of a step's prompts takes ", scheduled_, " and ",
          plan.scratch_bytes, " bytes; there is room for ",
          prefill_schedules_.bytes(), " and ", prefill_scratch_.bytes()));
    }
    shape.schedules.push_back(prefill_schedules_.data() + at);
    shape.prefills.push_back(plan);
  }
  segments_.push_back(segment);
  return absl::OkStatus();
}

absl::Status CudaAttention::Prepare(cudaStream_t stream) {
  for (const Shape& shape : shapes_) {
    for (size_t i = 0; i < segments_.size(); ++i) {
      const Segment& segment = segments_[i];
      if (!segment.prompt) continue;
      RECURVE_RETURN_IF_ERROR(
          CudaStatus(LaunchAttentionPrefillSchedule(
                         {segment.query_start, segment.lengths,
                          segment.sequences, shape.schedules[i]},
                         shape.prefills[i], stream),
                     "schedule of a prompt's attention"));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaAttention::Attend(const AttentionOperation::Params& p,
                                   const CudaView& view, const Output& output,
                                   const Shape& shape, size_t index) {
  const Segment& segment = segments_[index];
  const CudaStep& step = view.step();
  const CudaPositions::Encoding& position = view.position(p.position);
  const CudaView::Pages pages = view.pages(p.pages);
  const Activations q = From(view.View(p.q), segment.begin);
  const Activations k = From(view.View(p.k), segment.begin);
  const Activations v = From(view.View(p.v), segment.begin);
  const Activations out = From(view.View(p.out), segment.begin);
  const AttentionCudaNorm q_norm = {view.vector(p.q_norm), p.norm_eps};

  AttentionCudaAppendParams append = {};
  append.shape = p.shape;
  append.cache = {element_, pages.data, pages.stride, step.page_table,
                  step.page_stride};
  append.row_sequence = step.row_sequence + segment.begin;
  append.positions = step.positions + segment.begin;
  append.rows = static_cast<int>(segment.end - segment.begin);
  append.k = k.data;
  append.v = v.data;
  append.stride = k.stride;
  append.position = {
      position.config.type,
      position.cos.as<const float>() + segment.begin * position.angles,
      position.sin.as<const float>() + segment.begin * position.angles};
  append.k_norm = {view.vector(p.k_norm), p.norm_eps};
  if (!segment.prompt) {
    append.q = q.data;
    append.query_stride = q.stride;
    append.q_norm = q_norm;
    append.scale = p.scale;
    append.queries = queries_.data();
    append.query_rows = append.rows;
  }
  RECURVE_RETURN_IF_ERROR(CudaStatus(
      LaunchAttentionAppend(append, view.stream()), "appending keys"));

  AttentionCudaOutput to = {};
  to.type = output.type;
  to.data = out.data;
  // The row stride in bytes is the same for rounded and float rows.
  to.stride = out.stride * (output.type == WeightType::kFloat32 ? 1 : 2);
  if (p.gate.value.value >= 0) {
    const Activations gate = From(view.View(p.gate), segment.begin);
    to.gate = gate.data;
    to.gate_stride = gate.stride;
  }
  if (segment.prompt) {
    AttentionPrefillParams params = {};
    params.shape = p.shape;
    params.cache = append.cache;
    params.q = q.data;
    params.stride = q.stride;
    params.position = append.position;
    params.norm = q_norm;
    params.scale = p.scale;
    params.out = to;
    params.schedule = shape.schedules[index];
    params.scratch = prefill_scratch_.data();
    return CudaStatus(
        LaunchAttentionPrefill(params, shape.prefills[index], view.stream()),
        "attention of prompts");
  }
  AttentionCudaDecodeParams params = {};
  params.shape = p.shape;
  params.cache = append.cache;
  params.rows = append.rows;
  params.queries = queries_.data();
  // In other steps a row's sequence may have more new tokens.
  params.fresh_tokens = decode_ ? 1 : INT32_MAX;
  params.out = to;
  params.schedule = shape.schedules[index];
  params.scratch = scratch_.data();
  params.scratch_bytes = scratch_.bytes();
  return CudaStatus(LaunchAttentionDecode(params, shape.decode, view.stream()),
                    "attention");
}

absl::Status CudaAttention::Launch(const SequenceOperation& operation,
                                   const CudaView& view, const Output& output) {
  const auto& attention = static_cast<const AttentionOperation&>(operation);
  const Shape& shape = shapes_[shape_of_.at(&operation)];
  for (size_t i = 0; i < segments_.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(Attend(attention.params(), view, output, shape, i));
  }
  return absl::OkStatus();
}

}  // namespace recurve
