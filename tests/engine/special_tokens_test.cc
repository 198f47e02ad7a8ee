#include "engine/loading/special_tokens.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "engine/loading/model_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tokenizer_files.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SpecialTokensTest : public testing::Test {
 protected:
  SpecialTokensTest() { model_.vocab_size = kGoldenVocabSize; }

  void Copy(const std::string& golden) {
    folder_.Write(std::filesystem::path(golden).filename().string(),
                  ReadGolden(golden));
  }
  // Into `loaded_`, as the server and the tools load it.
  void Load(const std::string& kind = "auto") {
    loaded_ = model_;
    auto tokenizer = LoadModelTokenizer(folder_.path(), kind, &loaded_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }
  void ExpectEnd(int32_t id, const std::string& file) {
    EXPECT_THAT(loaded_.eos_token_ids, ElementsAre(id));
    EXPECT_THAT(loaded_.eos_file, HasSubstr(file));
    EXPECT_TRUE(loaded_.eos_by_tokenizer);
    EXPECT_THAT(loaded_.remarks, IsEmpty());
  }

  TempFolder folder_;
  ModelDefinition model_;  // of the config files
  ModelDefinition loaded_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SpecialTokensTest, AnEndThatOnlyTheTokenizerNames) {
  Copy("llama3/tokenizer.json");
  folder_.Write("tokenizer_config.json", R"({"eos_token": "<|eot_id|>"})");
  Load();
  ExpectEnd(1502, "tokenizer_config.json");
  // As an object, as older versions of the library write it.
  folder_.Write("tokenizer_config.json",
                R"({"eos_token": {"__type": "AddedToken", "lstrip": false,
                                  "content": "<|end_of_text|>"}})");
  Load();
  ExpectEnd(1501, "tokenizer_config.json");
  // The map counts where the config is silent, and only there.
  folder_.Write("special_tokens_map.json", R"({"eos_token": "<|eot_id|>"})");
  Load();
  ExpectEnd(1501, "tokenizer_config.json");
  folder_.Write("tokenizer_config.json", R"({"eos_token": null})");
  Load();
  ExpectEnd(1502, "special_tokens_map.json");
  std::filesystem::remove(folder_.path() + "/tokenizer_config.json");
  Load();
  ExpectEnd(1502, "special_tokens_map.json");
}

TEST_F(SpecialTokensTest, AnEndOfOtherKindsOfTokenizers) {
  Copy("gpt2/vocab.json");
  Copy("gpt2/merges.txt");
  // That of GPT-2 is not in this vocabulary; any of its tokens may be named.
  folder_.Write("tokenizer_config.json", R"({"eos_token": "!"})");
  Load();
  ASSERT_EQ(tokenizer_->name(), "gpt2");
  ASSERT_THAT(loaded_.eos_token_ids, testing::SizeIs(1));
  EXPECT_EQ(tokenizer_->TokenBytes(loaded_.eos_token_ids[0]), "!");
  // A SentencePiece model names it itself.
  std::filesystem::remove(folder_.path() + "/tokenizer_config.json");
  Copy("sentencepiece_bpe/tokenizer.model");
  Load();
  ASSERT_EQ(tokenizer_->name(), "sentencepiece");
  EXPECT_EQ(tokenizer_->FindToken("</s>"), 2);
  ExpectEnd(2, "tokenizer.model");
  folder_.Write("tokenizer_config.json", R"({"eos_token": "<s>"})");
  Load();
  ExpectEnd(1, "tokenizer_config.json");
}

TEST_F(SpecialTokensTest, IdsOfTheConfigServeWithoutATokenizer) {
  const auto write = [&](int32_t id) {
    folder_.Write("tokenizer_config.json",
                  absl::StrCat(R"({"eos_token": "<end>",
                                   "added_tokens_decoder": {")",
                               id, R"(": {"content": "<end>"}}})"));
  };
  for (const int32_t id : {0, kGoldenVocabSize - 1}) {
    write(id);
    Load("none");
    ExpectEnd(id, "tokenizer_config.json");
  }
  write(kGoldenVocabSize);
  Load("none");
  EXPECT_THAT(loaded_.eos_token_ids, IsEmpty());
}

TEST_F(SpecialTokensTest, SaysThatNothingEndsAGeneration) {
  Load();
  EXPECT_THAT(loaded_.eos_token_ids, IsEmpty());
  EXPECT_FALSE(loaded_.eos_by_tokenizer);
  EXPECT_THAT(loaded_.remarks,
              ElementsAre(HasSubstr("no file names an end of sequence")));
  Copy("llama3/tokenizer.json");
  Load();
  EXPECT_THAT(loaded_.remarks,
              ElementsAre(HasSubstr("no file names an end of sequence")));
  folder_.Write("tokenizer_config.json", R"({"eos_token": "<nowhere>"})");
  Load();
  EXPECT_THAT(
      loaded_.remarks,
      ElementsAre(HasSubstr("tokenizer_config.json: eos_token is '<nowhere>'"),
                  HasSubstr("no file names an end of sequence")));
}

TEST_F(SpecialTokensTest, TheConfigFilesCount) {
  Copy("llama3/tokenizer.json");
  folder_.Write("tokenizer_config.json", R"({"eos_token": "<|eot_id|>"})");
  model_.eos_token_ids = {7, 1502};
  model_.eos_file = "m/config.json";
  Load();
  EXPECT_THAT(loaded_.eos_token_ids, ElementsAre(7, 1502));
  EXPECT_FALSE(loaded_.eos_by_tokenizer);
  EXPECT_THAT(loaded_.remarks, IsEmpty());
  // Where they do not have the tokenizer's, its owner should know.
  model_.eos_token_ids = {7, 8};
  Load();
  EXPECT_THAT(loaded_.eos_token_ids, ElementsAre(7, 8));
  EXPECT_THAT(loaded_.remarks,
              ElementsAre(testing::AllOf(
                  HasSubstr("names '<|eot_id|>' (1502) as the end of sequence"),
                  HasSubstr("m/config.json 7, 8:"))));
}

