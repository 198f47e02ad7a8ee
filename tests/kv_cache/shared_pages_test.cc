// Pages that sequences share on the device: each sequence sees the tokens that
// it and its snapshot have absorbed, and no other's, while copies are as late
// as they may be.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kv_cache/cache_manager.h"
#include "tests/kv_cache/cache_peer.h"
#include "tests/kv_cache/slow_storage.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using Words = std::vector<uint64_t>;

uint64_t Fold(uint64_t state, uint64_t word) { return state * 31 + word; }

// A sequence, and the tokens that its memory should have.
struct Stream {
  SequenceLease lease;
  Words tokens;
};

// A snapshot, and those of it.
struct Saved {
  SnapshotPtr snapshot;
  Words tokens;
};

class Cache {
 public:
  explicit Cache(const CacheSpec& spec)
      : spec(spec),
        storage(spec),
        manager(spec, &storage, {.poison_on_release = true}) {}

  // A step that appends `tokens`, and checks what it can read.
  absl::Status Step(Stream& stream, const Words& tokens) {
    SequenceLease& lease = stream.lease;
    const auto at = static_cast<int64_t>(stream.tokens.size());
    const auto count = static_cast<int64_t>(tokens.size());
    absl::Status status = manager.Reserve(lease, at + count);
    if (!status.ok()) return status;
    status = manager.BeginUpdate(lease, at, count);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return status;
    storage.BeginStep(lease.slot());
    Check(stream);
    for (const uint64_t word : tokens) {
      if (spec.page_bytes != 0) {
        Cell(lease, static_cast<int64_t>(stream.tokens.size())) = word;
      }
      uint64_t& state = storage.Slot(lease.slot());
      state = Fold(state, word);
      stream.tokens.push_back(word);
    }
    manager.CommitUpdate(lease, count);
    return absl::OkStatus();
  }

  void Check(const Stream& stream) {
    uint64_t state = 0;
    for (size_t i = 0; i < stream.tokens.size(); ++i) {
      if (spec.page_bytes != 0) {
        ASSERT_EQ(Cell(stream.lease, static_cast<int64_t>(i)), stream.tokens[i])
            << "token " << i << " of " << stream.tokens.size();
      }
      state = Fold(state, stream.tokens[i]);
    }
    if (spec.slot_bytes != 0) {
      ASSERT_EQ(storage.Slot(stream.lease.slot()), state);
    }
  }

  Stream Start(uint64_t owner, const Words& tokens) {
    Stream stream = {*manager.Acquire(owner), {}};
    EXPECT_TRUE(Step(stream, tokens).ok());
    return stream;
  }
  Saved Save(const Stream& stream, const SnapshotPrefix& base = {}) {
    auto snapshot = manager.Save(stream.lease, base);
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    return {*std::move(snapshot), stream.tokens};
  }
  absl::StatusOr<Stream> TryRestore(const Saved& saved, int64_t tokens,
                                    uint64_t owner) {
    auto lease = manager.Restore({saved.snapshot, tokens}, owner);
    if (!lease.ok()) return lease.status();
    return Stream{*std::move(lease),
                  {saved.tokens.begin(), saved.tokens.begin() + tokens}};
  }
  Stream Restore(const Saved& saved, uint64_t owner) {
    auto stream = TryRestore(saved, saved.snapshot->tokens(), owner);
    EXPECT_TRUE(stream.ok()) << stream.status();
    EXPECT_TRUE(manager.CheckInvariants().ok()) << manager.CheckInvariants();
    return *std::move(stream);
  }

  const CacheSpec spec;
  SlowStorage storage;
  CacheManager manager;

 private:
  uint64_t& Cell(const SequenceLease& lease, int64_t token) {
    return storage.Cell(lease.pages()[token / kPageTokens],
                        token % kPageTokens);
  }
};

// `count` tokens that differ from those of another seed.
Words Text(int64_t count, uint64_t seed = 1) {
  Words words;
  for (int64_t i = 0; i < count; ++i) words.push_back(seed * 1000 + i);
  return words;
}

constexpr CacheSpec kSpec = {.num_pages = 8,
                             .num_slots = 4,
                             .page_bytes = 512,
                             .slot_bytes = 8,
                             .num_host_blocks = 20};

