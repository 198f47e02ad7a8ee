// How prompts share what decoding leaves of a step (rule 1).
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/serving/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/scheduler_testing.h"
#include "tests/testing/test_random.h"

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

// Prompts that fit a step have half of it before those that do not.
TEST(SchedulerAsideTest, ShortPromptsHaveHalf) {
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
              ElementsAre(Entry{1, 50}, Entry{2, 30}, Entry{3, 20}));
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 50), Waiting(3, 80)}),
              ElementsAre(Entry{1, 50}, Entry{2, 50}));
  // A prompt fits a step if it fits the half of two.
  EXPECT_THAT(entries({Prefilling(1, 1000), Prefilling(2, 100)}, {}),
              ElementsAre(Entry{1, 50}, Entry{2, 50}));
  EXPECT_THAT(entries({Prefilling(1, 1000), Prefilling(2, 101)}, {}),
              ElementsAre(Entry{1, 100}));
  // That the rest of a long one is short does not make it so.
  SequenceView rest = Prefilling(1, 500);
  rest.num_computed = 410;
  rest.prompt_tokens = 500;
  EXPECT_THAT(entries({rest}, {Waiting(2, 30)}),
              ElementsAre(Entry{1, 70}, Entry{2, 30}));
  // However many long ones they are behind.
  EXPECT_THAT(entries({Prefilling(1, 1000), Prefilling(2, 1000)},
                      {Waiting(3, 500), Waiting(4, 500), Waiting(5, 10)}),
              ElementsAre(Entry{1, 90}, Entry{5, 10}));
  // A part of the tokens left by decoding.
  EXPECT_THAT(
      entries({Prefilling(1, 1000), Decoding(2, 5), Decoding(3, 5)},
              {Waiting(4, 60)}),
      ElementsAre(Entry{1, 49}, Entry{2, 1}, Entry{3, 1}, Entry{4, 49}));
  // What a prompt does not need is theirs anyway.
  EXPECT_THAT(entries({Prefilling(1, 30)}, {Waiting(2, 500), Waiting(3, 10)}),
              ElementsAre(Entry{1, 30}, Entry{2, 60}, Entry{3, 10}));
  EXPECT_THAT(entries({Prefilling(1, 30)}, {Waiting(2, 80), Waiting(3, 80)}),
              ElementsAre(Entry{1, 30}, Entry{2, 70}));
  // A higher priority comes first, also if it fits no step.
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 80, 1)}),
              ElementsAre(Entry{1, 20}, Entry{2, 80}));
  EXPECT_THAT(entries({Prefilling(1, 30)}, {Waiting(2, 1000, 1)}),
              ElementsAre(Entry{2, 100}));
  EXPECT_THAT(
      entries({Prefilling(1, 1000), Prefilling(2, 5, -1)}, {Waiting(3, 5, -1)}),
      ElementsAre(Entry{1, 100}));
  // Nothing is kept for those that have no room in memory.
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 10)}, 1),
              ElementsAre(Entry{1, 100}));
  EXPECT_THAT(entries({Prefilling(1, 1000)}, {Waiting(2, 10)}, 1000, 0),
              ElementsAre(Entry{1, 100}));
  EXPECT_THAT(entries({Prefilling(1, 1000)},
                      {FromHost(Waiting(2, 30), 20), Waiting(3, 10)}, 6),
              ElementsAre(Entry{1, 90}, Entry{3, 10}));
  EXPECT_THAT(entries({Prefilling(1, 1000)},
                      {FromHost(Waiting(2, 30), 20), Waiting(3, 10)}, 4),
              ElementsAre(Entry{1, 100}));
  // What a chunk's limit leaves of the half of long ones goes to whom it is of
  // use.
  limits.max_chunk_tokens = 40;
  EXPECT_THAT(
      entries({Prefilling(1, 1000)},
              {Waiting(2, 500), Waiting(3, 70), Waiting(4, 70)}),
      ElementsAre(Entry{1, 40}, Entry{2, 10}, Entry{3, 40}, Entry{4, 10}));
}

// Where paced prompts are bounded they share what that leaves, and the others
// have the rest.
TEST(SchedulerAsideTest, BoundedPromptsShareWhatTheyHave) {
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  limits.max_prompt_tokens = 20;
  SequenceView unpaced = Waiting(3, 70);
  unpaced.paced = false;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {Prefilling(1, 1000)}, {Waiting(2, 30), unpaced})
          .entries,
      ElementsAre(Entry{1, 10}, Entry{2, 10}, Entry{3, 70}));
}

