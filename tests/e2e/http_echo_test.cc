// Prompts in the answers of the completions API: their text, their
// log-probabilities, and what they become as token ids.

#include <cmath>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/http_fixture.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kPrompt[] = "def fibonacci(n):\n";

Generation OverGrpc(TestServer& server, const v1::GenerateRequest& request) {
  const auto outcome = Generate(*server.Connect(), request);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  return outcome.generation;
}

v1::GenerateRequest Scored(const std::string& prompt, uint32_t tokens) {
  v1::GenerateRequest request;
  request.set_prompt_text(prompt);
  request.mutable_stopping()->set_max_new_tokens(tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.set_logprobs(2);
  request.set_prompt_logprobs(2);
  return request;
}

json Answer(TestServer& server, const json& body) {
  const HttpResult result = Complete(server, body);
  EXPECT_EQ(result.status, 200) << result.body;
  return ParseJson(result.body);
}

// What the events of a stream say of choice `index`, put together.
json Joined(const std::string& body, int index) {
  json whole;
  for (const std::string& text : SseEvents(body)) {
    if (text == "[DONE]") break;
    const json event = ParseJson(text);
    const json& choice = event["choices"][0];
    if (choice["index"] != index) continue;
    if (whole.is_null()) {
      whole = choice;
      continue;
    }
    whole["text"] =
        whole["text"].get<std::string>() + choice["text"].get<std::string>();
    whole["finish_reason"] = choice["finish_reason"];
    whole["stop_reason"] = choice["stop_reason"];
    if (choice.contains("seed")) whole["seed"] = choice["seed"];
    if (choice["logprobs"].is_null()) continue;
    for (const char* list :
         {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      for (const json& entry : choice["logprobs"][list]) {
        whole["logprobs"][list].push_back(entry);
      }
    }
  }
  return whole;
}

TEST(HttpEchoTest, AnEchoHasTheLogprobsOfThePrompt) {
  TestServer server;
  const Generation want = OverGrpc(server, Scored(kPrompt, 5));
  const size_t prompt = sizeof(kPrompt);  // with the beginning of the sequence
  ASSERT_EQ(want.prompt.ids_size(), prompt - 1);
  const json answer = Answer(server, {{"prompt", kPrompt},
                                      {"max_tokens", 5},
                                      {"temperature", 0},
                                      {"ignore_eos", true},
                                      {"echo", true},
                                      {"logprobs", 2}});
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], kPrompt + want.text);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 5);
  const json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), prompt + 5);
  EXPECT_EQ(logprobs["tokens"][0], "token_id:256");
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  for (size_t i = 1; i < prompt + 5; ++i) {
    const bool of_prompt = i < prompt;
    const v1::TokenLogprob& one =
        of_prompt ? want.prompt.logprobs(static_cast<int>(i - 1))
                  : want.logprobs[i - prompt];
    EXPECT_EQ(logprobs["token_logprobs"][i].get<float>(), one.logprob()) << i;
    // The token itself, and the two best.
    const size_t tops = logprobs["top_logprobs"][i].size();
    EXPECT_TRUE(tops == 2 || tops == 3) << tops;
    EXPECT_EQ(logprobs["text_offset"][i], i - 1);
  }
  // As many as are asked for by another field do not count here.
  const json both = Answer(server, {{"prompt", kPrompt},
                                    {"max_tokens", 5},
                                    {"temperature", 0},
                                    {"ignore_eos", true},
                                    {"echo", true},
                                    {"logprobs", 2},
                                    {"prompt_logprobs", 5}});
  EXPECT_EQ(both["choices"][0]["logprobs"], logprobs);
  server.ExpectIdle();
}

