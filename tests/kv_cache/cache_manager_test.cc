#include "kv_cache/cache_manager.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kv_cache/cache_peer.h"
#include "tests/kv_cache/fake_storage.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Fill = FakeStorage::Fill;

constexpr CacheSpec kSpec = {
    .num_pages = 4, .num_slots = 2, .page_bytes = 1024, .slot_bytes = 256};

void ExpectCode(const absl::Status& status, absl::StatusCode code,
                const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}
void ExpectInternal(const absl::Status& status, const std::string& text) {
  ExpectCode(status, absl::StatusCode::kInternal, text);
}
void ExpectExhausted(const absl::Status& status, const std::string& text) {
  ExpectCode(status, absl::StatusCode::kResourceExhausted, text);
}

class CacheManagerTest : public testing::Test {
 protected:
  SequenceLease MustAcquire(uint64_t owner) {
    auto lease = manager_.Acquire(owner);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return std::move(lease).value();
  }
  // A lease of `tokens` tokens, all of them applied.
  SequenceLease MustAdvance(uint64_t owner, int64_t tokens) {
    SequenceLease lease = MustAcquire(owner);
    EXPECT_TRUE(manager_.Reserve(lease, tokens).ok());
    EXPECT_TRUE(manager_.BeginUpdate(lease, 0, tokens).ok());
    manager_.CommitUpdate(lease, tokens);
    return lease;
  }

  FakeStorage storage_{kSpec};
  CacheManager manager_{kSpec, &storage_};
};

TEST_F(CacheManagerTest, AcquireGivesAClearedSlotAtPositionZero) {
  SequenceLease lease = MustAcquire(42);
  EXPECT_FALSE(lease.empty());
  EXPECT_EQ(lease.owner(), 42u);
  EXPECT_NE(lease.slot(), 0);
  EXPECT_TRUE(lease.pages().empty());
  EXPECT_EQ(lease.tokens_applied(), 0);
  EXPECT_EQ(storage_.slots[lease.slot()], Fill::kZero);
  EXPECT_EQ(manager_.stats().slots.used, 1);
  EXPECT_EQ(manager_.stats().slots.free, 1);
  EXPECT_EQ(manager_.stats().slots.total, 2);
  EXPECT_TRUE(manager_.CheckInvariants().ok());
}

TEST_F(CacheManagerTest, AcquireRejectsWhatItMust) {
  ExpectInternal(manager_.Acquire(0).status(), "sequence id 0");
  SequenceLease a = MustAcquire(1);
  ExpectInternal(manager_.Acquire(1).status(), "sequence 1 holds a slot");
  SequenceLease b = MustAcquire(2);
  ExpectExhausted(manager_.Acquire(3).status(), "0 of 2 are free");
  b.Release();
  EXPECT_TRUE(manager_.Acquire(3).ok());
}

TEST_F(CacheManagerTest, ReserveGrowsByWholeClearedPages) {
  SequenceLease lease = MustAcquire(1);
  ASSERT_TRUE(manager_.Reserve(lease, 0).ok());
  EXPECT_EQ(lease.pages().size(), 0u);
  const std::vector<std::pair<int64_t, size_t>> steps = {
      {1, 1}, {63, 1}, {64, 1}, {65, 2}, {10, 2}, {256, 4}};
  for (const auto& [tokens, pages] : steps) {
    ASSERT_TRUE(manager_.Reserve(lease, tokens).ok());
    EXPECT_EQ(lease.pages().size(), pages) << tokens << " tokens";
    for (int32_t page : lease.pages()) {
      EXPECT_NE(page, 0);
      EXPECT_EQ(storage_.pages[page], Fill::kZero);
    }
  }
  // One clear for the slot and one for each page: live pages are left alone.
  EXPECT_EQ(storage_.calls, 5);
  EXPECT_EQ(manager_.stats().pages.used, 4);
  EXPECT_TRUE(manager_.CheckInvariants().ok());
}

TEST_F(CacheManagerTest, ReserveIsAllOrNothing) {
  SequenceLease a = MustAcquire(1);
  SequenceLease b = MustAcquire(2);
  ASSERT_TRUE(manager_.Reserve(a, 100).ok());
  ASSERT_TRUE(manager_.Reserve(b, 1).ok());
  const int32_t page = b.pages()[0];
  ExpectExhausted(manager_.Reserve(b, 129),
                  "sequence 2 holds 1 pages and needs 2 more for 129 tokens; "
                  "1 of 4 are free");
  EXPECT_THAT(b.pages(), ElementsAre(page));
  EXPECT_EQ(manager_.stats().pages.free, 1);
  EXPECT_TRUE(manager_.CheckLease(b).ok());
  EXPECT_TRUE(manager_.CheckInvariants().ok());
  a.Release();
  EXPECT_TRUE(manager_.Reserve(b, 129).ok());
  EXPECT_EQ(b.pages()[0], page);
  ExpectExhausted(manager_.Reserve(b, std::numeric_limits<int64_t>::max()),
                  "needs");
}

