#include "engine/serving/scheduler.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/scheduler_testing.h"
#include "tests/testing/plan_checker.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using scheduler_testing::Decoding;
using scheduler_testing::Entry;
using scheduler_testing::FromHost;
using scheduler_testing::Idle;
using scheduler_testing::kLimits;
using scheduler_testing::Plan;
using scheduler_testing::Prefilling;
using scheduler_testing::Waiting;
using testing::ElementsAre;
using testing::IsEmpty;

// --- Rule 1: residents run in rank order, decodes are set aside ---

TEST(SchedulerTest, NothingToDo) {
  const StepPlan plan = Plan(kLimits, 10, 4, {Idle(Decoding(1, 5))}, {});
  EXPECT_THAT(plan.entries, IsEmpty());
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.admit, IsEmpty());
}

TEST(SchedulerTest, RanksByPriorityThenArrival) {
  const StepPlan plan = Plan(
      kLimits, 10, 4,
      {Decoding(3, 5), Decoding(4, 5, 1), Decoding(2, 5), Decoding(5, 5, -1)},
      {});
  EXPECT_THAT(plan.entries,
              ElementsAre(Entry{4, 1}, Entry{2, 1}, Entry{3, 1}, Entry{5, 1}));
}

TEST(SchedulerTest, CutsPromptsIntoChunks) {
  SequenceView half_done = Prefilling(2, 45);
  half_done.num_computed = 30;
  const StepPlan plan =
      Plan(kLimits, 10, 4, {Prefilling(1, 90), half_done}, {});
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 40}, Entry{2, 15}));
}

TEST(SchedulerTest, SetsDecodeTokensAsideBeforeItCutsChunks) {
  SchedulerLimits limits = kLimits;
  limits.max_batched_tokens = 20;
  const StepPlan plan = Plan(
      limits, 10, 4,
      {Prefilling(1, 90), Decoding(2, 5), Prefilling(3, 90), Decoding(4, 5)},
      {});
  EXPECT_THAT(plan.entries,
              ElementsAre(Entry{1, 18}, Entry{2, 1}, Entry{4, 1}));
}

TEST(SchedulerTest, TheLastTokenOfAPromptCountsAsADecode) {
  SchedulerLimits limits = kLimits;
  limits.max_batched_tokens = 4;
  limits.max_chunk_tokens = 4;
  SequenceView last = Prefilling(2, 30);
  last.num_computed = 29;
  const StepPlan plan = Plan(limits, 10, 4, {Prefilling(1, 90), last}, {});
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 3}, Entry{2, 1}));
}

TEST(SchedulerTest, ChunksEndAtMultiplesOrWithTheLastToken) {
  SchedulerLimits limits = kLimits;
  limits.chunk_multiple = 5;
  SequenceView within = Prefilling(2, 45);  // began at a token of its own
  within.num_computed = 33;
  EXPECT_THAT(Plan(limits, 10, 4, {Prefilling(1, 90), within}, {}).entries,
              ElementsAre(Entry{1, 40}, Entry{2, 12}));
  limits.max_batched_tokens = 49;
  limits.chunk_multiple = 10;
  EXPECT_THAT(
      Plan(limits, 10, 4, {Prefilling(1, 90), Decoding(3, 5), within}, {})
          .entries,
      ElementsAre(Entry{1, 30}, Entry{2, 12}, Entry{3, 1}));
  limits.max_batched_tokens = 42;
  limits.chunk_multiple = 25;
  limits.page_tokens = 25;
  // No room to the next multiple, and so none at all.
  EXPECT_THAT(Plan(limits, 10, 4, {Prefilling(1, 90)}, {Waiting(2, 30)}).admit,
              IsEmpty());
  EXPECT_THAT(Plan(limits, 10, 4, {Prefilling(1, 90)}, {Waiting(2, 2)}).entries,
              ElementsAre(Entry{1, 25}, Entry{2, 2}));
}

