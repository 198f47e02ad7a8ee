#include "engine/tokenizer/load_tokenizer.h"

#include <filesystem>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tokenizer_files.h"

namespace recurve {
namespace {

class LoadTokenizerTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      absl::string_view kind = "", int32_t vocab_size = kGoldenVocabSize) {
    TokenizerChoice choice;
    choice.kind = std::string(kind);
    choice.vocab_size = vocab_size;
    choice.bos = 256;
    choice.eos = eos_;
    choice.eos_file = eos_file_;
    choice.num_ranks = num_ranks_;
    return LoadTokenizer(folder_.path(), choice);
  }
  void Copy(const std::string& golden, const std::string& name) {
    folder_.Write(name, ReadGolden(golden));
  }
  template <typename... Parts>
  void ExpectRefused(absl::string_view kind, const Parts&... parts) {
    EXPECT_THAT(Load(kind).status(),
                FailsWith(absl::StatusCode::kInvalidArgument, parts...));
  }

  TempFolder folder_;
  int32_t eos_ = 257;
  std::string eos_file_;
  int64_t num_ranks_ = kGoldenNumRanks;
};

TEST_F(LoadTokenizerTest, TakesTheFirstThatIsThere) {
  ASSERT_TRUE(Load().ok());
  EXPECT_EQ(*Load(), nullptr);
  Copy("gpt2/gpt2.tiktoken", "r50k_base.tiktoken");
  EXPECT_EQ((*Load())->name(), "tiktoken");
  Copy("gpt2/vocab.json", "vocab.json");
  EXPECT_EQ((*Load())->name(), "tiktoken");  // half of the pair
  Copy("gpt2/merges.txt", "merges.txt");
  EXPECT_EQ((*Load())->name(), "gpt2");
  Copy("sentencepiece_bpe/tokenizer.model", "tokenizer.model");
  EXPECT_EQ((*Load())->name(), "sentencepiece");
  Copy("llama3/tokenizer.json", "tokenizer.json");
  EXPECT_EQ((*Load())->name(), "huggingface");
  // One that is broken does not fall back to the next.
  folder_.Write("tokenizer.json", "{}");
  ExpectRefused("", "tokenizer.json: ");
}

TEST_F(LoadTokenizerTest, AKindCanBeNamed) {
  Copy("llama3/tokenizer.json", "tokenizer.json");
  Copy("sentencepiece_bpe/tokenizer.model", "tokenizer.model");
  Copy("gpt2/gpt2.tiktoken", "gpt2.tiktoken");
  for (const char* kind :
       {"bytes", "huggingface", "sentencepiece", "tiktoken"}) {
    const auto loaded = Load(kind);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ((*loaded)->name(), kind);
  }
  EXPECT_THAT(Load("gpt2").status(),
              FailsWith(absl::StatusCode::kNotFound, "vocab.json"));
  ExpectRefused("wordpiece",
                "tokenizer is 'wordpiece'; supported: bytes, huggingface, "
                "sentencepiece, gpt2, tiktoken");
}

TEST_F(LoadTokenizerTest, OnlySomePutTheModelsBosBeforeAText) {
  Copy("gpt2/tokenizer.json", "tokenizer.json");
  Copy("sentencepiece_bpe/tokenizer.model", "tokenizer.model");
  EXPECT_EQ((*Load("bytes"))->bos_id(), 256);
  EXPECT_EQ((*Load("sentencepiece"))->bos_id(), 256);
  EXPECT_EQ((*Load("sentencepiece"))->Encode("", true)->front(), 256);
  EXPECT_EQ((*Load("huggingface"))->bos_id(), std::nullopt);
}