// Long prompts of several flows share by weight what short ones leave.
TEST(SchedulerAsideTest, FlowsShareByWeight) {
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  const auto of = [](SequenceView s, uint32_t flow, double weight,
                     double turn) {
    s.flow = flow;
    s.weight = weight;
    s.turn = turn;
    return s;
  };
  const auto entries = [&](const std::vector<SequenceView>& resident,
                           const std::vector<SequenceView>& waiting,
                           int64_t free_pages = 1000, int64_t free_slots = 9) {
    return Plan(limits, free_pages, free_slots, resident, waiting).entries;
  };
  const SequenceView a1 = of(Prefilling(1, 1000), 1, 1, 0);
  const SequenceView a2 = of(Prefilling(2, 1000), 1, 1, 1);
  EXPECT_THAT(entries({a1, a2}, {of(Waiting(3, 1000), 2, 1, 0)}),
              ElementsAre(Entry{1, 50}, Entry{3, 50}));
  EXPECT_THAT(entries({a1, a2}, {of(Waiting(3, 1000), 2, 3, 0)}),
              ElementsAre(Entry{1, 25}, Entry{3, 75}));
  EXPECT_THAT(
      entries({a1, a2},
              {of(Waiting(3, 1000), 2, 1, 0), of(Waiting(4, 1000), 3, 1, 0),
               of(Waiting(5, 20), 4, 1, 0)}),
      ElementsAre(Entry{1, 28}, Entry{3, 26}, Entry{4, 26}, Entry{5, 20}));
  // What one cannot use is the others'.
  EXPECT_THAT(entries({a1}, {of(Waiting(3, 1000), 2, 1, 0)}, 5),
              ElementsAre(Entry{1, 100}));
  EXPECT_THAT(entries({a1}, {of(Waiting(3, 110), 2, 9, 0),
                             of(Waiting(4, 130), 2, 9, 1 / 9.0)}),
              ElementsAre(Entry{1, 10}, Entry{3, 90}));
  // Memory goes to the earlier turn, not to the earlier arrival.
  const SequenceView b = of(Waiting(3, 95), 2, 1, 0);
  const StepPlan plan =
      Plan(limits, 0, 0,
           {of(Decoding(1, 100), 1, 1, 0), of(Decoding(2, 100), 1, 1, 1)}, {b});
  EXPECT_THAT(plan.preempt, ElementsAre(2));
  EXPECT_THAT(plan.admit, ElementsAre(3));
  EXPECT_THAT(
      Plan(limits, 0, 0,
           {of(Decoding(1, 100), 1, 1, 0), of(Decoding(2, 100), 1, 1, 0)},
           {of(Waiting(3, 95), 2, 1, 1)})
          .admit,
      ElementsAre());
}

// Short prompts pass a sequence that lacks memory in at most kMaxPasses steps.
TEST(SchedulerAsideTest, WhatLacksMemoryIsPassedSoOften) {
  SequenceView large = Waiting(2, 300);
  const std::vector<SequenceView> resident = {Decoding(1, 500)};
  const std::vector<SequenceView> waiting = {large, Waiting(3, 20),
                                             Waiting(4, 300)};
  StepPlan plan = Plan(kLimits, 29, 9, resident, waiting);
  EXPECT_THAT(plan.admit, ElementsAre(3));
  EXPECT_THAT(plan.passed, ElementsAre(2));
  large.passes = kMaxPasses;
  plan = Plan(kLimits, 29, 9, resident, {large, Waiting(3, 20)});
  EXPECT_THAT(plan.admit, ElementsAre());
  EXPECT_THAT(plan.passed, ElementsAre());
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
  // At equal priority they keep it, and so they do if it has no room.
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

// What is whole takes turns with the half of short prompts where it leaves them
// less.
TEST(SchedulerAsideTest, WhatIsWholeTakesTurns) {
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  SequenceView whole = Waiting(1, 300);
  whole.whole_tokens = 95;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {}, {whole, Waiting(2, 40), Waiting(3, 5)}).entries,
      ElementsAre(Entry{1, 95}, Entry{2, 5}));
  // Once one runs it goes first, as those that hold memory do.
  SequenceView second = Prefilling(2, 40);
  second.num_computed = 5;
  second.prompt_tokens = 40;
  StepPlan plan = Plan(limits, 1000, 9, {second}, {whole, Waiting(3, 5)});
  EXPECT_THAT(plan.entries, ElementsAre(Entry{2, 35}, Entry{3, 5}));
  EXPECT_THAT(plan.passed_over, ElementsAre(1));
  whole.passed_over = true;
  plan = Plan(limits, 1000, 9, {second}, {whole, Waiting(3, 5)});
  EXPECT_THAT(plan.entries, ElementsAre(Entry{2, 5}, Entry{1, 95}));
}