TEST(SchedulerTest, BoundsPromptsTogether) {
  SchedulerLimits limits = kLimits;
  limits.max_prompt_tokens = 50;
  EXPECT_THAT(Plan(limits, 10, 4,
                   {Prefilling(1, 90), Decoding(2, 5), Prefilling(3, 30),
                    Decoding(4, 5)},
                   {Waiting(5, 20), Waiting(6, 1)})
                  .entries,
              ElementsAre(Entry{1, 25}, Entry{2, 1}, Entry{3, 25}, Entry{4, 1},
                          Entry{6, 1}));
  // Those that decode go on without any, and so does who has no prompt.
  limits.max_prompt_tokens = 0;
  const StepPlan plan = Plan(limits, 10, 4, {Prefilling(1, 90), Decoding(2, 5)},
                             {Waiting(5, 20), Waiting(6, 1)});
  EXPECT_THAT(plan.entries, ElementsAre(Entry{2, 1}, Entry{6, 1}));
  EXPECT_THAT(plan.admit, ElementsAre(6));
}

TEST(SchedulerTest, BoundsPacedPromptsOnly) {
  const auto unpaced = [](SequenceView view) {
    view.paced = false;
    return view;
  };
  SchedulerLimits limits = kLimits;
  limits.max_prompt_tokens = 50;
  EXPECT_THAT(
      Plan(limits, 10, 4,
           {unpaced(Prefilling(1, 90)), Prefilling(2, 90), Prefilling(3, 30)},
           {})
          .entries,
      ElementsAre(Entry{1, 40}, Entry{2, 25}, Entry{3, 25}));
  // One that the bound holds up lets all others pass; one that lacks memory
  // those that fit a step.
  limits.max_prompt_tokens = 0;
  EXPECT_THAT(Plan(limits, 10, 4, {Decoding(2, 5)},
                   {Waiting(3, 30), unpaced(Waiting(4, 20)), Waiting(5, 20),
                    unpaced(Waiting(6, 10))})
                  .entries,
              ElementsAre(Entry{2, 1}, Entry{4, 20}, Entry{6, 10}));
  EXPECT_THAT(Plan(limits, 3, 4, {Decoding(2, 5)},
                   {unpaced(Waiting(4, 60)), unpaced(Waiting(5, 90)),
                    unpaced(Waiting(6, 10))})
                  .entries,
              ElementsAre(Entry{2, 1}, Entry{6, 10}));
}

TEST(SchedulerTest, PromptsRunWhereNothingElseCan) {
  SchedulerLimits limits = kLimits;
  limits.max_prompt_tokens = 0;
  EXPECT_THAT(Plan(limits, 10, 4, {Prefilling(1, 90)}, {}).entries,
              ElementsAre(Entry{1, 40}));
  // 2 needs a page, which only 1 could give, and 1 ranks above it.
  EXPECT_THAT(
      Plan(limits, 0, 4, {Prefilling(1, 90), Decoding(2, 11)}, {}).entries,
      ElementsAre(Entry{1, 40}));
}

TEST(SchedulerTest, WhatIsWholeIsComputedInOneStep) {
  SchedulerLimits limits = kLimits;
  limits.chunk_multiple = 5;
  const auto whole = [](SequenceView view, int64_t tokens) {
    view.whole_tokens = tokens;
    return view;
  };
  // All of it, or behind it, and then to the next multiple.
  EXPECT_THAT(Plan(limits, 10, 4, {}, {whole(Waiting(1, 33), 33)}).entries,
              ElementsAre(Entry{1, 33}));
  EXPECT_THAT(Plan(limits, 10, 4, {}, {whole(Waiting(1, 90), 38)}).entries,
              ElementsAre(Entry{1, 40}));
  limits.max_chunk_tokens = 39;
  EXPECT_THAT(Plan(limits, 10, 4, {}, {whole(Waiting(1, 90), 38)}).entries,
              ElementsAre(Entry{1, 38}));
  SequenceView behind = whole(Prefilling(1, 90), 38);
  behind.num_computed = 38;
  EXPECT_THAT(Plan(limits, 10, 4, {behind}, {}).entries,
              ElementsAre(Entry{1, 37}));
  // It may be beyond the bound for prompts, as the first; but not held up.
  limits.max_prompt_tokens = 10;
  EXPECT_THAT(Plan(limits, 10, 4, {Decoding(2, 5)},
                   {whole(Waiting(1, 33), 33), Waiting(3, 30)})
                  .entries,
              ElementsAre(Entry{2, 1}, Entry{1, 33}));
  limits.max_prompt_tokens = 0;
  EXPECT_THAT(Plan(limits, 10, 4, {Decoding(2, 5)}, {whole(Waiting(1, 33), 33)})
                  .entries,
              ElementsAre(Entry{2, 1}));
  limits.max_prompt_tokens = kLimits.max_prompt_tokens;
  // Where the step has no room for it, it waits, and so do those behind it that
  // do not fit a step.
  limits.max_batched_tokens = 40;
  EXPECT_THAT(
      Plan(limits, 10, 4, {Decoding(1, 5), Decoding(2, 5), Decoding(3, 5)},
           {whole(Waiting(4, 90), 38), Waiting(5, 90), Waiting(6, 5)})
          .entries,
      ElementsAre(Entry{1, 1}, Entry{2, 1}, Entry{3, 1}, Entry{6, 5}));
}

