#include "engine/serving/prefix_index.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using Tokens = std::vector<PrefixToken>;

constexpr int64_t kPlace = PrefixIndex::kPlaceTokens;
constexpr int64_t kNoLimit = 1'000'000;

// A token for each letter.
Tokens T(const std::string& letters, TokenKind kind = TokenKind::kPrompt) {
  Tokens tokens;
  for (const char c : letters) tokens.push_back({c, kind});
  return tokens;
}

PrefixIndex::Payload P(int value) { return std::make_shared<const int>(value); }

// The value of a payload; 0: null.
int ValueOf(const PrefixIndex::Payload& payload) {
  return payload == nullptr ? 0 : *static_cast<const int*>(payload.get());
}

// A match as text: "payload@length of common", with "!" if one was evicted.
std::string Text(const PrefixMatch& match) {
  EXPECT_EQ(match.id == 0, match.payload == nullptr);
  EXPECT_EQ(match.length == 0, match.payload == nullptr);
  return std::to_string(ValueOf(match.payload)) + "@" +
         std::to_string(match.length) + " of " + std::to_string(match.common) +
         (match.evicted ? "!" : "");
}

class PrefixIndexTest : public testing::Test {
 protected:
  ~PrefixIndexTest() override { Check(); }

  uint64_t Insert(const std::string& letters, int value) {
    const uint64_t id = index_.Insert(domain_, T(letters), P(value));
    Check();
    return id;
  }
  void Note(const std::string& letters) {
    index_.Note(domain_, T(letters));
    Check();
  }
  std::string Find(const std::string& letters, int64_t max_length = kNoLimit) {
    return Text(index_.Find(domain_, T(letters), max_length));
  }
  std::string Covering(const std::string& letters,
                       int64_t max_length = kNoLimit) {
    return Text(index_.FindCovering(domain_, T(letters), max_length));
  }
  // The value of the snapshot; 0 if there is none to evict.
  int Evict() {
    const auto payload = index_.EvictOldest();
    Check();
    EXPECT_TRUE(!payload.has_value() || *payload != nullptr);
    return payload.has_value() ? ValueOf(*payload) : 0;
  }
  void Check() { EXPECT_EQ(index_.CheckInvariants(), absl::OkStatus()); }

  PrefixIndex index_{kNoLimit};
  const PrefixDomain domain_ = {7, "key"};
};

TEST_F(PrefixIndexTest, AnEmptyIndexFindsNothing) {
  EXPECT_EQ(Find("abc"), "0@0 of 0");
  EXPECT_EQ(Covering("abc"), "0@0 of 0");
  EXPECT_EQ(Evict(), 0);
  EXPECT_FALSE(index_.Pin(1, true));
  EXPECT_FALSE(index_.Erase(1));
  EXPECT_EQ(index_.size(), 0);
  EXPECT_EQ(index_.SnapshotsIn(domain_), 0);
  EXPECT_EQ(index_.tokens(), 0);
  EXPECT_EQ(index_.noted_tokens(), 0);
  index_.Clear();
}

TEST_F(PrefixIndexTest, EmptyPromptsFindNothingAndAreNotNoted) {
  Insert("abc", 1);
  Note("");
  EXPECT_EQ(Find(""), "0@0 of 0");
  EXPECT_EQ(Covering(""), "0@0 of 0");
  EXPECT_EQ(index_.noted_tokens(), 0);
  EXPECT_DEATH(Insert("", 1), "tokens.empty");
  EXPECT_DEATH(index_.Insert(domain_, T("a"), nullptr), "payload");
}

TEST_F(PrefixIndexTest, TheLongestSnapshotThatIsAPrefixIsFound) {
  Insert("ab", 1);
  Insert("abcd", 2);
  Insert("abcx", 3);
  EXPECT_EQ(Find("abcdef"), "2@4 of 4");
  EXPECT_EQ(Find("abcd"), "2@4 of 4");
  EXPECT_EQ(Find("abcy"), "1@2 of 3");
  EXPECT_EQ(Find("abc"), "1@2 of 3");  // ends at a node without a snapshot
  EXPECT_EQ(Find("ab"), "1@2 of 2");
  EXPECT_EQ(Find("a"), "0@0 of 1");  // ends within an edge
  EXPECT_EQ(Find("ay"), "0@0 of 1");
  EXPECT_EQ(Find("b"), "0@0 of 0");
  EXPECT_EQ(index_.size(), 3);
  EXPECT_EQ(index_.tokens(), 5);
  EXPECT_EQ(index_.noted_tokens(), 0);
}