TEST(SchedulerAsideTest, SharesEndWhereChunksMay) {
  SchedulerLimits limits = kLimits;
  limits.max_chunk_tokens = 100;
  limits.chunk_multiple = 10;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {Prefilling(1, 1000)}, {Waiting(2, 5)}).entries,
      ElementsAre(Entry{1, 90}, Entry{2, 5}));
  limits.chunk_multiple = 20;
  limits.page_tokens = 20;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {Prefilling(1, 1000)}, {Waiting(2, 5)}).entries,
      ElementsAre(Entry{1, 80}, Entry{2, 5}));
  // Where half is less than a chunk, they go by rank.
  limits.chunk_multiple = 60;
  limits.page_tokens = 60;
  EXPECT_THAT(
      Plan(limits, 1000, 9, {Prefilling(1, 1000)}, {Waiting(2, 41)}).entries,
      ElementsAre(Entry{1, 60}));
}

constexpr uint64_t kDecodingIds = 1000;

// Steps until each of the prompts is computed, all waiting at first, alongside
// `decoding`; 0 for those not done in `most` steps. If `more` is set, one more
// prompt arrives before each step but the first.
std::vector<int> StepsOf(const SchedulerLimits& limits,
                         std::vector<SequenceView> waiting,
                         const std::vector<SequenceView>& decoding = {},
                         int most = 1000,
                         const std::function<SequenceView()>& more = nullptr,
                         std::vector<int64_t>* left_tokens = nullptr) {
  std::vector<int> done(waiting.size(), 0);
  for (SequenceView& s : waiting) s.prompt_tokens = s.num_tokens;
  std::vector<SequenceView> resident = decoding;
  size_t left = waiting.size();
  int64_t free_pages = 1'000'000;
  int64_t free_slots = 1'000'000;
  for (int step = 1; left > 0 && step <= most; ++step) {
    if (more && step > 1) {
      const SequenceView added = more();
      const auto is_it = [&](const SequenceView& s) {
        return s.id == added.id;
      };
      if (std::none_of(resident.begin(), resident.end(), is_it) &&
          std::none_of(waiting.begin(), waiting.end(), is_it)) {
        waiting.push_back(added);
      }
    }
    const StepPlan plan =
        Plan(limits, free_pages, free_slots, resident, waiting);
    if (left_tokens != nullptr) {
      left_tokens->push_back(
          limits.max_batched_tokens -
          std::count_if(resident.begin(), resident.end(), [](const auto& s) {
            return s.num_tokens - s.num_computed == 1;
          }));
    }
    for (const uint64_t id : plan.admit) {
      const auto found =
          std::find_if(waiting.begin(), waiting.end(),
                       [id](const SequenceView& s) { return s.id == id; });
      resident.push_back(*found);
      resident.back().pages =
          (found->num_tokens + limits.page_tokens - 1) / limits.page_tokens;
      free_pages -= resident.back().pages;
      --free_slots;
      waiting.erase(found);
    }
    if (plan.entries.empty()) break;  // Plan has failed
    for (const StepPlan::Entry& entry : plan.entries) {
      const auto found =
          std::find_if(resident.begin(), resident.end(),
                       [&](const SequenceView& s) { return s.id == entry.id; });
      if (entry.id >= kDecodingIds) continue;  // for ever
      found->num_computed += entry.num_tokens;
      if (found->num_computed < found->num_tokens) continue;
      if (found->id <= done.size()) {
        done[found->id - 1] = step;
        --left;
      }
      free_pages += found->pages;
      ++free_slots;
      resident.erase(found);
    }
  }
  return done;
}