TEST_F(CacheManagerTest, ReserveRejectsMisuse) {
  SequenceLease empty;
  ExpectInternal(manager_.Reserve(empty, 1), "the lease is empty");
  SequenceLease lease = MustAcquire(1);
  ExpectInternal(manager_.Reserve(lease, -1), "asked for -1 tokens");
  CacheManager other(kSpec, &storage_);
  ExpectInternal(other.Reserve(lease, 1), "another manager's");
  ExpectInternal(other.BeginUpdate(lease, 0, 1), "another manager's");
  SequenceLease moved = std::move(lease);
  ExpectInternal(manager_.Reserve(lease, 1), "released or moved from");
}

TEST_F(CacheManagerTest, WithoutTpaLayersNoPagesAreNeeded) {
  const CacheSpec spec = {.num_pages = 0, .num_slots = 1, .slot_bytes = 8};
  FakeStorage storage(spec);
  CacheManager manager(spec, &storage);
  auto lease = manager.Acquire(1);
  ASSERT_TRUE(lease.ok());
  ASSERT_TRUE(manager.Reserve(*lease, 1'000'000).ok());
  EXPECT_TRUE(lease->pages().empty());
  ASSERT_TRUE(manager.BeginUpdate(*lease, 0, 1'000'000).ok());
  manager.CommitUpdate(*lease, 1'000'000);
  EXPECT_EQ(lease->tokens_applied(), 1'000'000);
}

TEST_F(CacheManagerTest, UpdatesFollowOneAnotherExactly) {
  SequenceLease lease = MustAdvance(1, 64);
  EXPECT_EQ(lease.tokens_applied(), 64);
  ExpectInternal(manager_.BeginUpdate(lease, 64, 1),
                 "update of 1 tokens at position 64 but its 1 pages hold 64");
  ASSERT_TRUE(manager_.Reserve(lease, 65).ok());
  ExpectInternal(manager_.BeginUpdate(lease, 63, 1), "absorbed 64 tokens");
  ExpectInternal(manager_.BeginUpdate(lease, 65, 1), "absorbed 64 tokens");
  ExpectInternal(manager_.BeginUpdate(lease, -1, 1), "absorbed 64 tokens");
  ExpectInternal(manager_.BeginUpdate(lease, 64, 0), "at least 1");
  ExpectInternal(manager_.BeginUpdate(lease, 64, -5), "at least 1");
  ExpectInternal(manager_.BeginUpdate(lease, 64, 65), "2 pages hold 128");
  ASSERT_TRUE(manager_.BeginUpdate(lease, 64, 64).ok());
  ExpectInternal(manager_.BeginUpdate(lease, 64, 64), "is in flight");
  EXPECT_EQ(lease.tokens_applied(), 64);
  manager_.CommitUpdate(lease, 64);
  EXPECT_EQ(lease.tokens_applied(), 128);
}

TEST_F(CacheManagerTest, CommitWithoutItsUpdateIsABug) {
  SequenceLease lease = MustAcquire(1);
  ASSERT_TRUE(manager_.Reserve(lease, 10).ok());
  EXPECT_DEATH(manager_.CommitUpdate(lease, 10), "invariant broken");
  ASSERT_TRUE(manager_.BeginUpdate(lease, 0, 10).ok());
  EXPECT_DEATH(manager_.CommitUpdate(lease, 9), "invariant broken");
  SequenceLease empty;
  EXPECT_DEATH(manager_.CommitUpdate(empty, 10), "invariant broken");
}

TEST_F(CacheManagerTest, BeginUpdateSeesMemoryThatChangedHands) {
  SequenceLease a = MustAdvance(1, 100);
  SequenceLease b = MustAdvance(2, 100);
  ASSERT_TRUE(manager_.BeginUpdate(a, 100, 1).ok());
  manager_.CommitUpdate(a, 1);
  // A page of another sequence in the table.
  std::vector<int32_t>& pages = CachePeer::LeasePages(a);
  std::swap(pages[1], CachePeer::LeasePages(b)[1]);
  ExpectInternal(manager_.BeginUpdate(a, 101, 1), "sequence 1 expected to");
  std::swap(pages[1], CachePeer::LeasePages(b)[1]);
  // The sink in the table.
  const int32_t page = std::exchange(pages[0], 0);
  ExpectInternal(manager_.BeginUpdate(a, 101, 1), "page 0 is the sink");
  pages[0] = page;
  // The page was freed and came back to the same owner.
  CachePeer::Generation(CachePeer::Pages(manager_), page) += 2;
  ExpectInternal(manager_.BeginUpdate(a, 101, 1), "generation");
  CachePeer::Generation(CachePeer::Pages(manager_), page) -= 2;
  // The slot likewise, and another sequence's slot.
  IdPool& slots = CachePeer::Ids(CachePeer::Slots(manager_));
  CachePeer::Generation(slots, a.slot()) += 2;
  ExpectInternal(manager_.BeginUpdate(a, 101, 1), "generation");
  CachePeer::Generation(slots, a.slot()) -= 2;
  std::swap(CachePeer::LeaseSlot(a), CachePeer::LeaseSlot(b));
  ExpectInternal(manager_.BeginUpdate(a, 101, 1), "expected owner 1");
  std::swap(CachePeer::LeaseSlot(a), CachePeer::LeaseSlot(b));
  EXPECT_TRUE(manager_.BeginUpdate(a, 101, 1).ok());
}