class SharedPagesTest : public testing::Test {
 protected:
  int32_t UsedPages() const { return manager().stats().pages.used; }
  uint64_t Shared() const { return manager().stats().pages_shared_total; }
  const CacheManager& manager() const { return cache_.manager; }

  Cache cache_{kSpec};
};

TEST_F(SharedPagesTest, FullPagesOfASnapshotAreSharedAndCountOnce) {
  Stream writer = cache_.Start(1, Text(140));
  const std::vector<int32_t> pages(writer.lease.pages().begin(),
                                   writer.lease.pages().end());
  const Saved saved = cache_.Save(writer);
  // While the writer has them.
  Stream reader = cache_.Restore(saved, 2);
  EXPECT_EQ(reader.lease.pages()[0], pages[0]);
  EXPECT_EQ(reader.lease.pages()[1], pages[1]);
  EXPECT_NE(reader.lease.pages()[2], pages[2]);
  EXPECT_EQ(UsedPages(), 4);
  EXPECT_EQ(Shared(), 2u);
  EXPECT_EQ(cache_.storage.pages_restored, 1);
  // Each goes on by itself.
  EXPECT_TRUE(cache_.Step(writer, Text(100, 2)).ok());
  EXPECT_TRUE(cache_.Step(reader, Text(60, 3)).ok());
  EXPECT_TRUE(cache_.Step(writer, Text(1, 4)).ok());
  EXPECT_TRUE(cache_.Step(reader, Text(1, 5)).ok());
  EXPECT_EQ(UsedPages(), 2 + 2 + 2);
  // Without it.
  writer.lease.Release();
  EXPECT_EQ(UsedPages(), 4);
  Stream other = cache_.Restore(saved, 3);
  EXPECT_EQ(other.lease.pages()[1], pages[1]);
  EXPECT_EQ(UsedPages(), 5);
  // When no sequence has them.
  reader.lease.Release();
  other.lease.Release();
  EXPECT_EQ(UsedPages(), 0);
  EXPECT_EQ(manager().stats().pages.free, 8);
  EXPECT_TRUE(manager().CheckInvariants().ok());
  Stream last = cache_.Restore(saved, 4);
  EXPECT_EQ(last.lease.pages()[0], pages[0]);
  EXPECT_EQ(UsedPages(), 3);
  EXPECT_EQ(Shared(), 6u);
  EXPECT_TRUE(cache_.Step(last, Text(80, 6)).ok());
  EXPECT_EQ(cache_.storage.pages_restored, 3);
}

TEST_F(SharedPagesTest, WhatIsOverwrittenIsCopiedAgain) {
  Saved saved;
  {
    const Stream writer = cache_.Start(1, Text(128));
    saved = cache_.Save(writer);
  }
  // Pages that are not of the snapshot come first.
  Stream other = cache_.Start(2, Text(64 * 6, 2));
  EXPECT_EQ(cache_.Restore(saved, 3).tokens.size(), 128u);
  EXPECT_EQ(Shared(), 2u);
  // Then its last one.
  EXPECT_TRUE(cache_.Step(other, Text(64, 3)).ok());
  EXPECT_EQ(cache_.TryRestore(saved, 128, 3).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Shared(), 2u);
  other.lease.Release();
  Stream back = cache_.Restore(saved, 3);
  EXPECT_EQ(Shared(), 3u);  // only the first
  EXPECT_TRUE(cache_.Step(back, Text(10, 4)).ok());
  // What was copied to is shared as well.
  Stream next = cache_.Restore(saved, 4);
  EXPECT_EQ(Shared(), 5u);
  EXPECT_TRUE(cache_.Step(next, Text(10, 5)).ok());
  EXPECT_TRUE(cache_.Step(back, Text(10, 6)).ok());
}

