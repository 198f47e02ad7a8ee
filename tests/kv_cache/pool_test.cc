#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kv_cache/cache_spec.h"
#include "kv_cache/id_pool.h"
#include "kv_cache/slot_pool.h"
#include "tests/kv_cache/cache_peer.h"

namespace recurve {
namespace {

using testing::HasSubstr;

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

void ExpectInternal(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(CacheSpecTest, PagesForRoundsUp) {
  const CacheSpec spec = {.num_pages = 4, .num_slots = 1, .page_bytes = 1};
  EXPECT_EQ(PagesFor(0, spec), 0);
  EXPECT_EQ(PagesFor(1, spec), 1);
  EXPECT_EQ(PagesFor(63, spec), 1);
  EXPECT_EQ(PagesFor(64, spec), 1);
  EXPECT_EQ(PagesFor(65, spec), 2);
  EXPECT_EQ(PagesFor(kMaxInt64, spec), kMaxInt64 / 64 + 1);
}

TEST(CacheSpecTest, NoPagesWithoutTpaLayers) {
  const CacheSpec spec = {.num_pages = 0, .num_slots = 1, .page_bytes = 0};
  EXPECT_EQ(PagesFor(1, spec), 0);
  EXPECT_EQ(PagesFor(kMaxInt64, spec), 0);
}

TEST(IdPoolTest, HandsOutEveryIdOnceAndNeverTheSink) {
  IdPool pool("page", 5);
  std::set<int32_t> seen;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(pool.free(), 5 - i);
    EXPECT_EQ(pool.used(), i);
    seen.insert(pool.Take(7).id);
  }
  EXPECT_EQ(seen, (std::set<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(pool.free(), 0);
  EXPECT_EQ(pool.owner(0), 0u);
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(IdPoolTest, NextFreeForetellsTake) {
  IdPool pool("page", 6);
  const OwnedId first = pool.Take(1);
  pool.Take(2);
  ASSERT_TRUE(pool.Give(first, 1).ok());
  for (int32_t count = 0; count <= pool.free(); ++count) {
    IdPool same("page", 6);
    const OwnedId same_first = same.Take(1);
    same.Take(2);
    ASSERT_TRUE(same.Give(same_first, 1).ok());
    const auto next = same.NextFree(count);
    std::set<int32_t> foretold(next.begin(), next.end());
    std::set<int32_t> taken;
    for (int32_t i = 0; i < count; ++i) taken.insert(same.Take(3).id);
    EXPECT_EQ(foretold, taken);
  }
  EXPECT_DEATH(pool.NextFree(6), "invariant broken");
  EXPECT_DEATH(pool.NextFree(-1), "invariant broken");
}

TEST(IdPoolTest, LastFreedIsFirstReused) {
  IdPool pool("page", 3);
  const OwnedId a = pool.Take(1);
  const OwnedId b = pool.Take(1);
  ASSERT_TRUE(pool.Give(b, 1).ok());
  ASSERT_TRUE(pool.Give(a, 1).ok());
  EXPECT_EQ(pool.Take(2).id, a.id);
}

TEST(IdPoolTest, GenerationRisesAtEachChangeOfOwner) {
  IdPool pool("page", 1);
  const OwnedId first = pool.Take(9);
  ASSERT_TRUE(pool.Give(first, 9).ok());
  EXPECT_EQ(CachePeer::Generation(pool, 1), first.generation + 1);
  // The same owner again: an old reference must still not pass.
  const OwnedId second = pool.Take(9);
  EXPECT_EQ(second.id, first.id);
  EXPECT_EQ(second.generation, first.generation + 2);
  EXPECT_TRUE(pool.CheckOwned(second, 9).ok());
  ExpectInternal(pool.CheckOwned(first, 9), "expected owner 9 generation 1");
  ExpectInternal(pool.Give(first, 9), "page 1");
  EXPECT_EQ(pool.used(), 1);
}

TEST(IdPoolTest, MisuseIsInternalAndChangesNothing) {
  IdPool pool("page", 2);
  const OwnedId page = pool.Take(5);
  ExpectInternal(pool.Give(page, 6), "expected owner 6");
  ExpectInternal(pool.Give(page, 0), "sequence id 0");
  ExpectInternal(pool.Give({0, 0}, 5), "page 0 is the sink");
  ExpectInternal(pool.Give({0, 0}, 0), "sequence id 0");
  ExpectInternal(pool.Give({3, 1}, 5), "page 3 does not exist");
  ExpectInternal(pool.Give({-1, 1}, 5), "page -1 does not exist");
  ExpectInternal(pool.Give({2, 0}, 5), "page 2 is at owner 0");
  EXPECT_EQ(pool.used(), 1);
  ASSERT_TRUE(pool.Give(page, 5).ok());
  ExpectInternal(pool.Give(page, 5), "page 1 is at owner 0");  // double free
  EXPECT_EQ(pool.free(), 2);
  EXPECT_TRUE(pool.CheckInvariants().ok());
  EXPECT_TRUE(pool.CheckIdle().ok());
}

TEST(IdPoolTest, TakingFromAnEmptyPoolOrForNobodyIsABug) {
  IdPool pool("page", 1);
  EXPECT_DEATH(pool.Take(0), "invariant broken");
  pool.Take(1);
  EXPECT_DEATH(pool.Take(1), "invariant broken");
  EXPECT_DEATH(IdPool("page", -1), "invariant broken");
}

TEST(IdPoolTest, AnEmptyPoolIsIdle) {
  IdPool pool("page", 0);
  EXPECT_EQ(pool.total(), 0);
  EXPECT_TRUE(pool.CheckIdle().ok());
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(IdPoolTest, CheckIdleNamesAHolder) {
  IdPool pool("page", 4);
  pool.Take(11);
  ExpectInternal(pool.CheckIdle(),
                 "1 of 4 pages in use, page 1 by sequence 11");
}

TEST(IdPoolTest, CheckInvariantsSeesEachBreach) {
  {
    IdPool pool("page", 3);
    CachePeer::FreeList(pool).push_back(2);
    ExpectInternal(pool.CheckInvariants(), "page 2 is on the free list twice");
  }
  {
    IdPool pool("page", 3);
    CachePeer::FreeList(pool).pop_back();
    ExpectInternal(pool.CheckInvariants(), "not on the free list");
  }
  {
    IdPool pool("page", 3);
    CachePeer::FreeList(pool).push_back(0);
    ExpectInternal(pool.CheckInvariants(), "page 0 is on the free list");
  }
  {
    IdPool pool("page", 3);
    CachePeer::FreeList(pool).push_back(4);
    ExpectInternal(pool.CheckInvariants(), "ids are 1 to 3");
  }
  {
    IdPool pool("page", 3);
    CachePeer::Owner(pool, 1) = 8;
    ExpectInternal(pool.CheckInvariants(), "page 1 has owner 8 and is on");
    EXPECT_DEATH(pool.Take(1), "invariant broken");
  }
  {
    IdPool pool("page", 3);
    CachePeer::Owner(pool, 0) = 8;
    ExpectInternal(pool.CheckInvariants(), "page 0, the sink");
  }
}

TEST(SlotPoolTest, CountsTokensOfOneTenure) {
  SlotPool pool(2);
  const OwnedId slot = pool.Take(3);
  EXPECT_TRUE(pool.Holds(3));
  EXPECT_FALSE(pool.Holds(4));
  EXPECT_EQ(pool.tokens_applied(slot.id), 0);
  ASSERT_TRUE(pool.BeginUpdate(slot, 3, 0, 10).ok());
  EXPECT_EQ(pool.tokens_applied(slot.id), 0);  // not before the commit
  ASSERT_TRUE(pool.CommitUpdate(slot, 3, 10).ok());
  EXPECT_EQ(pool.tokens_applied(slot.id), 10);
  ASSERT_TRUE(pool.BeginUpdate(slot, 3, 10, 1).ok());
  ASSERT_TRUE(pool.Give(slot, 3).ok());  // with an update in flight
  const OwnedId next = pool.Take(4);
  EXPECT_EQ(next.id, slot.id);
  EXPECT_EQ(pool.tokens_applied(next.id), 0);
  EXPECT_TRUE(pool.BeginUpdate(next, 4, 0, 1).ok());
}

TEST(SlotPoolTest, AnUpdateBeginsExactlyWhereTheStateIs) {
  SlotPool pool(1);
  const OwnedId slot = pool.Take(3);
  ASSERT_TRUE(pool.BeginUpdate(slot, 3, 0, 5).ok());
  ASSERT_TRUE(pool.CommitUpdate(slot, 3, 5).ok());
  for (int64_t position : {int64_t{-1}, int64_t{0}, int64_t{4}, int64_t{6}}) {
    ExpectInternal(pool.BeginUpdate(slot, 3, position, 1), "absorbed 5 tokens");
  }
  EXPECT_TRUE(pool.BeginUpdate(slot, 3, 5, 1).ok());
}

TEST(SlotPoolTest, OneUpdateAtATimeAndWhole) {
  SlotPool pool(1);
  const OwnedId slot = pool.Take(3);
  ExpectInternal(pool.CommitUpdate(slot, 3, 1), "while 0 are in flight");
  ExpectInternal(pool.CommitUpdate(slot, 3, 0), "commit of 0 tokens");
  ExpectInternal(pool.BeginUpdate(slot, 3, 0, 0), "at least 1");
  ExpectInternal(pool.BeginUpdate(slot, 3, 0, -1), "at least 1");
  ASSERT_TRUE(pool.BeginUpdate(slot, 3, 0, 4).ok());
  ExpectInternal(pool.BeginUpdate(slot, 3, 0, 4), "is in flight");
  ExpectInternal(pool.CommitUpdate(slot, 3, 3), "while 4 are in flight");
  ExpectInternal(pool.CommitUpdate(slot, 4, 4), "expected owner 4");
  ASSERT_TRUE(pool.CommitUpdate(slot, 3, 4).ok());
  ExpectInternal(pool.CommitUpdate(slot, 3, 4), "while 0 are in flight");
  EXPECT_EQ(pool.tokens_applied(slot.id), 4);
}

TEST(SlotPoolTest, PositionsDoNotOverflow) {
  SlotPool pool(1);
  const OwnedId slot = pool.Take(3);
  ASSERT_TRUE(pool.BeginUpdate(slot, 3, 0, kMaxInt64).ok());
  ASSERT_TRUE(pool.CommitUpdate(slot, 3, kMaxInt64).ok());
  ExpectInternal(pool.BeginUpdate(slot, 3, kMaxInt64, 1), "update of 1 tokens");
}

TEST(SlotPoolTest, AStaleHolderCannotUpdate) {
  SlotPool pool(1);
  const OwnedId stale = pool.Take(3);
  ASSERT_TRUE(pool.Give(stale, 3).ok());
  ExpectInternal(pool.BeginUpdate(stale, 3, 0, 1), "slot 1 is at owner 0");
  const OwnedId fresh = pool.Take(3);
  ExpectInternal(pool.BeginUpdate(stale, 3, 0, 1), "generation");
  EXPECT_TRUE(pool.BeginUpdate(fresh, 3, 0, 1).ok());
}

TEST(SlotPoolTest, CheckInvariantsSeesAFreeSlotWithTokens) {
  SlotPool pool(2);
  EXPECT_TRUE(pool.CheckInvariants().ok());
  CachePeer::TokensApplied(pool, 2) = 5;
  ExpectInternal(pool.CheckInvariants(), "slot 2 is free but at 5 tokens");
}

}  // namespace
}  // namespace recurve
