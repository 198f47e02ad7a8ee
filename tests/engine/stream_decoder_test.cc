#include "engine/tokenizer/stream_decoder.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::ElementsAre;

constexpr char kFffd[] = "\xef\xbf\xbd";

// Token i is pieces[i].
class PieceTokenizer : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces)
      : Tokenizer(static_cast<int32_t>(pieces.size()), std::nullopt),
        pieces_(std::move(pieces)) {}

  absl::string_view name() const override { return "pieces"; }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view, bool,
                                              int64_t) const override {
    return absl::UnimplementedError("test");
  }
  absl::string_view TokenBytes(int32_t id) const override {
    return pieces_[id];
  }

 private:
  const std::vector<std::string> pieces_;
};

struct Decoded {
  std::vector<std::string> pieces;  // one for each token, then Flush
  std::string text;
  std::string stop;  // empty when none matched
};

Decoded Decode(const std::vector<std::string>& tokens,
               const std::vector<std::string>& stops) {
  const PieceTokenizer tokenizer(tokens);
  StreamDecoder decoder(&tokenizer, stops);
  Decoded decoded;
  for (size_t i = 0; i < tokens.size(); ++i) {
    decoded.pieces.push_back(decoder.Append(static_cast<int32_t>(i)));
  }
  decoded.pieces.push_back(decoder.Flush());
  for (const std::string& piece : decoded.pieces) decoded.text += piece;
  if (decoder.stopped()) decoded.stop = decoder.matched_stop_string();
  return decoded;
}

// The reference, by arithmetic on code points: is this one whole character?
bool IsCharacter(absl::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (bytes.size() == 1) return at(0) < 0x80;
  if (bytes.empty() || bytes.size() > 4) return false;
  const uint32_t lead_mask[] = {0, 0, 0x1f, 0x0f, 0x07};
  const uint32_t lead_bits[] = {0, 0, 0xc0, 0xe0, 0xf0};
  const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const size_t n = bytes.size();
  if ((at(0) & ~lead_mask[n] & 0xff) != lead_bits[n]) return false;
  uint32_t code = at(0) & lead_mask[n];
  for (size_t i = 1; i < n; ++i) {
    if ((at(i) & 0xc0) != 0x80) return false;
    code = (code << 6) | (at(i) & 0x3f);
  }
  return code >= smallest[n] && code <= 0x10ffff &&
         (code < 0xd800 || code > 0xdfff);
}

// Whether some bytes behind these make a character. One of the extremes does.
bool BeginsCharacter(const std::string& bytes) {
  if (IsCharacter(bytes)) return true;
  if (bytes.size() == 4) return false;
  for (const char* next : {"\x80", "\x8f", "\x90", "\x9f", "\xa0", "\xbf"}) {
    if (BeginsCharacter(bytes + next)) return true;
  }
  return false;
}

// U+FFFD for each maximal subpart.
std::string ReferenceDecode(const std::string& bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size();) {
    size_t length = 1;
    while (i + length < bytes.size() && !IsCharacter(bytes.substr(i, length)) &&
           BeginsCharacter(bytes.substr(i, length + 1))) {
      ++length;
    }
    const std::string part = bytes.substr(i, length);
    text += IsCharacter(part) ? part : kFffd;
    i += length;
  }
  return text;
}

bool IsWholeCharacters(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    size_t length = 1;
    while (length <= 4 && !IsCharacter(text.substr(i, length))) ++length;
    if (length > 4) return false;
    i += length;
  }
  return true;
}

// Cuts at the stop string that is complete first, the longest of those.
std::pair<std::string, std::string> ReferenceStop(
    const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string match;
    for (const std::string& stop : stops) {
      if (stop.size() > match.size() &&
          absl::EndsWith(text.substr(0, end), stop)) {
        match = stop;
      }
    }
    if (!match.empty()) return {text.substr(0, end - match.size()), match};
  }
  return {text, ""};
}

std::vector<std::string> SplitAnyhow(const std::string& bytes,
                                     std::mt19937* random) {
  const size_t longest = 1 + (*random)() % 6;
  std::vector<std::string> tokens;
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = (*random)() % (longest + 1);  // 0: a special token
    tokens.push_back(bytes.substr(i, length));
    i += tokens.back().size();
  }
  return tokens;
}

