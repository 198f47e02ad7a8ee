// The parts of a tokenizer, each on its own.

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/nfc.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/split_pattern.h"
#include "engine/tokenizer/token_decoder.h"
#include "engine/tokenizer/unicode_class.h"
#include "engine/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::ElementsAre;

std::vector<std::string> Split(absl::string_view pattern,
                               const std::string& text) {
  const auto split = SplitPattern::Make(pattern);
  EXPECT_TRUE(split.ok()) << split.status();
  std::vector<absl::string_view> pieces;
  EXPECT_TRUE(split->Split(text, &pieces).ok());
  return {pieces.begin(), pieces.end()};
}

TEST(Utf8Test, EveryCodePointAndNothingElseDecodes) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text;
    AppendCharacter(code, &text);
    ASSERT_TRUE(IsValidUtf8(text));
    char32_t decoded = 0;
    ASSERT_EQ(DecodeCharacter(text + "x", &decoded), text.size());
    ASSERT_EQ(decoded, code);
    ASSERT_EQ(DecodeCharacter(text.substr(0, text.size() - 1), &decoded), 0u);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    std::string bytes(4, '\0');
    for (char& byte : bytes) byte = static_cast<char>(0x80 | random());
    char32_t code = 0;
    const size_t size = DecodeCharacter(bytes, &code);
    ASSERT_TRUE(IsValidUtf8(bytes.substr(0, size)));
    // A character that is there is found.
    for (size_t n = 2; n <= 4; ++n) {
      ASSERT_TRUE(size > 0 || !IsValidUtf8(bytes.substr(0, n)));
    }
  }
}

TEST(UnicodeClassTest, KnownCharacters) {
  EXPECT_EQ(ClassOf(U'a'), UnicodeClass::kLetter);
  EXPECT_EQ(ClassOf(U'中'), UnicodeClass::kLetter);
  EXPECT_EQ(ClassOf(U'ª'), UnicodeClass::kLetter);
  EXPECT_EQ(ClassOf(0x10d4a), UnicodeClass::kLetter);  // of Unicode 16
  EXPECT_EQ(ClassOf(0x301), UnicodeClass::kMark);
  EXPECT_EQ(ClassOf(U'7'), UnicodeClass::kDecimal);
  EXPECT_EQ(ClassOf(0x663), UnicodeClass::kDecimal);
  EXPECT_EQ(ClassOf(U'Ⅷ'), UnicodeClass::kLetterNumber);
  EXPECT_EQ(ClassOf(U'½'), UnicodeClass::kOtherNumber);
  EXPECT_EQ(ClassOf(U'_'), UnicodeClass::kWord);
  EXPECT_EQ(ClassOf(0x200d), UnicodeClass::kWord);
  for (char32_t space : {0x9, 0xd, 0x20, 0x85, 0xa0, 0x2003, 0x2028, 0x3000}) {
    EXPECT_EQ(ClassOf(space), UnicodeClass::kSpace);
  }
  // No White_Space, whatever older regex libraries say.
  EXPECT_EQ(ClassOf(0x180e), UnicodeClass::kOther);
  EXPECT_EQ(ClassOf(0x200b), UnicodeClass::kOther);
  EXPECT_EQ(ClassOf(0), UnicodeClass::kOther);
  EXPECT_EQ(ClassOf(0x10ffff), UnicodeClass::kOther);
  // The numbers of Unicode 16.
  int letters = 0;
  int marks = 0;
  int numbers = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    const UnicodeClass c = ClassOf(code);
    letters += c == UnicodeClass::kLetter;
    marks += c == UnicodeClass::kMark;
    numbers += c == UnicodeClass::kDecimal ||
               c == UnicodeClass::kLetterNumber ||
               c == UnicodeClass::kOtherNumber;
  }
  EXPECT_EQ(letters, 141028);
  EXPECT_EQ(marks, 2501);
  EXPECT_EQ(numbers, 1911);
}

TEST(UnicodeClassTest, SpaceAtTheEnds) {
  EXPECT_EQ(LeadingSpace(" \u3000\tx "), 5u);
  EXPECT_EQ(TrailingSpace(" x\u3000 \xa0"), 0u);
  EXPECT_EQ(TrailingSpace(" x\u3000 \u00a0"), 6u);
  EXPECT_EQ(TrailingSpace("\n\n"), 2u);
  EXPECT_EQ(TrailingSpace(""), 0u);
  EXPECT_EQ(ClassOfLast("é"), UnicodeClass::kLetter);
  EXPECT_EQ(ClassOfLast("\xa9"), UnicodeClass::kOther);
}

