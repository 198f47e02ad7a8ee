// Against the reference libraries: tests/golden/tokenizer/make.py wrote what
// they make of the same texts.

#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/tokenizer_files.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::AnyOf;

struct Golden {
  const char* folder;
  const char* kind;
  bool is_exact;  // decoding gives the text back
};

std::vector<int32_t> Encode(const Tokenizer& tokenizer,
                            absl::string_view text) {
  const auto ids = tokenizer.Encode(text, tokenizer.bos_id().has_value());
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.value_or(std::vector<int32_t>());
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   std::vector<std::string> stops = {}) {
  StreamDecoder decoder(&tokenizer, std::move(stops));
  std::string text;
  for (int32_t id : ids) {
    const std::string piece = decoder.Append(id);
    EXPECT_TRUE(IsValidUtf8(piece));
    text += piece;
  }
  return text + decoder.Flush();
}

// All tokens at once, none of them at the start of a text.
std::string DecodeAtOnce(const Tokenizer& tokenizer,
                         const std::vector<int32_t>& ids) {
  std::string bytes;
  std::string run;  // of tokens that are a byte each
  for (size_t i = 0; i <= ids.size(); ++i) {
    const bool is_end = i == ids.size();
    if (!is_end && tokenizer.IsByteOfRun(ids[i])) {
      absl::StrAppend(&run, tokenizer.TokenBytes(ids[i]));
      continue;
    }
    if (!is_end && tokenizer.TokenBytes(ids[i]).empty()) continue;
    const bool is_text = IsValidUtf8(run);
    for (char c : std::exchange(run, "")) {
      bytes += is_text ? std::string(1, c) : "\xef\xbf\xbd";
    }
    if (!is_end) absl::StrAppend(&bytes, tokenizer.TokenBytes(ids[i]));
  }
  Utf8Decoder utf8;
  std::string text;
  utf8.Decode(bytes, &text);
  utf8.Finish(&text);
  return text;
}

class TokenizerGoldenTest : public testing::TestWithParam<Golden> {
 protected:
  TokenizerGoldenTest()
      : tokenizer_(LoadGolden(GetParam().folder, GetParam().kind)) {}