// A sequence that shares pages that are being copied for another must not read
// them before; also if nothing of it is copied.
TEST(SharedPagesInTransitTest, AStepWaitsForCopiesOfOthers) {
  for (const int64_t slot_bytes : {int64_t{8}, int64_t{0}}) {
    SCOPED_TRACE(slot_bytes);
    CacheSpec spec = kSpec;
    spec.slot_bytes = slot_bytes;
    Cache cache(spec);
    Saved saved;
    {
      const Stream writer = cache.Start(1, Text(128));
      saved = cache.Save(writer);
    }
    cache.Start(2, Text(64 * 8, 2));  // overwrites all pages
    Stream first = cache.Restore(saved, 3);
    EXPECT_EQ(cache.manager.stats().pages_shared_total, 0u);
    EXPECT_FALSE(cache.manager.Restored(first.lease));
    first.lease.Release();  // its copies go on
    Stream second = cache.Restore(saved, 4);
    EXPECT_EQ(cache.manager.stats().pages_shared_total, 2u);
    EXPECT_FALSE(cache.manager.Restored(second.lease));
    EXPECT_TRUE(cache.Step(second, Text(10, 3)).ok());
    EXPECT_TRUE(cache.manager.Restored(second.lease));
  }
}

TEST_F(SharedPagesTest, SharingNeedsNoFreePagesAndRevivingDoes) {
  Stream writer = cache_.Start(1, Text(150));  // three pages
  const Saved saved = cache_.Save(writer);
  Stream other = cache_.Start(2, Text(64 * 4, 2));
  EXPECT_EQ(manager().stats().pages.free, 1);
  Stream reader = cache_.Restore(saved, 3);  // takes it
  EXPECT_EQ(manager().stats().pages.free, 0);
  const auto none = cache_.TryRestore(saved, 150, 4);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  reader.lease.Release();
  writer.lease.Release();
  EXPECT_TRUE(cache_.Step(other, Text(64 * 2, 3)).ok());
  EXPECT_EQ(manager().stats().pages.free, 2);
  // Both full pages are free with their bytes, but a third is missing.
  const auto again = cache_.TryRestore(saved, 150, 4);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager().stats().pages.free, 2);
  EXPECT_TRUE(manager().CheckInvariants().ok());
}

TEST(SharedPagesOfPrefixTest, APartOfAPageIsCopied) {
  CacheSpec spec = kSpec;
  spec.slot_bytes = 0;
  Cache cache(spec);
  Stream writer = cache.Start(1, Text(192));
  const Saved saved = cache.Save(writer);
  for (const int64_t tokens : {1, 63, 64, 65, 127, 128, 129, 192}) {
    SCOPED_TRACE(tokens);
    auto part = cache.TryRestore(saved, tokens, 2);
    ASSERT_TRUE(part.ok()) << part.status();
    const int64_t full = tokens / kPageTokens;
    for (size_t i = 0; i < part->lease.pages().size(); ++i) {
      EXPECT_EQ(part->lease.pages()[i] == writer.lease.pages()[i],
                static_cast<int64_t>(i) < full);
    }
    EXPECT_TRUE(cache.manager.CheckInvariants().ok());
    EXPECT_TRUE(cache.Step(*part, Text(70, 9)).ok());
    EXPECT_TRUE(cache.Step(writer, Text(1, 8)).ok());
  }
}

TEST_F(SharedPagesTest, PagesArePoisonedWhenTheirBytesCannotComeBack) {
  Stream writer = cache_.Start(1, Text(128));
  const int32_t first = writer.lease.pages()[0];
  const auto poisoned = [&](int32_t page) {
    return cache_.storage.Cell(page, 5) == SlowStorage::kPoison;
  };
  Saved saved = cache_.Save(writer);
  writer.lease.Release();
  EXPECT_FALSE(poisoned(first));
  Stream reader = cache_.Restore(saved, 2);
  saved.snapshot.reset();
  EXPECT_FALSE(poisoned(first));  // it is read
  EXPECT_TRUE(cache_.Step(reader, Text(5, 2)).ok());
  saved = cache_.Save(reader);
  reader.lease.Release();
  EXPECT_FALSE(poisoned(first));
  saved.snapshot.reset();
  EXPECT_TRUE(poisoned(first));
  EXPECT_TRUE(manager().CheckIdle().ok());
}

