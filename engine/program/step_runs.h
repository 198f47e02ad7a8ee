// Splits a step's rows into runs that are computed alike: plain arithmetic.
#ifndef RECURVE_ENGINE_PROGRAM_STEP_RUNS_H_
#define RECURVE_ENGINE_PROGRAM_STEP_RUNS_H_

#include <cstdint>
#include <vector>

#include "engine/program/step.h"

namespace recurve {

// Sets batch->runs from its other members. Once for each batch: an
// executor that computes kinds of rows in different ways reads them.
void CutRuns(StepBatch* batch);

// Whether the run begins its sequence's prompt: if the model processes prompts
// as a whole, the run is the prompt.
bool BeginsPrompt(const StepBatch& batch, const StepRun& run);

// For each sequence, the number of its rows in such a run.
std::vector<int32_t> WholePromptRows(const StepBatch& batch);

// The runs in groups to be computed one after the other: a group has runs of
// one kind, at most one per sequence, adjacent in the step; and the runs of a
// sequence stay in order.
std::vector<std::vector<StepRun>> RunGroups(const std::vector<StepRun>& runs);

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_STEP_RUNS_H_