TEST_F(LoadTokenizerTest, PaddingOfTheVocabularyHasNoText) {
  for (const auto& [golden, name, size] :
       {std::tuple("gpt2/tokenizer.json", "tokenizer.json", 1501),
        std::tuple("sentencepiece_bpe/tokenizer.model", "tokenizer.model",
                   1000),
        std::tuple("gpt2/gpt2.tiktoken", "gpt2.tiktoken", 1501)}) {
    const TempFolder folder;
    folder.Write(name, ReadGolden(golden));
    const auto load = [&](int32_t vocab_size) {
      TokenizerChoice choice;
      choice.vocab_size = vocab_size;
      choice.num_ranks = kGoldenNumRanks;
      return LoadTokenizer(folder.path(), choice);
    };
    const auto padded = load(size + 10);
    ASSERT_TRUE(padded.ok()) << padded.status();
    EXPECT_EQ((*padded)->vocab_size(), size + 10);
    EXPECT_EQ((*padded)->TokenBytes(size + 9), "");
    EXPECT_TRUE(load(size).ok());
    EXPECT_THAT(
        load(size - 1).status(),
        FailsWith(absl::StatusCode::kInvalidArgument, name, "vocab_size"));
  }
}

TEST_F(LoadTokenizerTest, EndOfTextIsSpecial) {
  for (const char* kind : {"huggingface", "gpt2", "tiktoken"}) {
    const auto tokenizer = LoadGolden("gpt2", kind);
    EXPECT_EQ(tokenizer->TokenBytes(1500), "") << kind;
    EXPECT_THAT(*tokenizer->Encode("<|endoftext|>", false),
                testing::ElementsAre(1500))
        << kind;
  }
}

TEST_F(LoadTokenizerTest, OtherRankFilesAreRefused) {
  Copy("gpt2/gpt2.tiktoken", "qwen.tiktoken");
  ExpectRefused("", "'qwen.tiktoken'",
                "supported: gpt2.tiktoken, r50k_base.tiktoken");
}

TEST_F(LoadTokenizerTest, HalfOfAPairIsRefused) {
  for (const auto& [name, expected] :
       {std::pair("vocab.json", "merges.txt next to it"),
        std::pair("merges.txt", "vocab.json next to it"),
        std::pair("encoder.json", "the name vocab.json"),
        std::pair("vocab.bpe", "the name merges.txt")}) {
    const std::string path = folder_.Write(name, "{}");
    ExpectRefused("", folder_.path(), absl::StrCat("has ", name), expected);
    std::filesystem::remove(path);
  }
  EXPECT_TRUE(Load().ok());
}

// Wherever a download stopped, at a line's end or within a line.
TEST_F(LoadTokenizerTest, HalfADownloadIsRefused) {
  const std::string ranks = ReadGolden("gpt2/gpt2.tiktoken");
  const std::string merges = ReadGolden("gpt2/merges.txt");
  for (size_t i = 1; i < 200; ++i) {
    folder_.Write("gpt2.tiktoken", ranks.substr(0, i * ranks.size() / 200));
    ExpectRefused("tiktoken", "gpt2.tiktoken: ");
    const size_t end = ranks.find('\n', i * ranks.size() / 201);
    folder_.Write("gpt2.tiktoken", ranks.substr(0, end));
    ExpectRefused("tiktoken", "gpt2.tiktoken: holds ", "expected 1500");
  }
  folder_.Write("gpt2.tiktoken", "\n\r\n");
  ExpectRefused("tiktoken", "gpt2.tiktoken: holds 0 ranks; expected 1500");
  Copy("gpt2/vocab.json", "vocab.json");
  for (size_t i = 1; i < 200; ++i) {
    folder_.Write("merges.txt", merges.substr(0, i * merges.size() / 200));
    ExpectRefused("gpt2", "merges.txt: ");
    const size_t end = merges.find('\n', i * merges.size() / 201);
    folder_.Write("merges.txt", merges.substr(0, end));
    ExpectRefused("gpt2", "merges.txt: the merges make ",
                  " of the 1244 tokens of several bytes", "vocab.json");
  }
}

