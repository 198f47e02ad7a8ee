// What the first of the prompts leaves to those behind it (rule 1).
#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/scheduler_testing.h"

namespace recurve {
namespace {

using scheduler_testing::Decoding;
using scheduler_testing::Entry;
using scheduler_testing::FromHost;
using scheduler_testing::kLimits;
using scheduler_testing::Plan;
using scheduler_testing::Prefilling;
using scheduler_testing::Waiting;
using testing::ElementsAre;

// The first of the prompts leaves half of a step to those behind it that need
// no more, and an eighth to longer ones that others wait behind.
TEST(SchedulerAsideTest, LongPromptsSetTokensAsideForThoseBehind) {
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  const auto entries = [&](const std::vector<SequenceView>& resident,
                           const std::vector<SequenceView>& waiting,
                           int64_t free_pages = 1000, int64_t free_slots = 9) {
    return Plan(limits, free_pages, free_slots, resident, waiting).entries;
  };
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {}), ElementsAre(Entry{1, 100}));
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 10), Waiting(3, 20)}),
              ElementsAre(Entry{1, 70}, Entry{2, 10}, Entry{3, 20}));
  EXPECT_THAT(entries({Prefilling(1, 1000), Prefilling(2, 30)}, {}),
              ElementsAre(Entry{1, 70}, Entry{2, 30}));
  // Half and no more, of all together.
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 30), Waiting(3, 80)}),
              ElementsAre(Entry{1, 70}, Entry{2, 30}));
  EXPECT_THAT(entries({Prefilling(1, 1000), Prefilling(2, 51)}, {}),
              ElementsAre(Entry{1, 100}));
  // An eighth for what then ends with half; nothing for what does not.
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 62)}),
              ElementsAre(Entry{1, 88}, Entry{2, 12}));
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 63)}),
              ElementsAre(Entry{1, 100}));
  // Those behind long ones are not kept waiting for them.
  EXPECT_THAT(
      entries({Prefilling(1, 1000)},
              {Waiting(2, 500), Waiting(3, 500), Waiting(4, 10)}),
      ElementsAre(Entry{1, 66}, Entry{2, 12}, Entry{3, 12}, Entry{4, 10}));
  EXPECT_THAT(
      entries({Prefilling(1, 1000)},
              {Waiting(2, 30), Waiting(3, 30), Waiting(4, 5)}),
      ElementsAre(Entry{1, 53}, Entry{2, 30}, Entry{3, 12}, Entry{4, 5}));
  // Of what decoding leaves.
  EXPECT_THAT(
      entries({Prefilling(1, 1000), Decoding(2, 5), Decoding(3, 5)},
              {Waiting(4, 10)}),
      ElementsAre(Entry{1, 88}, Entry{2, 1}, Entry{3, 1}, Entry{4, 10}));
  // What a prompt does not need is theirs anyway.
  EXPECT_THAT(entries({Prefilling(1, 30)}, {Waiting(2, 500), Waiting(3, 10)}),
              ElementsAre(Entry{1, 30}, Entry{2, 60}, Entry{3, 10}));
  // One of higher priority has half at once, and runs first from then on; for
  // one of lower priority there is nothing.
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 1000, 1)}),
              ElementsAre(Entry{1, 50}, Entry{2, 50}));
  EXPECT_THAT(
      entries({Prefilling(1, 1000), Prefilling(2, 5, -1)}, {Waiting(3, 5, -1)}),
      ElementsAre(Entry{1, 100}));
  // Nor for those that have no room in memory.
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 10)}, 1),
              ElementsAre(Entry{1, 100}));
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 10)}, 1000, 0),
              ElementsAre(Entry{1, 100}));
  EXPECT_THAT(entries({Prefilling(1, 1000)},
                      {FromHost(Waiting(2, 30), 20), Waiting(3, 10)}, 6),
              ElementsAre(Entry{1, 90}, Entry{3, 10}));
  EXPECT_THAT(entries({Prefilling(1, 1000)},
                      {FromHost(Waiting(2, 30), 20), Waiting(3, 10)}, 5),
              ElementsAre(Entry{1, 100}));
  // A long one that a chunk's limit makes short is long.
  limits.max_chunk_tokens = 40;
  limits.max_batched_tokens = 80;
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 500), Waiting(3, 10)}),
              ElementsAre(Entry{1, 40}, Entry{2, 30}, Entry{3, 10}));
}

