#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/serving/prefix_index.h"
#include "gtest/gtest.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using Tokens = std::vector<PrefixToken>;

constexpr int64_t kPlace = PrefixIndex::kPlaceTokens;
constexpr int64_t kNoLimit = 1'000'000;

// The value of a payload; 0: null.
int ValueOf(const PrefixIndex::Payload& payload) {
  return payload == nullptr ? 0 : *static_cast<const int*>(payload.get());
}

// The same as PrefixIndex, by comparing with each place that is known.
class NaiveIndex {
 public:
  enum class Kind { kSnapshot, kTombstone, kNote };
  struct Place {
    PrefixDomain domain;
    Tokens tokens;
    Kind kind;
    uint64_t used = 0;
    uint64_t id = 0;
    int value = 0;
    bool pinned = false;

    int64_t length() const { return static_cast<int64_t>(tokens.size()); }
    bool snapshot() const { return kind == Kind::kSnapshot; }
  };

  explicit NaiveIndex(int64_t limit) : limit_(limit) {}

  static int64_t Shared(const Tokens& a, const Tokens& b) {
    int64_t n = 0;
    while (n < std::min(a.size(), b.size()) && a[n] == b[n]) ++n;
    return n;
  }

  void Insert(const PrefixDomain& domain, const Tokens& tokens, uint64_t id,
              int value) {
    Remove(At(domain, tokens));
    places_.push_back(
        {domain, tokens, Kind::kSnapshot, ++clock_, id, value, false});
  }
  void Note(const PrefixDomain& domain, const Tokens& tokens) {
    Place* place = At(domain, tokens);
    if (place != nullptr && place->snapshot()) return;
    if (place == nullptr) {
      if (tokens.empty()) return;
      PutNoted({domain, tokens, Kind::kNote});
    } else {
      place->used = ++clock_;
    }
  }
  // What a snapshot gives of `tokens`; 0: nothing.
  static int64_t Gives(const Place& place, const Tokens& tokens,
                       int64_t max_length, bool covering) {
    const int64_t shared = Shared(place.tokens, tokens);
    if (covering) return std::max<int64_t>(0, std::min(shared, max_length));
    return shared == place.length() && shared <= max_length ? shared : 0;
  }
  // Compares a match. Of snapshots that give as much, the index may choose.
  void Check(const PrefixMatch& match, const PrefixDomain& domain,
             const Tokens& tokens, int64_t max_length, bool covering) {
    int64_t common = 0;
    int64_t length = 0;
    for (const Place& p : places_) {
      if (p.domain != domain) continue;
      common = std::max(common, Shared(p.tokens, tokens));
      if (!p.snapshot()) continue;
      length = std::max(length, Gives(p, tokens, max_length, covering));
    }
    bool evicted = false;
    for (const Place& p : places_) {
      evicted |= p.domain == domain && p.kind == Kind::kTombstone &&
                 Gives(p, tokens, max_length, covering) > length;
    }
    EXPECT_EQ(match.common, common);
    EXPECT_EQ(match.evicted, evicted);
    ASSERT_EQ(match.length, length);
    ASSERT_EQ(match.id != 0, length > 0);
    ASSERT_EQ(match.payload != nullptr, length > 0);
    if (length == 0) return;
    Place* place = WithId(match.id);
    ASSERT_NE(place, nullptr);
    EXPECT_EQ(place->domain, domain);
    EXPECT_EQ(Gives(*place, tokens, max_length, covering), length);
    EXPECT_EQ(ValueOf(match.payload), place->value);
    place->used = ++clock_;
  }
  // The value of the snapshot; 0: none.
  int Evict() {
    Place* oldest = nullptr;
    for (Place& p : places_) {
      if (!p.snapshot() || p.pinned) continue;
      if (oldest == nullptr || p.used < oldest->used) oldest = &p;
    }
    if (oldest == nullptr) return 0;
    const Place place = *oldest;
    Remove(oldest);
    PutNoted({place.domain, place.tokens, Kind::kTombstone});
    return place.value;
  }
  bool Pin(uint64_t id, bool pinned) {
    Place* place = WithId(id);
    if (place != nullptr) place->pinned = pinned;
    return place != nullptr;
  }
  bool Erase(uint64_t id) {
    Place* place = WithId(id);
    if (place == nullptr) return false;
    Remove(place);
    Forget();
    return true;
  }
  void Clear() { places_.clear(); }

  int64_t Snapshots(const PrefixDomain& domain) const {
    return std::count_if(places_.begin(), places_.end(), [&](const Place& p) {
      return p.snapshot() && p.domain == domain;
    });
  }
  // The number of different prefixes of all places; or of the snapshots.
  int64_t Prefixes(bool snapshots_only) const {
    std::vector<const Place*> sorted;
    for (const Place& p : places_) {
      if (!snapshots_only || p.snapshot()) sorted.push_back(&p);
    }
    std::sort(sorted.begin(), sorted.end(), [](const Place* a, const Place* b) {
      return std::tie(a->domain, a->tokens) < std::tie(b->domain, b->tokens);
    });
    int64_t count = 0;
    for (size_t i = 0; i < sorted.size(); ++i) {
      count += sorted[i]->length();
      if (i > 0 && sorted[i]->domain == sorted[i - 1]->domain) {
        count -= Shared(sorted[i]->tokens, sorted[i - 1]->tokens);
      }
    }
    return count;
  }
  int64_t NotedTokens() const {
    const int64_t noted =
        std::count_if(places_.begin(), places_.end(),
                      [](const Place& p) { return !p.snapshot(); });
    return Prefixes(false) - Prefixes(true) + kPlace * noted;
  }
  int64_t size() const {
    return std::count_if(places_.begin(), places_.end(),
                         [](const Place& p) { return p.snapshot(); });
  }