TEST_F(LoadTokenizerTest, PublishedRanksAre50256) {
  num_ranks_ = TokenizerChoice().num_ranks;
  Copy("gpt2/gpt2.tiktoken", "gpt2.tiktoken");
  ExpectRefused("", "gpt2.tiktoken: holds 1500 ranks; expected 50256");
}

TEST_F(LoadTokenizerTest, RanksAndMergesMustBeOfAllTokens) {
  num_ranks_ = 2;
  folder_.Write("gpt2.tiktoken", "AA== 0\nAg== 1\n");
  ExpectRefused("", "gpt2.tiktoken: holds no rank of the byte 1; expected one");
  folder_.Write("vocab.json", R"({"a":0, "b":1, "abb":3, "ab":2, "<s>":4})");
  folder_.Write("merges.txt", "#version: 0.2\na b\n");
  ExpectRefused("", "merges.txt: the merges make 1 of the 2 tokens",
                "'abb', with the id 3, is the first");
  folder_.Write("merges.txt", "#version: 0.2\na b\nab b\n");
  EXPECT_TRUE(Load().ok()) << Load().status();
  // What no merge can have made: no two tokens are it together.
  folder_.Write("vocab.json",
                R"({"a":0, "b":1, "abb":3, "ab":2, "[PAD]":4, "word00":5})");
  EXPECT_TRUE(Load().ok()) << Load().status();
}

TEST_F(LoadTokenizerTest, ErrorsOfTheBytesTokenizerNameTheFile) {
  eos_ = 3;
  ExpectRefused("bytes", folder_.path(), "/config.json: eos_token_id is 3");
  eos_file_ = "m/generation_config.json";
  ExpectRefused("bytes", "m/generation_config.json: eos_token_id is 3");
  EXPECT_THAT(
      Load("bytes", 200).status(),
      FailsWith(absl::StatusCode::kInvalidArgument, folder_.path(),
                "/config.json: vocab_size is 200; expected at least 256"));
}

TEST_F(LoadTokenizerTest, BrokenRanks) {
  const auto expect = [&](const std::string& text, const char* problem) {
    folder_.Write("gpt2.tiktoken", text);
    ExpectRefused("", "gpt2.tiktoken: line 2 ", problem);
  };
  expect("YQ== 0\nYg==\n", "is 'Yg=='; expected a token in base64");
  expect("YQ== 0\n*** 1\n", "expected a token in base64");
  expect("YQ== 0\nYg== x\n", "expected a token in base64");
  expect("YQ== 0\nYg== 2\n", "has the rank 2; expected 1");
  expect("YQ== 0\nYQ== 1\n", "an earlier token has the same bytes");
}

TEST_F(LoadTokenizerTest, BrokenVocabularyAndMerges) {
  const auto expect = [&](const std::string& vocab, const std::string& merges,
                          const char* problem) {
    folder_.Write("vocab.json", vocab);
    folder_.Write("merges.txt", merges);
    ExpectRefused("", problem);
  };
  expect("[]", "x", "vocab.json: the top level is a list of 0");
  expect(R"({"a": "b"})", "x", "vocab.json: 'a' is 'b'; expected a token id");
  expect(R"({"a": 1600})", "x", "vocab.json: 'a' is 1600; expected 0 to 1599");
  expect(R"({"a": 18446744073709551615})", "x",
         "vocab.json: 'a' is 18446744073709551615; expected a token id");
  expect(R"({"a": 0})", "#version: 0.2\nab\n", "merges.txt: line 2 is 'ab'");
  expect(R"({"a": 0, "b": 1})", "a b\n",
         "merges.txt: line 1 joins 'a' and 'b'");
}