// --- Rule 2: pages are taken from the lowest in rank ---

TEST(SchedulerTest, TakesAPageFromTheIdleFirst) {
  // 1 needs a second page; 2 ranks below it and works, 0 ranks above and idles.
  const StepPlan plan =
      Plan(kLimits, 0, 4,
           {Idle(Decoding(0, 5)), Decoding(1, 11), Decoding(2, 5)}, {});
  EXPECT_THAT(plan.preempt, ElementsAre(0u));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}, Entry{2, 1}));
}

TEST(SchedulerTest, AmongTheIdleTakesTheLowestInRank) {
  const StepPlan plan = Plan(kLimits, 0, 4,
                             {Idle(Decoding(1, 5)), Decoding(2, 11),
                              Idle(Decoding(3, 5)), Idle(Decoding(4, 5, 1))},
                             {});
  EXPECT_THAT(plan.preempt, ElementsAre(3u));
}

TEST(SchedulerTest, ThenTakesItFromThoseBelow) {
  const StepPlan plan = Plan(
      kLimits, 0, 4, {Decoding(1, 11), Decoding(2, 5), Decoding(3, 5)}, {});
  EXPECT_THAT(plan.preempt, ElementsAre(3u));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}, Entry{2, 1}));
}

TEST(SchedulerTest, TheLowestWaitsAndKeepsWhatItHolds) {
  const StepPlan plan = Plan(
      kLimits, 0, 4, {Decoding(1, 5), Decoding(2, 5), Decoding(3, 11)}, {});
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}, Entry{2, 1}));
}

TEST(SchedulerTest, AChunkTakesTheFreePagesAndOneByForceAtMost) {
  // 1 has 90 more tokens and one page for them; a chunk would take four.
  SequenceView growing = {1, 0, 1, 100, 10, 1, true};
  StepPlan plan = Plan(kLimits, 2, 4, {growing, Decoding(2, 5)}, {});
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 20}, Entry{2, 1}));
  plan = Plan(kLimits, 0, 4, {growing, Decoding(2, 5)}, {});
  EXPECT_THAT(plan.preempt, ElementsAre(2u));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 10}));
}

TEST(SchedulerTest, WithoutPagesNothingIsPreemptedForThem) {
  SchedulerLimits limits = kLimits;
  limits.page_tokens = 0;
  const StepPlan plan =
      Plan(limits, 0, 0, {{1, 0, 1, 50, 49, 0, true}, {2, 0, 2, 9, 0, 0, true}},
           {Waiting(3, 5)});
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}, Entry{2, 9}));
}

// --- Rule 3: admission in rank order ---

TEST(SchedulerTest, AdmitsInRankOrderWhileThereIsRoom) {
  const StepPlan plan =
      Plan(kLimits, 5, 9, {}, {Waiting(2, 15), Waiting(1, 15), Waiting(3, 5)});
  EXPECT_THAT(plan.admit, ElementsAre(1u, 2u, 3u));
  EXPECT_THAT(plan.entries,
              ElementsAre(Entry{1, 15}, Entry{2, 15}, Entry{3, 5}));
}

TEST(SchedulerTest, TheFirstThatLacksMemoryIsPassedByWhatFitsAStep) {
  std::vector<SequenceView> waiting = {Waiting(2, 15), Waiting(3, 120),
                                       Waiting(4, 90), Waiting(5, 5)};
  const auto plan = [&] {
    return Plan(kLimits, 5, 9, {Decoding(1, 5)}, waiting);
  };
  EXPECT_THAT(plan().admit, ElementsAre(2u, 5u));
  EXPECT_THAT(plan().passed, ElementsAre(3u));
  waiting[1].passes = kMaxPasses - 1;
  EXPECT_THAT(plan().admit, ElementsAre(2u, 5u));
  // Not for ever.
  waiting[1].passes = kMaxPasses;
  EXPECT_THAT(plan().admit, ElementsAre(2u));
  EXPECT_THAT(plan().passed, IsEmpty());
  // No sequence passes one that lacks a slot: there is no slot for it either.
  waiting[1].passes = 0;
  EXPECT_THAT(Plan(kLimits, 99, 1, {Decoding(1, 5)}, waiting).admit,
              ElementsAre(2u));
}

