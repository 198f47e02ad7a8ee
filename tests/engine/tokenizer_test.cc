#include "engine/tokenizer/tokenizer.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Error(const absl::StatusOr<std::unique_ptr<Tokenizer>>& made) {
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(made.status().message());
}

TEST(BytesTokenizerTest, EncodesAnyBytes) {
  const auto tokenizer = MakeTokenizer("bytes", 258, 256, 257);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->name(), "bytes");
  EXPECT_EQ((*tokenizer)->vocab_size(), 258);
  EXPECT_EQ((*tokenizer)->bos_id(), 256);
  EXPECT_THAT(*(*tokenizer)->Encode("A\xff", true), ElementsAre(256, 65, 255));
  EXPECT_THAT(*(*tokenizer)->Encode("é", false), ElementsAre(0xc3, 0xa9));
  EXPECT_THAT(*(*tokenizer)->Encode(absl::string_view("\0", 1), false),
              ElementsAre(0));
  EXPECT_THAT(*(*tokenizer)->Encode("", true), ElementsAre(256));
  EXPECT_TRUE((*tokenizer)->Encode("", false)->empty());
}

TEST(BytesTokenizerTest, TokenBytesInvertEncode) {
  const auto tokenizer = MakeTokenizer("bytes", 300, 256, 257);
  ASSERT_TRUE(tokenizer.ok());
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const auto ids = (*tokenizer)->Encode(all, true);
  ASSERT_TRUE(ids.ok());
  std::string decoded;
  for (int32_t id : *ids) {
    const absl::string_view bytes = (*tokenizer)->TokenBytes(id);
    decoded.append(bytes.data(), bytes.size());
  }
  EXPECT_EQ(decoded, all);
  EXPECT_EQ((*tokenizer)->TokenBytes(257), "");
  EXPECT_EQ((*tokenizer)->TokenBytes(299), "");  // padding of the vocabulary
}

TEST(BytesTokenizerTest, TellsOfTooManyIds) {
  const auto tokenizer = MakeTokenizer("bytes", 258, 256, 257);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT(*(*tokenizer)->Encode("ab", true, 3), ElementsAre(256, 97, 98));
  EXPECT_TRUE((*tokenizer)->Encode("", false, 0)->empty());
  EXPECT_EQ((*tokenizer)->Encode("ab", true, 2).status(),
            absl::OutOfRangeError("has 3 tokens"));
  EXPECT_EQ((*tokenizer)->Encode("", true, 0).status(),
            absl::OutOfRangeError("has 1 tokens"));
}

TEST(BytesTokenizerTest, AModelMayHaveNoSpecialTokens) {
  const auto tokenizer =
      MakeTokenizer("bytes", 256, std::nullopt, std::nullopt);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("a", false), ElementsAre(97));
  EXPECT_EQ((*tokenizer)->Encode("a", true).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(BytesTokenizerTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(Error(MakeTokenizer("bytes", 255, std::nullopt, std::nullopt)),
              HasSubstr("vocab_size is 255; expected at least 256"));
  EXPECT_THAT(Error(MakeTokenizer("bytes", 258, 255, 257)),
              HasSubstr("bos_token_id is 255; expected 256 to 257"));
  EXPECT_THAT(Error(MakeTokenizer("bytes", 258, 256, 258)),
              HasSubstr("eos_token_id is 258; expected 256 to 257"));
  EXPECT_THAT(Error(MakeTokenizer("bytes", 258, -1, 257)),
              HasSubstr("bos_token_id is -1"));
  EXPECT_THAT(Error(MakeTokenizer("bytes", 256, 256, std::nullopt)),
              HasSubstr("no special tokens"));
}

TEST(MakeTokenizerTest, ListsTheSupportedKinds) {
  EXPECT_THAT(Error(MakeTokenizer("wordpiece", 258, 256, 257)),
              HasSubstr("tokenizer is 'wordpiece'; supported: bytes"));
  EXPECT_THAT(Error(MakeTokenizer("", 258, 256, 257)),
              HasSubstr("supported: bytes"));
}

}  // namespace
}  // namespace recurve
