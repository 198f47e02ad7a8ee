#include "engine/tokenizer/tokenizer_json.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tokenizer_files.h"

namespace recurve {
namespace {

using nlohmann::json;

absl::Status Read(const json& spec, int32_t vocab_size = kGoldenVocabSize) {
  return ReadTokenizerJson("tokenizer.json", spec.dump(), vocab_size).status();
}

// Every refusal is one error that names the file and `parts`.
template <typename... Parts>
void ExpectRefused(const json& spec, const Parts&... parts) {
  EXPECT_THAT(Read(spec), FailsWith(absl::StatusCode::kInvalidArgument,
                                    "tokenizer.json: ", parts...));
}

class TokenizerJsonTest : public testing::Test {
 protected:
  TokenizerJsonTest()
      : spec_(json::parse(ReadGolden("llama3/tokenizer.json"))) {}

  json spec_;
};

TEST_F(TokenizerJsonTest, ReadsTheFixture) { EXPECT_TRUE(Read(spec_).ok()); }

TEST_F(TokenizerJsonTest, NotJson) {
  EXPECT_THAT(ReadTokenizerJson("tokenizer.json", "{", 10).status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "tokenizer.json: not valid JSON"));
  ExpectRefused(json::array(), "the top level is a list of 0");
  ExpectRefused(json::object(), "model is missing");
}

TEST_F(TokenizerJsonTest, TheTopLevel) {
  json other = spec_;
  other["chat"] = 1;
  ExpectRefused(other, "unknown key 'chat'", "supported: version");
  other = spec_;
  other["version"] = "2.0";
  ExpectRefused(other, "version is '2.0'; expected one of: 1.0");
}

TEST_F(TokenizerJsonTest, OtherModels) {
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    json other = spec_;
    other["model"]["type"] = type;
    ExpectRefused(other, "model.type is '", type, "expected one of: BPE");
  }
  json other = spec_;
  other["model"]["dropout"] = 0.1;
  ExpectRefused(other, "model.dropout is 0.1");
  other = spec_;
  other["model"]["end_of_word_suffix"] = "</w>";
  ExpectRefused(other, "model.end_of_word_suffix is '</w>'");
  other = spec_;
  other["model"]["continuing_subword_prefix"] = "##";
  ExpectRefused(other, "model.continuing_subword_prefix is '##'");
  other = spec_;
  other["model"]["unk_token"] = "<unk>";
  ExpectRefused(other, "model.unk_token is '<unk>'");
  other = spec_;
  other["model"]["novel"] = true;
  ExpectRefused(other, "model has the unknown key 'novel'");
}

TEST_F(TokenizerJsonTest, ByteFallbackNeedsAllBytes) {
  json other = spec_;
  other["model"]["byte_fallback"] = true;
  EXPECT_TRUE(Read(other).ok());
  other["model"]["vocab"].erase("\u0100");  // byte 0
  other["added_tokens"] = json::array();
  other["post_processor"] = nullptr;
  ExpectRefused(other, "model.byte_fallback is true");
}

TEST_F(TokenizerJsonTest, BrokenVocabulariesAndMerges) {
  json other = spec_;
  other["model"].erase("vocab");
  ExpectRefused(other, "model.vocab is null; expected an object");
  other = spec_;
  other["model"]["vocab"]["a"] = "x";
  ExpectRefused(other, "model.vocab['a'] is 'x'; expected a token id");
  other = spec_;
  other["model"]["vocab"]["a"] = -1;
  ExpectRefused(other, "model.vocab['a'] is -1; expected 0 to 1599");
  other = spec_;
  other["model"]["vocab"]["a"] = 0;
  ExpectRefused(other, "another token already");
  other = spec_;
  other["model"]["merges"] = "x";
  ExpectRefused(other, "model.merges is 'x'; expected a list");
  for (const json& merge :
       {json("ab"), json(1), json::array({"a"}), json::array({"a", 1})}) {
    other = spec_;
    other["model"]["merges"][2] = merge;
    ExpectRefused(other, "model.merges[2] is ", "expected 'a b'");
  }
  other = spec_;
  other["model"]["merges"][2] = {"a", "\u4e2d"};
  ExpectRefused(other, "model.merges[2] joins 'a' and ");
}

