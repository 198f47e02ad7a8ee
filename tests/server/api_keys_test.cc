#include "server/tenants/api_keys.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::Not;

// printf %s abc | sha256sum
const char kAbc[] =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

std::string Hex(const KeyDigest& digest) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest.data()), digest.size()));
}
std::string Field(absl::string_view key) {
  return absl::StrCat("sha256=", Hex(DigestOfKey(key)));
}

TEST(ApiKeysTest, DigestsAreThoseOfSha256sum) {
  EXPECT_EQ(Hex(DigestOfKey("abc")), kAbc);
}

TEST(ApiKeysTest, ReadsTenants) {
  const auto entries = ParseApiKeys(
      absl::StrCat("# who may call\n\n  acme\tsha256=", kAbc,
                   "  max_streams=8 ", Field("new"),
                   " tokens_per_second=200 token_burst=5000\r\n"
                   "b-2_c.d tokens_per_second=7 weight=9 max_priority=-3 ",
                   Field("b"), "\n  # the operators\nops admin=true ",
                   Field("o"), "\nx admin=false ", Field("x")));
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 4u);
  const TenantEntry& acme = (*entries)[0];
  EXPECT_EQ(acme.name, "acme");
  ASSERT_EQ(acme.keys.size(), 2u);
  EXPECT_EQ(Hex(acme.keys[0]), kAbc);
  EXPECT_EQ(acme.keys[1], DigestOfKey("new"));
  EXPECT_EQ(acme.limits.max_streams, 8);
  EXPECT_EQ(acme.limits.rate->tokens_per_second, 200);
  EXPECT_EQ(acme.limits.rate->burst, 5000);
  EXPECT_FALSE(acme.admin);
  const TenantEntry& b = (*entries)[1];
  EXPECT_EQ(b.name, "b-2_c.d");
  EXPECT_FALSE(b.limits.max_streams);
  EXPECT_EQ(b.limits.rate->burst, 70);
  EXPECT_EQ(b.limits.weight, 9);
  EXPECT_EQ(b.limits.max_priority, -3);
  EXPECT_EQ(acme.limits.weight, 1);
  EXPECT_EQ(acme.limits.max_priority, 0);
  EXPECT_TRUE((*entries)[2].admin);
  EXPECT_FALSE((*entries)[2].limits.rate);
  EXPECT_FALSE((*entries)[3].admin);
}

struct BadFile {
  std::string text;
  const char* message;  // must be part of the error
};

TEST(ApiKeysTest, SaysWhatIsWrong) {
  const std::string key = absl::StrCat(" sha256=", kAbc);
  const BadFile files[] = {
      {"", "there is no tenant"},
      {"# none\n\n", "there is no tenant"},
      {"a/b" + key, "line 1: the tenant's name has 3 characters or others"},
      {std::string(65, 'a') + key, "expected 1 to 64 of these"},
      {"acme", "line 1, tenant acme: sha256 is missing"},
      {"\n\nacme max_streams=1", "line 3, tenant acme: sha256 is missing"},
      {"acme sha256=", "sha256 has 0 characters"},
      {"acme sha256=" + std::string(kAbc).substr(1),
       "sha256 has 63 characters"},
      {"acme sha256=" + std::string(64, 'g'),
       "others than 0-9a-f; expected 64"},
      {"acme sha256=" + std::string(64, 'A'), "others than 0-9a-f"},
      {"acme " + Field(""), "sha256 is that of an empty key"},
      {"acme max_streams=0" + key, "max_streams is 0; expected 1 to 1048576"},
      {"acme max_streams=" + key, "max_streams is ; expected"},
      {"acme max_streams=-1" + key, "max_streams is -1; expected"},
      {"acme max_streams=1048577" + key, "max_streams is 1048577"},
      {"acme max_streams=99999999999999999999" + key, "max_streams is 9999"},
      {"acme max_streams=1 max_streams=2" + key, "is there twice"},
      {"acme max_pages=0" + key, "max_pages is 0; expected 1 to 1073741824"},
      {"acme tokens_per_second=1.5" + key, "tokens_per_second is 1.5"},
      {"acme tokens_per_second=0" + key,
       "tokens_per_second is 0; expected 1 to 1000000000"},
      {"acme tokens_per_second=1 token_burst=0" + key,
       "token_burst is 0; expected 1 to 10000000000"},
      {"acme token_burst=5" + key, "token_burst needs tokens_per_second"},
      {"acme admin=yes" + key, "admin is yes; expected true or false"},
      {"acme weight=0" + key, "weight is 0; expected 1 to 1000"},
      {"acme weight=1001" + key, "weight is 1001"},
      {"acme max_priority=101" + key,
       "max_priority is 101; expected -100 to 100"},
      {"acme max_priority=high" + key, "max_priority is high"},
      {"acme pages=5" + key, "a field of 7 characters is not known"},
      {"acme" + key + "\nacme " + Field("b"),
       "line 2, tenant acme: the tenant is there twice"},
      {"acme" + key + "\nb" + key, "line 2, tenant b: sha256 is there twice"},
      {"acme" + key + key, "line 1, tenant acme: sha256 is there twice"},
  };
  for (const BadFile& file : files) {
    const absl::Status status = ParseApiKeys(file.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << file.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file.message));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("ba7816")));
  }
}

TEST(ApiKeysTest, DoesNotRepeatWhatMayBeAKey) {
  for (const char* text :
       {"acme sha256=SECRET", "acme SECRET", "acme key=SECRET", "SECRET/+="}) {
    const absl::Status status = ParseApiKeys(text).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("SECRET")));
  }
}

TEST(ApiKeysTest, BoundsTheKeys) {
  std::string text;
  for (int i = 0; i < 1024; ++i)
    absl::StrAppend(&text, "t", i, " ", Field(absl::StrCat(i)), "\n");
  EXPECT_EQ(ParseApiKeys(text)->size(), 1024u);
  absl::StrAppend(&text, "last ", Field("last"));
  EXPECT_THAT(std::string(ParseApiKeys(text).status().message()),
              HasSubstr("there are 1025 keys so far; expected at most 1024"));
}

}  // namespace
}  // namespace recurve
