#include "engine/checkpoint/json_reader.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/json_parse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint_files.h"
#include "tests/testing/status_codes.h"

namespace recurve {
namespace {

using testing::ElementsAre;

JsonObject Parse(absl::string_view text) {
  absl::StatusOr<JsonObject> object = ParseJsonObject("config.json", text);
  EXPECT_TRUE(object.ok()) << object.status();
  return *object;
}

TEST(JsonParseTest, AFilterEndsTheParse) {
  std::string seen;
  const auto filter = [&](const std::string& member, const nlohmann::json& v) {
    absl::StrAppend(&seen, member, v.is_structured() ? "+" : "=", " ");
    return v != 13;
  };
  const auto all =
      ParseJson(R"({"a":1,"b":[2,{"c":3}],"d":null})", "x", 4, filter);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->size(), 3);
  EXPECT_EQ(seen, "+ a= b+ b= b+ b= d= ");
  // Also before what comes later is looked at.
  const auto ended = ParseJson(R"({"a":[1,13,14,nonsense)", "x", 4, filter);
  EXPECT_THAT(ended.status(), FailsWith(kInvalid, "x: "));
}

TEST(JsonReaderTest, ReadsInts) {
  const JsonObject o = Parse(
      R"({"a":4,"n":-3,"z":null,"f":4.0,"s":"4","t":true,
          "big":9223372036854775808,"max":9223372036854775807})");
  EXPECT_EQ(*o.Int("a", 1, 4), 4);
  EXPECT_EQ(*o.Int("a", 4, 9), 4);
  EXPECT_EQ(*o.Int("n", -3, 0), -3);
  EXPECT_EQ(*o.Int("max", 0, std::numeric_limits<int64_t>::max()),
            std::numeric_limits<int64_t>::max());
  EXPECT_THAT(o.Int("a", 1, 3).status(),
              FailsWith(kInvalid, "config.json: a is 4; expected 1 to 3"));
  EXPECT_THAT(o.Int("a", 5, std::numeric_limits<int64_t>::max()).status(),
              FailsWith(kInvalid, "a is 4; expected at least 5"));
  EXPECT_THAT(o.Int("absent", 1, 3).status(),
              FailsWith(kInvalid,
                        "config.json: absent is missing; expected an integer"));
  EXPECT_THAT(o.Int("z", 1, 3).status(), FailsWith(kInvalid, "z is missing"));
  EXPECT_THAT(o.Int("f", 1, 9).status(), FailsWith(kInvalid, "f is 4.0"));
  EXPECT_THAT(o.Int("s", 1, 9).status(), FailsWith(kInvalid, "s is '4'"));
  EXPECT_THAT(o.Int("t", 0, 9).status(), FailsWith(kInvalid, "t is true"));
  EXPECT_THAT(o.Int("big", 0, std::numeric_limits<int64_t>::max()).status(),
              FailsWith(kInvalid, "big is 9223372036854775808"));
  EXPECT_EQ(*o.IntOr("a", 7, 1, 4), 4);
  EXPECT_EQ(*o.IntOr("absent", 7, 1, 4), 7);
  EXPECT_EQ(*o.IntOr("z", 7, 1, 4), 7);
  EXPECT_FALSE(o.IntOr("s", 7, 1, 4).ok());
}

TEST(JsonReaderTest, ReadsDoubles) {
  const JsonObject o = Parse(R"({"x":1e-5,"i":3,"s":"1"})");
  EXPECT_EQ(*o.Double("x"), 1e-5);
  EXPECT_EQ(*o.Double("i"), 3.0);
  EXPECT_EQ(*o.DoubleOr("absent", 0.5), 0.5);
  EXPECT_THAT(o.Double("s").status(),
              FailsWith(kInvalid, "s is '1'; expected a number"));
  EXPECT_THAT(o.Double("i", 0, 1).status(),
              FailsWith(kInvalid, "i is 3; expected 0 to 1"));
  EXPECT_THAT(ParseJsonObject("config.json", R"({"x":1e999})").status(),
              FailsWith(kInvalid, "config.json"));
  EXPECT_FALSE(ParseJsonObject("config.json", R"({"x":NaN})").ok());
  nlohmann::json made = {{"x", std::nan("")}};
  EXPECT_FALSE(JsonObject::Make("made", made)->Double("x").ok());
}

TEST(JsonReaderTest, ReadsBoolsAndStrings) {
  const JsonObject o = Parse(R"({"t":true,"i":1,"s":"silu"})");
  EXPECT_TRUE(*o.Bool("t"));
  EXPECT_FALSE(*o.BoolOr("absent", false));
  EXPECT_THAT(o.Bool("i").status(),
              FailsWith(kInvalid, "i is 1; expected true or false"));
  EXPECT_EQ(*o.String("s"), "silu");
  EXPECT_EQ(*o.StringOr("absent", "none"), "none");
  EXPECT_FALSE(o.StringOr("i", "none").ok());
  EXPECT_EQ(*o.StringOneOf("s", {"none", "silu"}), "silu");
  EXPECT_EQ(*o.StringOneOf("absent", {"none", "silu"}, "none"), "none");
  EXPECT_THAT(
      o.StringOneOf("absent", {"none", "relu"}).status(),
      FailsWith(kInvalid, "absent is missing; expected one of: none, relu"));
  EXPECT_THAT(
      o.StringOneOf("s", {"none", "relu"}, "none").status(),
      FailsWith(kInvalid,
                "config.json: s is 'silu'; expected one of: none, relu"));
}