 private:
  Place* At(const PrefixDomain& domain, const Tokens& tokens) {
    for (Place& p : places_) {
      if (p.domain == domain && p.tokens == tokens) return &p;
    }
    return nullptr;
  }
  Place* WithId(uint64_t id) {
    for (Place& p : places_) {
      if (p.snapshot() && p.id == id) return &p;
    }
    return nullptr;
  }
  void Remove(Place* place) {
    if (place != nullptr)
      places_.erase(places_.begin() + (place - &places_[0]));
  }
  void PutNoted(Place place) {
    if (place.length() + kPlace <= limit_) {
      place.used = ++clock_;
      places_.push_back(std::move(place));
    }
    Forget();
  }
  void Forget() {
    while (NotedTokens() > limit_) {
      Place* oldest = nullptr;
      for (Place& p : places_) {
        if (p.snapshot()) continue;
        if (oldest == nullptr || p.used < oldest->used) oldest = &p;
      }
      Remove(oldest);
    }
  }

  const int64_t limit_;
  uint64_t clock_ = 0;
  std::vector<Place> places_;
};

// One seed: random operations on an index and on a naive one.
class RandomOperations {
 public:
  explicit RandomOperations(uint64_t seed)
      : random_(seed),
        // None, one, a few, and more than a run leaves.
        limit_(std::vector<int64_t>{0, kPlace + 8, 4 * kPlace, 20 * kPlace,
                                    kNoLimit}[random_.Uniform(0, 4)]),
        index_(limit_),
        naive_(limit_) {}

  void Do() {
    const PrefixDomain& domain = domains_[random_.Uniform(0, 2)];
    const Tokens tokens = Prompt();
    const int64_t max_length =
        random_.Chance(0.5) ? kNoLimit : random_.Uniform(-1, 12);
    const int64_t operation = random_.Uniform(0, 99);
    if (operation < 22) {
      if (tokens.empty()) return;
      const int value = ++last_value_;
      const uint64_t id =
          index_.Insert(domain, tokens, std::make_shared<const int>(value));
      EXPECT_GT(id, ids_.empty() ? 0 : ids_.back());
      ids_.push_back(id);
      naive_.Insert(domain, tokens, id, value);
    } else if (operation < 40) {
      naive_.Check(index_.Find(domain, tokens, max_length), domain, tokens,
                   max_length, /*covering=*/false);
    } else if (operation < 58) {
      naive_.Check(index_.FindCovering(domain, tokens, max_length), domain,
                   tokens, max_length, /*covering=*/true);
    } else if (operation < 72) {
      index_.Note(domain, tokens);
      naive_.Note(domain, tokens);
    } else if (operation < 84) {
      const auto payload = index_.EvictOldest();
      EXPECT_EQ(payload.has_value() ? ValueOf(*payload) : 0, naive_.Evict());
    } else if (operation < 91) {
      const bool pinned = random_.Chance(0.4);
      const uint64_t id = Id();
      EXPECT_EQ(index_.Pin(id, pinned), naive_.Pin(id, pinned));
    } else if (operation < 99) {
      const uint64_t id = Id();
      EXPECT_EQ(index_.Erase(id), naive_.Erase(id));
    } else if (random_.Chance(0.6)) {
      index_.Clear();
      naive_.Clear();
    }
  }

  void Compare() const {
    EXPECT_EQ(index_.CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(index_.size(), naive_.size());
    EXPECT_EQ(index_.tokens(), naive_.Prefixes(false));
    EXPECT_EQ(index_.noted_tokens(), naive_.NotedTokens());
    for (const PrefixDomain& domain : domains_) {
      EXPECT_EQ(index_.SnapshotsIn(domain), naive_.Snapshots(domain));
    }
  }

 private:
  // Few different tokens, so that most prompts share some.
  Tokens Prompt() {
    Tokens tokens;
    for (int64_t i = random_.Uniform(0, 10); i > 0; --i) {
      tokens.push_back(
          {static_cast<int32_t>(random_.Uniform(0, 1)),
           random_.Chance(0.9) ? TokenKind::kPrompt : TokenKind::kStep});
    }
    return tokens;
  }
  // One of the latest, which may be gone.
  uint64_t Id() {
    if (ids_.empty()) return 1;
    const auto count = static_cast<int64_t>(ids_.size());
    return ids_[random_.Uniform(std::max<int64_t>(0, count - 12), count - 1)];
  }

  const std::vector<PrefixDomain> domains_ = {{1, ""}, {1, "k"}, {2, ""}};
  TestRandom random_;
  const int64_t limit_;
  PrefixIndex index_;
  NaiveIndex naive_;
  std::vector<uint64_t> ids_;
  int last_value_ = 0;
};

TEST(PrefixIndexRandomTest, AgreesWithANaiveIndex) {
  for (uint64_t seed = 0; seed < SimSeeds(200); ++seed) {
    RandomOperations run(seed);
    for (int i = 0; i < 500; ++i) {
      run.Do();
      run.Compare();
      ASSERT_FALSE(HasFailure()) << "seed " << seed << ", operation " << i;
    }
  }
}

}  // namespace
}  // namespace recurve
