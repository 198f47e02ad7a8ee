#include "engine/models/tpa/tpa_cuda.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/rows/rows_cuda.h"

namespace recurve {

std::unique_ptr<CudaOperations> TpaOperation::MakeCudaOperations(
    const CudaOperationLimits& limits) const {
  return std::make_unique<CudaTpa>(limits);
}

CudaTpa::CudaTpa(const CudaOperationLimits& limits)
    : options_(limits),
      element_(limits.pages == DType::kFloat16 ? TpaElement::kFloat16
                                               : TpaElement::kBFloat16),
      device_(limits.device),
      limits_{limits.max_tokens, limits.max_sequences, limits.max_pages,
              limits.device.hopper},
      piece_tokens_(MaxTpaPieceTokens(limits_)) {}

void CudaTpa::Add(const SequenceOperation& operation) {
  const auto& tpa = static_cast<const TpaOperation&>(operation);
  shape_of_[&operation] = AddShape(tpa.params().shape);
}

size_t CudaTpa::AddShape(const TpaShape& shape) {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    const TpaShape& s = shapes_[i].shape;
    if (s.num_heads == shape.num_heads && s.head_dim == shape.head_dim &&
        s.value_dim == shape.value_dim && s.q_rank == shape.q_rank &&
        s.kv_rank == shape.kv_rank) {
      return i;
    }
  }
  shapes_.emplace_back();
  shapes_.back().shape = shape;
  // 0 for a shape without a separate plan for few, or many, chunks.
  const int few = TpaFewChunks(shape, device_);
  int& few_chunks = context_limits_.few_chunks;
  if (few > 0) few_chunks = few_chunks > 0 ? std::min(few_chunks, few) : few;
  context_limits_.many_chunks =
      std::max(context_limits_.many_chunks, TpaManyChunks(shape, device_));
  // kShort is used only if all shapes have a plan for it.
  const int rows = TpaShortRows(shape, device_);
  int& short_rows = context_limits_.short_rows;
  short_rows = shapes_.size() > 1 ? std::min(short_rows, rows) : rows;
  return shapes_.size() - 1;
}

int64_t CudaTpa::StepBytes() const {
  int64_t schedules = 0;
  for (const Shape& shape : shapes_) schedules += shape.schedule_bytes;
  return MaxTpaStepBytes(limits_, schedules);
}

absl::StatusOr<const TpaDecodePlan*> CudaTpa::Plan(Shape& shape, int64_t rows,
                                                   int64_t tokens,
                                                   TpaContexts contexts) const {
  auto& known = tokens == 1 ? shape.decode : shape.pieces;
  auto it = known.find({rows, contexts});
  if (it == known.end()) {
    const TpaDecodePlan plan = PlanTpaDecode(
        shape.shape, TpaDecodeForm::kParallelBn, static_cast<int>(rows),
        static_cast<int>(tokens), device_, contexts);
    if (plan.blocks == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the GPU does not support attention with ", shape.shape.num_heads,
          " heads of ", shape.shape.head_dim, " and ", shape.shape.value_dim,
          ": it does not fit the ", device_.shared_memory,
          " bytes of shared memory of this one (--device cpu runs it)"));
    }
    it = known.emplace(std::pair(rows, contexts), plan).first;
  }
  return &it->second;
}

TpaPrefillPlan CudaTpa::PlanPrefill(const Shape& shape, int64_t rows,
                                    int64_t tokens, int64_t context) const {
  return PlanTpaPrefill(shape.shape, {static_cast<int>(rows), tokens, context,
                                      shape.prefill_scratch});
}

// ----------------------------------------------------------------------------
// A step

int64_t CudaTpa::Variant(absl::Span<const int64_t> positions,
                         int64_t rows) const {
  return static_cast<int64_t>(TpaContextsOf(positions, rows, context_limits_));
}

absl::Status CudaTpa::BeginDecode(const CudaStep& step, const DecodeRows& rows,
                                  int64_t variant, CudaStepBuffer* buffer) {
  decode_ = true;
  contexts_ = static_cast<TpaContexts>(variant);
  rows_ = step.rows;
  page_table_ = step.page_table;
  page_stride_ = step.page_stride;
  pieces_.clear();
  prefills_.clear();
  piece_positions_count_ = 0;
  for (Shape& shape : shapes_) shape.schedules.clear();
  return AddSchedules(
      {rows.lengths, rows.pages, page_stride_, static_cast<int>(step.rows)}, 1,
      buffer);
}

