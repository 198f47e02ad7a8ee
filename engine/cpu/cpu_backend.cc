#include "engine/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/models/step_runs.h"
#include "kernels/embedding/embedding.h"
#include "kernels/glu/glu.h"
#include "kernels/linear_attn/linear_attn.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/tpa/append/expand_factors.h"
#include "kernels/tpa/tpa.h"
#include "kv_cache/block_pieces.h"

namespace recurve {
namespace {

float* Floats(const Activations& a) { return reinterpret_cast<float*>(a.data); }

}  // namespace

DType CpuBackend::StorageFor(absl::Span<const MatrixPart> parts) const {
  if (options_.weight_dtype) return *options_.weight_dtype;
  const bool all_bfloat16 =
      std::all_of(parts.begin(), parts.end(), [](const MatrixPart& part) {
        return part.tensor.dtype == DType::kBFloat16;
      });
  return all_bfloat16 ? DType::kBFloat16 : DType::kFloat32;
}

absl::string_view CpuBackend::weight_dtype() const {
  const auto is_bfloat16 = [](const PackedMatrix& m) {
    return m.storage() == DType::kBFloat16;
  };
  const auto count =
      std::count_if(matrices_.begin(), matrices_.end(), is_bfloat16);
  if (count == 0) return "float32";
  return count == static_cast<int64_t>(matrices_.size())
             ? "bfloat16"
             : "bfloat16 and float32";
}

absl::StatusOr<MatrixId> CpuBackend::LoadMatrix(
    absl::Span<const MatrixPart> parts) {
  RECURVE_ASSIGN_OR_RETURN(PackedMatrix packed,
                           PackedMatrix::Pack(parts, StorageFor(parts)));
  weight_bytes_ += packed.bytes();
  matrices_.push_back(std::move(packed));
  return MatrixId{static_cast<int32_t>(matrices_.size()) - 1};
}

absl::StatusOr<VectorId> CpuBackend::LoadVector(
    absl::Span<const float> values) {
  weight_bytes_ += values.size() * sizeof(float);
  vectors_.emplace_back(values.begin(), values.end());
  return VectorId{static_cast<int32_t>(vectors_.size()) - 1};
}

absl::StatusOr<TableId> CpuBackend::LoadEmbedding(const TensorView& table) {
  auto copy = std::make_unique<Table>();
  copy->view = table;
  copy->bytes.resize(table.num_elements() * SizeOf(table.dtype));
  std::memcpy(copy->bytes.data(), table.data, copy->bytes.size());
  if (StorageFor({table}) == DType::kBFloat16 &&
      table.dtype != DType::kBFloat16) {
    std::vector<char> rounded(table.num_elements() * sizeof(uint16_t));
    for (int64_t i = 0; i < table.num_elements(); ++i) {
      const uint16_t bits = FloatToBFloat16(table.Element(i));
      std::memcpy(rounded.data() + i * sizeof(bits), &bits, sizeof(bits));
    }
    copy->bytes = std::move(rounded);
    copy->view.dtype = DType::kBFloat16;
  }
  copy->view.data = copy->bytes.data();
  weight_bytes_ += copy->bytes.size();
  tables_.push_back(std::move(copy));
  return TableId{static_cast<int32_t>(tables_.size()) - 1};
}

absl::StatusOr<PositionId> CpuBackend::LoadPosition(
    const PositionConfig& config) {
  // Equal encodings share their tables.
  for (size_t i = 0; i < positions_.size(); ++i) {
    if (positions_[i].config == config) {
      return PositionId{static_cast<int32_t>(i)};
    }
  }
  Position position;
  position.config = config;
  position.angles = static_cast<int64_t>(config.theta.size());
  position.phase_steps = LrpePhaseSteps(config.theta);
  position.theta.assign(config.theta.begin(), config.theta.end());
  position.cos.resize(options_.max_tokens * position.angles);
  position.sin.resize(options_.max_tokens * position.angles);
  positions_.push_back(std::move(position));
  return PositionId{static_cast<int32_t>(positions_.size()) - 1};
}

TpaCacheId CpuBackend::AddTpaCache(const TpaShape& shape) {
  tpa_caches_.push_back({shape, TpaPageLayout(shape).page_elements, {}});
  return {static_cast<int32_t>(tpa_caches_.size()) - 1};
}

StateId CpuBackend::AddState(int64_t num_heads, int64_t key_dim,
                             int64_t value_dim, bool /*causal*/) {
  states_.push_back({num_heads * key_dim * value_dim, {}});
  return {static_cast<int32_t>(states_.size()) - 1};
}

int64_t CpuBackend::page_bytes() const {
  int64_t elements = 0;
  for (const TpaCache& cache : tpa_caches_) elements += cache.page_elements;
  return elements * static_cast<int64_t>(sizeof(float));
}

int64_t CpuBackend::slot_bytes() const {
  int64_t elements = 0;
  for (const State& state : states_) elements += state.slot_elements;
  return elements * static_cast<int64_t>(sizeof(float));
}

absl::Status CpuBackend::AllocateCache(int32_t num_pages, int32_t num_slots) {
  try {  // a vector reports missing memory by an exception
    for (TpaCache& cache : tpa_caches_) {
      cache.pages.assign((int64_t{num_pages} + 1) * cache.page_elements, 0.0f);
    }
    for (State& state : states_) {
      state.slots.assign((int64_t{num_slots} + 1) * state.slot_elements, 0.0f);
    }
  } catch (const std::exception&) {  // bad_alloc or length_error
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", num_pages, " pages of ", page_bytes(), " bytes and ",
        num_slots, " state slots of ", slot_bytes(),
        " bytes; lower --kv-pages, --kv-pool-bytes or --max-num-seqs"));
  }
  return absl::OkStatus();
}