TEST_F(SharedPagesTest, AFailureOfTheStorageChangesNothing) {
  Stream writer = cache_.Start(1, Text(300));
  // Saving.
  cache_.storage.fail_at = cache_.storage.calls;
  EXPECT_EQ(manager().stats().host_blocks.used, 0);
  EXPECT_FALSE(cache_.manager.Save(writer.lease, {}).ok());
  EXPECT_EQ(manager().stats().host_blocks.used, 0);
  EXPECT_TRUE(manager().CheckInvariants().ok());
  const Saved saved = cache_.Save(writer);
  EXPECT_EQ(cache_.storage.pages_restored, 0);
  writer.lease.Release();
  // Two of the snapshot's four full pages are overwritten.
  cache_.Start(2, Text(64 * 6, 2));
  for (int i = 0; i < 2; ++i) {
    cache_.storage.fail_at = cache_.storage.calls;
    EXPECT_EQ(cache_.TryRestore(saved, 300, 3).status().code(),
              absl::StatusCode::kInternal);
    EXPECT_EQ(manager().stats().pages.used, 0);
    EXPECT_EQ(Shared(), 0u);
    EXPECT_TRUE(manager().CheckInvariants().ok());
  }
  Stream back = cache_.Restore(saved, 3);
  EXPECT_EQ(Shared(), 2u);
  EXPECT_TRUE(cache_.Step(back, Text(1, 3)).ok());
}