TEST_F(CacheManagerTest, DestructionGivesEverythingBackOnce) {
  {
    SequenceLease lease = MustAdvance(1, 200);
    EXPECT_FALSE(manager_.CheckIdle().ok());
  }
  EXPECT_TRUE(manager_.CheckIdle().ok());
  SequenceLease lease = MustAdvance(1, 200);
  lease.Release();
  EXPECT_TRUE(manager_.CheckIdle().ok());
  EXPECT_TRUE(lease.empty());
  EXPECT_EQ(lease.slot(), 0);
  EXPECT_EQ(lease.owner(), 0u);
  EXPECT_EQ(lease.tokens_applied(), 0);
  EXPECT_TRUE(lease.pages().empty());
  lease.Release();  // again: no effect
  EXPECT_TRUE(manager_.CheckIdle().ok());
}

TEST_F(CacheManagerTest, MovingKeepsOneOwner) {
  SequenceLease a = MustAdvance(1, 100);
  const int32_t slot = a.slot();
  SequenceLease b = std::move(a);
  // NOLINTNEXTLINE(bugprone-use-after-move): a lease says what is left.
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(a.slot(), 0);
  EXPECT_TRUE(a.pages().empty());
  EXPECT_EQ(b.slot(), slot);
  EXPECT_EQ(b.pages().size(), 2u);
  EXPECT_EQ(b.tokens_applied(), 100);
  a.Release();
  EXPECT_TRUE(manager_.CheckLease(b).ok());
  SequenceLease c = MustAdvance(2, 10);
  c = std::move(b);  // gives sequence 2 back
  EXPECT_EQ(c.owner(), 1u);
  EXPECT_EQ(manager_.stats().slots.used, 1);
  EXPECT_EQ(manager_.stats().pages.used, 2);
  SequenceLease& self = c;
  c = std::move(self);
  EXPECT_EQ(c.owner(), 1u);
  EXPECT_TRUE(manager_.CheckLease(c).ok());
  EXPECT_TRUE(manager_.CheckInvariants().ok());
}

TEST_F(CacheManagerTest, ReleaseDuringAnUpdateDropsTheState) {
  SequenceLease lease = MustAdvance(1, 64);
  ASSERT_TRUE(manager_.Reserve(lease, 65).ok());
  ASSERT_TRUE(manager_.BeginUpdate(lease, 64, 1).ok());
  lease.Release();
  EXPECT_TRUE(manager_.CheckIdle().ok());
  SequenceLease next = MustAcquire(2);
  EXPECT_EQ(next.tokens_applied(), 0);
  ASSERT_TRUE(manager_.Reserve(next, 1).ok());
  EXPECT_TRUE(manager_.BeginUpdate(next, 0, 1).ok());
}

TEST_F(CacheManagerTest, ReusedMemoryIsClearedAgain) {
  SequenceLease lease = MustAdvance(1, 200);
  for (int32_t page : lease.pages()) storage_.pages[page] = Fill::kUsed;
  storage_.slots[lease.slot()] = Fill::kUsed;
  lease.Release();
  SequenceLease next = MustAdvance(2, 200);
  for (int32_t page : next.pages()) {
    EXPECT_EQ(storage_.pages[page], Fill::kZero);
  }
  EXPECT_EQ(storage_.slots[next.slot()], Fill::kZero);
}

TEST_F(CacheManagerTest, StorageFailuresAreInternalAndLeaveThePoolsAlone) {
  storage_.fail_at = 0;
  ExpectInternal(manager_.Acquire(1).status(), "clearing slot 1");
  EXPECT_TRUE(manager_.CheckIdle().ok());
  SequenceLease lease = MustAcquire(1);
  for (int failing = 0; failing < 4; ++failing) {
    storage_.fail_at = storage_.calls + failing;
    ExpectInternal(manager_.Reserve(lease, 256), "clearing page");
    EXPECT_TRUE(lease.pages().empty());
    EXPECT_EQ(manager_.stats().pages.free, 4);
    EXPECT_TRUE(manager_.CheckInvariants().ok());
  }
  EXPECT_TRUE(manager_.Reserve(lease, 256).ok());
}