// Where paced prompts are bounded the others have what that leaves.
TEST(SchedulerAsideTest, SetsNothingAsideWherePromptsAreBounded) {
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  limits.max_prompt_tokens = 20;
  SequenceView unpaced = Waiting(3, 70);
  unpaced.paced = false;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {Prefilling(1, 1000)}, {Waiting(2, 30), unpaced})
          .entries,
      ElementsAre(Entry{1, 20}, Entry{3, 70}));
}

// Where paced prompts are bounded, residents leave what is bounded to one that
// waits, has a higher priority and can be admitted.
TEST(SchedulerAsideTest, BoundedPromptsYieldToAHigherPriorityThatWaits) {
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  limits.max_prompt_tokens = 20;
  const auto plan = [&](const std::vector<SequenceView>& resident,
                        const std::vector<SequenceView>& waiting,
                        int64_t free_pages = 1000, int64_t free_slots = 9) {
    return Plan(limits, free_pages, free_slots, resident, waiting);
  };
  const SequenceView stream = Decoding(1, 5, 5);
  const SequenceView low = Prefilling(2, 1000, -1);
  EXPECT_THAT(plan({stream, low}, {Waiting(3, 300, 1)}).entries,
              ElementsAre(Entry{1, 1}, Entry{3, 20}));
  // However many there are; and they have what it does not need.
  const SequenceView other = Prefilling(4, 12, 0);
  EXPECT_THAT(plan({stream, low, other}, {Waiting(3, 300, 1)}).entries,
              ElementsAre(Entry{1, 1}, Entry{3, 20}));
  EXPECT_THAT(plan({stream, low, other}, {Waiting(3, 5, 1)}).entries,
              ElementsAre(Entry{1, 1}, Entry{4, 12}, Entry{2, 3}, Entry{3, 5}));
  // One of them may be above it.
  EXPECT_THAT(
      plan({stream, low, Prefilling(4, 12, 1)}, {Waiting(3, 300, 0)}).entries,
      ElementsAre(Entry{1, 1}, Entry{4, 12}, Entry{3, 8}));
  // Of equal priority they keep it, and so they do where it has no room.
  EXPECT_THAT(plan({stream, low}, {Waiting(3, 300, -1)}).entries,
              ElementsAre(Entry{1, 1}, Entry{2, 20}));
  EXPECT_THAT(plan({Decoding(1, 980, 5), Prefilling(2, 30, -1)},
                   {Waiting(3, 300, 1)}, 20)
                  .entries,
              ElementsAre(Entry{1, 1}, Entry{2, 20}));
  // Its room may be that of one of them.
  const StepPlan preempts = plan({stream, low}, {Waiting(3, 300, 1)}, 1000, 0);
  EXPECT_THAT(preempts.preempt, ElementsAre(2));
  EXPECT_THAT(preempts.entries, ElementsAre(Entry{1, 1}, Entry{3, 20}));
  // What is whole goes beyond the bound, as the first.
  SequenceView whole = Waiting(3, 60, 1);
  whole.whole_tokens = 60;
  EXPECT_THAT(plan({stream, low}, {whole}).entries,
              ElementsAre(Entry{1, 1}, Entry{3, 60}));
  // A bound that is more than a step leaves others nothing by itself; nor does
  // it to one that is not paced.
  limits.max_prompt_tokens = 500;
  EXPECT_THAT(plan({stream, low}, {Waiting(3, 30, 1)}).entries,
              ElementsAre(Entry{1, 1}, Entry{2, 69}, Entry{3, 30}));
  SequenceView unpaced = Waiting(3, 30, 1);
  unpaced.paced = false;
  EXPECT_THAT(plan({stream, low}, {unpaced}).entries,
              ElementsAre(Entry{1, 1}, Entry{2, 69}, Entry{3, 30}));
}

