// A step's rows, cut into runs that are computed alike: plain arithmetic.
#ifndef RECURVE_ENGINE_MODELS_STEP_RUNS_H_
#define RECURVE_ENGINE_MODELS_STEP_RUNS_H_

#include <cstdint>
#include <vector>

#include "engine/models/step.h"

namespace recurve {

// Rows [begin, end) of a step: tokens of one sequence that follow each other
// and are either all of TokenKind::kStep, or part of what a client appended
// together. Never empty.
struct StepRun {
  int32_t sequence;
  bool step;
  int64_t begin;
  int64_t end;

  int64_t count() const { return end - begin; }
  bool operator==(const StepRun&) const = default;
};

// All rows, in order.
std::vector<StepRun> StepRuns(const StepBatch& batch);

// Whether the run begins its sequence's prompt: of a model that looks at
// prompts as a whole, the run is the prompt.
bool BeginsPrompt(const StepBatch& batch, const StepRun& run);

// Rows of each sequence here that such a run has.
std::vector<int32_t> WholePromptRows(const StepBatch& batch,
                                     const std::vector<StepRun>& runs);

// The same runs in groups that can be computed one after the other: a group
// has runs of one kind, at most one of a sequence, which follow each other in
// the step without a gap; and the runs of a sequence come in order.
std::vector<std::vector<StepRun>> RunGroups(const std::vector<StepRun>& runs);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_STEP_RUNS_H_