TEST_F(PrefixIndexTest, AMatchNamesTheSnapshot) {
  Insert("ab", 1);
  const uint64_t id = Insert("abcd", 2);
  EXPECT_EQ(index_.Find(domain_, T("abcde"), 9).id, id);
  EXPECT_EQ(index_.FindCovering(domain_, T("abce"), 9).id, id);
}

TEST_F(PrefixIndexTest, MaxLengthCutsWhatIsFoundButNotWhatIsCommon) {
  Insert("ab", 1);
  Insert("abcd", 2);
  EXPECT_EQ(Find("abcdef", 4), "2@4 of 4");
  EXPECT_EQ(Find("abcdef", 3), "1@2 of 4");
  EXPECT_EQ(Find("abcdef", 2), "1@2 of 4");
  EXPECT_EQ(Find("abcdef", 1), "0@0 of 4");
  EXPECT_EQ(Find("abcdef", 0), "0@0 of 4");
  EXPECT_EQ(Find("abcdef", -1), "0@0 of 4");
}

TEST_F(PrefixIndexTest, KindsDifferAsIdsDo) {
  index_.Insert(domain_, T("abc"), P(1));
  EXPECT_EQ(Text(index_.Find(domain_, T("abc", TokenKind::kStep), 9)),
            "0@0 of 0");
  // The same ids; a prompt of its own begins at the third.
  Tokens tokens = T("abc");
  tokens[2].kind = TokenKind::kPromptStart;
  EXPECT_EQ(Text(index_.Find(domain_, tokens, 9)), "0@0 of 2");
  EXPECT_EQ(Text(index_.FindCovering(domain_, tokens, 9)), "1@2 of 2");
  index_.Insert(domain_, tokens, P(2));
  EXPECT_EQ(Text(index_.Find(domain_, tokens, 9)), "2@3 of 3");
  EXPECT_EQ(Find("abc"), "1@3 of 3");
  EXPECT_EQ(index_.tokens(), 4);
}

TEST_F(PrefixIndexTest, DomainsShareNothing) {
  const PrefixDomain other_flow = {8, "key"};
  const PrefixDomain other_key = {7, ""};
  Insert("abc", 1);
  for (const PrefixDomain& other : {other_flow, other_key}) {
    EXPECT_EQ(Text(index_.Find(other, T("abc"), 9)), "0@0 of 0");
    EXPECT_EQ(Text(index_.FindCovering(other, T("abc"), 9)), "0@0 of 0");
    EXPECT_EQ(index_.SnapshotsIn(other), 0);
  }
  index_.Insert(other_flow, T("abd"), P(2));
  index_.Insert(other_flow, T("x"), P(3));
  index_.Note(other_key, T("abcde"));
  Check();
  EXPECT_EQ(Find("abd"), "0@0 of 2");
  EXPECT_EQ(Find("abcde"), "1@3 of 3");
  EXPECT_EQ(Text(index_.Find(other_flow, T("abd"), 9)), "2@3 of 3");
  EXPECT_EQ(Text(index_.Find(other_key, T("abcde"), 9)), "0@0 of 5");
  EXPECT_EQ(index_.SnapshotsIn(domain_), 1);
  EXPECT_EQ(index_.SnapshotsIn(other_flow), 2);
  EXPECT_EQ(index_.SnapshotsIn(other_key), 0);
  EXPECT_EQ(index_.size(), 3);
  // Each stores its own tokens.
  EXPECT_EQ(index_.tokens(), 3 + 4 + 5);
  // A tombstone is not seen either.
  EXPECT_EQ(Evict(), 3);
  EXPECT_EQ(Evict(), 1);
  EXPECT_EQ(Find("abc"), "0@0 of 3!");
  EXPECT_EQ(Text(index_.Find(other_flow, T("abc"), 9)), "0@0 of 2");
  EXPECT_EQ(Text(index_.Find(other_key, T("abc"), 9)), "0@0 of 3");
}

