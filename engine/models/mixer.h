#ifndef RECURVE_ENGINE_MODELS_MIXER_H_
#define RECURVE_ENGINE_MODELS_MIXER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/models/backend.h"
#include "engine/models/config.h"

namespace recurve {

// The part of a layer that mixes tokens of a sequence. One per layer; it owns
// the layer's projection weights and its place in the cache. A new kind is a
// class in its own file and an alternative of LayerDefinition::mixer.
class TokenMixer {
 public:
  virtual ~TokenMixer() = default;

  // "tpa", "linear" or "tpe".
  virtual absl::string_view name() const = 0;

  // Columns of scratch that Forward needs.
  virtual int64_t scratch_cols() const = 0;

  // residual += out_proj(mix(in)) for every token of the step. `in` is
  // [T, hidden], normalised; `scratch` is [T, >= scratch_cols()].
  virtual void Forward(Backend& backend, Activations in, Activations scratch,
                       Activations residual) const = 0;
};

// Load the weights into `backend` and declare the layer's cache there. One
// overload for each alternative of LayerDefinition::mixer, and one for the
// token position encoding.
absl::StatusOr<std::unique_ptr<TokenMixer>> MakeMixer(const TpaLayer& layer,
                                                      Backend& backend);
absl::StatusOr<std::unique_ptr<TokenMixer>> MakeMixer(const LinearLayer& layer,
                                                      Backend& backend);
absl::StatusOr<std::unique_ptr<TokenMixer>> MakeMixer(const TpeLayer& layer,
                                                      Backend& backend);

absl::StatusOr<Backend::NormArgs> LoadNorm(const NormDefinition& norm,
                                           Backend& backend);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_MIXER_H_
