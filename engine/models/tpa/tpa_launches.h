// Plans the launches of tensor product attention in a step: the split into
// launches, the plan of a decode step, and upper bounds on schedule sizes.
// Plain arithmetic, tested without a GPU.
#ifndef RECURVE_ENGINE_MODELS_TPA_TPA_LAUNCHES_H_
#define RECURVE_ENGINE_MODELS_TPA_TPA_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/program/step.h"
#include "engine/program/step_runs.h"
#include "kernels/tpa/decode/tpa_plan.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// TpaFewChunks, TpaManyChunks and TpaShortRows of a model's layers.
struct TpaContextLimits {
  int few_chunks = 0;
  int many_chunks = 0;
  int short_rows = 0;
};

// The faster plan for a decode step of `rows` rows: one new token at each of
// these positions, the other rows are padding.
TpaContexts TpaContextsOf(absl::Span<const int64_t> positions, int64_t rows,
                          const TpaContextLimits& limits);

// Maximum tokens per row and rows per launch of the decode kernel, which bound
// its partial results.
inline constexpr int64_t kTpaPieceTokens = 8;
inline constexpr int64_t kTpaPieceRows = 32;

// A launch of the prefill kernel has at most this many rows, and, unless a
// single row has more, this many tokens of context: a bound on the scratch
// memory for a head's queries, keys and values.
inline constexpr int64_t kTpaPrefillRows = 256;
inline constexpr int64_t kTpaPrefillContext = 65536;

// Limits of a step.
struct TpaStepLimits {
  int64_t max_tokens = 0;
  int64_t max_sequences = 0;
  int64_t max_pages = 0;  // of a sequence
  bool prefill = false;   // prompts have a separate kernel
};

// Maximum number of runs in a step.
int64_t MaxTpaRuns(const TpaStepLimits& limits);

// One launch of the decode kernel. A row is a part of a run.
struct TpaPieceRows {
  int64_t tokens;  // per row: 1 or up to kTpaPieceTokens
  std::vector<StepRun> rows;
};
// Rows of one token are grouped, at most limits.max_sequences a launch; then
// the others.
std::vector<TpaPieceRows> CutTpaPieces(const std::vector<StepRun>& runs,
                                       const TpaStepLimits& limits);

// One launch of the prefill kernel. Its rows are consecutive runs of the step;
// those of TokenKind::kStep have no tokens in it.
struct TpaPrefillRuns {
  size_t first;     // first run
  int64_t rows;     // runs
  int64_t tokens;   // of prompts
  int64_t context;  // of prompts: all tokens of their sequences up to there
};
// Empty unless limits.prefill.
std::vector<TpaPrefillRuns> CutTpaPrefills(const StepBatch& batch,
                                           const std::vector<StepRun>& runs,
                                           const TpaStepLimits& limits);

// Alignment of schedules.
inline constexpr int64_t kTpaScheduleAlignment = 128;
constexpr int64_t AlignTpaSchedule(int64_t bytes) {
  return (bytes + kTpaScheduleAlignment - 1) / kTpaScheduleAlignment *
         kTpaScheduleAlignment;
}
// Upper bounds on the schedules of a step for layers of one shape, in bytes: of
// its launches of the decode kernel; and of the prefill kernel, 0 unless
// limits.prefill. REQUIRES: the device supports the shape.
int64_t MaxTpaPieceScheduleBytes(const TpaShape& shape, const TpaDevice& device,
                                 const TpaStepLimits& limits);
int64_t MaxTpaPrefillScheduleBytes(const TpaShape& shape,
                                   const TpaStepLimits& limits);
// Tokens of a step's pieces, at most, with padding.
int64_t MaxTpaPieceTokens(const TpaStepLimits& limits);
// Upper bound on the bytes that CudaTpa adds to a step (CudaStepBuffer) if the
// decode kernel's schedules take `schedules` of them.
int64_t MaxTpaStepBytes(const TpaStepLimits& limits, int64_t schedules);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_TPA_TPA_LAUNCHES_H_