  std::string Name(absl::string_view file) const {
    return absl::StrCat(GetParam().folder, "/", file);
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGoldenTest, MixedTextHasTheIdsOfTheReference) {
  EXPECT_EQ(tokenizer_->name(), GetParam().kind);
  const std::string text = ReadGolden("mixed.txt");
  ASSERT_GT(text.size(), 20000u);
  const std::vector<int32_t> ids = Encode(*tokenizer_, text);
  EXPECT_EQ(ids, ReadGoldenIds(Name("mixed.ids")));
  if (GetParam().is_exact) {
    EXPECT_EQ(Stream(*tokenizer_, ids), text);
  }
}

TEST_P(TokenizerGoldenTest, EdgeCasesHaveTheIdsOfTheReference) {
  const json cases = json::parse(ReadGolden(Name("cases.json")));
  ASSERT_GT(cases.size(), 40u);
  for (const json& entry : cases) {
    const std::string text = entry[0].get<std::string>();
    EXPECT_EQ(Encode(*tokenizer_, text), entry[1].get<std::vector<int32_t>>())
        << entry[0];
  }
}

// The limit changes no id of what fits, to the last, and what does not is told.
TEST_P(TokenizerGoldenTest, AsManyIdsFitAsTheLimitSays) {
  std::vector<std::string> texts = {ReadGolden("mixed.txt")};
  for (const json& entry : json::parse(ReadGolden(Name("cases.json")))) {
    texts.push_back(entry[0].get<std::string>());
  }
  // Texts of which normalisers and added tokens leave little.
  texts.push_back(std::string(100000, ' ') + "a");
  texts.push_back(std::string(100000, ' ') + "<|endoftext|>" +
                  std::string(100000, '\n'));
  std::string unknown;
  for (int i = 0; i < 20000; ++i) unknown += "\u1234";
  texts.push_back(unknown);
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = Encode(*tokenizer_, text);
    const bool bos = tokenizer_->bos_id().has_value();
    const auto count = static_cast<int64_t>(ids.size());
    const auto all = tokenizer_->Encode(text, bos, count);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(*all, ids);
    for (const int64_t limit : {count - 1, count / 2, int64_t{0}}) {
      if (limit < 0 || limit >= count) continue;
      const absl::Status status = tokenizer_->Encode(text, bos, limit).status();
      ASSERT_TRUE(absl::IsOutOfRange(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  AnyOf(absl::StrCat("has ", count, " tokens"),
                        absl::StrCat("has more than ", limit, " tokens")));
    }
  }
}

// The size tells: the ids are not counted.
TEST_P(TokenizerGoldenTest, LongTextsAreNotEncodedToTheirEnd) {
  std::string word;
  std::string words;
  for (int i = 0; i < 200000; ++i) {
    word += static_cast<char>('a' + i * 7 % 26);
    words += i % 5 == 4 ? ' ' : static_cast<char>('a' + i * 7 % 26);
  }
  for (const std::string& text : {word, words}) {
    EXPECT_EQ(tokenizer_->Encode(text, false, 256).status(),
              absl::OutOfRangeError("has more than 256 tokens"));
  }
}

// Whatever the tokens, what comes out piece by piece is what they say at once.
TEST_P(TokenizerGoldenTest, AnyTokensStreamAsTheyDecode) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::vector<int32_t> ids(random() % 40);
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random() % kGoldenVocabSize);
    }
    // With a first token that has text, no leading space is dropped.
    const std::vector<int32_t> before = Encode(*tokenizer_, "x");
    StreamDecoder decoder(tokenizer_.get(), {});
    decoder.SkipBefore(before);
    std::string streamed;
    for (int32_t id : ids) streamed += decoder.Append(id);
    streamed += decoder.Flush();
    ASSERT_EQ(streamed, DecodeAtOnce(*tokenizer_, ids)) << i;
  }
}

TEST_P(TokenizerGoldenTest, StopStringsSpanTokens) {
  const std::string text = "中文 first line\nUser 😀: second";
  const std::vector<int32_t> ids = Encode(*tokenizer_, text);
  ASSERT_GT(ids.size(), 4u);
  const std::string whole = Stream(*tokenizer_, ids);
  for (const std::string stop : {"line\nUs", "r 😀: s", "😀", "文 f"}) {
    const size_t at = whole.find(stop);
    if (at == std::string::npos) continue;  // trimmed by the normaliser
    EXPECT_EQ(Stream(*tokenizer_, ids, {stop}), whole.substr(0, at)) << stop;
  }
}

