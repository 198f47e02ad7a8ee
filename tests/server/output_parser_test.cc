#include "server/chat/output_parser.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

OutputPart Join(OutputPart a, OutputPart b) {
  a.reasoning += b.reasoning;
  a.content += b.content;
  for (ToolCall& call : b.tool_calls) a.tool_calls.push_back(std::move(call));
  return a;
}

// What a part comes to, in words.
std::string Shown(const OutputPart& part) {
  std::string text = absl::StrCat("[", part.reasoning, "][", part.content, "]");
  for (const ToolCall& call : part.tool_calls) {
    absl::StrAppend(&text, "[", call.name, call.arguments, "]");
  }
  return text;
}

std::string Parse(const OutputParser::Options& options,
                  const std::vector<std::string>& pieces) {
  OutputParser parser(options);
  OutputPart all;
  for (const std::string& piece : pieces) {
    all = Join(std::move(all), parser.Append(piece));
  }
  all = Join(std::move(all), parser.Finish());
  EXPECT_EQ(parser.found_calls(), !all.tool_calls.empty());
  return Shown(all);
}

// As a whole; and cut at each place, and into characters, which gives the same.
std::string Parse(const OutputParser::Options& options,
                  const std::string& text) {
  const std::string whole = Parse(options, std::vector<std::string>{text});
  std::vector<std::string> characters;
  for (size_t i = 0; i < text.size(); ++i) {
    characters.push_back(text.substr(i, 1));
    EXPECT_EQ(Parse(options, std::vector<std::string>{text.substr(0, i),
                                                      text.substr(i)}),
              whole)
        << i;
  }
  EXPECT_EQ(Parse(options, characters), whole);
  return whole;
}

OutputParser::Options All(bool begins = false) {
  OutputParser::Options options;
  options.splits_reasoning = true;
  options.begins_reasoning = begins;
  options.reads_tools = true;
  options.schemas = {{"add",
                      {{"a", "integer"},
                       {"b", "number"},
                       {"why", "string"},
                       {"all", "array"},
                       {"sure", "boolean"}}}};
  return options;
}

TEST(OutputParserTest, SplitsReasoningFromContent) {
  EXPECT_EQ(Parse(All(), "<think>\nhm\n</think>\n\nYes.\n"), "[hm][Yes.\n]");
  EXPECT_EQ(Parse(All(), " \n<think>hm</think>Yes"), "[hm][Yes]");
  // The prompt has opened it.
  EXPECT_EQ(Parse(All(true), "\nhm\n\nhm\n</think>\n\nYes"), "[hm\n\nhm][Yes]");
  EXPECT_EQ(Parse(All(true), "never closed\n"), "[never closed\n][]");
  EXPECT_EQ(Parse(All(true), "</think>"), "[][]");
  EXPECT_EQ(Parse(All(true), "</thin</think></thinker>"),
            "[</thin][</thinker>]");
  // Only at the beginning.
  EXPECT_EQ(Parse(All(), "No <think>x</think>"), "[][No <think>x</think>]");
  EXPECT_EQ(Parse(All(), "<thin"), "[][<thin]");
  EXPECT_EQ(Parse(All(), ""), "[][]");
  OutputParser::Options off;
  EXPECT_EQ(Parse(off, "<think>x</think>\n<tool_call>"),
            "[][<think>x</think>\n<tool_call>]");
  off.splits_reasoning = true;
  EXPECT_EQ(Parse(off, "<think>x</think>\n<tool_call>"), "[x][<tool_call>]");
}

TEST(OutputParserTest, ReadsCallsInTheHermesForm) {
  EXPECT_EQ(
      Parse(All(),
            "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": "
            "{\"b\": 1.5, \"a\": [1, {\"x\": null}]}}\n</tool_call>"),
      R"([][Let me see.][add{"b":1.5,"a":[1,{"x":null}]}])");
  EXPECT_EQ(Parse(All(),
                  "<tool_call>{\"name\":\"f\"}</tool_call>\n"
                  "<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}"
                  "</tool_call>"),
            "[][][f{}][g{}]");
  // The end of the output closes it, too.
  EXPECT_EQ(Parse(All(), "<tool_call>{\"name\":\"f\"}"), "[][][f{}]");
  EXPECT_EQ(
      Parse(All(true), "hm</think><tool_call>{\"name\":\"f\"}</tool_call>ok"),
      "[hm][ok][f{}]");
}

TEST(OutputParserTest, ReadsCallsInQwensForm) {
  EXPECT_EQ(Parse(All(),
                  "<tool_call>\n<function=add>\n<parameter=a>\n7\n"
                  "</parameter>\n<parameter=why>\n7\n</parameter>\n"
                  "<parameter=b>\nnone of it\n</parameter>\n"
                  "<parameter=all>\n[1, \"x\"]\n</parameter>\n"
                  "<parameter=sure>\nTrue\n</parameter>\n"
                  "<parameter=other>\ntwo\n lines\n\n</parameter>\n"
                  "</function>\n</tool_call>"),
            R"([][][add{"a":7,"why":"7","b":"none of it","all":[1,"x"],)"
            R"("sure":true,"other":"two\n lines\n"}])");
  EXPECT_EQ(Parse(All(), "<tool_call><function=f></function></tool_call>"),
            "[][][f{}]");
}

TEST(OutputParserTest, WhatIsNoCallIsContent) {
  for (const std::string& text :
       {std::string("<tool_call>{\"name\": </tool_call>"),
        std::string("<tool_call>[1]</tool_call>"),
        std::string("<tool_call>{\"name\": 1}</tool_call>"),
        std::string(
            "<tool_call>{\"name\": \"f\", \"arguments\": 1}</tool_call>"),
        std::string("<tool_call><function=f><parameter=a>1</tool_call>"),
        std::string("<tool_call><function=></function></tool_call>"),
        std::string("<tool_call>\nplain\n</tool_call>\n\nmore"),
        std::string("<tool_call>never closed"),
        absl::StrCat("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":",
                     std::string(100, '['), std::string(100, ']'),
                     "}}</tool_call>")}) {
    EXPECT_EQ(Parse(All(), text), absl::StrCat("[][", text, "]"));
  }
  EXPECT_EQ(Parse(All(), "a < b <tool_ca"), "[][a < b <tool_ca]");
}

TEST(OutputParserTest, OneCallAtMostIfSo) {
  OutputParser::Options options = All();
  options.one_call = true;
  EXPECT_EQ(Parse(options,
                  "a<tool_call>{\"name\":\"f\"}</tool_call>b"
                  "<tool_call>{\"name\":\"g\"}</tool_call>c"),
            "[][a][f{}]");
}

}  // namespace
}  // namespace recurve
