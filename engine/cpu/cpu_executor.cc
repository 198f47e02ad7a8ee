#include "engine/cpu/cpu_executor.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/program/sequence_operation.h"
#include "engine/program/step_runs.h"
#include "kernels/embedding/embedding.h"
#include "kernels/glu/glu.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/tpa/append/expand_factors.h"
#include "kv_cache/block_pieces.h"

namespace recurve {

CpuExecutor::CpuExecutor(Program program, Plan plan, int64_t max_tokens,
                         std::unique_ptr<ThreadPool> threads)
    : program_(std::move(program)),
      plan_(std::move(plan)),
      max_tokens_(max_tokens),
      threads_(std::move(threads)) {}

std::string CpuExecutor::weight_dtype() const {
  return plan_.matrix_type ? plan_.weight_dtype() : "bfloat16 and float32";
}

// ----------------------------------------------------------------------------
// Memory

absl::Status CpuExecutor::Load() {
  for (size_t i = 0; i < program_.matrices.size(); ++i) {
    RECURVE_ASSIGN_OR_RETURN(
        PackedMatrix packed,
        PackedMatrix::Pack(program_.matrices[i].parts, plan_.matrices[i].type));
    matrices_.push_back(std::move(packed));
  }
  vectors_ = std::move(program_.vectors);
  for (size_t i = 0; i < program_.tables.size(); ++i) {
    if (plan_.tables[i].matrix < 0) {
      LoadTable(program_.tables[i], plan_.tables[i].type);
    } else {
      tables_.push_back(nullptr);  // the matrix is read
    }
  }
  program_.matrices.clear();
  program_.tables.clear();
  for (const PositionConfig& config : program_.positions) {
    PositionTables& tables = positions_.emplace_back();
    tables.phase_steps = LrpePhaseSteps(config.theta);
    tables.theta.assign(config.theta.begin(), config.theta.end());
    tables.cos.resize(max_tokens_ * config.theta.size());
    tables.sin.resize(max_tokens_ * config.theta.size());
  }
  for (const int64_t cols : plan_.buffers) {
    buffers_.emplace_back(max_tokens_ * cols);
  }
  return absl::OkStatus();
}

void CpuExecutor::LoadTable(const TensorView& table, DType type) {
  auto copy = std::make_unique<Table>();
  copy->view = table;
  copy->bytes.resize(table.num_elements() * SizeOf(type));
  if (type == table.dtype) {
    std::memcpy(copy->bytes.data(), table.data, copy->bytes.size());
  } else {  // bfloat16
    for (int64_t i = 0; i < table.num_elements(); ++i) {
      const uint16_t bits = FloatToBFloat16(table.Element(i));
      std::memcpy(copy->bytes.data() + i * sizeof(bits), &bits, sizeof(bits));
    }
    copy->view.dtype = type;
  }
  copy->view.data = copy->bytes.data();
  tables_.push_back(std::move(copy));
}

absl::Status CpuExecutor::AllocateCache(int32_t num_pages, int32_t num_slots) {
  try {  // a vector reports missing memory by an exception
    for (const PagesSource& pages : program_.pages) {
      pages_.push_back({pages.cpu_elements, {}});
      pages_.back().memory.assign((int64_t{num_pages} + 1) * pages.cpu_elements,
                                  0.0f);
    }
    for (const Plan::State& state : plan_.states) {
      states_.push_back({state.elements, {}});
      states_.back().memory.assign((int64_t{num_slots} + 1) * state.elements,
                                   0.0f);
    }
  } catch (const std::exception&) {  // bad_alloc or length_error
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", num_pages, " pages of ", plan_.page_bytes,
        " bytes and ", num_slots, " state slots of ", plan_.slot_bytes,
        " bytes; lower --kv-pages, --kv-pool-bytes or --max-num-seqs"));
  }
  return absl::OkStatus();
}

absl::Status CpuExecutor::AllocateHost(int32_t num_blocks,
                                       int64_t block_bytes) {
  const int64_t bytes = num_blocks * block_bytes;
  // Not touched before use.
  host_.reset(new (std::nothrow) char[bytes]);
  if (host_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", bytes,
                     " bytes of preempted sequences; lower --swap-bytes"));
  }
  host_block_bytes_ = block_bytes;
  return absl::OkStatus();
}

// ----------------------------------------------------------------------------
// A step

absl::Status CpuExecutor::Begin(const StepBatch& batch) {
  if (batch.num_tokens() > max_tokens_) {
    return absl::InternalError(absl::StrCat("a step of ", batch.num_tokens(),
                                            " tokens exceeds the ", max_tokens_,
                                            " that were allocated"));
  }
  batch_ = &batch;
  whole_ = WholePromptRows(batch);
  for (size_t i = 0; i < positions_.size(); ++i) {
    FillTables(program_.positions[i], &positions_[i]);
  }
  for (const Operation& operation : program_.operations) {
    std::visit([this](const auto& op) { Run(op); }, operation);
  }
  return absl::OkStatus();
}