TEST_P(TokenizerGoldenTest, ThreadsShareOneTokenizer) {
  const std::string text = ReadGolden("mixed.txt").substr(0, 4000);
  const std::vector<int32_t> expected = Encode(*tokenizer_, text);
  std::vector<std::vector<int32_t>> ids(4);
  std::vector<std::thread> threads;
  threads.reserve(ids.size());
  for (std::vector<int32_t>& out : ids) {
    threads.emplace_back([&] { out = Encode(*tokenizer_, text); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<int32_t>& out : ids) EXPECT_EQ(out, expected);
}

// Long enough that a quadratic algorithm would not end. Under ThreadSanitizer,
// where this took minutes, it is one thread's work anyway.
#ifdef __SANITIZE_THREAD__
constexpr size_t kLongTextBytes = 1 << 14;
#else
constexpr size_t kLongTextBytes = 1 << 20;
#endif

TEST_P(TokenizerGoldenTest, AMegabyteOfOneThing) {
  for (const std::string unit :
       {" ", "a", "\n", "\u0301\u0323", "\u0f73", "\xff", "<|", "'"}) {
    std::string text;
    while (text.size() < kLongTextBytes) text += unit;
    const std::vector<int32_t> ids = Encode(*tokenizer_, text);
    if (GetParam().is_exact) {
      ASSERT_EQ(JoinTokens(*tokenizer_, ids), text) << unit;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers, TokenizerGoldenTest,
    testing::Values(Golden{"gpt2", "huggingface", true},
                    Golden{"gpt2", "gpt2", true},
                    Golden{"gpt2", "tiktoken", true},
                    Golden{"llama3", "huggingface", true},
                    Golden{"qwen", "huggingface", false},
                    Golden{"prefix_space", "huggingface", false},
                    Golden{"llama2", "huggingface", false},
                    Golden{"metaspace", "huggingface", false},
                    Golden{"sentencepiece_bpe", "sentencepiece", false},
                    Golden{"sentencepiece_unigram", "sentencepiece", false}),
    [](const auto& info) {
      return absl::StrCat(info.param.folder, "_", info.param.kind);
    });

// Python's str cannot hold these; here they are bytes like any other.
TEST(TokenizerInvalidUtf8Test, ByteLevelGivesEveryByteBack) {
  std::mt19937 random(1);
  for (const char* folder : {"gpt2", "llama3"}) {
    const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(folder);
    std::string text = ReadGolden("mixed.txt").substr(0, 6000);
    for (int i = 0; i < 500; ++i) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    ASSERT_FALSE(IsValidUtf8(text));
    std::vector<int32_t> ids = Encode(*tokenizer, text);
    EXPECT_EQ(JoinTokens(*tokenizer, ids).size(), text.size());
    EXPECT_EQ(JoinTokens(*tokenizer, ids), text);
  }
}

TEST(TokenizerInvalidUtf8Test, TheNormaliserLeavesInvalidBytesAlone) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadGolden("qwen");
  const std::string text = "e\u0301\xff\xcc \u0301\xe4\xb8o\u0308";
  EXPECT_EQ(JoinTokens(*tokenizer, Encode(*tokenizer, text)),
            "é\xff\xcc \u0301\xe4\xb8ö");
}

TEST(CharactersGoldenTest, DecodingIsTheReferences) {
  for (const char* folder : {"llama2", "metaspace"}) {
    const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(folder);
    const json decoded =
        json::parse(ReadGolden(absl::StrCat(folder, "/decoded.json")));
    ASSERT_GT(decoded.size(), 300u);
    for (const json& entry : decoded) {
      EXPECT_EQ(Stream(*tokenizer, entry[0].get<std::vector<int32_t>>()),
                entry[1].get<std::string>())
          << folder << " " << entry[0];
    }
  }
}

// Python's str cannot hold these. Each such byte is a byte token, if there are
// any, and else unknown.
TEST(CharactersGoldenTest, InvalidBytesAreEncoded) {
  const std::unique_ptr<Tokenizer> llama2 = LoadGolden("llama2");
  const std::vector<int32_t> ids = Encode(*llama2, "a\xff\xe4\xb8");
  ASSERT_EQ(ids.size(), 5u);
  EXPECT_EQ(JoinTokens(*llama2, ids), " a\xff\xe4\xb8");
  EXPECT_EQ(Stream(*llama2, ids), "a\ufffd\ufffd\ufffd");
  const std::unique_ptr<Tokenizer> metaspace = LoadGolden("metaspace");
  EXPECT_EQ(Encode(*metaspace, "a\xff\xe4\xb8"),
            Encode(*metaspace, "a\U0010fffd"));
}

// A run of bytes is text only if all of it is, so it is shown when it ends;
// special tokens do not end it.
TEST(CharactersGoldenTest, ARunOfBytesIsHeldBack) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadGolden("llama2");
  const auto byte = [](int value) { return 3 + value; };
  const int32_t end = *tokenizer->FindToken("</s>");
  const int32_t letter = *tokenizer->FindToken("a");
  StreamDecoder decoder(tokenizer.get(), {});
  for (int32_t id : {byte(0x20), byte(0xc3), end, byte(0xa9)}) {
    EXPECT_EQ(decoder.Append(id), "");
  }
  StreamDecoder fork = decoder;
  EXPECT_EQ(decoder.Append(letter), "éa");  // without the first space
  EXPECT_EQ(fork.Append(byte(0xff)), "");
  EXPECT_EQ(fork.Flush(), "\ufffd\ufffd\ufffd\ufffd");
  StreamDecoder stops(tokenizer.get(), {"é"});
  for (int32_t id : {letter, byte(0xc3), byte(0xa9)}) stops.Append(id);
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.Append(letter), "");
  EXPECT_TRUE(stops.stopped());
}

TEST(SentencePieceGoldenTest, InvalidBytesAndDecodingAreTheReferences) {
  for (const char* folder : {"sentencepiece_bpe", "sentencepiece_unigram"}) {
    const std::unique_ptr<Tokenizer> tokenizer = LoadGolden(folder);
    const json invalid =
        json::parse(ReadGolden(absl::StrCat(folder, "/invalid.json")));
    for (const json& entry : invalid) {
      const auto bytes = entry[0].get<std::vector<uint8_t>>();
      const std::string text(bytes.begin(), bytes.end());
      EXPECT_EQ(Encode(*tokenizer, text), entry[1].get<std::vector<int32_t>>())
          << folder << " " << entry[0];
    }
    const json cases =
        json::parse(ReadGolden(absl::StrCat(folder, "/cases.json")));
    const json decoded =
        json::parse(ReadGolden(absl::StrCat(folder, "/decoded.json")));
    ASSERT_EQ(cases.size(), decoded.size());
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(Stream(*tokenizer, cases[i][1].get<std::vector<int32_t>>()),
                decoded[i].get<std::string>())
          << folder << " " << cases[i];
    }
  }
}