absl::Status CpuBackend::AllocateHost(int32_t num_blocks, int64_t block_bytes) {
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

absl::StatusOr<Activations> CpuBackend::AllocateActivations(int64_t cols) {
  activations_.emplace_back(options_.max_tokens * cols);
  return Activations{reinterpret_cast<char*>(activations_.back().data()), cols,
                     cols, sizeof(float)};
}

absl::Status CpuBackend::BeginStep(const StepBatch& batch) {
  if (batch.num_tokens() > options_.max_tokens) {
    return absl::InternalError(
        absl::StrCat("a step of ", batch.num_tokens(), " tokens exceeds the ",
                     options_.max_tokens, " that were allocated"));
  }
  batch_ = &batch;
  whole_ = WholePromptRows(batch, StepRuns(batch));
  for (Position& position : positions_) FillTables(position);
  return absl::OkStatus();
}

void CpuBackend::FillTables(Position& position) {
  if (position.config.type == LrpeType::kNone) return;
  if (position.config.float32_angles) {
    LrpeFloat32Table(
        {position.theta.data(), batch_->positions.data(), position.cos.data(),
         position.sin.data(), batch_->num_tokens(), position.angles,
         position.config.log_decay, position.config.bfloat16_tables},
        pool_);
  } else {
    LrpeTable({position.phase_steps.data(), batch_->positions.data(),
               position.cos.data(), position.sin.data(), batch_->num_tokens(),
               position.angles},
              pool_);
  }
}

void CpuBackend::Embed(TableId table, float scale, Activations out) {
  Embedding({&tables_[table.value]->view, batch_->tokens.data(), Floats(out),
             out.stride, batch_->num_tokens(), scale},
            pool_);
}

void CpuBackend::Fill(VectorId values, Activations out) {
  const std::vector<float>& row = vectors_[values.value];
  for (int64_t t = 0; t < batch_->num_tokens(); ++t) {
    std::copy(row.begin(), row.end(), Floats(out) + t * out.stride);
  }
}

const float* CpuBackend::OptionalVector(VectorId id) const {
  return id.value < 0 ? nullptr : vectors_[id.value].data();
}

void CpuBackend::NormRows(const float* in, int64_t in_stride,
                          const NormArgs& norm, float* out, int64_t out_stride,
                          int64_t rows, int64_t cols) {
  const float* weight = OptionalVector(norm.weight);
  const float eps = static_cast<float>(norm.eps);
  if (norm.kind == NormKind::kLayer) {
    LayerNorm({in, in_stride, weight, OptionalVector(norm.bias), out,
               out_stride, rows, cols, eps},
              pool_);
  } else {
    RmsNorm(
        {in, in_stride, weight, out, out_stride, rows, cols, norm.groups, eps},
        pool_);
  }
}

void CpuBackend::Norm(Activations in, const NormArgs& norm, Activations out) {
  NormRows(Floats(in), in.stride, norm, Floats(out), out.stride,
           batch_->num_tokens(), in.cols);
}

void CpuBackend::Project(Activations in, MatrixId matrix, Activations out,
                         bool add) {
  Matmul({Floats(in), in.stride, &matrices_[matrix.value], Floats(out),
          out.stride, batch_->num_tokens(), add},
         pool_);
}

void CpuBackend::Glu(Activations in, Activation activation, Activations out) {
  recurve::Glu({Floats(in), in.stride, Floats(out), out.stride,
                batch_->num_tokens(), out.cols, activation},
               pool_);
}

TpaCacheView CpuBackend::CacheView(TpaCache& cache) const {
  return {cache.pages.data(),          cache.page_elements,
          batch_->page_table.data(),   batch_->page_table_stride,
          batch_->row_sequence.data(), batch_->positions.data(),
          batch_->num_tokens()};
}

void CpuBackend::Tpa(const TpaArgs& args) {
  TpaCache& cache = tpa_caches_[args.cache.value];
  const Position& position = positions_[args.position.value];
  TpaAppend({cache.shape, CacheView(cache), Floats(args.a_k), Floats(args.b_k),
             Floats(args.a_v), Floats(args.b_v), args.a_k.stride,
             position.config.type, position.cos.data(), position.sin.data(),
             args.factor_activation},
            pool_);
  TpaAttend({cache.shape, CacheView(cache), Floats(args.a_q), Floats(args.b_q),
             args.b_q.stride, position.config.type, position.cos.data(),
             position.sin.data(), Floats(args.out), args.out.stride},
            pool_);
}

void CpuBackend::ExpandFactors(const ExpandArgs& args) {
  recurve::ExpandFactors(
      {Floats(args.a), Floats(args.b), args.a.stride, Floats(args.out),
       args.out.stride, batch_->num_tokens(), args.rank, args.num_heads,
       args.b.cols / args.rank},
      pool_);
}

void CpuBackend::LinearAttention(const LinearAttentionArgs& args) {
  State& state = states_[args.state.value];
  const Position& position = positions_[args.position.value];
  const LinearConfig& config = *args.config;
  recurve::LinearAttention({config.num_heads,
                            config.head_dim,
                            config.value_dim,
                            Floats(args.q),
                            Floats(args.k),
                            Floats(args.v),
                            args.q.stride,
                            args.v.stride,
                            Floats(args.out),
                            args.out.stride,
                            batch_->query_start.data(),
                            batch_->num_sequences(),
                            config.q_activation,
                            config.k_activation,
                            config.v_activation,
                            position.config.type,
                            position.cos.data(),
                            position.sin.data(),
                            vectors_[args.decay.value].data(),
                            state.slots.data(),
                            state.slot_elements,
                            batch_->slots.data(),
                            config.causal ? nullptr : whole_.data()},
                           pool_);
}

void CpuBackend::GatedNorm(const GatedNormArgs& args) {
  recurve::GatedNorm(
      {{Floats(args.in), args.in.stride, OptionalVector(args.norm.weight),
        Floats(args.out), args.out.stride, batch_->num_tokens(), args.in.cols,
        args.norm.groups, static_cast<float>(args.norm.eps)},
       Floats(args.gate),
       args.gate.stride,
       args.activation,
       args.gate_after_norm},
      pool_);
}

void CpuBackend::Head(Activations in, const NormArgs& norm, MatrixId head) {
  const PackedMatrix& matrix = matrices_[head.value];
  const int64_t rows = static_cast<int64_t>(batch_->logit_rows.size());
  const int64_t vocab = matrix.outputs();
  head_rows_.resize(rows * in.cols);
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = Floats(in) + batch_->logit_rows[i] * in.stride;
    std::copy(row, row + in.cols, head_rows_.data() + i * in.cols);
  }
  NormRows(head_rows_.data(), in.cols, norm, head_rows_.data(), in.cols, rows,
           in.cols);
  logits_.resize(rows * vocab);
  Matmul(
      {head_rows_.data(), in.cols, &matrix, logits_.data(), vocab, rows, false},
      pool_);
  output_.logits = logits_;

  const int64_t samples = static_cast<int64_t>(batch_->samples.size());
  output_.samples.assign(samples, absl::UnknownError("not sampled"));
  pool_.ParallelFor(samples, [&](int64_t i) {
    thread_local SamplingScratch scratch;  // sized to the vocabulary
    const SampleRequest& request = batch_->samples[i];
    const absl::Span<const float> row = absl::MakeConstSpan(logits_).subspan(
        request.logit_index * vocab, vocab);
    output_.samples[i] = SampleRow(
        {row, request.prompt, request.output, request.index, request.params},
        &scratch);
  });
}