void CpuExecutor::FillTables(const PositionConfig& config,
                             PositionTables* tables) const {
  if (config.type == LrpeType::kNone) return;
  const auto angles = static_cast<int64_t>(config.theta.size());
  if (config.float32_angles) {
    LrpeFloat32Table(
        {tables->theta.data(), batch_->positions.data(), tables->cos.data(),
         tables->sin.data(), batch_->num_tokens(), angles, config.log_decay,
         config.bfloat16_tables},
        *threads_);
  } else {
    LrpeTable(
        {tables->phase_steps.data(), batch_->positions.data(),
         tables->cos.data(), tables->sin.data(), batch_->num_tokens(), angles},
        *threads_);
  }
}

Activations CpuExecutor::View(const Slice& slice) const {
  const Plan::Place place = plan_.PlaceOf(slice);
  return {buffers_[place.buffer].data() + place.first, place.cols,
          plan_.buffers[place.buffer]};
}

const float* CpuExecutor::vector(VectorId id) const {
  return id.value < 0 ? nullptr : vectors_[id.value].data();
}

CpuStep::Position CpuExecutor::position(PositionId id) const {
  const PositionTables& tables = positions_[id.value];
  return {program_.positions[id.value].type, tables.cos.data(),
          tables.sin.data()};
}

CpuStep::Pages CpuExecutor::pages(PagesId id) const {
  return {pages_[id.value].memory.data(), pages_[id.value].elements};
}

CpuStep::States CpuExecutor::states(StateId id) const {
  return {states_[id.value].memory.data(), states_[id.value].elements};
}

void CpuExecutor::Run(const EmbedOp& op) {
  const Activations out = View(op.out);
  const std::unique_ptr<Table>& table = tables_[op.table.value];
  const int32_t matrix = plan_.tables[op.table.value].matrix;
  Embedding({table == nullptr ? nullptr : &table->view, batch_->tokens.data(),
             out.data, out.stride, batch_->num_tokens(), op.scale,
             table == nullptr ? &matrices_[matrix] : nullptr},
            *threads_);
}

void CpuExecutor::Run(const FillOp& op) {
  const std::vector<float>& row = vectors_[op.values.value];
  const Activations out = View(op.out);
  for (int64_t t = 0; t < batch_->num_tokens(); ++t) {
    std::copy(row.begin(), row.end(), out.data + t * out.stride);
  }
}

void CpuExecutor::NormRows(const float* in, int64_t in_stride,
                           const NormWeights& norm, float* out,
                           int64_t out_stride, int64_t rows, int64_t cols) {
  const float* weight = vector(norm.weight);
  const float eps = static_cast<float>(norm.eps);
  if (norm.kind == NormKind::kLayer) {
    LayerNorm({in, in_stride, weight, vector(norm.bias), out, out_stride, rows,
               cols, eps},
              *threads_);
  } else {
    RmsNorm(
        {in, in_stride, weight, out, out_stride, rows, cols, norm.groups, eps},
        *threads_);
  }
}

void CpuExecutor::Run(const NormOp& op) {
  const Activations in = View(op.in);
  const Activations out = View(op.out);
  NormRows(in.data, in.stride, op.norm, out.data, out.stride,
           batch_->num_tokens(), in.cols);
}

void CpuExecutor::Run(const AddOp& op) {
  const Activations in = View(op.in);
  const Activations out = View(op.out);
  for (int64_t t = 0; t < batch_->num_tokens(); ++t) {
    for (int64_t c = 0; c < out.cols; ++c) {
      out.data[t * out.stride + c] += in.data[t * in.stride + c];
    }
  }
}

void CpuExecutor::Run(const ProjectOp& op) {
  const Activations in = View(op.in);
  const Activations out = View(op.out);
  Matmul({in.data, in.stride, &matrices_[op.matrix.value], out.data, out.stride,
          batch_->num_tokens(), op.add},
         *threads_);
}

void CpuExecutor::Run(const GluOp& op) {
  const Activations in = View(op.in);
  const Activations out = View(op.out);
  Glu({in.data, in.stride, out.data, out.stride, batch_->num_tokens(), out.cols,
       op.activation},
      *threads_);
}

void CpuExecutor::Run(const GatedNormOp& op) {
  const Activations in = View(op.in);
  const Activations gate = View(op.gate);
  const Activations out = View(op.out);
  GatedNorm({{in.data, in.stride, vector(op.norm.weight), out.data, out.stride,
              batch_->num_tokens(), in.cols, op.norm.groups,
              static_cast<float>(op.norm.eps)},
             gate.data,
             gate.stride,
             op.activation,
             op.gate_after_norm},
            *threads_);
}