TEST(JsonReaderTest, ReadsLists) {
  const JsonObject o = Parse(
      R"({"d":[1,2.5],"i":[3,4],"one":5,"s":["a","b"],
          "m":{"x":"y"},"bad":{"x":1},"none":[]})");
  EXPECT_THAT(*o.DoubleList("d", 2), ElementsAre(1.0, 2.5));
  EXPECT_THAT(
      o.DoubleList("d", 3).status(),
      FailsWith(kInvalid, "d is a list of 2; expected a list of 3 numbers"));
  EXPECT_THAT(o.DoubleList("s", 2).status(),
              FailsWith(kInvalid, "s[0] is 'a'"));
  EXPECT_TRUE(o.DoubleList("none", 0)->empty());
  EXPECT_THAT(*o.IntList("i", 0, 9), ElementsAre(3, 4));
  EXPECT_THAT(*o.IntList("one", 0, 9), ElementsAre(5));
  EXPECT_THAT(o.IntList("i", 0, 3).status(),
              FailsWith(kInvalid, "i[1] is 4; expected 0 to 3"));
  EXPECT_FALSE(o.IntList("s", 0, 3).ok());
  EXPECT_EQ(o.StringMap("m")->at("x"), "y");
  EXPECT_THAT(o.StringMap("bad").status(), FailsWith(kInvalid, "bad.'x' is 1"));
}

TEST(JsonReaderTest, NamesThePathOfNestedValues) {
  std::vector<JsonObject> layers;
  {
    const JsonObject o = Parse(
        R"({"layers":[{"kv_rank":2},{"kv_rank":9,"position":{"base":"x"}}]})");
    layers = *o.ObjectList("layers");
  }
  // The objects keep the document alive.
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[1].path(), "layers[1]");
  EXPECT_EQ(*layers[0].Int("kv_rank", 1, 4), 2);
  EXPECT_THAT(
      layers[1].Int("kv_rank", 1, 4).status(),
      FailsWith(kInvalid,
                "config.json: layers[1].kv_rank is 9; expected 1 to 4"));
  EXPECT_THAT(layers[1].Object("position")->Double("base").status(),
              FailsWith(kInvalid, "layers[1].position.base is 'x'"));
  EXPECT_THAT(layers[0].Object("position").status(),
              FailsWith(kInvalid, "layers[0].position is missing"));
  EXPECT_THAT(layers[1].Invalid("kv_rank", "is odd"),
              FailsWith(kInvalid, "config.json: layers[1].kv_rank is odd"));
  EXPECT_THAT(Parse(R"({"layers":[1]})").ObjectList("layers").status(),
              FailsWith(kInvalid, "layers[0] is 1; expected an object"));
}

TEST(JsonReaderTest, FindsUnknownKeys) {
  const JsonObject o = Parse(R"({"a":1,"b":null,"sub":{"c":1}})");
  EXPECT_TRUE(o.Has("a"));
  EXPECT_FALSE(o.Has("b"));
  EXPECT_TRUE(o.CheckNoUnknownKeys({"b", "a", "sub"}).ok());
  EXPECT_TRUE(o.CheckNoUnknownKeys({"a", "sub"}).ok());  // null is absent
  EXPECT_THAT(o.CheckNoUnknownKeys({"b", "sub"}),
              FailsWith(kInvalid, "the top level has the unknown key 'a'",
                        "supported: b, sub"));
  EXPECT_THAT(o.Object("sub")->CheckNoUnknownKeys({"d", "e"}),
              FailsWith(kInvalid, "config.json: sub has the unknown key 'c'",
                        "supported: d, e"));
}

TEST(JsonReaderTest, RefusesMalformedFiles) {
  const auto parse = [](absl::string_view text) {
    return ParseJsonObject("config.json", text).status();
  };
  EXPECT_THAT(parse("[]"),
              FailsWith(kInvalid, "the top level is a list of 0", "an object"));
  EXPECT_THAT(parse(""), FailsWith(kInvalid, "config.json: not valid JSON"));
  EXPECT_THAT(parse("{} {}"), FailsWith(kInvalid, "not valid JSON at byte 4"));
  EXPECT_THAT(parse("{\"a\":1,}"), FailsWith(kInvalid, "not valid JSON"));
  // A text in single quotes: double ones are as they are.
  EXPECT_THAT(parse("{\"a\":\"b"), FailsWith(kInvalid, "near '\"b'"));
  EXPECT_THAT(parse("{/*c*/}"), FailsWith(kInvalid, "not valid JSON"));
  EXPECT_THAT(parse(absl::string_view("{}\0", 3)), FailsWith(kInvalid, "NUL"));
  EXPECT_THAT(parse(R"({"l":[{"a":1},{"b":{"c":1,"c":2}}]})"),
              FailsWith(kInvalid, "l[1].b has the key 'c' more than once"));
  const std::string deep = std::string(63, '[') + std::string(63, ']');
  EXPECT_TRUE(parse("{\"a\":" + deep + "}").ok());
  EXPECT_THAT(parse("{\"a\":[" + deep + "]}"),
              FailsWith(kInvalid, "nested deeper than 64"));
}

TEST(JsonReaderTest, LoadsFilesUpToTheLimit) {
  const TempFolder folder;
  const std::string path = folder.Write("c.json", R"({"a":12})");
  EXPECT_EQ(*LoadJsonFile(path, 8)->Int("a", 0, 99), 12);
  EXPECT_THAT(LoadJsonFile(path, 7).status(),
              FailsWith(kInvalid, path, "holds 8 bytes; expected at most 7"));
  EXPECT_THAT(LoadJsonFile(folder.path() + "/no.json", 8).status(),
              FailsWith(absl::StatusCode::kNotFound, "no.json"));
}

}  // namespace
}  // namespace recurve