// The space before a text is not part of it, that before a later word is.
TEST(SentencePieceGoldenTest, TheLeadingSpaceDependsOnWhatCameBefore) {
  const std::unique_ptr<Tokenizer> tokenizer = LoadGolden("sentencepiece_bpe");
  const std::vector<int32_t> ids = Encode(*tokenizer, "the model");
  EXPECT_EQ(JoinTokens(*tokenizer, ids), " the model");
  EXPECT_EQ(Stream(*tokenizer, ids), "the model");
  for (size_t cut = 1; cut < ids.size(); ++cut) {
    StreamDecoder decoder(tokenizer.get(), {});
    const std::vector<int32_t> prompt(ids.begin(), ids.begin() + cut);
    decoder.SkipBefore(prompt);
    std::string text = Stream(*tokenizer, prompt);
    for (size_t i = cut; i < ids.size(); ++i) text += decoder.Append(ids[i]);
    EXPECT_EQ(text + decoder.Flush(), "the model") << cut;
  }
  // <s> is no text.
  StreamDecoder decoder(tokenizer.get(), {});
  decoder.SkipBefore(std::vector<int32_t>{1});
  EXPECT_EQ(decoder.Append(ids[0]).substr(0, 1), "t");
}

TEST(TokenizerBosTest, OnlyATemplateAddsOne) {
  const std::unique_ptr<Tokenizer> llama3 = LoadGolden("llama3");
  ASSERT_TRUE(llama3->bos_id().has_value());
  EXPECT_EQ(llama3->Encode("", true)->front(), *llama3->bos_id());
  EXPECT_EQ(llama3->TokenBytes(*llama3->bos_id()), "");
  EXPECT_TRUE(llama3->Encode("", false)->empty());
  const std::unique_ptr<Tokenizer> gpt2 = LoadGolden("gpt2");
  EXPECT_FALSE(gpt2->bos_id().has_value());
  EXPECT_EQ(gpt2->Encode("a", true).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace recurve