TEST(SchedulerTest, NeedsASlot) {
  const StepPlan plan =
      Plan(kLimits, 9, 1, {Decoding(1, 5)}, {Waiting(2, 5), Waiting(3, 5)});
  EXPECT_THAT(plan.admit, ElementsAre(2u));
}

TEST(SchedulerTest, TheTokensOfAStepEndAdmission) {
  const StepPlan plan = Plan(kLimits, 50, 9, {Prefilling(1, 70)},
                             {Waiting(2, 70), Waiting(3, 70), Waiting(4, 70)});
  EXPECT_THAT(plan.admit, ElementsAre(2u, 3u));
  EXPECT_THAT(plan.entries,
              ElementsAre(Entry{1, 40}, Entry{2, 40}, Entry{3, 20}));
}

TEST(SchedulerTest, LeavesRoomForTheFirstGeneratedTokenUnlessAlone) {
  // 20 tokens fill two pages; the next token needs a third.
  EXPECT_THAT(Plan(kLimits, 2, 9, {Decoding(1, 5)}, {Waiting(2, 20)}).admit,
              IsEmpty());
  EXPECT_THAT(Plan(kLimits, 2, 9, {}, {Waiting(2, 20)}).admit, ElementsAre(2u));
  // Not a victim, but still resident: its memory is soon free.
  SequenceView ending = Idle(Decoding(1, 5));
  ending.ending = true;
  EXPECT_THAT(Plan(kLimits, 2, 9, {ending}, {Waiting(2, 20)}).admit, IsEmpty());
  EXPECT_THAT(Plan(kLimits, 3, 9, {ending}, {Waiting(2, 20)}).admit,
              ElementsAre(2u));
}

TEST(SchedulerTest, AdmissionPreemptsTheIdleAndThoseOfLowerPriority) {
  const std::vector<SequenceView> resident = {
      Idle(Decoding(1, 5, 9)), Decoding(2, 5, 1), Decoding(3, 5, 1),
      Decoding(4, 5, 2)};
  StepPlan plan = Plan(kLimits, 0, 0, resident, {Waiting(5, 5, 2)});
  EXPECT_THAT(plan.preempt, ElementsAre(1u));
  EXPECT_THAT(plan.admit, ElementsAre(5u));
  plan = Plan(kLimits, 0, 0, resident, {Waiting(5, 15, 2)});
  EXPECT_THAT(plan.preempt, ElementsAre(1u, 3u));
  plan = Plan(kLimits, 0, 0, resident, {Waiting(5, 25, 2)});
  EXPECT_THAT(plan.preempt, ElementsAre(1u, 3u, 2u));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{4, 1}, Entry{5, 25}));
}

TEST(SchedulerTest, AdmissionTakesNothingWhenThatWouldNotDo) {
  const StepPlan plan = Plan(
      kLimits, 0, 0, {Idle(Decoding(1, 5)), Decoding(2, 5), Decoding(3, 5, 1)},
      {Waiting(4, 25, 1)});
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.admit, IsEmpty());
  EXPECT_THAT(plan.entries, ElementsAre(Entry{3, 1}, Entry{2, 1}));
}

TEST(SchedulerTest, EqualsAreNotPreemptedForAdmission) {
  // Number 1 arrived first, but was idle when its memory was taken.
  const StepPlan plan = Plan(kLimits, 0, 0, {Decoding(2, 5)}, {Waiting(1, 5)});
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.entries, ElementsAre(Entry{2, 1}));
}

TEST(SchedulerTest, AVictimOfAdmissionGivesBackItsPlaceInTheStep) {
  SchedulerLimits limits = kLimits;
  limits.max_batched_tokens = 10;
  limits.max_chunk_tokens = 9;
  const StepPlan plan = Plan(
      limits, 0, 0, {Decoding(1, 5, 1), Prefilling(2, 8)}, {Waiting(3, 9, 1)});
  EXPECT_THAT(plan.preempt, ElementsAre(2u));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}, Entry{3, 9}));
}