// The first of the prompts gets on, also where it cannot be cut, and steps are
// not left unfilled for little.
TEST(SchedulerAsideTest, WhatIsSetAsideLetsTheFirstPromptGetOn) {
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  SequenceView whole = Prefilling(1, 300);
  whole.whole_tokens = 95;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {whole}, {Waiting(2, 40), Waiting(3, 5)}).entries,
      ElementsAre(Entry{1, 100}));
  EXPECT_THAT(
      Plan(limits, 1000, 9, {whole}, {Waiting(2, 5), Waiting(3, 5)}).entries,
      ElementsAre(Entry{1, 95}, Entry{2, 5}));
  // An eighth of the step is a multiple, and is not.
  limits.chunk_multiple = 10;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {Prefilling(1, 1000)}, {Waiting(2, 5)}).entries,
      ElementsAre(Entry{1, 90}, Entry{2, 5}));
  limits.chunk_multiple = 20;
  limits.page_tokens = 20;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {Prefilling(1, 1000)}, {Waiting(2, 5)}).entries,
      ElementsAre(Entry{1, 100}));
}

// Steps until each of the prompts is computed, all waiting at first.
std::vector<int> StepsOf(const SchedulerLimits& limits,
                         std::vector<SequenceView> waiting) {
  std::vector<int> done(waiting.size(), 0);
  std::vector<SequenceView> resident;
  int64_t free_pages = 100'000;
  int64_t free_slots = 100;
  for (int step = 1; !resident.empty() || !waiting.empty(); ++step) {
    const StepPlan plan =
        Plan(limits, free_pages, free_slots, resident, waiting);
    for (uint64_t id : plan.admit) {
      const auto found =
          std::find_if(waiting.begin(), waiting.end(),
                       [id](const SequenceView& s) { return s.id == id; });
      resident.push_back(*found);
      resident.back().pages = (found->num_tokens + 9) / 10;
      free_pages -= resident.back().pages;
      --free_slots;
      waiting.erase(found);
    }
    if (plan.entries.empty()) break;  // Plan has failed
    for (const StepPlan::Entry& entry : plan.entries) {
      const auto found =
          std::find_if(resident.begin(), resident.end(),
                       [&](const SequenceView& s) { return s.id == entry.id; });
      found->num_computed += entry.num_tokens;
      if (found->num_computed < found->num_tokens) continue;
      done[found->id - 1] = step;
      free_pages += found->pages;
      ++free_slots;
      resident.erase(found);
    }
  }
  return done;
}

// Prompts of less than half a step, and an eighth, do not wait for the end of a
// long one; those of more do, and those of lower priority.
TEST(SchedulerAsideTest, ShortPromptsDoNotWaitForTheEndOfALongOne) {
  SchedulerLimits limits = kLimits;
  limits.max_batched_tokens = limits.max_chunk_tokens = 2048;
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000), Waiting(2, 600),
                               Waiting(3, 600), Waiting(4, 600)}),
              ElementsAre(16, 2, 3, 3));
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000), Waiting(2, 1000),
                               Waiting(3, 30'000), Waiting(4, 1000)}),
              ElementsAre(16, 2, 31, 4));
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000), Waiting(2, 1280)}),
              ElementsAre(16, 3));
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000), Waiting(2, 1281)}),
              ElementsAre(15, 16));
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000, 1), Waiting(2, 600)}),
              ElementsAre(15, 15));
}

}  // namespace
}  // namespace recurve
