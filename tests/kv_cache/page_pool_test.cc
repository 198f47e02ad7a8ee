#include "kv_cache/page_pool.h"

#include <list>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kv_cache/cache_peer.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void ExpectInternal(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

OwnedId TakeNext(PagePool& pool, uint64_t writer) {
  return pool.Take(pool.NextFree(1)[0], writer);
}

TEST(PagePoolTest, UnboundPagesAreHandedOutLastFreedFirst) {
  PagePool pool(4);
  EXPECT_THAT(pool.NextFree(4), ElementsAre(1, 2, 3, 4));
  const OwnedId a = TakeNext(pool, 7);
  const OwnedId b = TakeNext(pool, 7);
  EXPECT_EQ(pool.used(), 2);
  EXPECT_EQ(pool.writer(a.id), 7u);
  EXPECT_EQ(pool.holders(a.id), 1);
  ASSERT_TRUE(pool.Give(a, 7).ok());
  ASSERT_TRUE(pool.Give(b, 7).ok());
  EXPECT_EQ(pool.writer(a.id), 0u);
  EXPECT_THAT(pool.NextFree(4), ElementsAre(b.id, a.id, 3, 4));
  EXPECT_THAT(pool.NextFree(0), IsEmpty());
  EXPECT_DEATH(pool.NextFree(5), "invariant broken");
  EXPECT_DEATH(pool.NextFree(-1), "invariant broken");
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(PagePoolTest, BoundPagesAreHandedOutLastAndFirstFreedFirst) {
  PagePool pool(5, 3);
  std::vector<OwnedId> pages;
  for (int i = 0; i < 4; ++i) pages.push_back(TakeNext(pool, 7));
  for (int32_t i = 0; i < 3; ++i) pool.Bind(pages[i].id, {i + 1, 1});
  for (int i : {1, 0, 3, 2}) ASSERT_TRUE(pool.Give(pages[i], 7).ok());
  EXPECT_EQ(pool.free(), 5);
  EXPECT_TRUE(pool.CheckInvariants().ok());
  // Not bound: 4, freed last, and 5. Bound: 2, 1, 3. What is handed out is not
  // bound any more.
  EXPECT_THAT(pool.NextFree(2), ElementsAre(4, 5));
  EXPECT_EQ(pool.PageOf({2, 1}), 2);
  EXPECT_THAT(pool.NextFree(3), ElementsAre(4, 5, 2));
  EXPECT_EQ(pool.PageOf({2, 1}), 0);
  EXPECT_EQ(pool.BlockOf(2).id, 0);
  EXPECT_EQ(pool.PageOf({1, 1}), 1);
  // The block of a free page is given up: now its bytes are of no use.
  EXPECT_EQ(pool.Unbind(3), 3);
  EXPECT_EQ(pool.Unbind(3), 0);
  EXPECT_THAT(pool.NextFree(5), ElementsAre(3, 2, 4, 5, 1));
  EXPECT_TRUE(pool.CheckInvariants().ok());
  EXPECT_TRUE(pool.CheckIdle().ok());
}

TEST(PagePoolTest, ABoundPageHasAnyNumberOfHoldersAndNoWriter) {
  PagePool pool(3, 2);
  const OwnedId page = TakeNext(pool, 7);
  EXPECT_TRUE(pool.CheckWritable(page, 7).ok());
  EXPECT_DEATH(pool.Share(page.id), "invariant broken");
  pool.Bind(page.id, {2, 5});
  ExpectInternal(pool.CheckWritable(page, 7), "no writer");
  EXPECT_EQ(pool.PageOf({2, 5}), page.id);
  EXPECT_EQ(pool.PageOf({2, 4}), 0);  // another tenure of the block
  EXPECT_EQ(pool.PageOf({1, 5}), 0);
  const OwnedId again = pool.Share(page.id);
  EXPECT_EQ(again.generation, page.generation);
  EXPECT_EQ(pool.holders(page.id), 2);
  EXPECT_EQ(pool.used(), 1);
  EXPECT_TRUE(pool.CheckHeld(again, 8).ok());
  ASSERT_TRUE(pool.Give(page, 7).ok());
  EXPECT_EQ(pool.used(), 1);
  // Also when the block is gone: others read it.
  EXPECT_EQ(pool.Unbind(2), page.id);
  ExpectInternal(pool.CheckWritable(again, 8), "no writer");
  pool.Bind(page.id, {1, 1});
  ASSERT_TRUE(pool.Give(again, 8).ok());
  EXPECT_EQ(pool.free(), 3);
  ExpectInternal(pool.CheckHeld(again, 8), "sequence 8 expected");
  // It comes back with its bytes, in another tenure.
  const OwnedId revived = pool.Share(page.id);
  EXPECT_EQ(revived.id, page.id);
  EXPECT_NE(revived.generation, page.generation);
  ExpectInternal(pool.CheckHeld(page, 7), "generation");
  EXPECT_THAT(pool.NextFree(2), ElementsAre(2, 3));
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(PagePoolTest, MisuseIsInternalAndChangesNothing) {
  PagePool pool(2, 1);
  const OwnedId page = TakeNext(pool, 5);
  ExpectInternal(pool.Give(page, 6), "sequence 6 expected to hold");
  ExpectInternal(pool.Give(page, 0), "sequence id 0");
  ExpectInternal(pool.Give({0, 0}, 5), "page 0 is the sink");
  ExpectInternal(pool.Give({3, 1}, 5), "page 3 does not exist");
  ExpectInternal(pool.Give({-1, 1}, 5), "page -1 does not exist");
  ExpectInternal(pool.Give({2, 0}, 5), "page 2 is at writer 0");
  ExpectInternal(pool.CheckWritable(page, 6), "sequence 6 expected to hold");
  ExpectInternal(pool.CheckIdle(), "1 of 2 pages in use, page 1 by 1");
  EXPECT_EQ(pool.used(), 1);
  ASSERT_TRUE(pool.Give(page, 5).ok());
  ExpectInternal(pool.Give(page, 5), "with 0 holders");  // double free
  EXPECT_EQ(pool.free(), 2);
  EXPECT_TRUE(pool.CheckInvariants().ok());
  EXPECT_DEATH(pool.Take(1, 0), "invariant broken");
  EXPECT_DEATH(pool.Take(0, 1), "invariant broken");
  EXPECT_DEATH(pool.Take(3, 1), "invariant broken");
  EXPECT_DEATH(pool.Bind(1, {1, 1}), "invariant broken");  // has no bytes
  const OwnedId again = TakeNext(pool, 5);
  EXPECT_DEATH(pool.Take(again.id, 5), "invariant broken");
  pool.Bind(again.id, {1, 1});
  EXPECT_DEATH(pool.Bind(again.id, {1, 1}), "invariant broken");
  ASSERT_TRUE(pool.Give(again, 5).ok());
  // Its bytes are to be kept: not without NextFree.
  EXPECT_DEATH(pool.Take(again.id, 5), "invariant broken");
  EXPECT_DEATH(PagePool(-1), "invariant broken");
  EXPECT_DEATH(PagePool(1, -1), "invariant broken");
}

TEST(PagePoolTest, AnEmptyPoolIsIdle) {
  PagePool pool(0);
  EXPECT_EQ(pool.total(), 0);
  EXPECT_THAT(pool.NextFree(0), IsEmpty());
  EXPECT_TRUE(pool.CheckIdle().ok());
  EXPECT_TRUE(pool.CheckInvariants().ok());
}

TEST(PagePoolTest, CheckInvariantsSeesEachBreach) {
  const auto breach = [](auto f, const std::string& text) {
    PagePool pool(5, 3);
    std::vector<OwnedId> pages;
    for (int i = 0; i < 3; ++i) pages.push_back(TakeNext(pool, 7));
    pool.Bind(1, {1, 1});
    pool.Bind(2, {2, 1});
    ASSERT_TRUE(pool.Give(pages[1], 7).ok());
    ASSERT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
    // Page 1 is bound and used, 2 bound and free, 3 written, 4 and 5 free.
    f(pool);
    ExpectInternal(pool.CheckInvariants(), text);
  };
  breach([](auto& p) { CachePeer::Holders(p, 1) = 0; }, "not on a free list");
  breach([](auto& p) { CachePeer::Holders(p, 4) = 1; }, "is on a free list");
  breach([](auto& p) { CachePeer::Holders(p, 3) = 2; }, "has writer 7, but 2");
  breach([](auto& p) { CachePeer::Writer(p, 1) = 7; }, "the bytes of block 1");
  breach([](auto& p) { CachePeer::Writer(p, 4) = 7; }, "has writer 7, but 0");
  breach([](auto& p) { CachePeer::Block(p, 3).id = 3; }, "the bytes of block");
  breach([](auto& p) { CachePeer::Block(p, 1).id = 3; }, "bound to block 3");
  breach([](auto& p) { CachePeer::Block(p, 1).id = 4; }, "bound to block 4");
  breach([](auto& p) { CachePeer::Block(p, 2).id = 0; }, "at the wrong place");
  breach([](auto& p) { CachePeer::Block(p, 4).id = 3; }, "at the wrong place");
  breach([](auto& p) { CachePeer::PageOfBlock(p, 1) = 0; }, "to block 1");
  breach([](auto& p) { CachePeer::PageOfBlock(p, 3) = 1; }, "block 3 is bound");
  breach([](auto& p) { CachePeer::PageOfBlock(p, 3) = 9; }, "block 3 is bound");
  breach([](auto& p) { CachePeer::Previous(p, 4) = 3; }, "at the wrong place");
  breach([](auto& p) { CachePeer::Next(p, 4) = 4; }, "free lists twice");
  breach([](auto& p) { CachePeer::Next(p, 4) = 6; }, "pages are 1 to 5");
  breach([](auto& p) { CachePeer::UnboundFirst(p) = 4; }, "wrong place");
  breach([](auto& p) { CachePeer::UnboundSize(p) = 3; }, "a free list of 3");
  breach([](auto& p) { CachePeer::Holders(p, 0) = 1; }, "page 0, the sink");
}

// Random operations against lists that are searched.
TEST(PagePoolTest, IsAModelOfItself) {
  int64_t revived = 0;
  int64_t shared = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int32_t total = 1 + static_cast<int32_t>(random() % 12);
    const int32_t blocks = static_cast<int32_t>(random() % 12);
    PagePool pool(total, blocks);
    std::list<int32_t> unbound;  // in the order of being handed out
    std::list<int32_t> bound;
    for (int32_t page = 1; page <= total; ++page) unbound.push_back(page);
    struct Hold {
      OwnedId page;
      uint64_t owner;
    };
    std::vector<Hold> held;
    std::map<int32_t, int32_t> page_of;  // of a block
    const auto block_of = [&](int32_t page) {
      for (const auto& [block, its] : page_of) {
        if (its == page) return block;
      }
      return 0;
    };
    const auto free_of_block = [&](int32_t page) {
      bound.remove(page);
      unbound.push_front(page);
    };
    for (int step = 0; step < 300; ++step) {
      const uint64_t what = random() % 5;
      const uint64_t owner = 1 + random() % 5;
      if (what == 0 && pool.free() > 0) {
        const auto count = static_cast<int32_t>(random() % pool.free()) + 1;
        std::vector<int32_t> expected;
        for (int32_t page : unbound) expected.push_back(page);
        for (int32_t page : bound) expected.push_back(page);
        expected.resize(count);
        const std::vector<int32_t> next = pool.NextFree(count);
        ASSERT_EQ(next, expected);
        for (int32_t page : next) {
          if (const int32_t block = block_of(page); block != 0) {
            page_of.erase(block);
            free_of_block(page);
          }
        }
        held.push_back({pool.Take(next[0], owner), owner});
        unbound.remove(next[0]);
      } else if (what == 1 && !held.empty()) {
        const auto it = held.begin() + random() % held.size();
        const int32_t page = it->page.id;
        ASSERT_TRUE(pool.Give(it->page, it->owner).ok());
        held.erase(it);
        bool last = true;
        for (const Hold& hold : held) last &= hold.page.id != page;
        if (last && block_of(page) != 0) bound.push_back(page);
        if (last && block_of(page) == 0) unbound.push_front(page);
      } else if (what == 2 && !held.empty() && blocks > 0) {
        const int32_t page = held[random() % held.size()].page.id;
        const auto block = 1 + static_cast<int32_t>(random() % blocks);
        if (block_of(page) != 0 || page_of.count(block) != 0) continue;
        pool.Bind(page, {block, 1});
        page_of[block] = page;
      } else if (what == 3 && !page_of.empty()) {
        const int32_t page = page_of.begin()->second;
        ++(pool.holders(page) == 0 ? revived : shared);
        held.push_back({pool.Share(page), owner});
        bound.remove(page);
      } else if (what == 4 && blocks > 0) {
        const auto block = 1 + static_cast<int32_t>(random() % blocks);
        const int32_t page = page_of.count(block) != 0 ? page_of[block] : 0;
        EXPECT_EQ(pool.Unbind(block), page);
        page_of.erase(block);
        if (page != 0 && pool.holders(page) == 0) free_of_block(page);
      }
      ASSERT_TRUE(pool.CheckInvariants().ok()) << pool.CheckInvariants();
      std::set<int32_t> used;
      for (const Hold& hold : held) {
        EXPECT_TRUE(pool.CheckHeld(hold.page, hold.owner).ok());
        used.insert(hold.page.id);
      }
      EXPECT_EQ(pool.used(), static_cast<int32_t>(used.size()));
      for (const auto& [block, page] : page_of) {
        EXPECT_EQ(pool.PageOf({block, 1}), page);
      }
    }
  }
  EXPECT_GT(revived, 200);
  EXPECT_GT(shared, 500);
}

}  // namespace
}  // namespace recurve
