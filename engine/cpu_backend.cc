#include "engine/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/embedding/embedding.h"
#include "kernels/glu/glu.h"
#include "kernels/linear_attn/linear_attn.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/tpa/tpa.h"

namespace recurve {
namespace {

float* Floats(const Activations& a) { return reinterpret_cast<float*>(a.data); }

// Equal encodings share their table of angles.
bool SamePosition(LrpeType type, const std::vector<uint64_t>& steps,
                  LrpeType other_type,
                  const std::vector<uint64_t>& other_steps) {
  return type == other_type && steps == other_steps;
}

}  // namespace

CpuBackend::CpuBackend(const Options& options)
    : options_(options), pool_(options.num_threads) {}

DType CpuBackend::StorageFor(absl::Span<const TensorView> parts) const {
  if (options_.weight_dtype) return *options_.weight_dtype;
  const bool all_bfloat16 = std::all_of(
      parts.begin(), parts.end(),
      [](const TensorView& part) { return part.dtype == DType::kBFloat16; });
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
    absl::Span<const TensorView> parts) {
  RECURVE_ASSIGN_OR_RETURN(PackedMatrix packed,
                           PackedMatrix::Pack(parts, StorageFor(parts)));
  weight_bytes_ += packed.bytes();
  matrices_.push_back(std::move(packed));
  return MatrixId{static_cast<int32_t>(matrices_.size()) - 1};
}

absl::StatusOr<VectorId> CpuBackend::LoadVector(const TensorView& tensor) {
  std::vector<float> values(tensor.num_elements());
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = tensor.Element(static_cast<int64_t>(i));
  return LoadVector(values);
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
  std::vector<uint64_t> steps = LrpePhaseSteps(config.theta);
  for (size_t i = 0; i < positions_.size(); ++i) {
    if (SamePosition(config.type, steps, positions_[i].type,
                     positions_[i].phase_steps)) {
      return PositionId{static_cast<int32_t>(i)};
    }
  }
  Position position;
  position.type = config.type;
  position.angles = static_cast<int64_t>(steps.size());
  position.phase_steps = std::move(steps);
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
                             int64_t value_dim) {
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
  try {  // a vector reports by exception that there is no memory
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
  for (Position& position : positions_) {
    if (position.type == LrpeType::kNone) continue;
    LrpeTable({position.phase_steps.data(), batch.positions.data(),
               position.cos.data(), position.sin.data(), batch.num_tokens(),
               position.angles},
              pool_);
  }
  return absl::OkStatus();
}

void CpuBackend::Embed(TableId table, Activations out) {
  Embedding({&tables_[table.value]->view, batch_->tokens.data(), Floats(out),
             out.stride, batch_->num_tokens()},
            pool_);
}

void CpuBackend::RmsNorm(Activations in, VectorId weight, double eps,
                         Activations out) {
  recurve::RmsNorm(
      {Floats(in), in.stride, vectors_[weight.value].data(), Floats(out),
       out.stride, batch_->num_tokens(), in.cols, 1, static_cast<float>(eps)},
      pool_);
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
             Floats(args.a_v), Floats(args.b_v), args.a_k.stride, position.type,
             position.cos.data(), position.sin.data()},
            pool_);
  TpaAttend({cache.shape, CacheView(cache), Floats(args.a_q), Floats(args.b_q),
             args.a_q.stride, position.type, position.cos.data(),
             position.sin.data(), Floats(args.out), args.out.stride},
            pool_);
}

void CpuBackend::LinearAttention(const LinearAttentionArgs& args) {
  State& state = states_[args.state.value];
  const Position& position = positions_[args.position.value];
  const LinearConfig& config = *args.config;
  recurve::LinearAttention(
      {config.num_heads,        config.head_dim,
       config.value_dim,        Floats(args.q),
       Floats(args.k),          Floats(args.v),
       args.q.stride,           Floats(args.out),
       args.out.stride,         batch_->query_start.data(),
       batch_->num_sequences(), config.q_activation,
       config.k_activation,     config.v_activation,
       position.type,           position.cos.data(),
       position.sin.data(),     vectors_[args.decay.value].data(),
       state.slots.data(),      state.slot_elements,
       batch_->slots.data()},
      pool_);
}

void CpuBackend::GatedNorm(const GatedNormArgs& args) {
  recurve::GatedNorm(
      {{Floats(args.in), args.in.stride, vectors_[args.weight.value].data(),
        Floats(args.out), args.out.stride, batch_->num_tokens(), args.in.cols,
        1, static_cast<float>(args.eps)},
       Floats(args.gate),
       args.gate.stride,
       args.activation,
       args.gate_after_norm},
      pool_);
}

void CpuBackend::Head(Activations in, VectorId norm, double eps, MatrixId head,
                      StepOutput* output) {
  const PackedMatrix& matrix = matrices_[head.value];
  const int64_t rows = static_cast<int64_t>(batch_->logit_rows.size());
  const int64_t vocab = matrix.outputs();
  head_rows_.resize(rows * in.cols);
  for (int64_t i = 0; i < rows; ++i) {
    const float* row = Floats(in) + batch_->logit_rows[i] * in.stride;
    std::copy(row, row + in.cols, head_rows_.data() + i * in.cols);
  }
  recurve::RmsNorm(
      {head_rows_.data(), in.cols, vectors_[norm.value].data(),
       head_rows_.data(), in.cols, rows, in.cols, 1, static_cast<float>(eps)},
      pool_);
  logits_.resize(rows * vocab);
  Matmul(
      {head_rows_.data(), in.cols, &matrix, logits_.data(), vocab, rows, false},
      pool_);
  output->logits = logits_;

  const int64_t samples = static_cast<int64_t>(batch_->samples.size());
  output->samples.assign(samples, absl::UnknownError("not sampled"));
  if (sampling_scratch_.size() < batch_->samples.size()) {
    sampling_scratch_.resize(batch_->samples.size());
  }
  pool_.ParallelFor(samples, [&](int64_t i) {
    const SampleRequest& request = batch_->samples[i];
    const absl::Span<const float> row = absl::MakeConstSpan(logits_).subspan(
        request.logit_index * vocab, vocab);
    output->samples[i] = SampleRow(
        {row, request.prompt, request.output, request.index, request.params},
        &sampling_scratch_[i]);
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

}  // namespace recurve