TEST_F(PrefixIndexTest, EdgesAreSplitAndMerged) {
  const uint64_t longer = Insert("abcdef", 1);
  const uint64_t prefix = Insert("abc", 2);  // a prefix of the edge
  EXPECT_EQ(Find("abcde"), "2@3 of 5");
  EXPECT_EQ(Find("abcdefg"), "1@6 of 6");
  const uint64_t branch = Insert("abxy", 3);  // splits the first edge again
  EXPECT_EQ(Find("abxyz"), "3@4 of 4");
  EXPECT_EQ(Find("abcdef"), "1@6 of 6");
  EXPECT_EQ(index_.tokens(), 8);
  // CheckInvariants refuses a place that is neither used nor a fork.
  EXPECT_TRUE(index_.Erase(prefix));
  Check();
  EXPECT_EQ(Find("abcde"), "0@0 of 5");
  EXPECT_TRUE(index_.Erase(branch));
  Check();
  EXPECT_EQ(index_.tokens(), 6);
  EXPECT_EQ(Find("abxy"), "0@0 of 2");
  EXPECT_EQ(Find("abcdef"), "1@6 of 6");
  EXPECT_TRUE(index_.Erase(longer));
  Check();
  EXPECT_EQ(index_.tokens(), 0);
  EXPECT_EQ(index_.noted_tokens(), 0);
  EXPECT_EQ(Find("abcdef"), "0@0 of 0");
}

TEST_F(PrefixIndexTest, ASnapshotReplacesOneAtTheSamePlace) {
  const uint64_t first = Insert("abc", 1);
  EXPECT_TRUE(index_.Pin(first, true));
  const uint64_t second = Insert("abc", 2);
  EXPECT_GT(second, first);
  EXPECT_EQ(index_.size(), 1);
  EXPECT_EQ(index_.SnapshotsIn(domain_), 1);
  EXPECT_EQ(Find("abc"), "2@3 of 3");
  EXPECT_FALSE(index_.Erase(first));
  EXPECT_FALSE(index_.Pin(first, true));
  EXPECT_EQ(Evict(), 2);  // not pinned
  EXPECT_GT(Insert("abc", 3), second);
}

TEST_F(PrefixIndexTest, TheLeastRecentlyUsedIsEvicted) {
  Insert("a", 1);
  Insert("b", 2);
  Insert("ac", 3);
  Insert("bd", 4);
  EXPECT_EQ(Find("ax"), "1@1 of 1");
  EXPECT_EQ(Covering("b"), "2@1 of 1");
  EXPECT_EQ(Find("xx"), "0@0 of 0");  // no use
  EXPECT_EQ(Evict(), 3);
  EXPECT_EQ(Evict(), 4);
  EXPECT_EQ(Evict(), 1);
  EXPECT_EQ(Evict(), 2);
  EXPECT_EQ(Evict(), 0);
  EXPECT_EQ(index_.size(), 0);
}

TEST_F(PrefixIndexTest, PinnedSnapshotsAreNotEvicted) {
  const uint64_t first = Insert("a", 1);
  Insert("b", 2);
  const uint64_t third = Insert("c", 3);
  EXPECT_TRUE(index_.Pin(first, true));
  EXPECT_TRUE(index_.Pin(first, true));
  EXPECT_TRUE(index_.Pin(third, true));
  Check();
  EXPECT_EQ(Evict(), 2);
  EXPECT_EQ(Evict(), 0);
  // Unpinned, each has the age of its last use: also one while it was pinned.
  EXPECT_EQ(Find("a"), "1@1 of 1");
  EXPECT_TRUE(index_.Pin(first, false));
  EXPECT_TRUE(index_.Pin(first, false));
  EXPECT_TRUE(index_.Pin(third, false));
  Check();
  EXPECT_EQ(Evict(), 3);
  EXPECT_TRUE(index_.Pin(first, true));
  EXPECT_TRUE(index_.Erase(first));  // pinned or not
  EXPECT_FALSE(index_.Erase(first));
  EXPECT_EQ(index_.size(), 0);
}

