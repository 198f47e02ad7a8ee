// Snapshots: what comes back is what was saved, and every
// block is free again when its sequence is gone.

#include "kv_cache/snapshot.h"

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kv_cache/block_pieces.h"
#include "kv_cache/cache_manager.h"

namespace recurve {
namespace {

// Pages, slots and blocks that hold a word each (a slot: one in each of its
// blocks).
class WordStorage : public CacheStorage {
 public:
  explicit WordStorage(const CacheSpec& spec)
      : pages(spec.num_pages + 1),
        slots(spec.num_slots + 1),
        blocks(spec.num_host_blocks + 1) {}

  absl::Status ClearPage(int32_t page) override {
    pages.at(page) = 0;
    return absl::OkStatus();
  }
  absl::Status ClearSlot(int32_t slot) override {
    slots.at(slot) = 0;
    return absl::OkStatus();
  }
  absl::Status PoisonPage(int32_t page) override {
    pages.at(page) = ~uint64_t{0};
    return absl::OkStatus();
  }
  absl::Status PoisonSlot(int32_t slot) override {
    slots.at(slot) = ~uint64_t{0};
    return absl::OkStatus();
  }
  absl::Status Save(const SavedMemory& memory) override {
    if (fail) return absl::ResourceExhaustedError("injected");
    for (size_t i = 0; i < memory.blocks.size(); ++i) {
      blocks.at(memory.blocks[i]) = i < memory.pages.size()
                                        ? pages.at(memory.pages[i])
                                        : slots.at(memory.slot);
    }
    return absl::OkStatus();
  }
  absl::Status Restore(const SavedMemory& memory) override {
    if (fail) return absl::ResourceExhaustedError("injected");
    for (size_t i = 0; i < memory.blocks.size(); ++i) {
      (i < memory.pages.size() ? pages.at(memory.pages[i])
                               : slots.at(memory.slot)) =
          blocks.at(memory.blocks[i]);
    }
    return absl::OkStatus();
  }

  bool fail = false;
  std::vector<uint64_t> pages, slots, blocks;
};

// A slot takes two blocks.
constexpr CacheSpec kSpec = {.num_pages = 8,
                             .num_slots = 3,
                             .page_bytes = 64,
                             .slot_bytes = 100,
                             .num_host_blocks = 7};

class SnapshotTest : public testing::Test {
 protected:
  // A lease of a sequence of `tokens` tokens, whose memory is full of `word`.
  SequenceLease Make(uint64_t owner, int64_t tokens, uint64_t word) {
    SequenceLease lease = *manager_.Acquire(owner);
    EXPECT_TRUE(manager_.Reserve(lease, tokens + kPageTokens).ok());
    EXPECT_TRUE(manager_.BeginUpdate(lease, 0, tokens).ok());
    manager_.CommitUpdate(lease, tokens);
    for (int32_t page : lease.pages()) storage_.pages[page] = word;
    storage_.slots[lease.slot()] = word;
    return lease;
  }