// Valid text, broken text and noise.
std::string RandomBytes(std::mt19937* random) {
  static const char* const kParts[] = {
      "a",        "b",        "\n",       "é",
      "中",       "文",       "😀",        "👩‍👩‍👧",
      "e\u0301",  "ｶﾞ",       "\u0800",   "\uFFFD",
      "\x80",     "\xc0\xaf", "\xe0\x80", "\xed\xa0",
      "\xf0\x9f", "\xf4\x90", "\xff",     "\xf0\x9f\x98",
      "\xe1\x80", "\xf5"};
  std::string bytes;
  const int parts = static_cast<int>((*random)() % 12);
  for (int i = 0; i < parts; ++i) {
    if ((*random)() % 4 == 0) {
      bytes.push_back(static_cast<char>((*random)()));
    } else {
      bytes += kParts[(*random)() % std::size(kParts)];
    }
  }
  return bytes;
}

TEST(StreamDecoderTest, HoldsBackUnfinishedCharacters) {
  EXPECT_THAT(Decode({"a\xf0", "\x9f", "\x98",
                      "\x80"
                      "b"},
                     {})
                  .pieces,
              ElementsAre("a", "", "", "😀b", ""));
  EXPECT_THAT(Decode({"a", "\xe4\xb8"}, {}).pieces,
              ElementsAre("a", "", kFffd));
  EXPECT_THAT(Decode({"\xe4\xb8", "", "\xad"}, {}).pieces,
              ElementsAre("", "", "中", ""));
  // The character was never finished: that shows at the next byte.
  EXPECT_THAT(Decode({"\xe4\xb8", "x"}, {}).pieces,
              ElementsAre("", std::string(kFffd) + "x", ""));
}

// Expected values: bytes.decode("utf-8", "replace") of Python 3.11.
TEST(StreamDecoderTest, ReplacesAsPythonDoes) {
  const auto marks = [](const std::string& bytes) {
    std::string text = Decode({bytes}, {}).text;
    for (size_t at; (at = text.find(kFffd)) != std::string::npos;) {
      text.replace(at, 3, "?");
    }
    return text;
  };
  EXPECT_EQ(marks("a\xf1\x80\x80\xe1\x80\xc2"
                  "b\x80"
                  "c\x80\xbf"
                  "d"),
            "a???b?c??d");
  EXPECT_EQ(marks("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82"
                  "A"),
            "????????A");
  EXPECT_EQ(marks("\xed\xa0\x80\xed\xbf\xbf\xed\xaf"
                  "A"),
            "????????A");
  EXPECT_EQ(marks("\xf4\x91\x92\x93\xff"
                  "A\x80\xbf"
                  "B"),
            "?????A??B");
  EXPECT_EQ(marks("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf"
                  "A"),
            "????A");
  EXPECT_EQ(marks("\xf4\x8f\xbf\xbf"), "\xf4\x8f\xbf\xbf");  // U+10FFFF
  EXPECT_EQ(marks("\xed\x9f\xbf\xee\x80\x80"), "\xed\x9f\xbf\xee\x80\x80");
  EXPECT_EQ(marks(std::string("\0", 1)), std::string("\0", 1));
}

TEST(StreamDecoderTest, CutsBeforeAStopString) {
  const Decoded within = Decode({"one END two"}, {"END"});
  EXPECT_EQ(within.text, "one ");
  EXPECT_EQ(within.stop, "END");
  EXPECT_THAT(Decode({"x", "E", "N", "D", "y"}, {"END"}).pieces,
              ElementsAre("x", "", "", "", "", ""));
  EXPECT_THAT(Decode({"x", "E", "N", "E"}, {"END"}).pieces,
              ElementsAre("x", "", "", "EN", "E"));
  // The held suffix shrinks to the longest one that still may match.
  EXPECT_THAT(Decode({"a", "a", "b", "a", "a", "a"}, {"aabaac"}).pieces,
              ElementsAre("", "", "", "", "", "aaba", "aa"));
  EXPECT_EQ(Decode({"aabaabaac"}, {"aabaac"}).text, "aab");
  EXPECT_EQ(Decode({"a\xe4", "\xb8",
                    "\xad"
                    "b"},
                   {"中"})
                .text,
            "a");
}