void CpuExecutor::Run(const ExpandOp& op) {
  const Activations a = View(op.a);
  const Activations b = View(op.b);
  const Activations out = View(op.out);
  ExpandFactors({a.data, b.data, a.stride, out.data, out.stride,
                 batch_->num_tokens(), op.rank, op.num_heads, b.cols / op.rank},
                *threads_);
}

void CpuExecutor::Run(const SequenceOp& op) { op.operation->Run(*this); }

void CpuExecutor::Run(const HeadOp& op) {
  const Activations in = View(op.in);
  const PackedMatrix& matrix = matrices_[op.matrix.value];
  const int64_t rows = static_cast<int64_t>(batch_->logit_rows.size());
  const int64_t vocab = matrix.outputs();
  head_rows_.resize(rows * in.cols);
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = in.data + batch_->logit_rows[i] * in.stride;
    std::copy(row, row + in.cols, head_rows_.data() + i * in.cols);
  }
  NormRows(head_rows_.data(), in.cols, op.norm, head_rows_.data(), in.cols,
           rows, in.cols);
  logits_.resize(rows * vocab);
  Matmul(
      {head_rows_.data(), in.cols, &matrix, logits_.data(), vocab, rows, false},
      *threads_);
  output_.logits = logits_;
  output_.kept.clear();
  for (const int32_t row : batch_->kept) {
    output_.kept.push_back(
        absl::MakeConstSpan(logits_).subspan(row * vocab, vocab));
  }

  const int64_t samples = static_cast<int64_t>(batch_->samples.size());
  output_.samples.assign(samples, absl::UnknownError("not sampled"));
  threads_->ParallelFor(samples, [&](int64_t i) {
    thread_local SamplingScratch scratch;  // sized to the vocabulary
    const SampleRequest& request = batch_->samples[i];
    const absl::Span<const float> row = absl::MakeConstSpan(logits_).subspan(
        request.logit_index * vocab, vocab);
    output_.samples[i] = SampleRow(
        {row, request.prompt, request.output, request.index, request.params},
        &scratch);
  });
}

// ----------------------------------------------------------------------------
// Memory of sequences

void CpuExecutor::FillPage(int32_t page, float value) {
  for (Part& cache : pages_) {
    std::fill_n(cache.memory.begin() + page * cache.elements, cache.elements,
                value);
  }
}

void CpuExecutor::FillSlot(int32_t slot, float value) {
  for (Part& state : states_) {
    std::fill_n(state.memory.begin() + slot * state.elements, state.elements,
                value);
  }
}

absl::Status CpuExecutor::ClearPage(int32_t page) {
  FillPage(page, 0.0f);
  return absl::OkStatus();
}

absl::Status CpuExecutor::ClearSlot(int32_t slot) {
  FillSlot(slot, 0.0f);
  return absl::OkStatus();
}

absl::Status CpuExecutor::PoisonPage(int32_t page) {
  FillPage(page, std::numeric_limits<float>::quiet_NaN());
  return absl::OkStatus();
}

absl::Status CpuExecutor::PoisonSlot(int32_t slot) {
  FillSlot(slot, std::numeric_limits<float>::quiet_NaN());
  return absl::OkStatus();
}

template <typename Copy>
void CpuExecutor::CopySaved(const SavedMemory& memory, Copy copy) {
  const auto block = [&](size_t index) {
    return host_.get() + (memory.blocks[index] - 1) * host_block_bytes_;
  };
  for (size_t i = 0; i < memory.pages.size(); ++i) {
    char* to = block(i);
    for (Part& cache : pages_) {
      float* const page =
          cache.memory.data() + memory.pages[i] * cache.elements;
      const int64_t bytes = cache.elements * sizeof(float);
      copy(reinterpret_cast<char*>(page), to, bytes);
      to += bytes;
    }
  }
  int64_t done = 0;
  for (Part& state : states_) {
    char* const slot = reinterpret_cast<char*>(state.memory.data() +
                                               memory.slot * state.elements);
    const int64_t bytes = state.elements * sizeof(float);
    ForEachBlockPiece(
        done, bytes, host_block_bytes_,
        [&](int64_t index, int64_t offset, int64_t from, int64_t count) {
          copy(slot + from, block(memory.pages.size() + index) + offset, count);
        });
    done += bytes;
  }
}

absl::Status CpuExecutor::Save(const SavedMemory& memory) {
  CopySaved(memory, [](char* memory, char* block, int64_t bytes) {
    std::memcpy(block, memory, bytes);
  });
  return absl::OkStatus();
}

absl::Status CpuExecutor::Restore(const SavedMemory& memory) {
  CopySaved(memory, [](char* memory, char* block, int64_t bytes) {
    std::memcpy(memory, block, bytes);
  });
  return absl::OkStatus();
}

}  // namespace recurve