TEST_F(TokenizerJsonTest, MergesAreStringsOrPairs) {
  json strings = spec_;
  for (json& merge : strings["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const auto a = ReadTokenizerJson("a", spec_.dump(), kGoldenVocabSize);
  const auto b = ReadTokenizerJson("b", strings.dump(), kGoldenVocabSize);
  ASSERT_TRUE(a.ok() && b.ok());
  const std::string text = ReadGolden("mixed.txt");
  EXPECT_EQ(*(*a)->Encode(text, false), *(*b)->Encode(text, false));
}

TEST_F(TokenizerJsonTest, TheTokenizerMayNotBeLargerThanTheModel) {
  EXPECT_TRUE(Read(spec_, 1509).ok());
  EXPECT_THAT(Read(spec_, 1508),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "added_tokens[8].id is 1508; expected 0 to 1507, as "
                        "the model's vocab_size is 1508"));
  EXPECT_THAT(Read(spec_, 1000),
              FailsWith(absl::StatusCode::kInvalidArgument, "model.vocab['",
                        "the model's vocab_size is 1000"));
}

TEST_F(TokenizerJsonTest, AddedTokens) {
  json other = spec_;
  other["added_tokens"][1]["id"] = 1540;
  ExpectRefused(other, "added_tokens[1].id is 1540; expected 1501");
  other = spec_;
  other["added_tokens"][1]["content"] = "a";
  ExpectRefused(other, "added_tokens[1].id is 1501", "as in model.vocab");
  other = spec_;
  other["added_tokens"][1].erase("lstrip");
  ExpectRefused(other, "added_tokens[1].lstrip is missing");
  other = spec_;
  other["added_tokens"][1]["weight"] = 1;
  ExpectRefused(other, "added_tokens[1] has the unknown key 'weight'");
}

TEST_F(TokenizerJsonTest, Normalizers) {
  json other = spec_;
  for (const char* type : {"NFKC", "NFD", "Lowercase", "Strip", "ByteLevel"}) {
    other["normalizer"] = {{"type", type}};
    ExpectRefused(other, "normalizer.type is '", type,
                  "expected one of: NFC, Prepend, Replace, Sequence");
    other["normalizer"] = {
        {"type", "Sequence"},
        {"normalizers", {{{"type", "NFC"}}, {{"type", type}}}}};
    ExpectRefused(other, "normalizer.normalizers[1].type is '", type);
  }
  other["normalizer"] = {{"type", "Sequence"},
                         {"normalizers", {{{"type", "NFC"}}}}};
  const auto nfc = ReadTokenizerJson("x", other.dump(), kGoldenVocabSize);
  ASSERT_TRUE(nfc.ok()) << nfc.status();
  EXPECT_EQ(JoinTokens(**nfc, *(*nfc)->Encode("e\u0301", false)), "é");
}

TEST_F(TokenizerJsonTest, Replacements) {
  json other = spec_;
  other["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}};
  ExpectRefused(other, "normalizer.pattern has the unknown key 'Regex'");
  other["normalizer"]["pattern"] = {{"String", ""}};
  ExpectRefused(other, "normalizer.pattern.String is empty");
  other["normalizer"]["pattern"] = {{"String", "ab"}};
  other["normalizer"]["content"] = std::string(32, 'c');
  EXPECT_TRUE(Read(other).ok());
  other["normalizer"]["content"] = std::string(33, 'c');
  ExpectRefused(other, "normalizer.content makes a text up to 17 times");
  other["normalizer"]["content"] = std::string(10, 'c');
  const json twice = json::array({other["normalizer"], other["normalizer"]});
  other["normalizer"] = {{"type", "Sequence"}, {"normalizers", twice}};
  ExpectRefused(other, "normalizers[1].content makes a text up to 25 times");
}

TEST_F(TokenizerJsonTest, PreTokenizers) {
  json other = spec_;
  json& parts = other["pre_tokenizer"]["pretokenizers"];
  parts[0]["type"] = "Whitespace";
  ExpectRefused(
      other, "pre_tokenizer.pretokenizers[0].type is 'Whitespace'",
      "expected one of: ByteLevel, Split, Digits, Metaspace, Sequence");
  parts = spec_["pre_tokenizer"]["pretokenizers"];
  parts[0]["behavior"] = "MergedWithNext";
  ExpectRefused(other, "[0].behavior is 'MergedWithNext'; expected one of: ",
                "Isolated, Removed");
  parts[0]["behavior"] = "Removed";
  ExpectRefused(other, "[0].invert is false; expected true, as behavior is");
  parts[0]["invert"] = true;
  EXPECT_TRUE(Read(other).ok());
  parts = spec_["pre_tokenizer"]["pretokenizers"];
  parts[0]["pattern"] = {{"String", " "}};
  ExpectRefused(other, "[0].pattern has the unknown key 'String'");
  parts = spec_["pre_tokenizer"]["pretokenizers"];
  parts.push_back(parts[0]);
  ExpectRefused(other, "[2].type is 'Split'; expected nothing after ByteLevel");
  // The words of such a file are characters, and its decoder's are bytes.
  parts = json::array({spec_["pre_tokenizer"]["pretokenizers"][0]});
  ExpectRefused(other, "decoder.type is 'ByteLevel'; expected another");
  other["pre_tokenizer"] = nullptr;
  ExpectRefused(other, "decoder.type is 'ByteLevel'; expected another");
}

TEST_F(TokenizerJsonTest, Metaspaces) {
  json other = json::parse(ReadGolden("metaspace/tokenizer.json"));
  EXPECT_TRUE(Read(other).ok());
  json& part = other["pre_tokenizer"];
  part["replacement"] = "ab";
  ExpectRefused(other, "pre_tokenizer.replacement is 'ab'; expected one char");
  part["replacement"] = "_";
  part["prepend_scheme"] = "last";
  ExpectRefused(other, "pre_tokenizer.prepend_scheme is 'last'; expected one");
  // As older files have it.
  part = {{"type", "Metaspace"},
          {"replacement", "_"},
          {"add_prefix_space", true},
          {"str_rep", "_"}};
  EXPECT_TRUE(Read(other).ok());
  part["add_prefix_space"] = false;
  ExpectRefused(other, "add_prefix_space is false; expected true, as");
  part["prepend_scheme"] = "never";
  EXPECT_TRUE(Read(other).ok());
}

TEST_F(TokenizerJsonTest, DecodersOfCharacters) {
  json other = json::parse(ReadGolden("llama2/tokenizer.json"));
  EXPECT_TRUE(Read(other).ok());
  const json decoders = other["decoder"]["decoders"];
  ASSERT_EQ(decoders.size(), 4u);
  json& parts = other["decoder"]["decoders"];
  parts[3]["stop"] = 1;
  ExpectRefused(other, "decoder.decoders[3].stop is 1; expected 0");
  parts[3] = decoders[3];
  parts[3]["start"] = 2;
  ExpectRefused(other, "decoder.decoders[3].start is 2; expected 0 to 1");
  parts = json::array({decoders[0], decoders[3]});
  ExpectRefused(other,
                "[1].type is 'Strip' here; expected it once, after Fuse");
  parts = json::array({decoders[1], decoders[0]});
  ExpectRefused(other, "[1].type is 'Replace' here; expected it before");
  parts = json::array({decoders[2], decoders[1]});
  ExpectRefused(other, "[1].type is 'ByteFallback' here; expected");
  parts = json::array({decoders[1], decoders[1]});
  ExpectRefused(other, "[1].type is 'ByteFallback' here; expected");
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "_"}};
  parts = json::array({metaspace, decoders[2], decoders[3]});
  ExpectRefused(other, "[2].type is 'Strip' here; expected it once",
                "without a Metaspace");
  parts = json::array({{{"type", "WordPiece"}}});
  ExpectRefused(other, "decoder.decoders[0].type is 'WordPiece'");
  other["decoder"] = nullptr;
  ExpectRefused(other, "decoder is missing");
}

