#include "engine/program/step_runs.h"

#include <algorithm>

namespace recurve {

void CutRuns(StepBatch* batch) {
  std::vector<StepRun>& runs = batch->runs;
  runs.clear();
  const auto kind = [&](int64_t row) {
    return batch->kinds.empty() ? TokenKind::kPrompt : batch->kinds[row];
  };
  for (int64_t b = 0; b < batch->num_sequences(); ++b) {
    const int64_t first = batch->query_start[b];
    int64_t prompt_end = batch->prompt_ends.empty() ? 0 : batch->prompt_ends[b];
    for (int64_t row = first; row < batch->query_start[b + 1]; ++row) {
      const TokenKind of_run = kind(row) == TokenKind::kStep ? TokenKind::kStep
                               : IsShortPrompt(kind(row))
                                   ? TokenKind::kShortPrompt
                                   : TokenKind::kPrompt;
      if (row == first || of_run != runs.back().kind ||
          StartsPrompt(kind(row))) {
        runs.push_back({static_cast<int32_t>(b), of_run, row, row, prompt_end});
      }
      ++runs.back().end;
      if (!runs.back().step()) prompt_end = batch->positions[row] + 1;
    }
  }
}

bool BeginsPrompt(const StepBatch& batch, const StepRun& run) {
  return !run.step() && batch.positions[run.begin] == 0;
}

std::vector<int32_t> WholePromptRows(const StepBatch& batch) {
  std::vector<int32_t> rows(batch.num_sequences(), 0);
  for (const StepRun& run : batch.runs) {
    if (BeginsPrompt(batch, run)) {
      rows[run.sequence] = static_cast<int32_t>(run.count());
    }
  }
  return rows;
}

std::vector<std::vector<StepRun>> RunGroups(const std::vector<StepRun>& runs) {
  // Indexed by a run's position within its sequence.
  std::vector<std::vector<StepRun>> places;
  size_t place = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    place = i > 0 && runs[i].sequence == runs[i - 1].sequence ? place + 1 : 0;
    if (place == places.size()) places.emplace_back();
    places[place].push_back(runs[i]);
  }
  std::vector<std::vector<StepRun>> groups;
  for (const std::vector<StepRun>& at : places) {
    for (size_t i = 0; i < at.size(); ++i) {
      if (i == 0 || at[i].step() != at[i - 1].step() ||
          at[i].begin != at[i - 1].end) {
        groups.emplace_back();
      }
      groups.back().push_back(at[i]);
    }
  }
  return groups;
}

}  // namespace recurve