absl::Status CudaTpa::AddSchedules(const TpaScheduleParams& of, int64_t tokens,
                                   CudaStepBuffer* step) {
  for (Shape& shape : shapes_) {
    RECURVE_ASSIGN_OR_RETURN(const TpaDecodePlan* plan,
                             Plan(shape, of.rows, tokens, contexts_));
    char* on_device = nullptr;
    char* const schedule =
        step->Add(TpaScheduleBytes(*plan, of.rows, of.page_table_stride),
                  &on_device, kTpaScheduleAlignment);
    if (!MakeTpaSchedule(of, *plan, schedule)) {
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

absl::Status CudaTpa::BeginMixed(const CudaStep& step, const StepBatch& batch,
                                 CudaStepBuffer* buffer) {
  decode_ = false;
  rows_ = step.rows;
  contexts_ = TpaContexts::kAny;
  page_stride_ = std::max<int64_t>(batch.page_table_stride, 1);
  pieces_.clear();
  prefills_.clear();
  piece_positions_count_ = 0;
  for (Shape& shape : shapes_) {
    shape.schedules.clear();
    shape.prefills.clear();
  }
  const int64_t most = MaxTpaRuns(limits_);
  if (static_cast<int64_t>(batch.runs.size()) > most) {
    return absl::InternalError(absl::StrCat("a step of ", batch.runs.size(),
                                            " runs of tokens; there is room "
                                            "for ",
                                            most));
  }
  RECURVE_RETURN_IF_ERROR(AddPieces(batch, buffer));
  AddPrefills(batch, buffer);
  return PlanPrefills();
}

void CudaTpa::CopyPages(const StepBatch& batch, int32_t sequence,
                        int32_t* to) const {
  std::copy_n(batch.page_table.data() + sequence * batch.page_table_stride,
              batch.page_table_stride, to);
}

absl::Status CudaTpa::AddPieces(const StepBatch& batch, CudaStepBuffer* step) {
  const std::vector<TpaPieceRows> cut = CutTpaPieces(batch.runs, limits_);
  int64_t all = 0;
  for (const TpaPieceRows& rows : cut)
    all += static_cast<int64_t>(rows.rows.size()) * rows.tokens;
  int64_t* const positions = step->Add(all, &piece_positions_);
  std::fill_n(positions, all, 0);
  for (const auto& [tokens, rows] : cut) {
    Piece piece = {};
    piece.rows = static_cast<int64_t>(rows.size());
    piece.tokens = tokens;
    piece.table_row = options_.table_rows + piece_positions_count_;
    piece.first = tokens == 1 ? rows[0].begin : -1;
    for (int64_t r = 0; r < piece.rows; ++r) {
      const StepRun& row = rows[r];
      const bool only = batch.query_start[row.sequence + 1] -
                            batch.query_start[row.sequence] ==
                        1;
      if (!only || row.begin != rows[0].begin + r) piece.first = -1;
    }
    int32_t* const index = step->Add(piece.rows * tokens, &piece.index);
    std::vector<int32_t> lengths(piece.rows);
    int32_t* const pages = step->Add(piece.rows * page_stride_, &piece.pages);
    for (int64_t r = 0; r < piece.rows; ++r) {
      const StepRun& row = rows[r];
      for (int64_t t = 0; t < tokens; ++t) {
        // Queries are the last tokens of their row.
        const int64_t from = row.end - tokens + t;
        const bool exists = t >= tokens - row.count();
        index[r * tokens + t] = exists ? static_cast<int32_t>(from) : -1;
        if (exists) {
          positions[piece_positions_count_ + r * tokens + t] =
              batch.positions[from];
        }
      }
      lengths[r] = static_cast<int32_t>(batch.positions[row.end - 1] + 1);
      CopyPages(batch, row.sequence, pages + r * page_stride_);
    }
    piece_positions_count_ += piece.rows * tokens;
    pieces_.push_back(piece);
    RECURVE_RETURN_IF_ERROR(AddSchedules(
        {lengths.data(), pages, page_stride_, static_cast<int>(piece.rows)},
        tokens, step));
  }
  return absl::OkStatus();
}

void CudaTpa::AddPrefills(const StepBatch& batch, CudaStepBuffer* step) {
  for (const TpaPrefillRuns& cut : CutTpaPrefills(batch, batch.runs, limits_)) {
    Prefill prefill = {};
    prefill.rows = cut.rows;
    prefill.tokens = cut.tokens;
    prefill.context = cut.context;
    int32_t* const query_start =
        step->Add(prefill.rows + 1, &prefill.query_start);
    int32_t* const lengths = step->Add(prefill.rows, &prefill.lengths);
    int32_t* const pages =
        step->Add(prefill.rows * page_stride_, &prefill.pages);
    for (int64_t r = 0; r < prefill.rows; ++r) {
      const StepRun& run = batch.runs[cut.first + r];
      query_start[r] = static_cast<int32_t>(run.begin);
      query_start[r + 1] = static_cast<int32_t>(run.end);
      lengths[r] = run.step()
                       ? 0
                       : static_cast<int32_t>(batch.positions[run.end - 1] + 1);
      CopyPages(batch, run.sequence, pages + r * page_stride_);
    }
    prefills_.push_back(prefill);
  }
}

absl::Status CudaTpa::PlanPrefills() {
  int64_t used = 0;
  for (Shape& shape : shapes_) {
    for (const Prefill& prefill : prefills_) {
      const TpaPrefillPlan plan =
          PlanPrefill(shape, prefill.rows, prefill.tokens, prefill.context);
      if (plan.query_tiles == 0 ||
          plan.scratch_bytes > prefill_scratch_.bytes()) {
        return absl::InternalError(absl::StrCat(
            "attention of a prompt takes ", plan.scratch_bytes,
            " bytes; there is room for ", prefill_scratch_.bytes()));
      }
      const int64_t at = used;
      used += AlignTpaSchedule(plan.schedule_bytes);
      if (used > prefill_schedules_.bytes()) {
        return absl::InternalError(absl::StrCat(
            "schedules of a step's prompts take ", used,
            " bytes and more; there is room for ", prefill_schedules_.bytes()));
      }
      shape.prefills.push_back({plan, prefill_schedules_.data() + at});
    }
  }
  return absl::OkStatus();
}

absl::Status CudaTpa::Prepare(cudaStream_t stream) {
  for (const Shape& shape : shapes_) {
    for (size_t i = 0; i < prefills_.size(); ++i) {
      RECURVE_RETURN_IF_ERROR(
          CudaStatus(LaunchTpaPrefillSchedule(
                         {prefills_[i].query_start, prefills_[i].lengths,
                          shape.prefills[i].schedule},
                         shape.prefills[i].plan, stream),
                     "schedule of a prompt's attention"));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaTpa::LaunchDecode(const Layer& layer, const Decode& decode,
                                   cudaStream_t stream) {
  Shape& shape = shapes_[layer.shape];
  RECURVE_ASSIGN_OR_RETURN(const TpaDecodePlan* plan,
                           Plan(shape, decode.rows, decode.tokens, contexts_));
  TpaCudaDecodeParams params = {};
  params.shape = shape.shape;
  params.cache = layer.cache;
  params.cache.page_table = decode.pages;
  params.cache.page_table_stride = page_stride_;
  params.rows = static_cast<int>(decode.rows);
  params.new_tokens = static_cast<int>(decode.tokens);
  if (Appends(layer.shape, layer.factors.activation)) {
    params.factors = layer.factors;
  } else {
    params.queries = formed_.data();
  }
  params.fresh_tokens = static_cast<int>(decode.new_tokens);
  params.out_type = decode.out_type;
  params.out = decode.out;
  params.out_stride = decode.out_stride;
  params.schedule = decode.schedule;
  params.scratch = scratch_.data();
  params.scratch_bytes = scratch_.bytes();
  params.next = decode.next.data();
  params.next_bytes = static_cast<int64_t>(decode.next.size());
  return CudaStatus(LaunchTpaDecode(params, *plan, stream), "attention");
}

absl::Status CudaTpa::FormQueries(const Layer& layer, Activations a_q,
                                  Activations b_q, int64_t rows,
                                  int64_t table_row, cudaStream_t stream) {
  TpaCudaQueryParams form = {};
  form.shape = shapes_[layer.shape].shape;
  form.element = element_;
  form.tokens = static_cast<int>(rows);
  form.a_q = a_q.data;
  form.b_q = b_q.data;
  form.stride = b_q.stride;
  form.position = layer.factors.position;
  form.cos = layer.factors.cos + table_row * layer.angles;
  form.sin = layer.factors.sin + table_row * layer.angles;
  form.queries = formed_.data();
  return CudaStatus(LaunchTpaQueries(form, stream), "forming queries");
}

absl::Status CudaTpa::LaunchPiece(const Layer& layer, size_t index,
                                  cudaStream_t stream) {
  const Shape& of = shapes_[layer.shape];
  const TpaShape& shape = of.shape;
  const Piece& piece = pieces_[index];
  const int64_t rows = piece.rows * piece.tokens;
  Decode decode = {};
  decode.schedule = of.schedules[index];
  decode.rows = piece.rows;
  decode.tokens = piece.tokens;
  decode.pages = piece.pages;
  if (InPlace(layer.out_type, piece)) {
    const auto from = [&](Activations all) {
      all.data += piece.first * all.stride;
      return all;
    };
    // Tables begin with the step's rows. The first piece's queries are formed
    // already.
    if (index > 0) {
      RECURVE_RETURN_IF_ERROR(FormQueries(
          layer, from(layer.a_q), from(layer.b_q), rows, piece.first, stream));
    }
    decode.new_tokens = 1;
    decode.out_type = layer.out_type;
    // The row stride in bytes is the same for rounded and float rows.
    decode.out = from(layer.out).data;
    decode.out_stride = OutStride(layer);
    return LaunchDecode(layer, decode, stream);
  }
  const int64_t a_cols = shape.q_rank * shape.num_heads;
  const int64_t b_cols =
      (shape.q_rank > 0 ? shape.q_rank : shape.num_heads) * shape.head_dim;
  const int64_t width = shape.num_heads * shape.value_dim;
  const Activations gathered = {queries_.as<float>(), a_cols + b_cols,
                                a_cols + b_cols};
  const auto gather = [&](Activations from, Activations to) {
    return CudaStatus(LaunchGatherRows({from.data, from.stride, piece.index,
                                        WeightType::kFloat32, to.data,
                                        to.stride, rows, to.cols, to.cols},
                                       stream),
                      "gathering queries");
  };
  const Activations a_q = gathered.Columns(0, a_cols);
  const Activations b_q = gathered.Columns(a_cols, b_cols);
  if (a_cols > 0) RECURVE_RETURN_IF_ERROR(gather(layer.a_q, a_q));
  RECURVE_RETURN_IF_ERROR(gather(layer.b_q, b_q));
  RECURVE_RETURN_IF_ERROR(
      FormQueries(layer, a_q, b_q, rows, piece.table_row, stream));
  // Tokens in other pieces may be of the same sequence.
  decode.new_tokens = INT32_MAX;
  decode.out_type = WeightType::kFloat32;
  decode.out = attended_.data();
  decode.out_stride = width;
  RECURVE_RETURN_IF_ERROR(LaunchDecode(layer, decode, stream));
  return CudaStatus(
      LaunchScatterRows(
          {attended_.as<float>(), width, piece.index, layer.out_type,
           layer.out.data, OutStride(layer), rows, width},
          stream),
      "scattering attention");
}

absl::Status CudaTpa::LaunchPrefill(const Layer& layer, size_t index,
                                    cudaStream_t stream) {
  Shape& shape = shapes_[layer.shape];
  const Prefill& prefill = prefills_[index];
  TpaPrefillParams params = {};
  params.shape = shape.shape;
  params.cache = layer.cache;
  params.cache.page_table = prefill.pages;
  params.cache.page_table_stride = page_stride_;
  params.a_q = layer.a_q.data;
  params.b_q = layer.b_q.data;
  params.stride = layer.b_q.stride;
  params.position = layer.factors.position;
  params.cos = layer.factors.cos;
  params.sin = layer.factors.sin;
  params.out_type = layer.out_type == WeightType::kFloat32
                        ? ElementType::kFloat32
                        : ElementType::kBFloat16;
  params.out = layer.out.data;
  params.out_stride = OutStride(layer);
  params.schedule = shape.prefills[index].schedule;
  params.scratch = prefill_scratch_.data();
  return CudaStatus(
      LaunchTpaPrefill(params, shape.prefills[index].plan, stream),
      "attention of a prompt");
}

bool CudaTpa::Appends(size_t shape, Activation activation) const {
  if (!decode_ || activation != Activation::kNone) return false;
  const auto plan = shapes_[shape].decode.find({rows_, contexts_});
  if (plan == shapes_[shape].decode.end()) return false;
  return TpaDecodeAppends(shapes_[shape].shape, plan->second);
}

absl::Status CudaTpa::Append(const Layer& layer, const CudaView& view) {
  const CudaStep& step = view.step();
  TpaCudaAppendParams append = {};
  append.shape = shapes_[layer.shape].shape;
  append.cache = layer.cache;
  append.row_sequence = step.row_sequence;
  append.positions = step.positions;
  append.rows = static_cast<int>(step.rows);
  append.factors = layer.factors;
  append.queries = formed_.data();
  // It forms the queries of the step's rows, or those of the first piece. The
  // queries of other pieces overwrite them, one piece after the other.
  if (decode_) {
    append.query_rows = static_cast<int>(step.rows);
  } else if (!pieces_.empty() && InPlace(layer.out_type, pieces_[0])) {
    append.first_query = static_cast<int>(pieces_[0].first);
    append.query_rows = static_cast<int>(pieces_[0].rows);
  }
  return CudaStatus(LaunchTpaAppend(append, view.stream()),
                    "appending factors");
}

absl::Status CudaTpa::Launch(const SequenceOperation& operation,
                             const CudaView& view, const Output& output) {
  const TpaOperation::Params& p =
      static_cast<const TpaOperation&>(operation).params();
  const CudaStep& step = view.step();
  const CudaPositions::Encoding& position = view.position(p.position);
  const CudaView::Pages pages = view.pages(p.pages);
  Layer layer = {};
  layer.shape = shape_of_.at(&operation);
  layer.cache = {element_, static_cast<uint16_t*>(pages.data), pages.stride,
                 step.page_table, step.page_stride};
  layer.a_q = view.View(p.a_q);
  layer.b_q = view.View(p.b_q);
  const Activations a_k = view.View(p.a_k);
  TpaCudaFactors& factors = layer.factors;
  factors.a_k = a_k.data;
  factors.b_k = view.View(p.b_k).data;
  factors.a_v = view.View(p.a_v).data;
  factors.b_v = view.View(p.b_v).data;
  factors.stride = a_k.stride;
  factors.position = position.config.type;
  factors.cos = position.cos.as<const float>();
  factors.sin = position.sin.as<const float>();
  factors.activation = p.factor_activation;
  factors.a_q = layer.a_q.data;
  factors.b_q = layer.b_q.data;
  factors.query_stride = layer.b_q.stride;
  layer.angles = position.angles;
  layer.out = view.View(p.out);
  layer.out_type = output.type;
  layer.next = output.prefetch;
  if (!Appends(layer.shape, p.factor_activation)) {
    RECURVE_RETURN_IF_ERROR(Append(layer, view));
  }
  return Attend(layer, view.stream());
}

WorkingBlocks CudaTpa::Working(const SequenceOperation& operation) const {
  const Shape& shape = shapes_[shape_of_.at(&operation)];
  const auto plan = shape.decode.find({rows_, contexts_});
  if (!decode_ || plan == shape.decode.end()) return {};
  const bool clusters = plan->second.cluster_blocks > 0;
  // Without clusters several rows occupy all multiprocessors.
  if (rows_ > 1 && !clusters) return {};
  const TpaScheduleLayout parts = TpaScheduleParts(
      plan->second, static_cast<int>(rows_), kTpaPageTokens * page_stride_);
  return {
      reinterpret_cast<const int32_t*>(
          static_cast<const char*>(shape.schedules[0]) + parts.row_work +
          (rows_ - 1) * sizeof(TpaRowWork) + offsetof(TpaRowWork, last_block)),
      plan->second.head_blocks, clusters};
}

absl::Status CudaTpa::Attend(const Layer& layer, cudaStream_t stream) {
  if (decode_) {
    return LaunchDecode(
        layer,
        {shapes_[layer.shape].schedules[0], rows_, 1, 1, page_table_,
         layer.out_type, layer.out.data, OutStride(layer), layer.next},
        stream);
  }
  for (size_t i = 0; i < pieces_.size(); ++i)
    RECURVE_RETURN_IF_ERROR(LaunchPiece(layer, i, stream));
  for (size_t i = 0; i < prefills_.size(); ++i)
    RECURVE_RETURN_IF_ERROR(LaunchPrefill(layer, i, stream));
  return absl::OkStatus();
}

}  // namespace recurve