TEST(SchedulerTest, AVictimOfAdmissionMayHaveHadTheLastTokensOfAStep) {
  // As many sequences decode as a step has tokens, or one more than a chunk.
  for (const int64_t multiple : {1, 10}) {
    SchedulerLimits limits = kLimits;
    limits.max_batched_tokens = 2 + multiple - 1;
    limits.chunk_multiple = multiple;
    const StepPlan plan = Plan(limits, 10, 0, {Decoding(1, 5), Decoding(2, 5)},
                               {Waiting(3, 25, 1)});
    EXPECT_THAT(plan.preempt, ElementsAre(2));
    EXPECT_THAT(plan.admit, ElementsAre(3));
    EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}, Entry{3, multiple}));
    // At the same priority it waits.
    EXPECT_THAT(
        Plan(limits, 10, 0, {Decoding(1, 5), Decoding(2, 5)}, {Waiting(3, 25)})
            .preempt,
        IsEmpty());
  }
}

TEST(SchedulerTest, AVictimOfAdmissionGivesBackThePagesItWasToGet) {
  // Four pages: two are held, 2 is to get a third; 3 needs all of them.
  const StepPlan plan =
      Plan(kLimits, 2, 1, {Decoding(2, 21)}, {Waiting(3, 35, 1)});
  EXPECT_THAT(plan.preempt, ElementsAre(2u));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{3, 35}));
}

TEST(SchedulerTest, WhatIsPreemptedIsNotOvertakenInThatStep) {
  // 1 needs one of the two pages of 2. The other would do for 3, not for 0.
  const std::vector<SequenceView> resident = {Decoding(1, 11), Decoding(2, 15)};
  StepPlan plan = Plan(kLimits, 0, 0, resident, {Waiting(3, 5)});
  EXPECT_THAT(plan.preempt, ElementsAre(2u));
  EXPECT_THAT(plan.admit, IsEmpty());
  plan = Plan(kLimits, 0, 0, resident, {Waiting(0, 5), Waiting(3, 5)});
  EXPECT_THAT(plan.admit, ElementsAre(0u));
  // An idle sequence does not wait.
  plan = Plan(kLimits, 0, 0, {resident[0], Idle(resident[1])}, {Waiting(3, 5)});
  EXPECT_THAT(plan.preempt, ElementsAre(2u));
  EXPECT_THAT(plan.admit, ElementsAre(3u));
}

// --- Rule 4: what comes from the host runs when it has arrived ---

TEST(SchedulerTest, WhatComesFromTheHostIsAdmittedAndRunsLater) {
  const StepPlan plan = Plan(kLimits, 10, 4, {Decoding(1, 5)},
                             {FromHost(Waiting(2, 25), 24), Waiting(3, 9)});
  EXPECT_THAT(plan.admit, ElementsAre(2, 3));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}, Entry{3, 9}));
}

TEST(SchedulerTest, StepsDoNotWaitForACopyOnItsWay) {
  const StepPlan plan =
      Plan(kLimits, 10, 4, {FromHost(Decoding(1, 25), 24), Decoding(2, 5)}, {});
  EXPECT_THAT(plan.entries, ElementsAre(Entry{2, 1}));
}

TEST(SchedulerTest, AStepWaitsForOneCopyWhenNothingElseRuns) {
  StepPlan plan =
      Plan(kLimits, 10, 4,
           {FromHost(Decoding(2, 25), 24), FromHost(Decoding(1, 25), 24)}, {});
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}));
  plan = Plan(kLimits, 10, 4, {Idle(Decoding(1, 5))},
              {FromHost(Waiting(2, 90), 30), FromHost(Waiting(3, 5), 4)});
  EXPECT_THAT(plan.admit, ElementsAre(2, 3));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{2, 40}));
}

TEST(SchedulerTest, ACopyOnItsWayKeepsItsPagesFromThoseBelow) {
  const StepPlan plan =
      Plan(kLimits, 0, 4, {FromHost(Decoding(1, 25), 24), Decoding(2, 11)}, {});
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}));
}

TEST(SchedulerTest, ACopyOnItsWayYieldsToThoseAbove) {
  const StepPlan plan =
      Plan(kLimits, 0, 4, {Decoding(1, 11), FromHost(Decoding(2, 25), 24)}, {});
  EXPECT_THAT(plan.preempt, ElementsAre(2));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}));
}

