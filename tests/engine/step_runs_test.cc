#include "engine/models/step_runs.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A letter for each token: S of a step, P of a prompt, A the first of what was
// appended together. One string a sequence.
StepBatch Batch(const std::vector<std::string>& sequences) {
  StepBatch batch;
  batch.query_start.push_back(0);
  for (const std::string& tokens : sequences) {
    for (const char c : tokens) {
      batch.tokens.push_back(0);
      batch.kinds.push_back(c == 'S'   ? TokenKind::kStep
                            : c == 'A' ? TokenKind::kPromptStart
                                       : TokenKind::kPrompt);
    }
    batch.query_start.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.slots.push_back(1);
  }
  return batch;
}

TEST(StepRunsTest, CutsAtSequencesKindsAndCommands) {
  EXPECT_THAT(StepRuns(Batch({})), IsEmpty());
  EXPECT_THAT(StepRuns(Batch({"S", "S", "PP", "APP"})),
              ElementsAre(StepRun{0, true, 0, 1}, StepRun{1, true, 1, 2},
                          StepRun{2, false, 2, 4}, StepRun{3, false, 4, 7}));
  EXPECT_THAT(StepRuns(Batch({"PPAPSSAP"})),
              ElementsAre(StepRun{0, false, 0, 2}, StepRun{0, false, 2, 4},
                          StepRun{0, true, 4, 6}, StepRun{0, false, 6, 8}));
}

TEST(StepRunsTest, WithoutKindsEachSequenceIsOnePrompt) {
  StepBatch batch = Batch({"SS", "PAS"});
  batch.kinds.clear();
  EXPECT_THAT(StepRuns(batch),
              ElementsAre(StepRun{0, false, 0, 2}, StepRun{1, false, 2, 5}));
}

TEST(StepRunsTest, WholePromptsBeginAtPositionZero) {
  StepBatch batch = Batch({"S", "APPSS", "APP", "PPA", "AS"});
  batch.positions = {0, 0, 1, 2, 3, 4, 9, 10, 11, 7, 8, 9, 0, 1};
  EXPECT_THAT(WholePromptRows(batch, StepRuns(batch)),
              ElementsAre(0, 3, 0, 0, 1));
}

TEST(StepRunsTest, GroupsFollowEachOtherInTheStepAndInEachSequence) {
  EXPECT_THAT(RunGroups({}), IsEmpty());
  const std::vector<StepRun> runs =
      StepRuns(Batch({"S", "S", "PPP", "PS", "AP", "SAA"}));
  EXPECT_THAT(
      RunGroups(runs),
      ElementsAre(ElementsAre(StepRun{0, true, 0, 1}, StepRun{1, true, 1, 2}),
                  ElementsAre(StepRun{2, false, 2, 5}, StepRun{3, false, 5, 6}),
                  // Behind the gap that the rest of sequence 3 leaves.
                  ElementsAre(StepRun{4, false, 7, 9}),
                  ElementsAre(StepRun{5, true, 9, 10}),
                  // The second runs, then the third.
                  ElementsAre(StepRun{3, true, 6, 7}),
                  ElementsAre(StepRun{5, false, 10, 11}),
                  ElementsAre(StepRun{5, false, 11, 12})));
}

}  // namespace
}  // namespace recurve
