// Splits a step's rows into runs that are computed alike: plain arithmetic.
#ifndef RECURVE_ENGINE_MODELS_STEP_RUNS_H_
#define RECURVE_ENGINE_MODELS_STEP_RUNS_H_

#include <cstdint>
#include <vector>

#include "engine/models/step.h"

namespace recurve {

// Rows [begin, end) of a step: consecutive tokens of one sequence, either all
// of TokenKind::kStep or part of one command's prompt. Never empty.
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

// Whether the run begins its sequence's prompt: if the model processes prompts
// as a whole, the run is the prompt.
bool BeginsPrompt(const StepBatch& batch, const StepRun& run);

// For each sequence, the number of its rows in such a run.
std::vector<int32_t> WholePromptRows(const StepBatch& batch,
                                     const std::vector<StepRun>& runs);

// The runs in groups to be computed one after the other: a group has runs of
// one kind, at most one per sequence, adjacent in the step; and the runs of a
// sequence stay in order.
std::vector<std::vector<StepRun>> RunGroups(const std::vector<StepRun>& runs);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_STEP_RUNS_H_