TEST_F(PrefixIndexTest, TombstonesTellWhatWasEvicted) {
  Insert("abcd", 1);
  Insert("ab", 2);
  EXPECT_EQ(Find("abcde"), "1@4 of 4");
  EXPECT_EQ(Evict(), 2);
  EXPECT_EQ(Find("abcde"), "1@4 of 4");  // a longer one than the evicted
  EXPECT_EQ(Find("abc"), "0@0 of 3!");
  EXPECT_EQ(Find("abc", 2), "0@0 of 3!");
  EXPECT_EQ(Find("abc", 1), "0@0 of 3");  // would not have been used
  EXPECT_EQ(Find("a"), "0@0 of 1");
  EXPECT_EQ(Evict(), 1);
  EXPECT_EQ(Find("abcde"), "0@0 of 4!");
  EXPECT_EQ(index_.noted_tokens(), 4 + 2 * kPlace);
  Insert("ab", 3);
  EXPECT_EQ(Find("abcde"), "3@2 of 4!");
  EXPECT_EQ(Find("abcde", 3), "3@2 of 4");
  EXPECT_EQ(Find("abc"), "3@2 of 3");
  // A note does not hide a tombstone, a snapshot does.
  Note("abcd");
  EXPECT_EQ(Find("abcde"), "3@2 of 4!");
  Insert("abcd", 4);
  EXPECT_EQ(Find("abcde"), "4@4 of 4");
  EXPECT_EQ(index_.noted_tokens(), 0);
}

TEST_F(PrefixIndexTest, ErasedSnapshotsLeaveNoTombstone) {
  const uint64_t id = Insert("abc", 1);
  Insert("a", 2);
  EXPECT_TRUE(index_.Erase(id));
  Check();
  EXPECT_EQ(Find("abc"), "2@1 of 1");
  EXPECT_EQ(index_.noted_tokens(), 0);
}

TEST_F(PrefixIndexTest, CoveringFindsSnapshotsThatShareAPart) {
  Insert("abcdef", 1);
  EXPECT_EQ(Covering("abcxyz"), "1@3 of 3");
  EXPECT_EQ(Covering("abcdef"), "1@6 of 6");
  EXPECT_EQ(Covering("abcdefgh"), "1@6 of 6");
  EXPECT_EQ(Covering("abcdefgh", 5), "1@5 of 6");
  EXPECT_EQ(Covering("abcdefgh", 0), "0@0 of 6");
  EXPECT_EQ(Covering("abcdefgh", -1), "0@0 of 6");
  EXPECT_EQ(Covering("xabcdef"), "0@0 of 0");
  Insert("abcxx", 2);
  EXPECT_EQ(Covering("abcxyz"), "2@4 of 4");
  EXPECT_EQ(Covering("abcd"), "1@4 of 4");
  // Below the fork both share as much, and the same one is always found.
  const std::string found = Covering("abcyyy");
  EXPECT_THAT(found, testing::AnyOf("1@3 of 3", "2@3 of 3"));
  EXPECT_EQ(Covering("abcdef"), "1@6 of 6");
  EXPECT_EQ(Covering("abcyyy"), found);
  EXPECT_EQ(Covering("abcxyz"), "2@4 of 4");
  EXPECT_EQ(Covering("abcyyy"), found);
}

TEST_F(PrefixIndexTest, CoveringLeavesPathsWithoutSnapshots) {
  Insert("abcx", 1);
  Note("abcdef");
  Note("aby");
  EXPECT_EQ(Covering("abcdeg"), "1@3 of 5");
  EXPECT_EQ(Covering("abyz"), "1@2 of 3");
  Insert("q", 2);
  EXPECT_EQ(Evict(), 1);
  EXPECT_EQ(Covering("abcxyz"), "0@0 of 4!");
  EXPECT_EQ(Covering("abcq"), "0@0 of 3!");  // its first three would have done
  EXPECT_EQ(Covering("abcdef"), "0@0 of 6!");
  EXPECT_EQ(Covering("ab", 0), "0@0 of 2");
  Insert("abcd", 3);
  EXPECT_EQ(Covering("abcxyz"), "3@3 of 4!");
  EXPECT_EQ(Covering("abcxyz", 3), "3@3 of 4");
  EXPECT_EQ(Covering("abcdef"), "3@4 of 6");
}