// --- Any state ---

// Has residents hold some of their full pages together. Returns the pages that
// are in use.
int64_t ShareAtRandom(uint64_t seed, const SchedulerLimits& limits,
                      std::vector<SequenceView>* resident,
                      std::vector<std::vector<int32_t>>* ids) {
  TestRandom random(seed);
  constexpr int64_t kMostFull = 60;
  const int64_t groups = random.Uniform(1, 3);
  auto next = static_cast<int32_t>(1 + groups * kMostFull);
  std::set<int32_t> used;
  ids->resize(resident->size());
  for (size_t i = 0; i < resident->size(); ++i) {
    SequenceView& s = (*resident)[i];
    const int64_t full =
        limits.page_tokens == 0 ? 0 : s.num_computed / limits.page_tokens;
    const int64_t shared = random.Chance(0.7) ? random.Uniform(0, full) : 0;
    const int64_t group = random.Uniform(0, groups - 1);
    for (int64_t page = 0; page < s.pages; ++page) {
      (*ids)[i].push_back(
          page < shared ? static_cast<int32_t>(1 + group * kMostFull + page)
                        : next++);
    }
    used.insert((*ids)[i].begin(), (*ids)[i].end());
    s.page_ids = (*ids)[i];
  }
  return static_cast<int64_t>(used.size());
}