// A failure after some pages were overwritten must not leave them shared.
TEST_F(SharedPagesTest, AFailedRestoreForgetsWhatItMayHaveOverwritten) {
  Saved a, b;
  {
    const Stream stream = cache_.Start(1, Text(256));
    a = cache_.Save(stream);
  }
  {
    const Stream stream = cache_.Start(2, Text(256, 2));
    b = cache_.Save(stream);
  }
  // It overwrites those of `a`; only those of `b` are free.
  Stream other = cache_.Start(3, Text(256, 3));
  cache_.storage.fail_at = cache_.storage.calls;
  EXPECT_EQ(cache_.TryRestore(a, 256, 4).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(Shared(), 0u);
  EXPECT_EQ(manager().stats().pages.free, 4);
  EXPECT_TRUE(manager().CheckInvariants().ok());
  other.lease.Release();
  {
    const Stream of_a = cache_.Restore(a, 4);
    const Stream of_b = cache_.Restore(b, 5);
    EXPECT_EQ(Shared(), 0u);
  }
  // As above, by clearing.
  other = {*cache_.manager.Acquire(6), {}};
  cache_.storage.fail_at = cache_.storage.calls + 2;
  EXPECT_FALSE(cache_.manager.Reserve(other.lease, 64 * 8).ok());
  EXPECT_TRUE(other.lease.pages().empty());
  EXPECT_TRUE(manager().CheckInvariants().ok());
  other.lease.Release();
  for (const Saved* saved : {&a, &b}) {
    Stream back = cache_.Restore(*saved, 7);
    EXPECT_TRUE(cache_.Step(back, Text(1, 7)).ok());
  }
}

TEST_F(SharedPagesTest, BlocksOfSharedPagesAreSharedWithoutABase) {
  Stream writer = cache_.Start(1, Text(200));
  const Saved saved = cache_.Save(writer);
  EXPECT_EQ(manager().stats().host_blocks.used, 5);
  EXPECT_TRUE(cache_.Step(writer, Text(100, 2)).ok());
  EXPECT_EQ(manager().BlocksToSave(writer.lease, {}), 6);  // at most
  const Saved later = cache_.Save(writer);
  EXPECT_EQ(manager().stats().host_blocks.used, 5 + 3);
  writer.lease.Release();
  Stream back = cache_.Restore(later, 2);
  EXPECT_TRUE(cache_.Step(back, Text(1, 3)).ok());
}

TEST_F(SharedPagesTest, NoUpdateWritesToAPageOfSeveralHolders) {
  Stream writer = cache_.Start(1, Text(64));
  const Saved saved = cache_.Save(writer);
  Stream reader = cache_.Restore(saved, 2);
  SlotPool& slots = CachePeer::Slots(cache_.manager);
  for (Stream* stream : {&writer, &reader}) {
    const SequenceLease& lease = stream->lease;
    CachePeer::TokensApplied(slots, lease.slot()) = 63;
    EXPECT_THAT(std::string(cache_.manager.BeginUpdate(lease, 63, 1).message()),
                HasSubstr("has 2 holders and no writer"));
    EXPECT_THAT(std::string(manager().CheckInvariants().message()),
                HasSubstr("up to token 64 of sequence"));
    CachePeer::TokensApplied(slots, lease.slot()) = 64;
  }
  EXPECT_TRUE(manager().CheckInvariants().ok());
}

TEST_F(SharedPagesTest, ChecksSeeEachBreach) {
  Stream writer = cache_.Start(1, Text(64));
  Saved saved = cache_.Save(writer);
  Stream reader = cache_.Restore(saved, 2);
  const int32_t page = reader.lease.pages()[0];
  PagePool& pages = CachePeer::Pages(cache_.manager);
  const auto sees = [&](const std::string& text) {
    EXPECT_THAT(std::string(manager().CheckInvariants().message()),
                HasSubstr(text));
  };
  CachePeer::Holders(pages, page) = 3;
  sees("has 3 holders but was handed to 2 sequences");
  CachePeer::Holders(pages, page) = 2;
  CachePeer::Generation(pages, page) += 2;
  EXPECT_FALSE(manager().CheckLease(writer.lease).ok());
  EXPECT_FALSE(manager().CheckLease(reader.lease).ok());
  CachePeer::Generation(pages, page) -= 2;
  // Bound to a block of another tenure.
  CachePeer::Block(pages, page).generation += 1;
  sees("generation");
  CachePeer::Block(pages, page).generation -= 1;
  reader.lease.Release();
  EXPECT_TRUE(manager().CheckLease(writer.lease).ok());
}

// Random operations on many sequences that begin alike.
class Simulation {
 public:
  Simulation(const CacheSpec& spec, uint64_t seed)
      : cache_(spec), random_(seed), fails_(seed % 3 == 0) {}

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      if (Below(4) == 0) cache_.storage.CopySome(Below(6));
      cache_.storage.fail_at =
          fails_ && Below(10) == 0 ? cache_.storage.calls + Below(4) : -1;
      One();
      if (testing::Test::HasFailure()) {
        ADD_FAILURE() << "at step " << step;
        return;
      }
      ASSERT_TRUE(cache_.manager.CheckInvariants().ok() || fails_)
          << cache_.manager.CheckInvariants();
      CheckStats();
    }
    cache_.storage.fail_at = -1;
    for (auto& [owner, stream] : streams_) {
      cache_.storage.BeginStep(stream.lease.slot());
      cache_.Check(stream);
    }
    streams_.clear();
    saved_.clear();
    bases_.clear();
    if (!fails_) {
      EXPECT_TRUE(cache_.manager.CheckIdle().ok())
          << cache_.manager.CheckIdle();
    }
    EXPECT_EQ(cache_.manager.stats().pages.used, 0);
    EXPECT_EQ(cache_.manager.stats().host_blocks.used, 0);
  }

  uint64_t shared() const { return cache_.manager.stats().pages_shared_total; }
  int64_t copied() const { return cache_.storage.pages_restored; }
  int64_t failed() const { return failed_; }

 private:
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  template <typename Map>
  auto Any(Map& map) {
    auto it = map.begin();
    std::advance(it, Below(static_cast<int64_t>(map.size())));
    return it;
  }

  void One() {
    const int64_t what = Below(10);
    if (what == 0) {
      auto lease = cache_.manager.Acquire(next_);
      if (!lease.ok()) return Note(lease.status());
      streams_[next_++] = {*std::move(lease), {}};
    } else if (what <= 4 && !streams_.empty()) {
      const auto& [owner, stream] = *Any(streams_);
      Words tokens;
      for (int64_t i = 1 + Below(100); i > 0; --i) tokens.push_back(++word_);
      const absl::Status status = cache_.Step(streams_.at(owner), tokens);
      if (!status.ok()) Note(status);
    } else if (what == 5 && !streams_.empty()) {
      const auto it = Any(streams_);
      bases_.erase(it->first);
      streams_.erase(it);
    } else if (what == 6 && !streams_.empty()) {
      Save(Any(streams_)->first);
    } else if (what <= 8 && !saved_.empty()) {
      Restore(*Any(saved_));
    } else if (what == 9 && Below(3) == 0 && !saved_.empty()) {
      saved_.erase(Any(saved_));
    }
  }

  void Save(uint64_t owner) {
    const Stream& stream = streams_.at(owner);
    SnapshotPrefix base;
    if (bases_.count(owner) > 0 && Below(2) == 0) base = bases_.at(owner);
    if (!cache_.manager.CanSave(stream.lease, base)) return;
    const int32_t free = cache_.manager.stats().host_blocks.free;
    const int64_t most = cache_.manager.BlocksToSave(stream.lease, base);
    auto snapshot = cache_.manager.Save(stream.lease, base);
    if (!snapshot.ok()) return Note(snapshot.status());
    EXPECT_LE(free - cache_.manager.stats().host_blocks.free, most);
    bases_[owner] = {*snapshot, (*snapshot)->tokens()};
    saved_.push_back({*std::move(snapshot), stream.tokens});
  }

  void Restore(const Saved& saved) {
    int64_t tokens = saved.snapshot->tokens();
    if (cache_.spec.slot_bytes == 0 && Below(2) == 0)
      tokens = 1 + Below(tokens);
    const CacheStats before = cache_.manager.stats();
    const int64_t copied = cache_.storage.pages_restored;
    auto stream = cache_.TryRestore(saved, tokens, next_);
    const CacheStats after = cache_.manager.stats();
    if (!stream.ok()) {
      EXPECT_EQ(after.pages.free, before.pages.free);
      EXPECT_EQ(after.pages_shared_total, before.pages_shared_total);
      return Note(stream.status());
    }
    const int64_t pages = PagesFor(tokens, cache_.spec);
    EXPECT_EQ(pages, after.pages_shared_total - before.pages_shared_total +
                         (cache_.storage.pages_restored - copied));
    EXPECT_LE(before.pages.free - after.pages.free, pages);
    if (Below(2) == 0) bases_[next_] = {saved.snapshot, tokens};
    streams_[next_++] = *std::move(stream);
  }

  // An error is that of an exhausted pool, or was injected.
  void Note(const absl::Status& status) {
    if (status.code() == absl::StatusCode::kResourceExhausted) return;
    EXPECT_THAT(std::string(status.message()), HasSubstr("injected"));
    EXPECT_GE(cache_.storage.fail_at, 0);
    ++failed_;
  }

  void CheckStats() {
    std::set<int32_t> pages;
    for (const auto& [owner, stream] : streams_) {
      EXPECT_TRUE(cache_.manager.CheckLease(stream.lease).ok());
      for (int32_t page : stream.lease.pages()) pages.insert(page);
    }
    const CacheStats stats = cache_.manager.stats();
    EXPECT_EQ(stats.pages.used, static_cast<int32_t>(pages.size()));
    EXPECT_EQ(stats.pages.free + stats.pages.used, stats.pages.total);
  }

  Cache cache_;
  std::mt19937_64 random_;
  const bool fails_;  // then poisoning fails, too, which the checks report
  std::map<uint64_t, Stream> streams_;
  std::map<uint64_t, SnapshotPrefix> bases_;
  std::vector<Saved> saved_;
  uint64_t next_ = 1;
  uint64_t word_ = 0;
  int64_t failed_ = 0;
};

TEST(SharedPagesModelTest, EachSequenceSeesItsTokens) {
  uint64_t shared = 0;
  int64_t copied = 0;
  int64_t failed = 0;
  for (uint64_t seed = 0; seed < 300 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    CacheSpec spec = {.num_pages = 6 + static_cast<int32_t>(seed % 17),
                      .num_slots = 2 + static_cast<int32_t>(seed % 6),
                      .page_bytes = seed % 11 == 0 ? 0 : 512,
                      .slot_bytes = seed % 4 == 0 ? 0 : 700,
                      .num_host_blocks = 8 + static_cast<int32_t>(seed % 40)};
    if (spec.page_bytes == 0) spec.slot_bytes = 700;
    Simulation simulation(spec, seed);
    simulation.Run(1000);
    shared += simulation.shared();
    copied += simulation.copied();
    failed += simulation.failed();
  }
  EXPECT_GT(shared, 10'000u);
  EXPECT_GT(copied, 5'000);
  EXPECT_GT(failed, 500);
}

}  // namespace
}  // namespace recurve
