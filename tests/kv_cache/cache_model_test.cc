// The cache manager against a model of it in a few maps, over random
// operations and with the storage failing at any call.

#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kv_cache/cache_manager.h"
#include "tests/kv_cache/fake_storage.h"

namespace recurve {
namespace {

using Fill = FakeStorage::Fill;

// What a live sequence should look like.
struct Expected {
  int32_t slot = 0;
  std::vector<int32_t> pages;
  int64_t tokens_applied = 0;
  int64_t in_flight = 0;
};

class Simulation {
 public:
  Simulation(const CacheSpec& spec, uint64_t seed, bool poison)
      : spec_(spec),
        random_(seed),
        poison_(poison),
        storage_(spec),
        manager_(spec, &storage_, {.poison_on_release = poison}) {}

  FakeStorage& storage() { return storage_; }

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      switch (Below(8)) {
        case 0:
          Acquire();
          break;
        case 1:
          Reserve();
          break;
        case 2:
          Begin();
          break;
        case 3:
          Commit();
          break;
        case 4:
          MisplacedBegin();
          break;
        case 5:
          Move();
          break;
        case 6:
          if (Below(3) == 0) Release();
          break;
        case 7:
          Commit(), Reserve(), Begin();
          break;
      }
      Check();
      if (testing::Test::HasFailure()) {
        ADD_FAILURE() << "at step " << step;
        return;
      }
    }
    while (!leases_.empty()) Release();
    EXPECT_TRUE(manager_.CheckIdle().ok()) << manager_.CheckIdle();
  }

  int exhausted() const { return exhausted_; }
  int64_t committed() const { return committed_; }

 private:
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  uint64_t AnyOwner() {
    auto it = leases_.begin();
    std::advance(it, Below(static_cast<int64_t>(leases_.size())));
    return it->first;
  }
  int64_t PagesInUse() const {
    int64_t pages = 0;
    for (const auto& [owner, expected] : model_) {
      pages += static_cast<int64_t>(expected.pages.size());
    }
    return pages;
  }
  // Whether the storage fails one of its next `calls` calls.
  bool FailsWithin(int64_t calls) const {
    return storage_.fail_at >= storage_.calls &&
           storage_.fail_at < storage_.calls + calls;
  }

  void Acquire() {
    const uint64_t owner = 1 + Below(2 * spec_.num_slots);
    const bool held = model_.count(owner) != 0;
    const bool full = static_cast<int32_t>(model_.size()) == spec_.num_slots;
    const bool fails = FailsWithin(1);
    auto lease = manager_.Acquire(owner);
    if (held || (!full && fails)) {
      EXPECT_EQ(lease.status().code(), absl::StatusCode::kInternal);
    } else if (full) {
      EXPECT_EQ(lease.status().code(), absl::StatusCode::kResourceExhausted);
    } else {
      ASSERT_TRUE(lease.ok()) << lease.status();
      EXPECT_EQ(storage_.slots[lease->slot()], Fill::kZero);
      storage_.slots[lease->slot()] = Fill::kUsed;
      model_[owner].slot = lease->slot();
      leases_.emplace(owner, std::move(lease).value());
    }
  }

