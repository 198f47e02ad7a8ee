#ifndef RECURVE_TOOLS_RECURVE_MODEL_CAPACITY_H_
#define RECURVE_TOOLS_RECURVE_MODEL_CAPACITY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace recurve {

// A server's memory needs, in bytes.
struct MemoryNeeds {
  int64_t weights = 0;
  int64_t cache_per_token = 0;     // 0 without attention layers
  int64_t state_per_sequence = 0;  // 0 without recurrent layers
};

// How many sequences of one length fit, and what limits them.
struct Fit {
  int64_t page_bytes = 0;          // kPageTokens tokens of every layer
  int64_t pages_per_sequence = 0;  // 0 when page_bytes is
  int64_t sequence_bytes = 0;      // pages and state
  int64_t spare_bytes = 0;  // page 0 and slot 0, which padding rows point to
  int64_t sequences = 0;
};

// InvalidArgument when not even the weights fit.
absl::StatusOr<Fit> FitSequences(const MemoryNeeds& needs, int64_t memory,
                                 int64_t length);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_CAPACITY_H_
