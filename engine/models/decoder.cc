#include "engine/models/decoder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/tpa/tpa_layout.h"
#include "kv_cache/cache_spec.h"

namespace recurve {

// kv_cache's pages have the layout of the kernels' pages. The two folders do
// not depend on each other, so the check is here.
static_assert(kPageTokens == kTpaPageTokens);

namespace {

// Memory needs of a mixer, one overload per kind, so that a new kind fails to
// compile until handled here.
int64_t CacheElementsPerToken(const TpaLayer& layer, TpaPageOrder order) {
  return TpaPageLayout(layer.config.shape, order).page_elements /
         kTpaPageTokens;
}
int64_t CacheElementsPerToken(const LinearLayer& /*layer*/,
                              TpaPageOrder /*order*/) {
  return 0;
}
int64_t StateElements(const TpaLayer& /*layer*/) { return 0; }
int64_t StateElements(const LinearLayer& layer) {
  const LinearConfig& config = layer.config;
  return config.num_heads *
         LrpeOutputDim(config.position.type, config.head_dim) *
         config.value_dim;
}
bool LooksAtWholePrompts(const TpaLayer& /*layer*/) { return false; }
bool LooksAtWholePrompts(const LinearLayer& layer) {
  return !layer.config.causal;
}

}  // namespace

int64_t CacheBytesPerToken(const ModelDefinition& model, int64_t element_bytes,
                           TpaPageOrder order) {
  int64_t elements = 0;
  for (const LayerDefinition& layer : model.layers) {
    elements += std::visit(
        [&](const auto& mixer) { return CacheElementsPerToken(mixer, order); },
        layer.mixer);
  }
  return elements * element_bytes;
}

int64_t StateBytesPerSequence(const ModelDefinition& model) {
  int64_t elements = model.tpe ? model.hidden_size : 0;
  for (const LayerDefinition& layer : model.layers) {
    elements += std::visit(
        [](const auto& mixer) { return StateElements(mixer); }, layer.mixer);
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

bool HasWholePrompts(const ModelDefinition& model) {
  return std::any_of(
      model.layers.begin(), model.layers.end(), [](const LayerDefinition& l) {
        return std::visit(
            [](const auto& mixer) { return LooksAtWholePrompts(mixer); },
            l.mixer);
      });
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Load(
    const ModelDefinition& model, std::unique_ptr<Backend> backend,
    int32_t num_pages, int32_t num_slots, int64_t swap_bytes,
    bool swap_required) {
  auto decoder = std::unique_ptr<Decoder>(new Decoder(std::move(backend)));
  RECURVE_RETURN_IF_ERROR(decoder->LoadWeights(model));
  Backend& device = *decoder->backend_;
  RECURVE_RETURN_IF_ERROR(device.AllocateCache(num_pages, num_slots));
  CacheSpec& spec = decoder->cache_spec_;
  spec = {num_pages, num_slots, device.page_bytes(), device.slot_bytes()};
  if (const int64_t bytes = HostBlockBytes(spec); bytes > 0) {
    spec.num_host_blocks = static_cast<int32_t>(
        std::min<int64_t>(swap_bytes / bytes, int64_t{1} << 30));
    if (spec.num_host_blocks < HostBlocksFor(1, spec)) {
      if (swap_bytes > 0 && swap_required) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--swap-bytes is ", swap_bytes,
            "; one sequence of this model takes ",
            HostBlocksFor(1, spec) * bytes, " at least (0 saves none)"));
      }
      spec.num_host_blocks = 0;
    }
    if (spec.num_host_blocks > 0) {
      const absl::Status status =
          device.AllocateHost(spec.num_host_blocks, bytes);
      if (absl::IsResourceExhausted(status) && !swap_required) {
        spec.num_host_blocks = 0;
      } else if (!status.ok()) {
        return status;
      }
    }
  }

  ModelInfo& info = decoder->info_;
  info.family = model.family;
  info.variant = model.variant;
  info.remarks = model.remarks;
  info.parameters = model.parameters;
  info.num_layers = static_cast<int64_t>(model.layers.size());
  info.hidden_size = model.hidden_size;
  info.vocab_size = model.vocab_size;
  for (const Layer& layer : decoder->layers_)
    info.mixers.emplace_back(layer.mixer->name());
  info.max_position_embeddings = model.max_position_embeddings;
  info.tokenizer = model.tokenizer;
  info.bos_token_id = model.bos_token_id;
  info.eos_token_ids = model.eos_token_ids;
  if (model.eos_by_tokenizer) info.eos_file_of_tokenizer = model.eos_file;
  info.device = std::string(device.name());
  info.weight_dtype = std::string(device.weight_dtype());
  info.state_dtype = std::string(device.state_dtype());
  info.kv_dtype = std::string(device.kv_dtype());
  info.weight_bytes = device.weight_bytes();
  info.chunk_multiple = device.chunk_multiple();
  info.whole_prompts = HasWholePrompts(model);
  return decoder;
}

namespace {

// Appends rows of zeros to `part`, up to `rows` in total.
MatrixPart WithZeroRows(MatrixPart part, int64_t rows) {
  if (part.rows() == rows) return part;
  if (part.row_order.empty()) {
    part.row_order.resize(part.rows());
    std::iota(part.row_order.begin(), part.row_order.end(), 0);
  }
  part.row_order.resize(rows, -1);
  return part;
}

}  // namespace

absl::Status Decoder::LoadLayer(const LayerDefinition& definition) {
  Layer layer;
  RECURVE_ASSIGN_OR_RETURN(
      layer.mixer,
      std::visit([&](const auto& mixer) { return MakeMixer(mixer, *backend_); },
                 definition.mixer));
  RECURVE_ASSIGN_OR_RETURN(layer.token_norm,
                           LoadNorm(definition.token_norm, *backend_));
  RECURVE_ASSIGN_OR_RETURN(layer.channel_norm,
                           LoadNorm(definition.channel_norm, *backend_));
  RECURVE_ASSIGN_OR_RETURN(
      layer.w1_w2,
      backend_->LoadMatrix({WithZeroRows(definition.w1, padded_size_),
                            WithZeroRows(definition.w2, padded_size_)}));
  RECURVE_ASSIGN_OR_RETURN(layer.w3, backend_->LoadMatrix({definition.w3}));
  layers_.push_back(std::move(layer));
  return absl::OkStatus();
}

absl::Status Decoder::LoadWeights(const ModelDefinition& model) {
  intermediate_size_ = model.intermediate_size;
  padded_size_ = backend_->PadColumns(intermediate_size_);
  channel_activation_ = model.channel_activation;
  RECURVE_ASSIGN_OR_RETURN(embedding_,
                           backend_->LoadEmbedding(model.embedding));
  embedding_scale_ = model.embedding_scale;
  int64_t scratch_cols = 3 * padded_size_;
  if (model.tpe) {
    RECURVE_ASSIGN_OR_RETURN(tpe_, MakeMixer(*model.tpe, *backend_));
    RECURVE_ASSIGN_OR_RETURN(zeros_, backend_->LoadVector(std::vector<float>(
                                         model.hidden_size, 0.0f)));
    scratch_cols = std::max(scratch_cols, tpe_->scratch_cols());
  }
  for (const LayerDefinition& definition : model.layers) {
    RECURVE_RETURN_IF_ERROR(LoadLayer(definition));
    scratch_cols = std::max(scratch_cols, layers_.back().mixer->scratch_cols());
  }
  RECURVE_ASSIGN_OR_RETURN(final_norm_, LoadNorm(model.final_norm, *backend_));
  RECURVE_ASSIGN_OR_RETURN(head_, backend_->LoadMatrix({model.head}));
  RECURVE_ASSIGN_OR_RETURN(residual_,
                           backend_->AllocateActivations(model.hidden_size));
  RECURVE_ASSIGN_OR_RETURN(normed_,
                           backend_->AllocateActivations(model.hidden_size));
  RECURVE_ASSIGN_OR_RETURN(scratch_,
                           backend_->AllocateActivations(scratch_cols));
  return absl::OkStatus();
}

void Decoder::Embed(Backend& backend) const {
  if (tpe_ == nullptr) {
    backend.Embed(embedding_, embedding_scale_, residual_);
    return;
  }
  // The mixer adds to a residual; there is none yet.
  backend.Embed(embedding_, embedding_scale_, normed_);
  backend.Fill(zeros_, residual_);
  tpe_->Forward(backend, normed_, scratch_, residual_);
}

absl::Status Decoder::Run(const StepBatch& batch, StepOutput* output) {
  RECURVE_RETURN_IF_ERROR(Launch(batch));
  return Wait(output);
}

absl::Status Decoder::WarmUp() {
  for (const StepBatch& step : backend_->WarmUpSteps()) {
    StepOutput output;
    RECURVE_RETURN_IF_ERROR(Run(step, &output));
  }
  return absl::OkStatus();
}

absl::Status Decoder::Launch(const StepBatch& batch) {
  Backend& backend = *backend_;
  RECURVE_RETURN_IF_ERROR(backend.BeginStep(batch));
  Embed(backend);
  // Each part of the gated unit's inputs is followed by zeros; so are its
  // outputs.
  const Activations gates = scratch_.Columns(0, 2 * padded_size_);
  Activations gated = scratch_.Columns(2 * padded_size_, padded_size_);
  gated.for_products = true;
  const Activations hidden = gated.Columns(0, intermediate_size_);
  Activations normed = normed_;
  normed.for_products = true;
  for (const Layer& layer : layers_) {
    backend.Norm(residual_, layer.token_norm, normed);
    layer.mixer->Forward(backend, normed, scratch_, residual_);
    backend.ChannelMixer({residual_, layer.channel_norm, layer.w1_w2,
                          channel_activation_, layer.w3, normed, gates, gated,
                          hidden});
  }
  backend.Head(residual_, final_norm_, head_);
  return absl::OkStatus();
}

}  // namespace recurve