TEST(StreamDecoderTest, TheFirstToBeCompleteWins) {
  EXPECT_EQ(Decode({"xabcd"}, {"cd", "bc"}).stop, "bc");
  // Complete first, though "abc" begins before it: nothing waits for what may
  // follow.
  const Decoded inside = Decode({"x", "a", "b", "c"}, {"abc", "b"});
  EXPECT_THAT(inside.pieces, ElementsAre("x", "", "a", "", ""));
  EXPECT_EQ(inside.stop, "b");
  // Whether they come with one token or several.
  EXPECT_EQ(Decode({"xabc"}, {"abc", "b"}).text, "xa");
  // The longer of two that end together.
  const Decoded together = Decode({"x", "a", "b", "c"}, {"c", "abc", "bc"});
  EXPECT_EQ(together.text, "x");
  EXPECT_EQ(together.stop, "abc");
  // The shorter of two that begin together.
  const PieceTokenizer tokenizer({"\n"});
  StreamDecoder decoder(&tokenizer, {"\n\nUser:", "\n"});
  EXPECT_EQ(decoder.Append(0), "");
  EXPECT_TRUE(decoder.stopped());
  EXPECT_EQ(decoder.matched_stop_string(), "\n");
}

TEST(StreamDecoderTest, IncludesAStopStringIfWanted) {
  const PieceTokenizer tokenizer({"one E", "ND two"});
  StreamDecoder decoder(&tokenizer,
                        StreamDecoder::Options({"END"}, true, false));
  EXPECT_EQ(decoder.Append(0), "one ");
  EXPECT_EQ(decoder.Append(1), "END");
  EXPECT_TRUE(decoder.stopped());
  EXPECT_EQ(decoder.Flush(), "");
}

// A stop string that ends with an early token is text; one that only begins
// there counts.
TEST(StreamDecoderTest, EarlyTokensEndNothing) {
  const auto decode = [](const std::vector<std::string>& tokens, size_t early) {
    const PieceTokenizer tokenizer(tokens);
    StreamDecoder decoder(&tokenizer, {"END", "ENDING!"});
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      text += decoder.Append(static_cast<int32_t>(i), i >= early);
    }
    return text + decoder.Flush() + (decoder.stopped() ? "|" : "");
  };
  EXPECT_EQ(decode({"aEND", "b", "cEND", "d"}, 0), "a|");
  EXPECT_EQ(decode({"aEND", "b", "cEND", "d"}, 1), "aENDbc|");
  EXPECT_EQ(decode({"aEND", "b", "cEND", "d"}, 3), "aENDbcENDd");
  EXPECT_EQ(decode({"aE", "N", "D", "d"}, 2), "a|");
  EXPECT_EQ(decode({"aE", "N", "D", "d"}, 3), "aENDd");
  // Through one that is text, to a longer one that counts.
  EXPECT_EQ(decode({"aEND", "ING", "!", "d"}, 2), "a|");
  EXPECT_EQ(decode({"aEND", "ING", "d"}, 1), "aENDINGd");
  EXPECT_EQ(decode({"aEND"}, 1), "aEND");
  EXPECT_EQ(decode({"aENDEND"}, 0), "a|");
  EXPECT_EQ(decode({"aEND", "END"}, 1), "aEND|");
}

class SpecialTokenizer : public PieceTokenizer {
 public:
  using PieceTokenizer::PieceTokenizer;
  absl::string_view SpecialText(int32_t id) const override {
    return TokenBytes(id).empty() ? "</s>" : "";
  }
};

TEST(StreamDecoderTest, SpellsSpecialTokensIfWanted) {
  const SpecialTokenizer tokenizer({"a", "", "\xe4\xb8", "", "\xad"});
  for (const bool wanted : {false, true}) {
    StreamDecoder decoder(&tokenizer,
                          StreamDecoder::Options({}, false, wanted));
    std::string text;
    for (int32_t id = 0; id < 5; ++id) text += decoder.Append(id);
    text += decoder.Flush();
    EXPECT_EQ(text, wanted ? absl::StrCat("a</s>", kFffd, "</s>", kFffd)
                           : "a\xe4\xb8\xad");
  }
}

TEST(StreamDecoderTest, AReplacementCharacterCanStop) {
  const Decoded decoded = Decode({"a", "\xff", "b"}, {kFffd});
  EXPECT_EQ(decoded.text, "a");
  EXPECT_EQ(decoded.stop, kFffd);
  EXPECT_EQ(Decode({"a", "\xe4"}, {kFffd}).text, "a");
}