  void Reserve() {
    if (leases_.empty()) return;
    const uint64_t owner = AnyOwner();
    SequenceLease& lease = leases_.at(owner);
    Expected& expected = model_.at(owner);
    const int64_t tokens = expected.tokens_applied + Below(3 * kPageTokens);
    const int64_t held = static_cast<int64_t>(expected.pages.size());
    const int64_t more = PagesFor(tokens, spec_) - held;
    const bool short_of = more > spec_.num_pages - PagesInUse();
    const bool fails = more > 0 && FailsWithin(more);
    const absl::Status status = manager_.Reserve(lease, tokens);
    if (more <= 0) {
      EXPECT_TRUE(status.ok()) << status;
    } else if (short_of) {
      ++exhausted_;
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    } else if (fails) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    } else {
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(lease.pages().size(), held + more);
      for (int32_t page : lease.pages().subspan(held)) {
        EXPECT_EQ(storage_.pages[page], Fill::kZero);
        storage_.pages[page] = Fill::kUsed;
        expected.pages.push_back(page);
      }
    }
  }

  void Begin() {
    if (leases_.empty()) return;
    const uint64_t owner = AnyOwner();
    Expected& expected = model_.at(owner);
    const int64_t tokens = Below(kPageTokens);
    const bool covered = PagesFor(expected.tokens_applied + tokens, spec_) <=
                         static_cast<int64_t>(expected.pages.size());
    const absl::Status status = manager_.BeginUpdate(
        leases_.at(owner), expected.tokens_applied, tokens);
    if (tokens > 0 && covered && expected.in_flight == 0) {
      EXPECT_TRUE(status.ok()) << status;
      expected.in_flight = tokens;
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    }
  }

  void Commit() {
    if (leases_.empty()) return;
    const uint64_t owner = AnyOwner();
    Expected& expected = model_.at(owner);
    if (expected.in_flight == 0) return;
    manager_.CommitUpdate(leases_.at(owner), expected.in_flight);
    expected.tokens_applied += std::exchange(expected.in_flight, 0);
    ++committed_;
  }

  void MisplacedBegin() {
    if (leases_.empty()) return;
    const uint64_t owner = AnyOwner();
    const int64_t right = model_.at(owner).tokens_applied;
    const int64_t wrong = Below(2) == 0 ? right + 1 + Below(100) : right - 1;
    const absl::Status status =
        manager_.BeginUpdate(leases_.at(owner), wrong, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  }

  // Through a temporary, and onto another live lease, which gives that back.
  void Move() {
    if (leases_.empty()) return;
    const uint64_t owner = AnyOwner();
    SequenceLease lease = std::move(leases_.at(owner));
    EXPECT_TRUE(leases_.at(owner).empty());
    const uint64_t target = AnyOwner();
    leases_.at(target) = std::move(lease);
    if (target == owner) return;
    leases_.at(owner) = std::move(leases_.at(target));
    EXPECT_EQ(leases_.at(owner).owner(), owner);
    leases_.erase(target);
    ExpectPoisoned(model_.at(target));
    model_.erase(target);
  }

  void Release() {
    if (leases_.empty()) return;
    const uint64_t owner = AnyOwner();
    if (Below(2) == 0) leases_.at(owner).Release();
    leases_.erase(owner);
    ExpectPoisoned(model_.at(owner));
    model_.erase(owner);
  }

  void ExpectPoisoned(const Expected& expected) {
    if (!poison_) return;
    EXPECT_EQ(storage_.slots[expected.slot], Fill::kNan);
    for (int32_t page : expected.pages) {
      EXPECT_EQ(storage_.pages[page], Fill::kNan);
    }
  }

  void Check() {
    ASSERT_TRUE(manager_.CheckInvariants().ok()) << manager_.CheckInvariants();
    ASSERT_EQ(leases_.size(), model_.size());
    std::set<int32_t> slots = {0};
    std::set<int32_t> pages = {0};
    for (const auto& [owner, expected] : model_) {
      const SequenceLease& lease = leases_.at(owner);
      ASSERT_TRUE(manager_.CheckLease(lease).ok());
      EXPECT_EQ(lease.owner(), owner);
      EXPECT_EQ(lease.slot(), expected.slot);
      EXPECT_EQ(lease.tokens_applied(), expected.tokens_applied);
      EXPECT_EQ(lease.pages(), absl::MakeConstSpan(expected.pages));
      EXPECT_TRUE(slots.insert(expected.slot).second);
      // Live memory is never cleared or poisoned.
      EXPECT_EQ(storage_.slots[expected.slot], Fill::kUsed);
      for (int32_t page : expected.pages) {
        EXPECT_TRUE(pages.insert(page).second);
        EXPECT_EQ(storage_.pages[page], Fill::kUsed);
      }
    }
    const CacheStats stats = manager_.stats();
    EXPECT_EQ(stats.slots.used, static_cast<int32_t>(slots.size()) - 1);
    EXPECT_EQ(stats.pages.used, static_cast<int32_t>(pages.size()) - 1);
    EXPECT_EQ(stats.slots.free, spec_.num_slots - stats.slots.used);
    EXPECT_EQ(stats.pages.free, spec_.num_pages - stats.pages.used);
    // Sinks have no owner: neither cleared nor poisoned.
    EXPECT_EQ(storage_.slots[0], Fill::kUsed);
    EXPECT_EQ(storage_.pages[0], Fill::kUsed);
  }

  const CacheSpec spec_;
  std::mt19937_64 random_;
  const bool poison_;
  FakeStorage storage_;
  CacheManager manager_;
  std::map<uint64_t, Expected> model_;
  std::map<uint64_t, SequenceLease> leases_;
  int exhausted_ = 0;
  int64_t committed_ = 0;
};

TEST(CacheModelTest, RandomOperations) {
  int exhausted = 0;
  int64_t committed = 0;
  for (uint64_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const CacheSpec spec = {.num_pages = static_cast<int32_t>(seed % 4 * 7),
                            .num_slots = static_cast<int32_t>(1 + seed % 5),
                            .page_bytes = seed % 7 == 0 ? 0 : 4096,
                            .slot_bytes = 64};
    Simulation simulation(spec, seed, seed % 2 == 0);
    simulation.Run(2000);
    exhausted += simulation.exhausted();
    committed += simulation.committed();
  }
  // The operations reached what they are here for.
  EXPECT_GT(exhausted, 5000);
  EXPECT_GT(committed, 10000);
}

TEST(CacheModelTest, AStorageFailureAtAnyCall) {
  constexpr CacheSpec spec = {
      .num_pages = 9, .num_slots = 3, .page_bytes = 4096, .slot_bytes = 64};
  int64_t calls = 0;
  {
    Simulation simulation(spec, 5, false);
    simulation.Run(500);
    calls = simulation.storage().calls;
  }
  ASSERT_GT(calls, 50);
  for (int64_t failing = 0; failing < calls && !HasFailure(); ++failing) {
    SCOPED_TRACE(failing);
    Simulation simulation(spec, 5, false);
    simulation.storage().fail_at = failing;
    simulation.Run(500);
    EXPECT_GT(simulation.storage().calls, failing);
  }
}

}  // namespace
}  // namespace recurve