// Expected values: re.findall of Python's regex module.
TEST(SplitPatternTest, PatternsMatchAsInTheReference) {
  EXPECT_THAT(Split(kGpt2Pattern, "I'll go  to\n\n 日本 42½!?"),
              ElementsAre("I", "'ll", " go", " ", " to", "\n\n", " 日本",
                          " 42½", "!?"));
  EXPECT_THAT(Split(R"((?i:'s|k)|\p{L}+?)", "'S'ſKK\u212a"),
              ElementsAre("'S", "'ſ", "K", "K", "\u212a"));
  EXPECT_THAT(Split(R"(\p{N}{1,3})", "1234567a"),
              ElementsAre("123", "456", "7", "a"));
  EXPECT_THAT(Split(R"([^\r\n\p{L}]?+\p{L}++)", "-ab\nc"),
              ElementsAre("-ab", "\n", "c"));
  EXPECT_THAT(Split(R"(\s+(?!\S)|\s+)", "a   b \u3000"),
              ElementsAre("a", "  ", " ", "b", " \u3000"));
  EXPECT_THAT(Split(R"(\d+|\S)", "1Ⅷ2 x"),
              ElementsAre("1", "Ⅷ", "2", " ", "x"));
  EXPECT_THAT(Split(R"([a-c\-]+(?=d))", "ab-d-c"), ElementsAre("ab-", "d-c"));
  // Gaps are pieces too, and invalid bytes are characters of no class.
  EXPECT_THAT(Split(R"(\p{L}+)", "a\xff\xe4\xb8中"),
              ElementsAre("a", "\xff\xe4\xb8", "中"));
  EXPECT_THAT(Split(R"(\P{L})", "a\xff\xfe"), ElementsAre("a", "\xff", "\xfe"));
  EXPECT_THAT(Split("a", ""), ElementsAre());
}