TEST_F(PrefixIndexTest, NotesTellWherePromptsPart) {
  Note("abcdef");
  EXPECT_EQ(Find("abcxyz"), "0@0 of 3");
  EXPECT_EQ(index_.size(), 0);
  EXPECT_EQ(index_.tokens(), 6);
  EXPECT_EQ(index_.noted_tokens(), 6 + kPlace);
  Note("abcxyz");
  EXPECT_EQ(Find("abcxy"), "0@0 of 5");
  EXPECT_EQ(index_.tokens(), 9);
  EXPECT_EQ(index_.noted_tokens(), 9 + 2 * kPlace);
  // What leads to a snapshot is not counted.
  const uint64_t id = Insert("abc", 1);
  EXPECT_EQ(index_.noted_tokens(), 6 + 2 * kPlace);
  EXPECT_EQ(Find("abcxyz"), "1@3 of 6");
  EXPECT_TRUE(index_.Erase(id));
  Check();
  EXPECT_EQ(Find("abcxyz"), "0@0 of 6");
  EXPECT_EQ(index_.noted_tokens(), 9 + 2 * kPlace);
  // A snapshot takes the place of a note, and a note not that of a snapshot.
  Insert("abcdef", 2);
  Note("abcdef");
  EXPECT_EQ(Find("abcdef"), "2@6 of 6");
  EXPECT_EQ(index_.noted_tokens(), 3 + kPlace);
}

TEST_F(PrefixIndexTest, ClearRemovesEverything) {
  const uint64_t id = Insert("abc", 1);
  Insert("abd", 2);
  EXPECT_EQ(Evict(), 1);
  Note("xyz");
  index_.Clear();
  Check();
  EXPECT_EQ(index_.size(), 0);
  EXPECT_EQ(index_.tokens(), 0);
  EXPECT_EQ(index_.noted_tokens(), 0);
  EXPECT_EQ(Find("abc"), "0@0 of 0");
  EXPECT_EQ(Evict(), 0);
  EXPECT_GT(Insert("abc", 3), id);
  EXPECT_EQ(Find("abc"), "3@3 of 3");
}

TEST_F(PrefixIndexTest, PayloadsAreHeldAsLongAsTheirSnapshots) {
  auto payload = std::make_shared<const int>(1);
  const std::weak_ptr<const int> alive = payload;
  const uint64_t erased = index_.Insert(domain_, T("ab"), std::move(payload));
  EXPECT_FALSE(alive.expired());
  EXPECT_TRUE(index_.Erase(erased));
  EXPECT_TRUE(alive.expired());

  payload = std::make_shared<const int>(2);
  const std::weak_ptr<const int> evicted = payload;
  index_.Insert(domain_, T("ab"), std::move(payload));
  std::optional<PrefixIndex::Payload> out = index_.EvictOldest();
  EXPECT_FALSE(evicted.expired());
  out.reset();
  EXPECT_TRUE(evicted.expired());
}

TEST_F(PrefixIndexTest, PathsMayHaveANodeForEachToken) {
  const Tokens tokens(2000, PrefixToken{1, TokenKind::kPrompt});
  const absl::Span<const PrefixToken> all = tokens;
  for (size_t i = 1; i <= tokens.size(); ++i) {
    index_.Insert(domain_, all.first(i), P(static_cast<int>(i)));
  }
  Check();
  EXPECT_EQ(index_.tokens(), 2000);
  EXPECT_EQ(Text(index_.Find(domain_, tokens, 1500)), "1500@1500 of 2000");
  for (int i = 1; i <= 1000; ++i) index_.EvictOldest();
  Check();
  EXPECT_EQ(Text(index_.Find(domain_, tokens, 1000)), "0@0 of 2000!");
}

