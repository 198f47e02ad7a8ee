#include "engine/program/step_runs.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A letter for each token: S of a step, P of a prompt, A the first of what was
// appended together; Q and B the same of a short prompt. One string a sequence.
StepBatch Batch(const std::vector<std::string>& sequences) {
  StepBatch batch;
  batch.query_start.push_back(0);
  for (const std::string& tokens : sequences) {
    for (const char c : tokens) {
      batch.positions.push_back(static_cast<int64_t>(batch.tokens.size()) -
                                batch.query_start.back());
      batch.tokens.push_back(0);
      batch.kinds.push_back(c == 'S'   ? TokenKind::kStep
                            : c == 'A' ? TokenKind::kPromptStart
                            : c == 'B' ? TokenKind::kShortPromptStart
                            : c == 'Q' ? TokenKind::kShortPrompt
                                       : TokenKind::kPrompt);
    }
    batch.query_start.push_back(static_cast<int32_t>(batch.tokens.size()));
    batch.slots.push_back(1);
  }
  return batch;
}

constexpr TokenKind kS = TokenKind::kStep;
constexpr TokenKind kP = TokenKind::kPrompt;

std::vector<StepRun> Runs(StepBatch batch) {
  CutRuns(&batch);
  return batch.runs;
}

TEST(StepRunsTest, CutsAtSequencesKindsAndCommands) {
  EXPECT_THAT(Runs(Batch({})), IsEmpty());
  EXPECT_THAT(Runs(Batch({"S", "S", "PP", "APP"})),
              ElementsAre(StepRun{0, kS, 0, 1}, StepRun{1, kS, 1, 2},
                          StepRun{2, kP, 2, 4}, StepRun{3, kP, 4, 7}));
  EXPECT_THAT(Runs(Batch({"PPAPSSAP"})),
              ElementsAre(StepRun{0, kP, 0, 2}, StepRun{0, kP, 2, 4, 2},
                          StepRun{0, kS, 4, 6, 4}, StepRun{0, kP, 6, 8, 4}));
}

TEST(StepRunsTest, TellWhereTheLastPromptEnded) {
  StepBatch batch = Batch({"S", "SAPS", "PSS"});
  batch.positions = {20, 30, 31, 32, 33, 7, 8, 9};
  batch.prompt_ends = {12, 3, 7};
  EXPECT_THAT(Runs(batch),
              ElementsAre(StepRun{0, kS, 0, 1, 12}, StepRun{1, kS, 1, 2, 3},
                          StepRun{1, kP, 2, 4, 3}, StepRun{1, kS, 4, 5, 33},
                          StepRun{2, kP, 5, 6, 7}, StepRun{2, kS, 6, 8, 8}));
}

TEST(StepRunsTest, TellsShortPromptsApart) {
  EXPECT_THAT(Runs(Batch({"BQ", "QQS", "BQBQAP"})),
              ElementsAre(StepRun{0, TokenKind::kShortPrompt, 0, 2},
                          StepRun{1, TokenKind::kShortPrompt, 2, 4},
                          StepRun{1, kS, 4, 5, 2},
                          StepRun{2, TokenKind::kShortPrompt, 5, 7},
                          StepRun{2, TokenKind::kShortPrompt, 7, 9, 2},
                          StepRun{2, kP, 9, 11, 4}));
}

TEST(StepRunsTest, WithoutKindsEachSequenceIsOnePrompt) {
  StepBatch batch = Batch({"SS", "PAS"});
  batch.kinds.clear();
  EXPECT_THAT(Runs(batch),
              ElementsAre(StepRun{0, kP, 0, 2}, StepRun{1, kP, 2, 5}));
}

TEST(StepRunsTest, WholePromptsBeginAtPositionZero) {
  StepBatch batch = Batch({"S", "APPSS", "APP", "PPA", "AS"});
  batch.positions = {0, 0, 1, 2, 3, 4, 9, 10, 11, 7, 8, 9, 0, 1};
  CutRuns(&batch);
  EXPECT_THAT(WholePromptRows(batch), ElementsAre(0, 3, 0, 0, 1));
}

TEST(StepRunsTest, GroupsFollowEachOtherInTheStepAndInEachSequence) {
  EXPECT_THAT(RunGroups({}), IsEmpty());
  const std::vector<StepRun> runs =
      Runs(Batch({"S", "S", "PPP", "PS", "AP", "SAA"}));
  EXPECT_THAT(
      RunGroups(runs),
      ElementsAre(ElementsAre(StepRun{0, kS, 0, 1}, StepRun{1, kS, 1, 2}),
                  ElementsAre(StepRun{2, kP, 2, 5}, StepRun{3, kP, 5, 6}),
                  // Behind the gap that the rest of sequence 3 leaves.
                  ElementsAre(StepRun{4, kP, 7, 9}),
                  ElementsAre(StepRun{5, kS, 9, 10}),
                  // The second runs, then the third.
                  ElementsAre(StepRun{3, kS, 6, 7, 1}),
                  ElementsAre(StepRun{5, kP, 10, 11}),
                  ElementsAre(StepRun{5, kP, 11, 12, 2})));
}

}  // namespace
}  // namespace recurve