TEST_F(CacheManagerTest, PoisonsOnlyWhenAskedTo) {
  { SequenceLease lease = MustAdvance(1, 100); }
  for (const std::string& call : storage_.log) {
    EXPECT_THAT(call, HasSubstr("clear"));
  }
  CacheManager manager(kSpec, &storage_, {.poison_on_release = true});
  storage_.log.clear();
  auto lease = manager.Acquire(1);
  ASSERT_TRUE(lease.ok());
  ASSERT_TRUE(manager.Reserve(*lease, 65).ok());
  const std::vector<int32_t> pages(lease->pages().begin(),
                                   lease->pages().end());
  const int32_t slot = lease->slot();
  lease->Release();
  for (int32_t page : pages) EXPECT_EQ(storage_.pages[page], Fill::kNan);
  EXPECT_EQ(storage_.slots[slot], Fill::kNan);
  EXPECT_EQ(storage_.log.size(), 6u);  // three clears, three poisonings
  EXPECT_TRUE(manager.CheckIdle().ok());
}

TEST_F(CacheManagerTest, AFailureToPoisonShowsInTheChecks) {
  for (int failing = 0; failing < 3; ++failing) {
    CacheManager manager(kSpec, &storage_, {.poison_on_release = true});
    auto lease = manager.Acquire(1);
    ASSERT_TRUE(lease.ok());
    ASSERT_TRUE(manager.Reserve(*lease, 65).ok());
    storage_.fail_at = storage_.calls + failing;
    lease->Release();
    EXPECT_EQ(manager.stats().slots.free, 2);  // given back all the same
    EXPECT_EQ(manager.stats().pages.free, 4);
    ExpectInternal(manager.CheckInvariants(), "poisoning");
    ExpectInternal(manager.CheckIdle(), "poisoning");
  }
}

TEST_F(CacheManagerTest, CheckInvariantsSeesEachBreach) {
  SequenceLease lease = MustAdvance(1, 100);
  PagePool& pages = CachePeer::Pages(manager_);
  IdPool& slots = CachePeer::Ids(CachePeer::Slots(manager_));
  const int32_t page = lease.pages()[0];
  uint64_t& writer = CachePeer::Writer(pages, page);
  writer = 9;
  ExpectInternal(manager_.CheckInvariants(), "of 100 tokens has writer 9");
  // The second page is not full.
  writer = 0;
  EXPECT_TRUE(manager_.CheckInvariants().ok());
  writer = 1;
  CachePeer::Writer(pages, lease.pages()[1]) = 0;
  ExpectInternal(manager_.CheckInvariants(), "up to token 128 of sequence 1");
  CachePeer::Writer(pages, lease.pages()[1]) = 1;

  const OwnedId leaked = pages.Take(pages.NextFree(1)[0], 1);
  ExpectInternal(manager_.CheckInvariants(),
                 "has 1 holders but was handed to 0 sequences");
  ASSERT_TRUE(pages.Give(leaked, 1).ok());

  const OwnedId second = slots.Take(1);
  ExpectInternal(manager_.CheckInvariants(), "sequence 1 holds two slots");
  ASSERT_TRUE(slots.Give(second, 1).ok());

  CachePeer::PagesOfSlot(manager_, second.id) = {page};
  ExpectInternal(manager_.CheckInvariants(), "is free but has 1 pages");
  CachePeer::PagesOfSlot(manager_, second.id).clear();
  EXPECT_TRUE(manager_.CheckInvariants().ok());
  ExpectInternal(manager_.CheckIdle(), "1 of 2 slots in use");
}

TEST(CacheManagerDeathTest, LeasesMustNotOutliveTheManager) {
  EXPECT_DEATH(
      {
        FakeStorage storage(kSpec);
        auto manager = std::make_unique<CacheManager>(kSpec, &storage);
        auto lease = manager->Acquire(1);
        manager.reset();
      },
      "invariant broken");
}

TEST(CacheManagerDeathTest, ASpecMustMakeSense) {
  FakeStorage storage(kSpec);
  EXPECT_DEATH(CacheManager({.num_pages = -1}, &storage), "invariant broken");
  EXPECT_DEATH(CacheManager({.num_slots = -1}, &storage), "invariant broken");
  EXPECT_DEATH(CacheManager({.page_bytes = -1}, &storage), "invariant broken");
  EXPECT_DEATH(CacheManager(kSpec, nullptr), "invariant broken");
}

}  // namespace
}  // namespace recurve