TEST(SchedulerTest, RandomStatesGiveSoundPlans) {
  for (uint64_t seed = 0; seed < SimSeeds(100'000); ++seed) {
    TestRandom random(seed);
    const int64_t slots = random.Uniform(1, 12);
    SchedulerLimits limits;
    limits.max_batched_tokens = slots + random.Uniform(0, 60);
    limits.max_chunk_tokens = random.Uniform(1, limits.max_batched_tokens);
    limits.page_tokens = random.Chance(0.1) ? 0 : random.Uniform(1, 10);
    const auto pages_for = [&](int64_t tokens) {
      return limits.page_tokens == 0
                 ? 0
                 : (tokens + limits.page_tokens - 1) / limits.page_tokens;
    };
    std::vector<SequenceView> resident;
    std::vector<SequenceView> waiting;
    int64_t used = 0;
    int64_t longest = 1;
    for (uint64_t id = 1; id <= 20; ++id) {
      SequenceView s = {id,
                        static_cast<int32_t>(random.Uniform(-1, 1)),
                        id,
                        random.Uniform(1, 60),
                        0,
                        0,
                        random.Chance(0.7)};
      longest = std::max(longest, s.num_tokens);
      s.flow = static_cast<uint32_t>(random.Uniform(0, 2));
      s.weight = static_cast<double>(1 + s.flow);
      const auto round = id / 3;
      s.turn = static_cast<double>(round) / s.weight;
      s.paced = random.Chance(0.7);
      s.passed_over = random.Chance(0.2);
      s.passes = static_cast<int>(random.Uniform(0, kMaxPasses));
      if (random.Chance(0.2)) {
        s.whole_tokens =
            random.Uniform(0, std::min(s.num_tokens, limits.max_chunk_tokens));
      }
      if (static_cast<int64_t>(resident.size()) < slots && random.Chance(0.5)) {
        s.num_computed = s.has_work ? random.Uniform(0, s.num_tokens - 1)
                                    : random.Uniform(0, s.num_tokens);
        if (random.Chance(0.5)) s.num_computed = s.num_tokens - 1;
        // Admitted and computed in the same step.
        s.whole_tokens = std::min(s.whole_tokens, s.num_computed);
        s.pages = random.Chance(0.5)
                      ? pages_for(s.num_tokens)
                      : pages_for(std::max<int64_t>(1, s.num_computed));
        if (s.num_computed > 0 && random.Chance(0.3)) {
          s.from_host = true;
          s.pages = pages_for(s.num_tokens);
        }
        if (random.Chance(0.5)) {
          s.prompt_tokens =
              random.Uniform(s.num_tokens - s.num_computed, s.num_tokens);
        }
        used += s.pages;
        resident.push_back(s);
      } else {
        s.has_work = true;
        if (s.num_tokens > 1 && random.Chance(0.3)) {
          s.from_host = true;
          s.num_computed = random.Uniform(1, s.num_tokens - 1);
        }
        waiting.push_back(s);
      }
    }
    std::vector<std::vector<int32_t>> ids;
    if (seed % 2 == 1) used = ShareAtRandom(seed, limits, &resident, &ids);
    int64_t free_pages = std::max<int64_t>(0, pages_for(longest) - used);
    if (random.Chance(0.5)) free_pages += random.Uniform(0, 12);
    if (limits.page_tokens == 0) free_pages = 0;
    if (random.Chance(0.3)) limits.max_prompt_tokens = random.Uniform(0, 30);
    const int64_t free_slots = slots - static_cast<int64_t>(resident.size());
    const StepPlan plan =
        PlanStep(limits, free_pages, free_slots, resident, waiting);
    const absl::Status status =
        CheckPlan(limits, free_pages, free_slots, resident, waiting, plan);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status;
  }
}

// The checker must be able to fail.
TEST(PlanCheckerTest, RefusesUnsoundPlans) {
  const std::vector<SequenceView> resident = {Decoding(1, 11), Decoding(2, 5),
                                              Idle(Decoding(3, 5))};
  const std::vector<SequenceView> waiting = {Waiting(4, 15), Waiting(5, 5)};
  const auto refuses = [&](const char* rule, int64_t free_pages,
                           const StepPlan& plan) {
    const absl::Status status =
        CheckPlan(kLimits, free_pages, 2, resident, waiting, plan);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(rule));
  };
  refuses("what is preempted", 9, {{9}, {}, {{1, 1}, {2, 1}}});
  refuses("what is admitted was waiting", 9, {{}, {1}, {{1, 1}, {2, 1}}});
  refuses("those admitted fit", 1, {{}, {4}, {{1, 1}, {2, 1}, {4, 15}}});
  refuses("what runs holds memory", 9, {{}, {}, {{1, 1}, {1, 1}}});
  refuses("what runs holds memory", 9, {{2}, {}, {{1, 1}, {2, 1}}});
  refuses("what runs has work", 9, {{}, {}, {{1, 1}, {3, 1}}});
  refuses("a chunk has", 9, {{}, {}, {{1, 2}}});
  refuses("tokens and pages", 0, {{}, {}, {{1, 1}, {2, 1}}});
  refuses("what is admitted runs", 9, {{}, {4}, {{1, 1}, {2, 1}}});
  refuses("a victim yields", 9, {{3}, {}, {{2, 1}}});
  refuses("preempted is overtaken", 2, {{2}, {4}, {{1, 1}, {4, 15}}});
  refuses("what fits is admitted", 9, {{}, {}, {{1, 1}, {2, 1}}});
  refuses("a decoding resident", 1, {{}, {}, {{1, 1}}});
  refuses("a decoding resident", 0, {{}, {}, {{2, 1}}});

  // On states of their own.
  const auto refuses_on = [&](const char* rule, const SchedulerLimits& limits,
                              const std::vector<SequenceView>& residents,
                              const std::vector<SequenceView>& others,
                              const StepPlan& plan, int64_t free_pages = 99) {
    const absl::Status status =
        CheckPlan(limits, free_pages, 2, residents, others, plan);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(rule));
  };
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  refuses_on("waits is overtaken", limits, {Decoding(1, 5)},
             {Waiting(2, 500), Waiting(3, 200)}, {{}, {3}, {{1, 1}, {3, 99}}});
  refuses_on("prompts that fit have half", limits, {Prefilling(1, 500)},
             {Waiting(2, 10)}, {{}, {}, {{1, 100}}});
  refuses_on("prompts that fit have half", limits,
             {Prefilling(1, 500), Prefilling(2, 80)}, {},
             {{}, {}, {{1, 60}, {2, 40}}});
  SequenceView often = Waiting(2, 90);
  often.passes = kMaxPasses;
  refuses_on("waits is overtaken", limits, {Decoding(1, 5)},
             {often, Waiting(3, 5)}, {{}, {3}, {{1, 1}, {3, 5}}}, 1);
  refuses_on("passed often", limits, {Decoding(1, 5)}, {often},
             {{}, {}, {{1, 1}}, {2}}, 1);
  limits = kLimits;
  limits.max_prompt_tokens = 20;
  refuses_on("in a higher one's place", limits,
             {Decoding(1, 5), Prefilling(2, 90, -1)}, {Waiting(3, 30)},
             {{}, {}, {{1, 1}, {2, 20}}});
}

}  // namespace
}  // namespace recurve