  WordStorage storage_{kSpec};
  CacheManager manager_{kSpec, &storage_, {.poison_on_release = true}};
};

TEST_F(SnapshotTest, SizesOfBlocks) {
  EXPECT_EQ(HostBlockBytes(kSpec), 64);
  EXPECT_EQ(HostBlocksOfSlot(kSpec), 2);
  EXPECT_EQ(HostBlocksFor(64, kSpec), 3);
  EXPECT_EQ(HostBlocksFor(65, kSpec), 4);
  constexpr CacheSpec linear = {.num_slots = 2, .slot_bytes = 100};
  EXPECT_EQ(HostBlockBytes(linear), 100);
  EXPECT_EQ(HostBlocksFor(5000, linear), 1);
  constexpr CacheSpec tpa = {.num_pages = 2, .num_slots = 2, .page_bytes = 64};
  EXPECT_EQ(HostBlocksFor(5000, tpa), 79);
}

TEST_F(SnapshotTest, CutsAtTheEndsOfBlocks) {
  std::string pieces;
  ForEachBlockPiece(
      50, 100, 64, [&](int64_t block, int64_t offset, int64_t from, int64_t n) {
        pieces += std::to_string(block) + ":" + std::to_string(offset) +
                  " from " + std::to_string(from) + " " + std::to_string(n) +
                  "; ";
      });
  EXPECT_EQ(pieces, "0:50 from 0 14; 1:0 from 14 64; 2:0 from 78 22; ");
}

TEST_F(SnapshotTest, ComesBackWithItsTokens) {
  SequenceLease lease = Make(7, 100, 42);
  ASSERT_EQ(lease.pages().size(), 3);
  ASSERT_TRUE(manager_.CanSave(lease, {}));
  SnapshotPtr saved = *manager_.Save(lease, {});
  EXPECT_EQ(saved->tokens(), 100);
  EXPECT_EQ(manager_.stats().host_blocks.used, 4);  // a page held no tokens
  lease.Release();
  EXPECT_TRUE(manager_.CheckInvariants().ok());

  const SequenceLease other = Make(8, 10, 1);
  auto restored = manager_.Restore({saved, 100}, 9);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->tokens_applied(), 100);
  EXPECT_EQ(restored->pages().size(), 2);
  for (int32_t page : restored->pages()) EXPECT_EQ(storage_.pages[page], 42);
  EXPECT_EQ(storage_.slots[restored->slot()], 42);
  EXPECT_EQ(manager_.stats().host_blocks.used, 4);
  saved.reset();
  EXPECT_EQ(manager_.stats().host_blocks.used, 0);
  EXPECT_TRUE(manager_.CheckLease(*restored).ok());
  EXPECT_TRUE(manager_.CheckInvariants().ok());
  // It goes on where it was.
  EXPECT_TRUE(manager_.Reserve(*restored, 130).ok());
  EXPECT_EQ(storage_.pages[restored->pages()[2]], 0);
  EXPECT_FALSE(manager_.BeginUpdate(*restored, 99, 1).ok());
  EXPECT_TRUE(manager_.BeginUpdate(*restored, 100, 30).ok());
}

TEST_F(SnapshotTest, NothingToSaveOrNoRoom) {
  SequenceLease fresh = *manager_.Acquire(1);
  EXPECT_FALSE(manager_.CanSave(fresh, {}));
  EXPECT_FALSE(manager_.Save(fresh, {}).ok());
  ASSERT_TRUE(manager_.Reserve(fresh, 64).ok());
  ASSERT_TRUE(manager_.BeginUpdate(fresh, 0, 64).ok());
  EXPECT_FALSE(manager_.CanSave(fresh, {}));  // an update is in flight
  manager_.CommitUpdate(fresh, 64);
  EXPECT_TRUE(manager_.CanSave(fresh, {}));
  EXPECT_FALSE(manager_.CanSave(SequenceLease(), {}));
  const SequenceLease large = Make(2, 250, 3);  // 4 pages and 2 blocks
  const SnapshotPtr saved = *manager_.Save(large, {});
  EXPECT_FALSE(manager_.CanSave(fresh, {}));
  EXPECT_EQ(manager_.Save(fresh, {}).status().code(),
            absl::StatusCode::kInternal);
}

TEST_F(SnapshotTest, AFailureChangesNothing) {
  SequenceLease lease = Make(7, 100, 42);
  storage_.fail = true;
  EXPECT_EQ(manager_.Save(lease, {}).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(manager_.stats().host_blocks.used, 0);
  storage_.fail = false;
  const SnapshotPtr saved = *manager_.Save(lease, {});
  const auto restore = [&](uint64_t owner, int64_t tokens) {
    return manager_.Restore({saved, tokens}, owner).status().code();
  };
  // It holds a slot still.
  EXPECT_EQ(restore(7, 100), absl::StatusCode::kInternal);
  EXPECT_EQ(restore(0, 100), absl::StatusCode::kInternal);
  // A state is that of all tokens.
  EXPECT_EQ(restore(9, 99), absl::StatusCode::kInternal);
  EXPECT_EQ(restore(9, 101), absl::StatusCode::kInternal);
  lease.Release();
  storage_.fail = true;
  EXPECT_EQ(restore(7, 100), absl::StatusCode::kInternal);
  storage_.fail = false;
  const SequenceLease large = Make(8, 400, 1);  // leaves one page
  EXPECT_EQ(restore(7, 100), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(manager_.CheckIdle().ok());
}

TEST_F(SnapshotTest, AnyNumberOfReadersAndLaterSnapshotsShareIt) {
  SequenceLease writer = Make(1, 100, 42);
  SnapshotPtr first = *manager_.Save(writer, {});  // 2 pages, 2 of the slot
  EXPECT_EQ(manager_.stats().host_blocks.used, 4);
  ASSERT_TRUE(manager_.BeginUpdate(writer, 100, 50).ok());
  manager_.CommitUpdate(writer, 50);
  for (int32_t page : writer.pages()) storage_.pages[page] = 43;
  storage_.slots[writer.slot()] = 43;
  // The first page is full and shared; two pages and the slot are new.
  EXPECT_EQ(manager_.BlocksToSave(writer, {first, 100}), 4);
  EXPECT_FALSE(manager_.CanSave(writer, {first, 100}));  // 3 of 7 are free
  {
    CacheSpec spec = kSpec;
    spec.num_host_blocks = 8;
    WordStorage storage(spec);
    CacheManager manager(spec, &storage);
    SequenceLease lease = *manager.Acquire(1);
    ASSERT_TRUE(manager.Reserve(lease, 192).ok());
    const auto update = [&](int64_t at, int64_t count, uint64_t word) {
      ASSERT_TRUE(manager.BeginUpdate(lease, at, count).ok());
      manager.CommitUpdate(lease, count);
      for (size_t i = at / kPageTokens; i < lease.pages().size(); ++i) {
        storage.pages[lease.pages()[i]] = word;
      }
      storage.slots[lease.slot()] = word;
    };
    update(0, 100, 42);
    SnapshotPtr a = *manager.Save(lease, {});
    update(100, 50, 43);
    SnapshotPtr b = *manager.Save(lease, {a, 100});
    EXPECT_EQ(manager.stats().host_blocks.used, 8);
    lease.Release();
    // Each reader has memory of its own.
    for (uint64_t owner = 2; owner < 4; ++owner) {
      const SequenceLease of_a = *manager.Restore({a, 100}, owner);
      EXPECT_EQ(storage.pages[of_a.pages()[0]], 42);
      EXPECT_EQ(storage.pages[of_a.pages()[1]], 42);
      EXPECT_EQ(storage.slots[of_a.slot()], 42);
    }
    a.reset();
    EXPECT_EQ(manager.stats().host_blocks.used, 5);  // the shared page stays
    const SequenceLease of_b = *manager.Restore({b, 150}, 9);
    ASSERT_EQ(of_b.pages().size(), 3);
    EXPECT_EQ(storage.pages[of_b.pages()[0]], 42);
    EXPECT_EQ(storage.pages[of_b.pages()[1]], 43);
    EXPECT_EQ(storage.slots[of_b.slot()], 43);
    EXPECT_TRUE(manager.CheckInvariants().ok());
    b.reset();
    EXPECT_EQ(manager.stats().host_blocks.used, 0);
  }
}

TEST(SnapshotOfPagesTest, AnyNumberOfFirstTokensComesBackWithoutAState) {
  CacheSpec spec = kSpec;
  spec.slot_bytes = 0;
  WordStorage storage(spec);
  CacheManager manager(spec, &storage);
  SequenceLease lease = *manager.Acquire(1);
  ASSERT_TRUE(manager.Reserve(lease, 200).ok());
  ASSERT_TRUE(manager.BeginUpdate(lease, 0, 200).ok());
  manager.CommitUpdate(lease, 200);
  for (size_t i = 0; i < 4; ++i) storage.pages[lease.pages()[i]] = 10 + i;
  const SnapshotPtr saved = *manager.Save(lease, {});
  lease.Release();
  for (int64_t tokens : {1, 63, 64, 65, 199, 200}) {
    const SequenceLease part = *manager.Restore({saved, tokens}, 2);
    EXPECT_EQ(part.tokens_applied(), tokens);
    ASSERT_EQ(part.pages().size(), PagesFor(tokens, spec));
    for (size_t i = 0; i < part.pages().size(); ++i) {
      EXPECT_EQ(storage.pages[part.pages()[i]], 10 + i);
    }
  }
}

// Random operations; each sequence's memory holds its owner.
TEST(SnapshotModelTest, WhatComesBackIsWhatWasSaved) {
  int restored = 0;
  int dropped = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    CacheSpec spec = kSpec;
    if (seed % 3 == 0) spec.page_bytes = 0;
    if (seed % 3 == 1) spec.slot_bytes = 0;
    std::mt19937_64 random(seed);
    WordStorage storage(spec);
    CacheManager manager(spec, &storage, {.poison_on_release = true});
    std::map<uint64_t, SequenceLease> leases;
    std::map<uint64_t, SnapshotPtr> saved;
    uint64_t next = 1;
    for (int step = 0; step < 500; ++step) {
      const uint64_t what = random() % 6;
      if (what == 0 && manager.stats().slots.free > 0) {
        leases.emplace(next, *manager.Acquire(next));
        storage.slots[leases.at(next).slot()] = next;
        ++next;
      } else if (what <= 2 && !leases.empty()) {
        auto& [owner, lease] = *leases.begin();
        const int64_t at = lease.tokens_applied();
        const int64_t more = 1 + static_cast<int64_t>(random() % 90);
        if (!manager.Reserve(lease, at + more).ok()) continue;
        for (int32_t page : lease.pages()) storage.pages[page] = owner;
        ASSERT_TRUE(manager.BeginUpdate(lease, at, more).ok());
        manager.CommitUpdate(lease, more);
      } else if (what == 3 && !leases.empty()) {
        const auto it = std::prev(leases.end());
        if (manager.CanSave(it->second, {}))
          saved.emplace(it->first, *manager.Save(it->second, {}));
        leases.erase(it);
      } else if (what == 4 && !saved.empty()) {
        const auto it = saved.begin();
        const int64_t tokens = it->second->tokens();
        auto lease = manager.Restore({it->second, tokens}, it->first);
        if (!lease.ok()) {
          ASSERT_EQ(lease.status().code(),
                    absl::StatusCode::kResourceExhausted);
          continue;
        }
        ++restored;
        EXPECT_EQ(lease->tokens_applied(), tokens);
        if (spec.slot_bytes > 0) {
          EXPECT_EQ(storage.slots[lease->slot()], it->first);
        }
        ASSERT_EQ(lease->pages().size(), PagesFor(tokens, spec));
        for (int32_t page : lease->pages())
          EXPECT_EQ(storage.pages[page], it->first);
        leases.emplace(it->first, *std::move(lease));
        saved.erase(it);
      } else if (what == 5 && random() % 4 == 0 && !saved.empty()) {
        saved.erase(saved.begin());
        ++dropped;
      }
      ASSERT_TRUE(manager.CheckInvariants().ok()) << manager.CheckInvariants();
    }
    leases.clear();
    saved.clear();
    EXPECT_TRUE(manager.CheckIdle().ok()) << manager.CheckIdle();
  }
  EXPECT_GT(restored, 500);
  EXPECT_GT(dropped, 50);
}

}  // namespace
}  // namespace recurve
