// How tensor product attention of a step is cut into launches, which plan one
// of decoding takes, and what schedules take at most: plain arithmetic, tested
// without a GPU.
#ifndef RECURVE_ENGINE_CUDA_TPA_LAUNCHES_H_
#define RECURVE_ENGINE_CUDA_TPA_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/models/step.h"
#include "engine/models/step_runs.h"
#include "kernels/tpa/decode/tpa_plan.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// TpaFewChunks, TpaManyChunks and TpaShortRows of a model's layers.
struct TpaContextLimits {
  int few_chunks = 0;
  int many_chunks = 0;
  int short_rows = 0;
};

// Which plan is the faster one for a step of decoding of `rows`: one new token
// at each of these positions, the other rows are padding.
TpaContexts TpaContextsOf(absl::Span<const int64_t> positions, int64_t rows,
                          const TpaContextLimits& limits);

// Rows of so many tokens, so many rows a launch: what the decode kernel takes
// at most, and a bound on its partial results.
inline constexpr int64_t kTpaPieceTokens = 8;
inline constexpr int64_t kTpaPieceRows = 32;

// A launch of the prefill kernel has at most so many rows, and, unless one row
// has more, so many tokens of context: a bound on the scratch memory for a
// head's queries, keys and values.
inline constexpr int64_t kTpaPrefillRows = 256;
inline constexpr int64_t kTpaPrefillContext = 65536;

// Of a step.
struct TpaStepLimits {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t max_pages = 0;  // of a sequence
  bool prefill = false;   // prompts have a kernel of their own
};

// Runs of a step, at most.
int64_t MaxTpaRuns(const TpaStepLimits& limits);

// One launch of the decode kernel. A row is a part of a run.
struct TpaPieceRows {
  int64_t tokens;  // of a row: 1 or up to kTpaPieceTokens
  std::vector<StepRun> rows;
};
// Rows of one token go together, at most limits.max_sequences a launch; then
// the others.
std::vector<TpaPieceRows> CutTpaPieces(const std::vector<StepRun>& runs,
                                       const TpaStepLimits& limits);

// One launch of the prefill kernel. Its rows are runs that follow each other in
// the step; those of TokenKind::kStep have no tokens in it.
struct TpaPrefillRuns {
  size_t first;     // run
  int64_t rows;     // runs
  int64_t tokens;   // of those of prompts
  int64_t context;  // likewise, all that their sequences have up to there
};
// Nothing unless limits.prefill.
std::vector<TpaPrefillRuns> CutTpaPrefills(const StepBatch& batch,
                                           const std::vector<StepRun>& runs,
                                           const TpaStepLimits& limits);

// Where schedules begin.
inline constexpr int64_t kTpaScheduleAlignment = 128;
constexpr int64_t AlignTpaSchedule(int64_t bytes) {
  return (bytes + kTpaScheduleAlignment - 1) / kTpaScheduleAlignment *
         kTpaScheduleAlignment;
}
// Bytes that the schedules of a step's launches of the decode kernel take
// together, at most, of layers of one shape; and of those of the prefill
// kernel, 0 unless limits.prefill. REQUIRES: the device takes the shape.
int64_t MaxTpaPieceScheduleBytes(const TpaShape& shape, const TpaDevice& device,
                                 const TpaStepLimits& limits);
int64_t MaxTpaPrefillScheduleBytes(const TpaShape& shape,
                                   const TpaStepLimits& limits);
// Tokens of a step's pieces, at most, with padding.
int64_t MaxTpaPieceTokens(const TpaStepLimits& limits);
// Bytes that CudaTpa adds to what a step is made of (CudaStepBuffer), at most,
// where schedules of the decode kernel take so many of them.
int64_t MaxTpaStepBytes(const TpaStepLimits& limits, int64_t schedules);

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_TPA_LAUNCHES_H_