TEST(HttpEchoTest, APromptAloneMayBeTheAnswer) {
  ServerOptions options = DemoOptions();
  options.engine.max_model_len = 1024;
  TestServer server(options);
  for (const bool ids : {false, true}) {
    json body = {{"prompt", kPrompt},
                 {"max_tokens", 0},
                 {"echo", true},
                 {"logprobs", 0}};
    if (ids) {
      body["prompt"] = json::array({256});
      for (const char c : std::string(kPrompt)) body["prompt"].push_back(c);
    }
    const json answer = Answer(server, body);
    const json& choice = answer["choices"][0];
    EXPECT_EQ(choice["text"], kPrompt);
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), sizeof(kPrompt));
    EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
    body.erase("logprobs");
    const json plain = Answer(server, body);
    EXPECT_EQ(plain["choices"][0]["text"], kPrompt);
    EXPECT_TRUE(plain["choices"][0]["logprobs"].is_null());
  }
  // Up to the last token that a sequence may have.
  EXPECT_EQ(Answer(server, {{"prompt", std::string(1023, 'a')},
                            {"max_tokens", 0},
                            {"echo", true}})["usage"]["total_tokens"],
            1024);
  server.ExpectIdle();
}

TEST(HttpEchoTest, AStreamHasTheSame) {
  ServerOptions options = DemoOptions();
  options.engine.max_chunk_tokens = 50;
  TestServer server(options);
  json body = {{"prompt", {std::string(400, 'x') + kPrompt, "é☃", kPrompt}},
               {"max_tokens", 12},
               {"temperature", 1},
               {"seed", 3},
               {"ignore_eos", true},
               {"echo", true},
               {"n", 2}};
  for (const bool logprobs : {false, true}) {
    if (logprobs) body["logprobs"] = 3;
    body["stream"] = false;
    const json whole = Answer(server, body)["choices"];
    ASSERT_EQ(whole.size(), 6);
    body["stream"] = true;
    const HttpResult streamed = Complete(server, body);
    ASSERT_EQ(streamed.status, 200) << streamed.body;
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(Joined(streamed.body, i), whole[i]) << i;
    }
    // Once for each prompt, shown in both of its choices.
    if (!logprobs) continue;
    const size_t tokens = 400 + sizeof(kPrompt);
    for (int i = 1; i < static_cast<int>(tokens); ++i) {
      EXPECT_EQ(whole[0]["logprobs"]["token_logprobs"][i],
                whole[1]["logprobs"]["token_logprobs"][i]);
    }
  }
  server.ExpectIdle();
}

TEST(HttpEchoTest, PromptLogprobsHaveAFieldOfTheirOwn) {
  TestServer server;
  const Generation want = OverGrpc(server, Scored(kPrompt, 1));
  const json answer = Answer(server, {{"prompt", kPrompt},
                                      {"max_tokens", 1},
                                      {"temperature", 0},
                                      {"prompt_logprobs", 2}});
  const json& list = answer["choices"][0]["prompt_logprobs"];
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  ASSERT_EQ(list.size(), sizeof(kPrompt));
  EXPECT_TRUE(list[0].is_null());
  for (int i = 1; i < static_cast<int>(list.size()); ++i) {
    const uint32_t id = want.prompt.ids(i - 1);
    const v1::TokenLogprob& logprob = want.prompt.logprobs(i - 1);
    const json& token = list[i][absl::StrCat(id)];
    EXPECT_EQ(token["logprob"].get<float>(), logprob.logprob());
    EXPECT_EQ(token["decoded_token"], std::string(1, static_cast<char>(id)));
    EXPECT_EQ(token["rank"] == 1, logprob.top(0).id() == id);
    EXPECT_EQ(list[i][absl::StrCat(logprob.top(1).id())]["rank"], 2);
  }
  server.ExpectIdle();
}

// A client that reads nothing holds little: a long prompt waits for it.
TEST(HttpEchoTest, AReaderThatIsBehindHoldsAPromptUp) {
  ServerOptions options = DemoOptions();
  options.max_buffered_bytes = 4096;
  TestServer server(options);
  const json body = {{"prompt", std::string(2000, 'a')},
                     {"max_tokens", 1},
                     {"echo", true},
                     {"logprobs", 20},
                     {"ignore_eos", true},
                     {"stream", true}};
  HttpConnection connection(server.server().http_port(), nullptr, 4096);
  ASSERT_TRUE(connection.Send(PostText(kCompletionsPath, body.dump())));
  // Others are served meanwhile.
  EXPECT_EQ(Complete(server, {{"prompt", "a"}, {"max_tokens", 1}}).status, 200);
  std::string text;
  while (text.find("[DONE]") == std::string::npos) {
    const std::string more = connection.ReadSome();
    ASSERT_NE(more, "");
    text += more;
  }
  size_t tokens = 0;
  for (size_t at = text.find("token_logprobs"); at != std::string::npos;
       at = text.find("token_logprobs", at + 1)) {
    ++tokens;
  }
  EXPECT_GT(tokens, 3u);  // one for each chunk of the prompt, of 512 tokens
  server.ExpectIdle();
}