// The compiled code has a small stack, on which each turn of such a group takes
// some room.
TEST(SplitPatternTest, AGroupMayRepeatAsOftenAsATextIsLong) {
  const std::string word(200'000, 'a');
  EXPECT_THAT(Split(R"((?:\p{L}\p{M}*)+|[\s\S])", word + " b"),
              ElementsAre(word, " ", "b"));
  const std::string lines(200'000, '\n');
  EXPECT_THAT(Split(R"((?:\r?\n)+|[^\r\n])", "a" + lines + "b"),
              ElementsAre("a", lines, "b"));
  // But not without a limit on memory.
  const auto split = SplitPattern::Make(R"((?:\p{L}\p{M}*)+|[\s\S])");
  ASSERT_TRUE(split.ok()) << split.status();
  const std::string long_word(4 << 20, 'a');
  std::vector<absl::string_view> pieces;
  const absl::Status status = split->Split(long_word, &pieces);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("heap limit"));
}

TEST(NfcTest, ComposesAndReorders) {
  EXPECT_EQ(NormalizeNfc(""), "");
  EXPECT_EQ(NormalizeNfc("plain"), "plain");
  EXPECT_EQ(NormalizeNfc("e\u0301"), "é");
  EXPECT_EQ(NormalizeNfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(NormalizeNfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(NormalizeNfc("\u212b\u0958"), "\u00c5\u0915\u093c");
  EXPECT_EQ(NormalizeNfc("\u0344"), "\u0308\u0301");
  EXPECT_EQ(NormalizeNfc("ﬁ"), "ﬁ");  // only canonical equivalents
  EXPECT_EQ(NormalizeNfc("e\xff\u0301"), "e\xff\u0301");
  EXPECT_EQ(NormalizeNfc("\u0301"), "\u0301");
}

// Marks and pairs of later versions than Unicode 9 are left as they are, and
// end what is composed.
TEST(NfcTest, KnowsUnicode9WhateverTheLibraryKnows) {
  EXPECT_EQ(NormalizeNfc("q\u1dfa\u0334"), "q\u1dfa\u0334");
  EXPECT_EQ(NormalizeNfc("e\u1dfa\u0301"), "e\u1dfa\u0301");
  EXPECT_EQ(NormalizeNfc("\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(NormalizeNfc("\U000105d2\u0307"), "\U000105d2\u0307");
  EXPECT_EQ(NormalizeNfc("\u1dfae\u0301"), "\u1dfaé");
}

TEST(ByteLevelTest, TheAlphabet) {
  EXPECT_EQ(BytesOfToken("Ġa"), " a");
  EXPECT_EQ(BytesOfToken("ĀĊ"), std::string("\0\n", 2));
  EXPECT_EQ(BytesOfToken("ä¸Ń"), "中");
  EXPECT_EQ(BytesOfToken("ÿ"), "\xff");
  EXPECT_EQ(BytesOfToken("a b"), std::nullopt);
  EXPECT_EQ(BytesOfToken("中"), std::nullopt);
  EXPECT_EQ(BytesOfToken("\u0144"), std::nullopt);  // behind the last one
  EXPECT_EQ(TextOfToken("a b"), "a b");
}

// The definition: again and again the lowest rank, the leftmost of equals.
std::vector<int32_t> SlowBpe(const Bpe::Merges& merges,
                             std::vector<int32_t> ids) {
  while (true) {
    size_t best = ids.size();
    Bpe::Merge found;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto merge = merges.find(Bpe::PairKey(ids[i], ids[i + 1]));
      if (merge == merges.end()) continue;
      if (best < ids.size() && merge->second.rank >= found.rank) continue;
      best = i;
      found = merge->second;
    }
    if (best == ids.size()) return ids;
    ids[best] = found.id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(BpeTest, JoinsAsTheDefinitionSays) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    std::vector<std::string> tokens = {"a", "b", "c"};
    Bpe::Vocabulary vocabulary = {{"a", 0}, {"b", 1}, {"c", 2}};
    Bpe::Merges merges;
    for (int32_t rank = 0; rank < 12; ++rank) {
      const auto left = static_cast<int32_t>(random() % tokens.size());
      const auto right = static_cast<int32_t>(random() % tokens.size());
      const std::string joined = tokens[left] + tokens[right];
      const auto id = static_cast<int32_t>(tokens.size());
      if (!vocabulary.try_emplace(joined, id).second) continue;
      tokens.push_back(joined);
      merges[Bpe::PairKey(left, right)] = {rank, id};
    }
    std::string word;
    std::vector<int32_t> bytes;
    for (size_t length = random() % 60; length > 0; --length) {
      bytes.push_back(static_cast<int32_t>(random() % 3));
      word += tokens[bytes.back()];
    }
    for (const bool characters : {false, true}) {
      Bpe::Options options;
      options.characters = characters;
      std::vector<int32_t> ids;
      ASSERT_TRUE(Bpe(vocabulary, merges, options).Encode(word, &ids).ok());
      ASSERT_EQ(ids, SlowBpe(merges, bytes)) << i;
    }
  }
}

TEST(BpeTest, KnowsHowManyBytesAnIdMayStandFor) {
  EXPECT_EQ(Bpe({{"a", 0}, {"abc", 1}}, std::nullopt, {}).max_bytes_per_id(),
            3u);
  // A run of bytes that it lacks may be one id, however long.
  Bpe::Options options;
  options.unk_id = 0;
  options.fuse_unk = true;
  EXPECT_GT(
      Bpe({{"a", 0}, {"abc", 1}}, std::nullopt, options).max_bytes_per_id(),
      size_t{1} << 32);
  Bpe::Vocabulary all = {{"abc", 256}};
  for (int32_t byte = 0; byte < 256; ++byte) {
    all[std::string(1, static_cast<char>(byte))] = byte;
  }
  EXPECT_EQ(Bpe(all, std::nullopt, options).max_bytes_per_id(), 3u);
}

TEST(SplitPatternTest, StopsBehindTheMostPieces) {
  const auto split = SplitPattern::Make("[0-9]");
  ASSERT_TRUE(split.ok()) << split.status();
  std::vector<absl::string_view> pieces;
  ASSERT_TRUE(split->Split(std::string(1000, '1'), &pieces, 3).ok());
  EXPECT_EQ(pieces.size(), 4);
  pieces.clear();
  ASSERT_TRUE(split->Split("1ab2", &pieces, 3).ok());
  EXPECT_THAT(pieces, ElementsAre("1", "ab", "2"));
}

PreTokenizer::Step SplitStep(absl::string_view pattern, bool matches_only) {
  return {*SplitPattern::Make(pattern), matches_only, std::nullopt};
}

PreTokenizer::Step MetaspaceStep(PreTokenizer::Metaspace::Prepend prepend,
                                 bool split) {
  return {std::nullopt, false,
          PreTokenizer::Metaspace{"\u2581", prepend, split}};
}

// The words of a text that is the first one or not.
template <typename... Steps>
std::vector<std::string> Words(const std::string& text, bool is_first,
                               Steps... steps) {
  std::vector<PreTokenizer::Step> list;
  (list.push_back(std::move(steps)), ...);
  const PreTokenizer pre_tokenizer(std::move(list));
  std::vector<std::string> words;
  const absl::Status status = pre_tokenizer.ForEachWord(
      text, is_first, text.size() + 1, [&](absl::string_view word) {
        words.emplace_back(word);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return words;
}

TEST(PreTokenizerTest, MetaspacesStandForSpaces) {
  using Prepend = PreTokenizer::Metaspace::Prepend;
  const auto words = [](const std::string& text, bool is_first, Prepend prepend,
                        bool split) {
    return Words(text, is_first, MetaspaceStep(prepend, split));
  };
  EXPECT_THAT(Words("a b", true), ElementsAre("a b"));
  EXPECT_THAT(words("a  b—c ", true, Prepend::kAlways, true),
              ElementsAre("▁a", "▁", "▁b—c", "▁"));
  EXPECT_THAT(words("a  b", true, Prepend::kAlways, false),
              ElementsAre("▁a▁▁b"));
  EXPECT_THAT(words(" a", true, Prepend::kAlways, true), ElementsAre("▁a"));
  EXPECT_THAT(words("▁a", true, Prepend::kAlways, true), ElementsAre("▁a"));
  EXPECT_THAT(words("a b", true, Prepend::kFirst, true),
              ElementsAre("▁a", "▁b"));
  EXPECT_THAT(words("a b", false, Prepend::kFirst, true),
              ElementsAre("a", "▁b"));
  EXPECT_THAT(words("a b", true, Prepend::kNever, true),
              ElementsAre("a", "▁b"));
  EXPECT_THAT(words("", true, Prepend::kAlways, true), ElementsAre());
  // Only the piece with which the text begins is the first one.
  EXPECT_THAT(Words("a1b", true, SplitStep("[0-9]", false),
                    MetaspaceStep(Prepend::kFirst, true)),
              ElementsAre("▁a", "1", "b"));
  EXPECT_THAT(Words("a1b", true, SplitStep("[0-9]", true),
                    MetaspaceStep(Prepend::kFirst, true)),
              ElementsAre("1"));
  EXPECT_THAT(Words("a1b", true, SplitStep("[a-z]", true),
                    MetaspaceStep(Prepend::kFirst, true)),
              ElementsAre("▁a", "b"));
}

TEST(NormalizerTest, StepsFollowEachOther) {
  using Kind = Normalizer::Step::Kind;
  EXPECT_EQ(Normalizer().Normalize("e\u0301 "), "e\u0301 ");
  const Normalizer llama(
      {{Kind::kPrepend, "", "▁"}, {Kind::kReplace, " ", "▁"}});
  EXPECT_EQ(llama.Normalize(""), "");
  EXPECT_EQ(llama.Normalize(" a  b"), "▁▁a▁▁b");
  const Normalizer other({{Kind::kReplace, "--", "+"},
                          {Kind::kNfc, "", ""},
                          {Kind::kPrepend, "", " "}});
  EXPECT_EQ(other.Normalize("---e\u0301"), " +-é");
}

TEST(TokenDecoderTest, TokensBecomeTextOrBytes) {
  TokenDecoder::Options options;
  options.steps = {{"▁", " ", false}};
  options.byte_fallback = true;
  const TokenDecoder llama(options);
  EXPECT_EQ(llama.Decode("▁a▁").text, " a ");
  EXPECT_EQ(llama.Decode("▁a").first, std::nullopt);
  EXPECT_EQ(llama.Decode("<0xE4>").text, "\xe4");
  EXPECT_TRUE(llama.Decode("<0xE4>").is_byte);
  EXPECT_FALSE(llama.Decode("<0xE>").is_byte);
  options.steps[0].drop_at_start = true;
  options.byte_fallback = false;
  const TokenDecoder metaspace(options);
  EXPECT_EQ(metaspace.Decode("▁a▁").text, " a ");
  EXPECT_EQ(metaspace.Decode("▁a▁").first, "a");
  EXPECT_EQ(metaspace.Decode("<0xE4>").text, "<0xE4>");
  EXPECT_EQ(ByteOfFallbackToken("<0x0a>"), 10);
  EXPECT_EQ(ByteOfFallbackToken("<0x+A>"), 10);
  for (const char* token : {"<0xG0>", "<0x 1>", "<0x00", "0x000>", "<0x-1>"}) {
    EXPECT_EQ(ByteOfFallbackToken(token), std::nullopt) << token;
  }
}

// Expected values: the tokenizers package.
TEST(BpeTest, CharactersFallBackToBytes) {
  const Bpe::Vocabulary vocabulary = {{"?", 0},  {"a", 1},      {"é", 2},
                                      {"aé", 3}, {"<0xC3>", 4}, {"<0xA8>", 5}};
  const Bpe::Merges merges = {{Bpe::PairKey(1, 2), {0, 3}}};
  Bpe::Options options;
  options.characters = true;
  const auto encode = [&](absl::string_view text) {
    std::vector<int32_t> ids;
    const absl::Status status =
        Bpe(vocabulary, merges, options).Encode(text, &ids);
    if (!status.ok()) ids = {-1};
    return ids;
  };
  EXPECT_THAT(encode("aaé"), ElementsAre(1, 3));
  EXPECT_THAT(encode("è"), ElementsAre(-1));
  EXPECT_THAT(encode("\xc3"), ElementsAre(-1));
  options.unk_id = 0;
  EXPECT_THAT(encode("aèèé"), ElementsAre(1, 0, 0, 2));
  options.fuse_unk = true;
  EXPECT_THAT(encode("aèèé"), ElementsAre(1, 0, 2));
  options.fallback_ids.emplace().fill(-1);
  (*options.fallback_ids)[0xc3] = 4;
  (*options.fallback_ids)[0xa8] = 5;
  EXPECT_THAT(encode("aèèé"), ElementsAre(1, 4, 5, 4, 5, 2));
  EXPECT_THAT(encode("\xc3z"), ElementsAre(4, 0));
  // Bytes overtake what is unknown before them, as in the package.
  EXPECT_THAT(encode("zèa"), ElementsAre(4, 5, 0, 1));
}

TEST(PreTokenizerTest, TakesOneWordMoreThanTheMostAtLeast) {
  std::vector<PreTokenizer::Step> steps;
  steps.push_back(SplitStep("[0-9]", false));
  steps.push_back(SplitStep("[a-z]", false));
  const PreTokenizer words(std::move(steps));
  const auto count = [&](const std::string& text, size_t max_words) {
    size_t taken = 0;
    const absl::Status status =
        words.ForEachWord(text, true, max_words, [&](absl::string_view) {
          ++taken;
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
    return taken;
  };
  EXPECT_EQ(count("ab1cd", 5), 5);
  EXPECT_GT(count("ab1cd", 4), 4);
  for (const std::string& text :
       {std::string(10000, '1'), std::string(10000, 'a')}) {
    EXPECT_GT(count(text, 3), 3);
    EXPECT_LT(count(text, 3), 10);
  }
}

// Expected values: the tokenizers package. White space that an earlier token
// has taken with itself may be found again.
TEST(AddedTokensTest, WhatAnEarlierTokenHasTakenMayBeFoundAgain) {
  AddedTokens tokens;
  tokens.Add({1, "a", false, false, true, false, false});
  tokens.Add({2, "  ", false, true, true, false, false});
  tokens.Add({3, "\n", false, false, false, false, false});
  std::vector<int32_t> ids;
  for (const AddedTokens::Span& span : tokens.Find("a  \nb")) {
    ids.push_back(span.id);
  }
  EXPECT_THAT(ids, ElementsAre(1, 3, -1));
}

TEST(AddedTokensTest, TheLongestWinsAndFlagsDecideAboutTheRest) {
  AddedTokens tokens;
  const auto add = [&](int32_t id, const char* content, bool single_word,
                       bool lstrip, bool rstrip) {
    tokens.Add({id, content, single_word, lstrip, rstrip, false, false});
  };
  add(1, "ab", false, false, false);
  add(2, "abc", false, false, false);
  add(3, "W", true, false, false);
  add(4, "<m>", false, true, true);
  const auto find = [&](absl::string_view text) {
    std::vector<std::string> out;
    for (const AddedTokens::Span& span : tokens.Find(text)) {
      out.push_back(absl::StrCat(span.id < 0 ? "" : absl::StrCat(span.id, ":"),
                                 span.text));
    }
    return out;
  };
  EXPECT_THAT(find("xabcabd"), ElementsAre("x", "2:abc", "1:ab", "d"));
  EXPECT_THAT(find("W xW W,é"), ElementsAre("3:W", " xW ", "3:W", ",é"));
  EXPECT_THAT(find("éW"), ElementsAre("éW"));
  EXPECT_THAT(find("a \u3000<m>\n <m> b"),
              ElementsAre("a", "4: \u3000<m>\n ", "4:<m> ", "b"));
  EXPECT_EQ(tokens.Find("abxabxabxab", 2).size(), 5);  // the third is there
  EXPECT_EQ(tokens.Find("abxabx", 2).size(), 4);
  EXPECT_THAT(find(""), ElementsAre());
  EXPECT_THAT(find("\xff"), ElementsAre("\xff"));
}

}  // namespace
}  // namespace recurve
