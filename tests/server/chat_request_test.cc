#include "server/openai/chat_request.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

RequestLimits Limits() {
  RequestLimits limits;
  limits.vocab_size = 258;
  limits.max_model_len = 1000;
  limits.has_tokenizer = true;
  return limits;
}

struct Parsed {
  std::optional<ApiError> error;
  ChatRequest chat;
  CompletionRequest request;
};

Parsed Parse(const std::string& body) {
  Parsed parsed;
  parsed.error =
      ParseChat(body, "demo", Limits(), &parsed.chat, &parsed.request);
  return parsed;
}

json Message(const std::string& role, const json& content) {
  return {{"role", role}, {"content", content}};
}

json Tool(const std::string& name) {
  return {{"type", "function"}, {"function", {{"name", name}}}};
}

// A request of one message, with these members.
std::string With(json members) {
  if (!members.contains("messages")) {
    members["messages"] = json::array({Message("user", "hi")});
  }
  return members.dump();
}

TEST(ChatRequestTest, ReadsWhatClientsSend) {
  const Parsed parsed = Parse(With({
      {"model", "demo"},
      {"messages",
       {Message("developer", "a"),
        Message("user", {{{"type", "text"}, {"text", "b"}}}),
        {{"role", "assistant"},
         {"content", nullptr},
         {"refusal", nullptr},
         {"reasoning_content", "hm"},
         {"tool_calls",
          {{{"id", "1"},
            {"type", "function"},
            {"function", {{"name", "f"}, {"arguments", "{\"x\": 1}"}}}}}}},
        {{"role", "tool"}, {"content", "c"}, {"tool_call_id", "1"}}}},
      {"tools",
       {{{"type", "function"},
         {"function",
          {{"name", "f"},
           {"parameters",
            {{"properties",
              {{"s", {{"type", "string"}}},
               {"n", {{"type", {"integer", "null"}}}},
               {"none", {}}}}}}}}}}},
      {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}},
      {"parallel_tool_calls", false},
      {"chat_template_kwargs", {{"enable_thinking", false}}},
      {"max_completion_tokens", 7},
      {"logprobs", true},
      {"top_logprobs", 3},
      {"n", 2},
      {"seed", 5},
      {"stop", {"x"}},
      {"stream", true},
      {"stream_options", {{"include_usage", true}}},
      {"prompt_cache_key", "k"},
      {"modalities", {"text"}},
      {"response_format", {{"type", "text"}}},
      {"add_special_tokens", false},
      {"echo", false},
      {"store", false},
      {"documents", nullptr},
  }));
  ASSERT_FALSE(parsed.error) << parsed.error->message;
  EXPECT_EQ(parsed.chat.tool_choice, ChatRequest::ToolChoice::kNamed);
  EXPECT_EQ(parsed.chat.tool, "f");
  EXPECT_FALSE(parsed.chat.parallel_tool_calls);
  EXPECT_THAT(
      parsed.chat.schemas,
      ElementsAre(Pair("f", ElementsAre(Pair("n", "any"), Pair("none", ""),
                                        Pair("s", "string")))));
  ASSERT_EQ(parsed.request.prompts.size(), 1u);
  const RequestInput& prompt = parsed.request.prompts[0];
  EXPECT_EQ(prompt.options.sampling.num_logprobs, 3);
  EXPECT_EQ(prompt.options.cache_key, "k");
  EXPECT_EQ(prompt.max_new_tokens, 7);
  EXPECT_EQ(prompt.seed, 5u);
  EXPECT_EQ(parsed.request.samples, 2);
  EXPECT_TRUE(parsed.request.stream);
  EXPECT_TRUE(parsed.request.include_usage);
}

TEST(ChatRequestTest, KeepsTheLastPlacesThatAreMarked) {
  json messages = json::array();
  for (int i = 0; i < 5; ++i) {
    messages.push_back(
        Message("user", {{{"type", "text"},
                          {"text", "a"},
                          {"cache_control", {{"type", "ephemeral"}}}},
                         {{"type", "text"}, {"text", "b"}}}));
  }
  messages[4]["prompt_cache_breakpoint"] = true;
  messages[3]["content"][0]["cache_control"] = nullptr;
  const Parsed parsed = Parse(With({{"messages", messages}}));
  ASSERT_FALSE(parsed.error) << parsed.error->message;
  EXPECT_THAT(parsed.chat.breaks,
              ElementsAre(Pair(1, 0), Pair(2, 0), Pair(4, 0), Pair(4, -1)));
}

TEST(ChatRequestTest, ToolsWithoutUseAreNone) {
  EXPECT_FALSE(Parse(With({{"tools", json::array()}})).chat.has_tools());
  EXPECT_FALSE(Parse(With({{"tool_choice", "auto"}})).chat.has_tools());
  EXPECT_FALSE(Parse(With({{"tools", json::array({Tool("f")})},
                           {"tool_choice", "none"}}))
                   .chat.has_tools());
  EXPECT_TRUE(
      Parse(With({{"tools", json::array({Tool("f")})}})).chat.has_tools());
}

