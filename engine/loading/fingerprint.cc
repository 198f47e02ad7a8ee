#include "engine/loading/fingerprint.h"

#include <xxhash.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "hwy/targets.h"

namespace recurve {
namespace {

std::string DeviceName(const Device& device) {
  if (device.gpu) {
    return absl::StrCat("cuda ", device.compute_capability, ", ",
                        device.multiprocessors, " multiprocessors");
  }
  // Sums depend on the width of vectors.
  const int64_t targets = hwy::SupportedTargets();
  return absl::StrCat("cpu ", hwy::TargetName(targets & -targets));
}

}  // namespace

absl::StatusOr<Fingerprint> FingerprintOf(const Checkpoint& checkpoint,
                                          const ModelDefinition& model,
                                          const Device& device) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> hash(
      XXH3_createState(), XXH3_freeState);
  if (hash == nullptr || XXH3_128bits_reset(hash.get()) != XXH_OK) {
    return absl::ResourceExhaustedError("no memory for a hash");
  }
  // Each text ends with a byte that no text has.
  const auto add_text = [&](const std::string& text) {
    XXH3_128bits_update(hash.get(), text.c_str(), text.size() + 1);
  };
  add_text(model.family);
  add_text(model.variant);
  add_text(checkpoint.config().text());
  for (const std::string& name : checkpoint.names()) {
    // Those that cannot be read change no result.
    if (checkpoint.FindOther(name) != nullptr) continue;
    RECURVE_ASSIGN_OR_RETURN(const TensorView tensor, checkpoint.Tensor(name));
    add_text(name);
    add_text(absl::StrCat(Name(tensor.dtype), " ",
                          absl::StrJoin(tensor.shape, "x")));
    XXH3_128bits_update(hash.get(), tensor.data,
                        tensor.num_elements() * SizeOf(tensor.dtype));
  }
  const XXH128_hash_t digest = XXH3_128bits_digest(hash.get());
  return Fingerprint{absl::StrFormat("%016x%016x", digest.high64, digest.low64),
                     DeviceName(device)};
}

}  // namespace recurve