TEST(StreamDecoderTest, StopStringsThatAreNoTextNeverMatch) {
  // The second would cut é in half.
  EXPECT_EQ(Decode({"aéb"}, {"", "\xa9", "\xc3"}).text, "aéb");
}

TEST(StreamDecoderTest, IgnoresTokensOnceStopped) {
  const PieceTokenizer tokenizer({"aSTOPb", "c"});
  StreamDecoder decoder(&tokenizer, {"STOP"});
  EXPECT_EQ(decoder.Append(0), "a");
  EXPECT_TRUE(decoder.stopped());
  EXPECT_EQ(decoder.Append(1), "");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST(StreamDecoderTest, CopiesGoTheirOwnWays) {
  const PieceTokenizer tokenizer({"E", "\xe4\xb8", "\xad", "ND"});
  StreamDecoder first(&tokenizer, {"END"});
  EXPECT_EQ(first.Append(0), "");
  StreamDecoder second = first;
  EXPECT_EQ(first.Append(3), "");
  EXPECT_TRUE(first.stopped());
  EXPECT_FALSE(second.stopped());
  EXPECT_EQ(second.Append(1), "");
  StreamDecoder third = second;
  EXPECT_EQ(second.Append(2), "E中");
  EXPECT_EQ(third.Flush(), std::string("E") + kFffd);
}

TEST(StreamDecoderTest, AnySplitGivesTheWholeDecoding) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const std::string bytes = RandomBytes(&random);
    const Decoded decoded = Decode(SplitAnyhow(bytes, &random), {});
    ASSERT_EQ(decoded.text, ReferenceDecode(bytes)) << i;
    for (const std::string& piece : decoded.pieces) {
      ASSERT_TRUE(IsWholeCharacters(piece)) << i;
    }
  }
}

TEST(StreamDecoderTest, EveryPairOfBytesDecodes) {
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      const std::string first(1, static_cast<char>(a));
      const std::string second(1, static_cast<char>(b));
      // A continuation byte behind them shows what state they left.
      ASSERT_EQ(Decode({first, second, "\x90"}, {}).text,
                ReferenceDecode(first + second + "\x90"))
          << a << " " << b;
    }
  }
}

TEST(StreamDecoderTest, StopsWhereTheReferenceStops) {
  std::mt19937 random(2);
  int stopped = 0;
  for (int i = 0; i < 20000; ++i) {
    // A small alphabet, so that stop strings overlap and nearly match.
    std::string bytes;
    const bool broken = random() % 4 == 0;
    const int length = static_cast<int>(random() % 20);
    for (int c = 0; c < length; ++c) {
      static const char* const kCharacters[] = {"a", "b", "é", "\xc3", "😀"};
      bytes += kCharacters[random() % (broken ? 5 : 3)];
    }
    const std::string text = ReferenceDecode(bytes);
    std::vector<std::string> stops;
    const int num_stops = static_cast<int>(random() % 4);
    for (int s = 0; s < num_stops; ++s) {
      std::string stop;
      const int characters = 1 + static_cast<int>(random() % 5);
      for (int c = 0; c < characters; ++c) {
        static const char* const kCharacters[] = {"a", "b", "é", kFffd};
        stop += kCharacters[random() % 4];
      }
      stops.push_back(stop);
    }
    const Decoded decoded = Decode(SplitAnyhow(bytes, &random), stops);
    const auto [expected, match] = ReferenceStop(text, stops);
    ASSERT_EQ(decoded.text, expected) << i;
    ASSERT_EQ(decoded.stop, match) << i;
    for (const std::string& piece : decoded.pieces) {
      ASSERT_TRUE(IsWholeCharacters(piece)) << i;
    }
    stopped += !decoded.stop.empty();
  }
  // Both outcomes are common.
  EXPECT_GT(stopped, 4000);
  EXPECT_LT(stopped, 16000);
}

TEST(StreamDecoderTest, HoldsBackLessThanTheLongestStopString) {
  const PieceTokenizer tokenizer({"a", "b"});
  StreamDecoder decoder(&tokenizer, {"aaaaaaab"});
  size_t emitted = 0;
  for (size_t i = 1; i <= 1000; ++i) {
    emitted += decoder.Append(0).size();
    ASSERT_LE(i - emitted, 7u);
  }
  EXPECT_EQ(emitted, 993u);
  EXPECT_EQ(decoder.Append(1), "");
  EXPECT_TRUE(decoder.stopped());
}

}  // namespace
}  // namespace recurve
