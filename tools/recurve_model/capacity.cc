#include "tools/recurve_model/capacity.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/check.h"
#include "kv_cache/cache_spec.h"

namespace recurve {

absl::StatusOr<Fit> FitSequences(const MemoryNeeds& needs, int64_t memory,
                                 int64_t length) {
  RECURVE_CHECK(length > 0 &&
                needs.cache_per_token + needs.state_per_sequence > 0);
  Fit fit;
  fit.page_bytes = needs.cache_per_token * kPageTokens;
  CacheSpec spec;
  spec.page_bytes = fit.page_bytes;
  fit.pages_per_sequence = PagesFor(length, spec);
  fit.sequence_bytes =
      fit.pages_per_sequence * fit.page_bytes + needs.state_per_sequence;
  fit.spare_bytes = fit.page_bytes + needs.state_per_sequence;
  if (memory < needs.weights) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory is ", ExactBytes(memory),
                     "; the weights alone take ", ExactBytes(needs.weights)));
  }
  const int64_t free = memory - needs.weights - fit.spare_bytes;
  fit.sequences = std::max<int64_t>(free, 0) / fit.sequence_bytes;
  return fit;
}

}  // namespace recurve