TEST_F(LoadTokenizerTest, BrokenSentencePieceModels) {
  const std::string good = ReadGolden("sentencepiece_unigram/tokenizer.model");
  const auto expect = [&](const std::string& bytes, const char* problem) {
    folder_.Write("tokenizer.model", bytes);
    ExpectRefused("", "tokenizer.model: ", problem);
  };
  expect("IQ== 0\nIg== 1\n", "a tiktoken rank file; supported");
  expect(good.substr(0, 5000), "not a SentencePiece model");
  expect(std::string("\x0a\x03\x0a\x01"
                     "a"),
         "no piece is of type unknown");
  const std::string unknown("\x0a\x07\x0a\x03<u>\x18\x02");
  expect(unknown + unknown, "are both of type unknown");
  expect(unknown + "\x12\x02\x18\x03", "trainer_spec.model_type is 3");
  expect(unknown + "\x12\x03\x98\x02\x01", "<0x00> is missing");
  expect(unknown + std::string("\x1a\x06\x12\x04\xff\xff\xff\xff"),
         "precompiled_charsmap of 4 bytes is broken");
  expect(unknown + "\x0a\x03\x0a\x01x" + "\x0a\x03\x0a\x01x",
         "as an earlier one is");
  expect(unknown + "\x0a\x05\x0a\x01x\x18\x09", "the type of piece 1 is 9");
  expect(unknown + "\x2a\x03\x12\x01x", "denormalizer_spec");
}

// A field of a protobuf that holds bytes.
std::string Field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2),
                     static_cast<char>(bytes.size())} +
         bytes;
}

std::string Piece(const std::string& text, int type) {
  return Field(1, Field(1, text) + "\x18" + static_cast<char>(type));
}

// Expected ids: sentencepiece 0.2.3.
TEST_F(LoadTokenizerTest, AnUnusedPieceOfOneCharacterIsUnknown) {
  constexpr int kUnused = 5;
  const auto ids = [&](bool byte_fallback, const char* text) {
    std::string model = Piece("<unk>", 2);
    for (int byte = 0; byte_fallback && byte < 256; ++byte) {
      model += Piece(absl::StrFormat("<0x%02X>", byte), 6);
    }
    for (const char* used : {"a", "c", "ab"}) model += Piece(used, 1);
    for (const char* unused : {"b", "cb", "é"}) model += Piece(unused, kUnused);
    model += Field(2, absl::StrCat("\x18\x02", byte_fallback ? "\x98\x02" : "",
                                   byte_fallback ? "\x01" : ""));
    // No white space of the model's own.
    model += Field(3, std::string("\x18\0\x20\0", 4));
    folder_.Write("tokenizer.model", model);
    const auto loaded = Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? *(*loaded)->Encode(text, false)
                       : std::vector<int32_t>();
  };
  EXPECT_THAT(ids(false, "ab"), testing::ElementsAre(3));
  EXPECT_THAT(ids(false, "aébb"), testing::ElementsAre(1, 0));
  EXPECT_THAT(ids(false, "acb"), testing::ElementsAre(1, 2, 0));
  // Bytes in place of the unknown one.
  EXPECT_THAT(ids(true, "ab"), testing::ElementsAre(259));
  EXPECT_THAT(ids(true, "aébb"), testing::ElementsAre(257, 196, 170, 99, 99));
  EXPECT_THAT(ids(true, "acb"), testing::ElementsAre(257, 258, 99));
}

// Whatever a file holds, reading it ends, and so does encoding with it.
TEST_F(LoadTokenizerTest, DamagedSentencePieceModels) {
  const std::string good = ReadGolden("sentencepiece_unigram/tokenizer.model");
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string bytes = good;
    for (int j = 0; j < 8; ++j) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    folder_.Write("tokenizer.model", bytes);
    const auto loaded = Load();
    if (!loaded.ok()) continue;
    const auto ids = (*loaded)->Encode("Ａ text！ ﬁ中\xff", false);
    ASSERT_TRUE(ids.ok());
    JoinTokens(**loaded, *ids);
  }
}

}  // namespace
}  // namespace recurve
