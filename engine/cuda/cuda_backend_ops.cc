// Model operations of CudaBackend; each is put on the stream.

#include "engine/cuda/cuda_activations.h"
#include "engine/cuda/cuda_backend.h"
#include "kernels/embedding/embedding_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/tpa/append/expand_factors_cuda.h"

namespace recurve {
namespace {

// Maximum rows of a decode step during whose attention the next weights are
// prefetched.
constexpr int64_t kNextRows = 64;

}  // namespace

const float* CudaBackend::Vector(VectorId id) const {
  return id.value < 0 ? nullptr : vectors_[id.value].as<const float>();
}

void CudaBackend::Embed(TableId table, float scale, Activations out) {
  if (!active()) return;
  Check(products_->Flush());
  const Table& t = tables_[table.value];
  Check(LaunchEmbed({t.type, t.memory.data(), t.vocab, tokens_, sources_,
                     sampler_.tokens(), CudaSampler::kTokenStride, Floats(out),
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
  if (!products_->FusesChannelMixer(args)) {
    Backend::ChannelMixer(args);
  } else if (active()) {
    Check(products_->ChannelMixer(args, WeightsOf(args.norm)));
  }
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
  const TpaCudaCache view = CacheView(cache);
  TpaCudaFactors factors = {};
  factors.a_k = Floats(args.a_k);
  factors.b_k = Floats(args.b_k);
  factors.a_v = Floats(args.a_v);
  factors.b_v = Floats(args.b_v);
  factors.stride = args.a_k.stride;
  factors.position = position.config.type;
  factors.cos = position.cos.as<const float>();
  factors.sin = position.sin.as<const float>();
  factors.activation = args.factor_activation;
  factors.a_q = Floats(args.a_q);
  factors.b_q = Floats(args.b_q);
  factors.query_stride = args.b_q.stride;
  // The decode kernel writes the factors' type or float32, the prefill kernel
  // bfloat16 or float32.
  const std::optional<WeightType> type = products_->RoundsInto(args.out);
  const bool rounded = type && *type == (decode_ ? TpaWeightType(tpa_element())
                                                 : WeightType::kBFloat16);
  products_->SetRounded(args.out, rounded);
  const WeightType out_type = rounded ? *type : WeightType::kFloat32;

  if (!tpa_->Appends(cache.shape, args.factor_activation)) {
    TpaCudaAppendParams append = {};
    append.shape = tpa_->shape(cache.shape);
    append.cache = view;
    append.row_sequence = row_sequence_;
    append.positions = row_positions_;
    append.rows = static_cast<int>(rows_);
    append.factors = factors;
    const CudaTpa::QueryRows formed = tpa_->QueriesOfAppend(out_type);
    append.queries = tpa_->queries();
    append.first_query = static_cast<int>(formed.first);
    append.query_rows = static_cast<int>(formed.count);
    Check(LaunchTpaAppend(append, stream_), "appending factors");
  }

  // The weights to prefetch into the L2 cache during attention. With one row,
  // the blocks of the next product already have its weights by then, so the
  // product after it is prefetched. (Measured; docs/kernels/matmul.md. With
  // two and four rows it makes no difference; with many rows there is no spare
  // bandwidth.)
  MatrixId next = args.next;
  if (next.value >= 0 && rows_ == 1) next = products_->after(next);
  if (rows_ > kNextRows) next = {};
  const CudaTpa::Layer layer = {
      cache.shape,
      view,
      args.a_q,
      args.b_q,
      factors,
      position.angles,
      args.out,
      out_type,
      next.value < 0 ? absl::Span<const char>() : products_->data(next)};
  Check(tpa_->Attend(layer, stream_));
  products_->SetWorking(tpa_->Working(layer));
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
  products_->SetWorking({});  // all of its blocks work until the end
}

}  // namespace recurve
