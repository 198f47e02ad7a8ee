#ifndef RECURVE_ENGINE_STEP_H_
#define RECURVE_ENGINE_STEP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/sampling/sampling.h"

namespace recurve {

// One token to be chosen from one row of logits.
struct SampleRequest {
  int32_t logit_index;  // into StepBatch::logit_rows
  const SamplingParams* params;
  absl::Span<const int32_t> prompt;  // what the penalties look at
  absl::Span<const int32_t> output;
  uint64_t index;  // of the token among those generated: the draw's counter
};

// The ragged batch of one step: B sequences, T tokens in all. Prefill chunks
// and decode tokens may share it. Everything that changes from step to step is
// here.
struct StepBatch {
  std::vector<int32_t> tokens;        // [T]
  std::vector<int64_t> positions;     // [T]
  std::vector<int32_t> row_sequence;  // [T] in [0, B)
  std::vector<int32_t> query_start;   // [B + 1] first row of each sequence
  std::vector<int32_t> page_table;    // [B, page_table_stride]
  int64_t page_table_stride = 0;
  std::vector<int32_t> slots;  // [B]
  std::vector<int32_t>
      logit_rows;  // [L] rows whose logits are wanted, ascending
  std::vector<SampleRequest> samples;

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_sequences() const { return static_cast<int64_t>(slots.size()); }
};

struct StepOutput {
  // One for each of StepBatch::samples. An error concerns that sequence alone.
  std::vector<absl::StatusOr<SampleResult>> samples;
  // [L, vocab], valid until the next step.
  absl::Span<const float> logits;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_STEP_H_