void CpuBackend::FillPage(int32_t page, float value) {
  for (TpaCache& cache : tpa_caches_) {
    std::fill_n(cache.pages.begin() + page * cache.page_elements,
                cache.page_elements, value);
  }
}

void CpuBackend::FillSlot(int32_t slot, float value) {
  for (State& state : states_) {
    std::fill_n(state.slots.begin() + slot * state.slot_elements,
                state.slot_elements, value);
  }
}

absl::Status CpuBackend::ClearPage(int32_t page) {
  FillPage(page, 0.0f);
  return absl::OkStatus();
}

absl::Status CpuBackend::ClearSlot(int32_t slot) {
  FillSlot(slot, 0.0f);
  return absl::OkStatus();
}

absl::Status CpuBackend::PoisonPage(int32_t page) {
  FillPage(page, std::numeric_limits<float>::quiet_NaN());
  return absl::OkStatus();
}

absl::Status CpuBackend::PoisonSlot(int32_t slot) {
  FillSlot(slot, std::numeric_limits<float>::quiet_NaN());
  return absl::OkStatus();
}

template <typename Copy>
void CpuBackend::CopySaved(const SavedMemory& memory, Copy copy) {
  const auto block = [&](size_t index) {
    return host_.get() + (memory.blocks[index] - 1) * host_block_bytes_;
  };
  for (size_t i = 0; i < memory.pages.size(); ++i) {
    char* to = block(i);
    for (TpaCache& cache : tpa_caches_) {
      float* const page =
          cache.pages.data() + memory.pages[i] * cache.page_elements;
      const int64_t bytes = cache.page_elements * sizeof(float);
      copy(reinterpret_cast<char*>(page), to, bytes);
      to += bytes;
    }
  }
  int64_t done = 0;
  for (State& state : states_) {
    char* const slot = reinterpret_cast<char*>(
        state.slots.data() + memory.slot * state.slot_elements);
    const int64_t bytes = state.slot_elements * sizeof(float);
    ForEachBlockPiece(
        done, bytes, host_block_bytes_,
        [&](int64_t index, int64_t offset, int64_t from, int64_t count) {
          copy(slot + from, block(memory.pages.size() + index) + offset, count);
        });
    done += bytes;
  }
}

absl::Status CpuBackend::Save(const SavedMemory& memory) {
  CopySaved(memory, [](char* memory, char* block, int64_t bytes) {
    std::memcpy(block, memory, bytes);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::Restore(const SavedMemory& memory) {
  CopySaved(memory, [](char* memory, char* block, int64_t bytes) {
    std::memcpy(memory, block, bytes);
  });
  return absl::OkStatus();
}

}  // namespace recurve