TEST_F(TokenizerJsonTest, Patterns) {
  json& regex = spec_["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
  for (const char* bad :
       {"^a",      "a$",   "a.b",         "(?<=a)b", "(?<n>a)",  "(?>a)",
        "(?i)a",   "\\w",  "\\b",         "\\p{Lu}", "\\p{Han}", "\\x41",
        "[a",      "[]a]", "[[:alpha:]]", "[a&&b]",  "[\\d-z]",  "a{,3}",
        "a{1,2}+", "a**",  "*",           "a|+",     "(a",       "a)",
        "\\",      "é",    "[é]",         "[z-a]",   "\\1",      "a{2",
        "\\p{L"}) {
    regex = bad;
    ExpectRefused(spec_, "pre_tokenizer.pretokenizers[0].pattern.Regex has ",
                  "which is unsupported");
  }
  for (const char* empty : {"a*", "", "(?=a)", "a|b?"}) {
    regex = empty;
    ExpectRefused(spec_, "which matches an empty text");
  }
}

TEST_F(TokenizerJsonTest, PostProcessorsAndDecoders) {
  json other = spec_;
  other["post_processor"] = {{"type", "BertProcessing"}};
  ExpectRefused(other, "post_processor.type is 'BertProcessing'");
  other = spec_;
  json& single = other["post_processor"]["processors"][1]["single"];
  single.push_back(single[0]);
  ExpectRefused(other, "single is another template");
  other = spec_;
  other["post_processor"]["processors"].push_back(
      spec_["post_processor"]["processors"][1]);
  ExpectRefused(other, "adds a second token before the text");
  other = spec_;
  other["post_processor"]["processors"][1]["special_tokens"]
       ["<|begin_of_text|>"]["ids"] = {1, 2};
  ExpectRefused(other, "ids is another list; expected one id");
  other = spec_;
  other["decoder"] = {{"type", "Metaspace"}};
  ExpectRefused(other, "decoder.type is 'Metaspace'; expected ByteLevel alone");
  other["decoder"] = nullptr;
  ExpectRefused(other, "decoder is missing");
}

// As HuggingFace's own BPE: a byte without a token is the unknown token, and a
// run of them one where fuse_unk says so.
TEST_F(TokenizerJsonTest, UnknownBytes) {
  json other = spec_;
  other["model"]["merges"] = json::array();
  other["model"]["ignore_merges"] = false;
  other["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"?", 2}};
  other["added_tokens"] = json::array();
  other["post_processor"] = nullptr;
  const auto encode = [&](absl::string_view text) {
    const auto made = ReadTokenizerJson("x", other.dump(), 10);
    EXPECT_TRUE(made.ok()) << made.status();
    return (*made)->Encode(text, false);
  };
  EXPECT_THAT(encode("axb").status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "no token for the byte 0x78"));
  other["model"]["unk_token"] = "?";
  EXPECT_THAT(*encode("axxb"), testing::ElementsAre(0, 2, 2, 1));
  other["model"]["fuse_unk"] = true;
  EXPECT_THAT(*encode("axxbx"), testing::ElementsAre(0, 2, 1, 2));
}

}  // namespace
}  // namespace recurve