TEST(HttpEchoTest, StopsMayBeShownAndPutOff) {
  TestServer server;
  json body = {{"prompt", kPrompt},
               {"max_tokens", 60},
               {"temperature", 0},
               {"stop", "np."}};
  const std::string before = Answer(server, body)["choices"][0]["text"];
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(Answer(server, body)["choices"][0]["text"], before + "np.");
  body["min_tokens"] = before.size() + 3;
  const json later = Answer(server, body);
  EXPECT_GT(later["usage"]["completion_tokens"], before.size() + 3);
  EXPECT_THAT(later["choices"][0]["text"].get<std::string>(),
              testing::StartsWith(before + "np."));
  server.ExpectIdle();
}

TEST(HttpEchoTest, RenderAnswersWhatPromptsBecome) {
  TestServer server;
  const auto render = [&](const json& body) {
    return Fetch(server.server().http_port(),
                 PostText("/v1/completions/render", body.dump()));
  };
  const HttpResult one = render(
      {{"prompt", "ab"}, {"model", "demo"}, {"seed", 7}, {"priority", -3}});
  ASSERT_EQ(one.status, 200) << one.body;
  const json list = ParseJson(one.body);
  ASSERT_EQ(list.size(), 1);
  EXPECT_EQ(list[0]["token_ids"], json({256, 'a', 'b'}));
  EXPECT_EQ(list[0]["model"], "demo");
  EXPECT_EQ(list[0]["stream"], false);
  EXPECT_EQ(list[0]["priority"], -3);
  EXPECT_EQ(list[0]["sampling_params"]["max_tokens"], 16);
  EXPECT_EQ(list[0]["sampling_params"]["temperature"], 1.0);
  EXPECT_EQ(list[0]["sampling_params"]["seed"], 7);
  EXPECT_THAT(list[0]["request_id"].get<std::string>(),
              testing::StartsWith("cmpl-"));
  // Long texts in their turn.
  const json several = ParseJson(
      render({{"prompt", {std::string(6000, 'x'), "b"}}, {"max_tokens", 3}})
          .body);
  ASSERT_EQ(several.size(), 2);
  EXPECT_EQ(several[0]["token_ids"].size(), 6001);
  EXPECT_EQ(several[1]["token_ids"], json({256, 'b'}));
  EXPECT_NE(several[0]["request_id"], several[1]["request_id"]);
  // As the completion refuses it.
  for (const auto& [body, param] :
       {std::pair(json({{"max_tokens", 1}}), "prompt"),
        std::pair(json({{"prompt", "a"}, {"max_tokens", 9000}}), "max_tokens"),
        std::pair(json({{"prompt", {1, 999}}}), "prompt"),
        std::pair(json({{"prompt", "a"}, {"stop", {""}}}), "stop"),
        std::pair(json({{"prompt", "a"}, {"colour", 1}}), "colour")}) {
    const HttpResult refused = render(body);
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_EQ(ParseJson(refused.body)["error"]["param"], param);
  }
  EXPECT_EQ(Fetch(server.server().http_port(),
                  HttpRequestText("GET", "/v1/completions/render"))
                .status,
            405);
  server.ExpectIdle();
}

TEST(HttpEchoTest, RenderNeedsAKeyWhereThereAreKeys) {
  ServerOptions options = DemoOptions();
  options.api_keys_file = testing::TempDir() + "/render_keys";
  std::ofstream(options.api_keys_file) << KeyLine("acme", "key-a");
  TestServer server(options);
  const std::string body = json({{"prompt", "a"}}).dump();
  const int port = server.server().http_port();
  const std::string path = "/v1/completions/render";
  EXPECT_EQ(Fetch(port, PostText(path, body)).status, 401);
  EXPECT_EQ(
      Fetch(port, PostText(path, body, {"Authorization: Bearer key-a"})).status,
      200);
}

}  // namespace
}  // namespace recurve
