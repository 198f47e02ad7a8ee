#ifndef RECURVE_ENGINE_MODELS_DECODER_H_
#define RECURVE_ENGINE_MODELS_DECODER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/models/backend.h"
#include "engine/models/mixer.h"
#include "engine/models/model_runner.h"

namespace recurve {

// Memory needs of a model's sequences, from its config alone. `order` is that
// of the backend's pages.
int64_t CacheBytesPerToken(const ModelDefinition& model, int64_t element_bytes,
                           TpaPageOrder order = TpaPageOrder::kPlain);
int64_t StateBytesPerSequence(const ModelDefinition& model);
// Whether some layer processes prompts as a whole.
bool HasWholePrompts(const ModelDefinition& model);

// The decoder-only transformer that all families share: embedding, layers of a
// token mixer and a gated linear unit, final norm, head. Runs on any backend.
class Decoder : public ModelRunner {
 public:
  // Copies the weights into `backend` and allocates `num_pages` pages,
  // `num_slots` slots and up to `swap_bytes` of host memory to save sequences
  // in. If `swap_required`, it is an error if that is too little for one
  // sequence, or more than the host has; else none is used. `model`'s views are
  // not used afterwards.
  static absl::StatusOr<std::unique_ptr<Decoder>> Load(
      const ModelDefinition& model, std::unique_ptr<Backend> backend,
      int32_t num_pages, int32_t num_slots, int64_t swap_bytes = 0,
      bool swap_required = true);

  // Runs the backend's warm-up steps, before there is a sequence. An error
  // means that the device failed.
  absl::Status WarmUp();

  const ModelInfo& info() const override { return info_; }
  CacheSpec cache_spec() const override { return cache_spec_; }
  CacheStorage& storage() override { return *backend_; }
  absl::Status Run(const StepBatch& batch, StepOutput* output) override;
  bool runs_ahead() const override { return backend_->runs_ahead(); }
  absl::Status Launch(const StepBatch& batch) override;
  absl::Status Wait(StepOutput* output) override {
    return backend_->EndStep(output);
  }

 private:
  struct Layer {
    Backend::NormArgs token_norm;
    std::unique_ptr<TokenMixer> mixer;
    Backend::NormArgs channel_norm;
    MatrixId w1_w2;  // [2 · padded_size_, C]
    MatrixId w3;
  };

  explicit Decoder(std::unique_ptr<Backend> backend)
      : backend_(std::move(backend)) {}
  absl::Status LoadWeights(const ModelDefinition& model);
  absl::Status LoadLayer(const LayerDefinition& definition);
  void Embed(Backend& backend) const;

  std::unique_ptr<Backend> backend_;
  ModelInfo info_;
  CacheSpec cache_spec_;
  int64_t intermediate_size_ = 0;
  int64_t padded_size_ = 0;  // for each part of w1_w2
  Activation channel_activation_ = Activation::kSilu;
  TableId embedding_;
  float embedding_scale_ = 1;
  std::unique_ptr<TokenMixer> tpe_;  // or null
  VectorId zeros_;                   // [C], with tpe_
  std::vector<Layer> layers_;
  Backend::NormArgs final_norm_;
  MatrixId head_;
  Activations residual_;  // [T, C]
  Activations normed_;    // [T, C]
  Activations scratch_;   // [T, the widest need of any layer]
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_DECODER_H_