TEST(ChatRequestTest, ContinuingNeedsNoPromptToGenerate) {
  EXPECT_FALSE(
      Parse(With({{"continue_final_message", true}})).chat.generation_prompt);
  EXPECT_TRUE(Parse(With({})).chat.generation_prompt);
}

TEST(ChatRequestTest, ErrorsNameFieldValueAndWhatIsExpected) {
  const json image = {{"type", "image_url"}, {"image_url", {{"url", "x"}}}};
  const auto call = [](const json& function) {
    return json::array(
        {{{"role", "assistant"}, {"tool_calls", {{{"function", function}}}}}});
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "the body is a list of 0; expected an object"},
      {"{}", "messages is missing"},
      {With({{"messages", "hi"}}), "messages is 'hi'; expected a list"},
      {With({{"messages", json::array()}}), "messages is a list of 0"},
      {With({{"messages", json::array({1})}}),
       "messages[0] is 1; expected an object"},
      {With({{"messages", json::array({json::object()})}}),
       "messages[0].role is missing"},
      {With({{"messages", json::array({Message("boss", "x")})}}),
       "messages[0].role is 'boss'; expected system, developer, user"},
      {With({{"messages", json::array({Message("user", nullptr)})}}),
       "messages[0].content is missing"},
      {With({{"messages", json::array({Message("user", 5)})}}),
       "messages[0].content is 5; expected a string or a list of parts"},
      {With({{"messages",
              json::array({Message("user", json::array({image}))})}}),
       "messages[0].content[0].type is 'image_url'; expected 'text'"},
      {With({{"messages", json::array({Message(
                              "user", json::array({{{"type", "text"}}}))})}}),
       "messages[0].content[0].text is missing"},
      {With({{"messages", call({{"name", "f"}, {"arguments", "{"}})}}),
       "messages[0].tool_calls[0].function.arguments is '{'; expected the "
       "JSON"},
      {With({{"messages", call({{"arguments", "{}"}})}}),
       "messages[0].tool_calls[0].function.name is missing"},
      {With({{"tools", 5}}), "tools is 5"},
      {With({{"tools", json::array({Tool("a b")})}}),
       "tools[0].function.name is 'a b'"},
      {With({{"tools", json::array({Tool("f"), Tool("f")})}}),
       "tools[1].function.name is 'f'"},
      {With({{"tools", json::array({{{"type", "web_search"}}})}}),
       "tools[0].type is 'web_search'; expected 'function'"},
      {With({{"tool_choice", "required"}}),
       "tool_choice asks for a call, and there are no tools"},
      {With({{"tools", json::array({Tool("f")})},
             {"tool_choice",
              {{"type", "function"}, {"function", {{"name", "g"}}}}}}),
       "tool_choice names 'g', which is none of the tools"},
      {With({{"tool_choice", "maybe"}}), "tool_choice is 'maybe'"},
      {With({{"chat_template_kwargs", {{"messages", 1}}}}),
       "chat_template_kwargs has the key 'messages'"},
      {With({{"top_logprobs", 2}}), "top_logprobs is set, and logprobs is not"},
      {With({{"logprobs", 2}}), "logprobs is 2; expected true or false"},
      {With({{"top_logprobs", 21}, {"logprobs", true}}), "expected an integer"},
      {With({{"response_format", {{"type", "json_object"}}}}),
       "response_format is"},
      {With(
           {{"add_generation_prompt", true}, {"continue_final_message", true}}),
       "continue_final_message is true, and so is add_generation_prompt"},
      {With({{"functions", {1}}}), "'functions' is no option of this server"},
      {With({{"chat_template", "x"}}), "'chat_template' is no option"},
      {With({{"echo", true}}), "'echo' is no option of this server"},
      {With({{"model", "other"}}), "the model 'other' is not here"},
      {With({{"stream_options", {{"include_usage", true}}}}),
       "stream_options is set, and stream is not true"},
  };
  for (const auto& [body, expected] : cases) {
    const Parsed parsed = Parse(body);
    ASSERT_TRUE(parsed.error) << body;
    EXPECT_THAT(parsed.error->message, HasSubstr(expected)) << body;
  }
}

TEST(ChatRequestTest, DeepAndWideBodiesAreRefused) {
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  EXPECT_TRUE(Parse("{\"messages\": " + deep + "}").error);
  std::string wide = "{\"messages\": [";
  for (int i = 0; i < 70'000; ++i) wide += "1,";
  const Parsed parsed = Parse(wide + "1]}");
  ASSERT_TRUE(parsed.error);
  EXPECT_THAT(parsed.error->message, HasSubstr("more than 65536 values"));
}

}  // namespace
}  // namespace recurve