TEST(PrefixIndexNotesTest, TheOldestAreForgottenAboveTheLimit) {
  const PrefixDomain a = {1, ""};
  const PrefixDomain b = {2, ""};
  PrefixIndex index(2 * kPlace + 8);
  const auto common = [&](const PrefixDomain& domain, const std::string& t) {
    EXPECT_EQ(index.CheckInvariants(), absl::OkStatus());
    return index.Find(domain, T(t), 9).common;
  };
  index.Note(a, T("abcd"));
  index.Note(b, T("wxyz"));
  EXPECT_EQ(index.noted_tokens(), 2 * kPlace + 8);
  EXPECT_EQ(common(a, "abcd"), 4);
  index.Note(a, T("abcd"));  // the newest again
  index.Note(a, T("ab"));
  EXPECT_EQ(common(b, "wxyz"), 0);
  EXPECT_EQ(common(a, "abcd"), 4);
  EXPECT_EQ(index.tokens(), 4);
  // Below the other note: forgetting the older leaves the path that both share.
  index.Note(b, T("w"));
  EXPECT_EQ(common(a, "abcd"), 2);
  EXPECT_EQ(common(b, "w"), 1);
}

TEST(PrefixIndexNotesTest, WhatExceedsTheLimitAloneIsNotNoted) {
  const PrefixDomain domain = {1, ""};
  PrefixIndex index(kPlace + 4);
  index.Note(domain, T("abcd"));
  index.Note(domain, T("vwxyz"));
  EXPECT_EQ(index.Find(domain, T("vwxyz"), 9).common, 0);
  EXPECT_EQ(index.Find(domain, T("abcd"), 9).common, 4);
  // Nor does an evicted snapshot leave a tombstone then.
  index.Insert(domain, T("abcde"), P(1));
  EXPECT_EQ(index.noted_tokens(), kPlace);
  index.EvictOldest();
  EXPECT_EQ(Text(index.Find(domain, T("abcde"), 9)), "0@0 of 4");
  EXPECT_EQ(index.CheckInvariants(), absl::OkStatus());

  PrefixIndex none(0);
  none.Note(domain, T("a"));
  none.Insert(domain, T("b"), P(1));
  none.EvictOldest();
  EXPECT_EQ(none.tokens(), 0);
  EXPECT_EQ(none.CheckInvariants(), absl::OkStatus());
}

TEST(PrefixIndexNotesTest, TombstonesAreForgottenAsNotesAre) {
  const PrefixDomain domain = {1, ""};
  PrefixIndex index(2 * kPlace + 6);
  index.Insert(domain, T("abc"), P(1));
  index.Insert(domain, T("xyz"), P(2));
  index.EvictOldest();
  index.Note(domain, T("xyzw"));
  index.EvictOldest();  // of three places the oldest is forgotten
  EXPECT_EQ(Text(index.Find(domain, T("abc"), 9)), "0@0 of 0");
  EXPECT_EQ(Text(index.Find(domain, T("xyzw"), 9)), "0@0 of 4!");
  EXPECT_EQ(index.noted_tokens(), 2 * kPlace + 4);
  EXPECT_EQ(index.CheckInvariants(), absl::OkStatus());
}

TEST(PrefixIndexNotesTest, ErasingASnapshotCountsTheNotesOnItsPath) {
  const PrefixDomain domain = {1, ""};
  PrefixIndex index(2 * kPlace + 4);
  const uint64_t id = index.Insert(domain, T("abcdefgh"), P(1));
  index.Note(domain, T("ab"));
  index.Note(domain, T("abcd"));
  EXPECT_EQ(index.noted_tokens(), 2 * kPlace);
  EXPECT_TRUE(index.Erase(id));
  EXPECT_EQ(index.noted_tokens(), 2 * kPlace + 4);
  const uint64_t longer = index.Insert(domain, T("xyz"), P(1));
  index.Note(domain, T("xy"));  // "ab" is forgotten
  EXPECT_EQ(index.noted_tokens(), 2 * kPlace + 4);
  EXPECT_EQ(index.Find(domain, T("abcd"), 9).common, 4);
  EXPECT_TRUE(index.Erase(longer));  // 2 tokens too many
  EXPECT_EQ(index.Find(domain, T("abcd"), 9).common, 0);
  EXPECT_EQ(index.Find(domain, T("xyz"), 9).common, 2);
  EXPECT_EQ(index.CheckInvariants(), absl::OkStatus());
}

}  // namespace
}  // namespace recurve