TEST_F(SpecialTokensTest, FilesThatCannotBeReadAreNamed) {
  model_.eos_token_ids = {7};
  for (const char* text :
       {"{", "[]", R"({"eos_token": 5})", R"({"eos_token": {"text": "a"}})",
        R"({"add_bos_token": "no"})", R"({"added_tokens_decoder": {"x": {}}})",
        R"({"added_tokens_decoder": {"-1": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"1": "a"}})"}) {
    folder_.Write("tokenizer_config.json", text);
    Load();
    EXPECT_THAT(loaded_.remarks,
                ElementsAre(HasSubstr("/tokenizer_config.json")))
        << text;
  }
}

TEST_F(SpecialTokensTest, WhatIsPutBeforeAText) {
  Copy("sentencepiece_bpe/tokenizer.model");
  model_.eos_token_ids = {2};
  const auto write = [&](const char* text) {
    folder_.Write("tokenizer_config.json", text);
    Load();
  };
  // The config files name a token, and the tokenizer's say whether it is used.
  model_.bos_token_id = 1;
  Load();
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  write(R"({"add_bos_token": true})");
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  write(R"({"add_bos_token": false})");
  EXPECT_EQ(tokenizer_->bos_id(), std::nullopt);
  EXPECT_EQ(loaded_.bos_token_id, 1);
  EXPECT_THAT(loaded_.remarks, IsEmpty());
  // They name none: then the tokenizer's do.
  model_.bos_token_id.reset();
  write(R"({"add_bos_token": true, "bos_token": "<s>"})");
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  EXPECT_EQ(loaded_.bos_token_id, 1);
  EXPECT_THAT(loaded_.remarks, IsEmpty());
  write(R"({"add_bos_token": true, "bos_token": "<nowhere>"})");
  EXPECT_EQ(tokenizer_->bos_id(), std::nullopt);
  EXPECT_THAT(loaded_.remarks,
              ElementsAre(HasSubstr("add_bos_token is true, but the tokenizer "
                                    "(sentencepiece) puts nothing")));
  write(R"({"bos_token": "<s>"})");
  EXPECT_EQ(tokenizer_->bos_id(), std::nullopt);
}

// As transformers has it: tokenizer_config.json overrides tokenizer.json.
TEST_F(SpecialTokensTest, WhatIsPutBeforeATextWithATokenizerJson) {
  model_.eos_token_ids = {1501};
  Copy("llama3/tokenizer.json");
  const auto bos = [&](const char* text) {
    folder_.Write("tokenizer_config.json", text);
    Load();
    EXPECT_THAT(loaded_.remarks, IsEmpty());
    return tokenizer_->bos_id();
  };
  EXPECT_EQ(bos("{}"), 1500);
  EXPECT_EQ(bos(R"({"bos_token": "<|eot_id|>"})"), 1500);
  EXPECT_EQ(bos(R"({"add_bos_token": false})"), std::nullopt);
  EXPECT_EQ(bos(R"({"add_bos_token": true})"), 1500);
  EXPECT_EQ(bos(R"({"add_bos_token": true, "bos_token": "<|eot_id|>"})"), 1502);
  EXPECT_EQ(bos(R"({"add_bos_token": true, "bos_token": {"content": "a"}})"),
            64);
  EXPECT_EQ(bos(R"({"add_bos_token": true, "bos_token": "<nowhere>"})"), 1500);
  Copy("gpt2/tokenizer.json");
  EXPECT_EQ(bos(R"({"add_bos_token": true, "bos_token": "<|endoftext|>"})"),
            1500);
  folder_.Write("tokenizer_config.json", R"({"add_bos_token": true})");
  Load();
  EXPECT_THAT(loaded_.remarks,
              ElementsAre(HasSubstr("(huggingface) puts nothing before")));
}

TEST_F(SpecialTokensTest, NothingIsPutAfterAText) {
  Copy("llama2/tokenizer.json");
  folder_.Write("tokenizer_config.json", R"({"add_eos_token": true})");
  EXPECT_THAT(
      LoadModelTokenizer(folder_.path(), "auto", &model_).status(),
      FailsWith(absl::StatusCode::kInvalidArgument,
                "/tokenizer_config.json: add_eos_token is true; expected "));
  Load("none");
  Load("bytes");
  folder_.Write("tokenizer_config.json", R"({"add_eos_token": false})");
  Load();
  folder_.Write("tokenizer_config.json", R"({"add_eos_token": null})");
  Load();
}

TEST_F(SpecialTokensTest, AddedTokensThatTheTokenizerLacks) {
  model_.eos_token_ids = {2};
  Copy("llama2/tokenizer.json");
  const auto remarks = [&](const char* text) {
    folder_.Write("tokenizer_config.json", text);
    Load();
    return loaded_.remarks;
  };
  EXPECT_THAT(remarks(R"({"added_tokens_decoder": {
                            "1": {"content": "<s>"}, "2": {"content": "</s>"}}})"),
              IsEmpty());
  EXPECT_THAT(
      remarks(R"({"added_tokens_decoder": {"2": {"content": "<s>"}}})"),
      ElementsAre(HasSubstr("has '<s>' as 2, and tokenizer.json as 1;")));
  EXPECT_THAT(
      remarks(R"({"added_tokens_decoder": {"1200": {"content": "<x>"}}})"),
      ElementsAre(HasSubstr("'<x>' as 1200, which is no token of")));
}

}  // namespace
}  // namespace recurve
