// Plans for sequences that share pages.
#include "engine/serving/page_holders.h"

#include <cstdint>
#include <vector>

#include "engine/serving/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/scheduler_testing.h"

namespace recurve {
namespace {

using scheduler_testing::Decoding;
using scheduler_testing::Entry;
using scheduler_testing::Idle;
using scheduler_testing::kLimits;
using scheduler_testing::Plan;
using scheduler_testing::Waiting;
using testing::ElementsAre;
using testing::IsEmpty;

SequenceView Holding(SequenceView view, absl::Span<const int32_t> pages) {
  view.page_ids = pages;
  view.pages = static_cast<int64_t>(pages.size());
  return view;
}

TEST(PageHoldersTest, TheLastHolderFreesAPage) {
  const std::vector<int32_t> a = {1, 2, 3};
  const std::vector<int32_t> b = {1, 2, 4};
  std::vector<SequenceView> resident = {
      Holding(Decoding(1, 25), a), Holding(Decoding(2, 25), b),
      Holding(Decoding(3, 5), {}), Decoding(4, 25)};
  PageHolders holders(resident);
  EXPECT_EQ(holders.Drop(resident[0]), 1);
  EXPECT_EQ(holders.Drop(resident[1]), 3);
  holders.Undrop(resident[0]);
  holders.Undrop(resident[1]);
  resident[1].pages += 2;  // granted since, to it alone
  EXPECT_EQ(holders.Drop(resident[1]), 3);
  EXPECT_EQ(holders.Drop(resident[0]), 3);
  EXPECT_EQ(holders.Drop(resident[2]), 0);
  // Its pages are not named: no other has them.
  EXPECT_EQ(holders.Drop(resident[3]), 3);
}

TEST(PageHoldersTest, OnlyPagesThatNoOtherHoldsBecomeFree) {
  const std::vector<int32_t> a = {1, 2, 3};
  const std::vector<int32_t> b = {1, 2, 4};
  const std::vector<int32_t> c = {1, 2, 5};
  // A waiting sequence of three pages: one of each of two victims, and the two
  // that only these share.
  StepPlan plan = Plan(
      kLimits, 0, 4,
      {Holding(Idle(Decoding(1, 25)), a), Holding(Idle(Decoding(2, 25)), b)},
      {Waiting(3, 25)});
  EXPECT_THAT(plan.preempt, ElementsAre(2, 1));
  EXPECT_THAT(plan.admit, ElementsAre(3));
  // A third holds them, and works.
  plan = Plan(kLimits, 0, 4,
              {Holding(Idle(Decoding(1, 25)), a),
               Holding(Idle(Decoding(2, 25)), b), Holding(Decoding(3, 25), c)},
              {Waiting(4, 25)});
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.admit, IsEmpty());
  EXPECT_THAT(plan.entries, ElementsAre(Entry{3, 1}));
  // Two pages suffice for a shorter one.
  plan = Plan(kLimits, 0, 4,
              {Holding(Idle(Decoding(1, 25)), a),
               Holding(Idle(Decoding(2, 25)), b), Holding(Decoding(3, 25), c)},
              {Waiting(4, 15)});
  EXPECT_THAT(plan.preempt, ElementsAre(2, 1));
  EXPECT_THAT(plan.admit, ElementsAre(4));
}

TEST(PageHoldersTest, NoneIsPreemptedForAPageThatStaysInUse) {
  const std::vector<int32_t> shared = {1, 2};
  const std::vector<int32_t> own = {3};
  // The second needs a page; the third has none of its own.
  StepPlan plan =
      Plan(kLimits, 0, 4,
           {Holding(Decoding(1, 20), shared), Holding(Decoding(2, 11), own),
            Holding(Idle(Decoding(3, 21)), shared)},
           {});
  EXPECT_THAT(plan.preempt, IsEmpty());
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}));
  // Both others must yield to the first.
  plan = Plan(kLimits, 0, 4,
              {Holding(Decoding(1, 11), own), Holding(Decoding(2, 20), shared),
               Holding(Decoding(3, 20), shared)},
              {});
  EXPECT_THAT(plan.preempt, ElementsAre(3, 2));
  EXPECT_THAT(plan.entries, ElementsAre(Entry{1, 1}));
}

}  // namespace
}  // namespace recurve