TEST(SchedulerAsideTest, ShortPromptsDoNotWaitForTheEndOfALongOne) {
  SchedulerLimits limits = kLimits;
  limits.max_batched_tokens = limits.max_chunk_tokens = 2048;
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000), Waiting(2, 600),
                               Waiting(3, 600), Waiting(4, 600)}),
              ElementsAre(16, 1, 2, 2));
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000), Waiting(2, 1000),
                               Waiting(3, 30'000), Waiting(4, 1000)}),
              ElementsAre(16, 1, 31, 2));
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000), Waiting(2, 2048)}),
              ElementsAre(16, 2));
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000), Waiting(2, 2049)}),
              ElementsAre(15, 16));
  EXPECT_THAT(StepsOf(limits, {Waiting(1, 30'000, 1), Waiting(2, 600)}),
              ElementsAre(15, 15));
}

// The bound of scheduler.h, for any queue.
TEST(SchedulerAsideTest, ShortPromptsAreComputedWithinTheirBound) {
  for (uint64_t seed = 0; seed < SimSeeds(10'000); ++seed) {
    TestRandom random(seed);
    const int64_t decoding = random.Uniform(0, 20);
    SchedulerLimits limits = kLimits;
    limits.max_batched_tokens = decoding + random.Uniform(2, 300);
    limits.max_chunk_tokens =
        std::max<int64_t>(2, random.Uniform(1, limits.max_batched_tokens));
    if (random.Chance(0.3)) {
      limits.chunk_multiple =
          std::min<int64_t>(random.Uniform(1, 10), limits.max_chunk_tokens);
      limits.max_batched_tokens += limits.chunk_multiple;
    }
    limits.page_tokens = 10 * limits.chunk_multiple;
    const int64_t half = std::min((limits.max_batched_tokens - decoding) / 2,
                                  limits.max_chunk_tokens);
    const auto random_prompt = [&](uint64_t id) {
      SequenceView s =
          Waiting(id, random.Chance(0.5) ? random.Uniform(1, 2 * half)
                                         : random.Uniform(2 * half + 1, 3000));
      // Short ones of one flow, or their order would change as others end.
      s.flow = s.num_tokens > 2 * half ? random.Uniform(0, 3) : 0;
      s.weight = 1 + s.flow;
      s.turn = static_cast<double>(id) / s.weight;
      s.prompt_tokens = s.num_tokens;
      return s;
    };
    std::vector<SequenceView> waiting;
    for (int64_t i = random.Uniform(1, 20); i > 0; --i) {
      waiting.push_back(random_prompt(waiting.size() + 1));
    }
    std::vector<SequenceView> decoders;
    for (int64_t i = 0; i < decoding; ++i) {
      decoders.push_back(Decoding(kDecodingIds + i, 5));
    }
    std::vector<int64_t> left;
    int64_t all = 0;  // tokens of short ones
    for (const SequenceView& s : waiting) {
      if (s.num_tokens <= 2 * half) all += s.num_tokens;
    }
    const int64_t share = std::max<int64_t>(1, half - limits.chunk_multiple);
    const std::vector<int> done = StepsOf(
        limits, waiting, decoders, static_cast<int>(1 + all / share),
        [&] {  // long ones that rank anywhere
          SequenceView s = random_prompt(random.Uniform(40, 900));
          s.num_tokens = s.prompt_tokens = random.Uniform(2 * half + 1, 3000);
          s.turn = static_cast<double>(random.Uniform(0, 30));
          return s;
        },
        &left);
    const int64_t least_half =
        std::min(*std::min_element(left.begin(), left.end()) / 2,
                 limits.max_chunk_tokens);
    int64_t before = 0;
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].num_tokens > 2 * half) continue;
      before += waiting[i].num_tokens;
      if (waiting[i].num_tokens > 2 * least_half) continue;  // not in all steps
      // The step by whose end it is computed: a chunk within it may end m - 1
      // tokens early, and one token that is left of a prompt counts as
      // decoding.
      int64_t computed = 0;
      size_t bound = 0;
      while (computed < before && bound < left.size()) {
        computed += std::max<int64_t>(
            0, std::min(left[bound++] / 2, limits.max_chunk_tokens) -
                   (limits.chunk_multiple - 1));
      }
      if (computed < before) break;
      ASSERT_GT(done[i], 0) << "seed " << seed << ", prompt " << i;
      ASSERT_LE(done[i], bound) << "seed " << seed << ", prompt " << i << " of "
                                << waiting[i].num_tokens << " tokens";
    }
  }
}

}  // namespace
}  // namespace recurve
