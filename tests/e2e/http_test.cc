// The completions API over HTTP, as its clients see it.

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/http_fixture.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// The same request over gRPC.
Generation OverGrpc(TestServer& server, const v1::GenerateRequest& request) {
  const auto outcome = Generate(*server.Connect(), request);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  return outcome.generation;
}

TEST(HttpTest, GivesTheTokensOfGrpc) {
  TestServer server;
  v1::GenerateRequest request;
  request.set_prompt_text("def fibonacci(n):\n");
  request.mutable_stopping()->set_max_new_tokens(40);
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_top_p(0.9f);
  request.mutable_sampling()->set_top_k(50);
  request.mutable_sampling()->set_min_p(0.01f);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_presence_penalty(0.5f);
  request.mutable_sampling()->set_frequency_penalty(0.25f);
  request.mutable_sampling()->set_repetition_penalty(1.1f);
  (*request.mutable_sampling()->mutable_logit_bias())[10] = -2;
  request.mutable_stopping()->set_ignore_eos(true);
  const Generation want = OverGrpc(server, request);
  json body = {{"model", "demo"},
               {"prompt", "def fibonacci(n):\n"},
               {"max_tokens", 40},
               {"temperature", 0.8},
               {"top_p", 0.9},
               {"top_k", 50},
               {"min_p", 0.01},
               {"seed", 7},
               {"presence_penalty", 0.5},
               {"frequency_penalty", 0.25},
               {"repetition_penalty", 1.1},
               {"logit_bias", {{"10", -2}}},
               {"ignore_eos", true},
               {"return_token_ids", true},
               {"user", "me"},
               {"n", 1},
               {"echo", false},
               {"stop", nullptr}};
  const HttpResult whole = Complete(server, body);
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(whole.headers.at("content-type"), "application/json");
  const json answer = ParseJson(whole.body);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "demo");
  EXPECT_EQ(answer["id"], whole.headers.at("x-request-id"));
  EXPECT_EQ(answer["id"], "cmpl-" + whole.headers.at("recurve-request-id"));
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], want.text);
  EXPECT_EQ(choice["token_ids"], json(want.token_ids));
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 19);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 40);
  EXPECT_EQ(answer["usage"]["total_tokens"], 59);

  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const HttpResult streamed = Complete(server, body);
  ASSERT_EQ(streamed.status, 200) << streamed.body;
  EXPECT_THAT(streamed.headers.at("content-type"),
              HasSubstr("text/event-stream"));
  const std::vector<std::string> events = SseEvents(streamed.body);
  ASSERT_GE(events.size(), 3);
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  json ids = json::array();
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const json event = ParseJson(events[i]);
    EXPECT_TRUE(event["usage"].is_null());
    text += event["choices"][0]["text"].get<std::string>();
    for (const json& id : event["choices"][0]["token_ids"]) ids.push_back(id);
    EXPECT_EQ(event["choices"][0]["finish_reason"].is_null(),
              i + 3 < events.size());
  }
  EXPECT_EQ(text, want.text);
  EXPECT_EQ(ids, json(want.token_ids));
  const json last = ParseJson(events[events.size() - 2]);
  EXPECT_EQ(last["choices"].size(), 0);
  EXPECT_EQ(last["usage"]["completion_tokens"], 40);
  server.ExpectIdle();
}

// Several continuations of each prompt, each what its seed gives alone.
TEST(HttpTest, SeveralContinuationsOfAPrompt) {
  TestServer server;
  const std::vector<std::vector<uint32_t>> prompts = {{256, 65, 66}, {256, 67}};
  json body = {{"prompt", prompts},       {"n", 3},    {"max_tokens", 6},
               {"temperature", 1},        {"seed", 5}, {"ignore_eos", true},
               {"return_token_ids", true}};
  const json answer = ParseJson(Complete(server, body).body);
  ASSERT_EQ(answer["choices"].size(), 6);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 36);
  for (size_t i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    const json& choice = answer["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["seed"] == 5, i % 3 == 0);
    v1::GenerateRequest alone = GreedyRequest(prompts[i / 3], 6);
    alone.mutable_sampling()->set_temperature(1);
    alone.mutable_sampling()->set_seed(choice["seed"].get<uint64_t>());
    EXPECT_EQ(choice["token_ids"], json(OverGrpc(server, alone).token_ids));
  }
  server.ExpectIdle();
}

TEST(HttpTest, TakesTokenIdsAndListsOfPrompts) {
  TestServer server;
  const Generation want = OverGrpc(server, GreedyRequest({256, 65, 66}, 5));
  json body = {{"prompt", {256, 65, 66}},
               {"max_tokens", 5},
               {"temperature", 0},
               {"ignore_eos", true},
               {"return_token_ids", true}};
  const json one = ParseJson(Complete(server, body).body);
  EXPECT_EQ(one["choices"][0]["token_ids"], json(want.token_ids));
  // A text is encoded with the beginning-of-sequence token, which is 256.
  body["prompt"] = "AB";
  EXPECT_EQ(ParseJson(Complete(server, body).body)["choices"][0]["token_ids"],
            json(want.token_ids));

  body["prompt"] = json::array({json::array({256, 65, 66}), "x", "AB"});
  const json three = ParseJson(Complete(server, body).body);
  ASSERT_EQ(three["choices"].size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(three["choices"][i]["index"], i);
  EXPECT_EQ(three["choices"][0]["token_ids"], json(want.token_ids));
  EXPECT_EQ(three["choices"][2]["token_ids"], json(want.token_ids));
  EXPECT_EQ(three["usage"]["completion_tokens"], 15);
  EXPECT_EQ(three["usage"]["prompt_tokens"], 8);

  body["stream"] = true;
  std::vector<json> ids(3, json::array());
  for (const std::string& event : SseEvents(Complete(server, body).body)) {
    if (event == "[DONE]") continue;
    const json choice = ParseJson(event)["choices"][0];
    for (const json& id : choice["token_ids"]) {
      ids[choice["index"].get<size_t>()].push_back(id);
    }
  }
  EXPECT_EQ(ids[0], json(want.token_ids));
  EXPECT_EQ(ids[1].size(), 5);
  EXPECT_EQ(ids[2], json(want.token_ids));
  server.ExpectIdle();
}

TEST(HttpTest, LogprobsAndStopsAreThoseOfGrpc) {
  TestServer server;
  v1::GenerateRequest request;
  request.set_prompt_text("def fibonacci(n):\n");
  request.mutable_stopping()->set_max_new_tokens(160);
  request.mutable_stopping()->add_stop_strings("np.arr");
  request.set_logprobs(2);
  const Generation want = OverGrpc(server, request);
  const json body = {{"prompt", "def fibonacci(n):\n"},
                     {"max_tokens", 160},
                     {"stop", {"np.arr", "never"}},
                     {"logprobs", 2},
                     {"temperature", 0}};
  const json choice = ParseJson(Complete(server, body).body)["choices"][0];
  EXPECT_EQ(choice["text"], "    return ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "np.arr");
  const json& logprobs = choice["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), want.token_ids.size());
  EXPECT_EQ(logprobs["tokens"][4], "r");
  EXPECT_EQ(logprobs["text_offset"][4], 4);
  for (size_t i = 0; i < want.logprobs.size(); ++i) {
    EXPECT_FLOAT_EQ(logprobs["token_logprobs"][i].get<float>(),
                    want.logprobs[i].logprob());
    // Greedy: the chosen token is the first of the two best.
    EXPECT_EQ(logprobs["top_logprobs"][i].size(), 2);
  }
  const json by_id = ParseJson(
      Complete(server,
               {{"prompt", "def fibonacci(n):\n"},
                {"temperature", 0},
                {"stop_token_ids", {static_cast<int>(want.token_ids[4])}},
                {"logprobs", 0},
                {"return_tokens_as_token_ids", true}})
          .body)["choices"][0];
  EXPECT_EQ(by_id["finish_reason"], "stop");
  EXPECT_EQ(by_id["stop_reason"], want.token_ids[4]);
  EXPECT_EQ(by_id["logprobs"]["tokens"].back(),
            absl::StrCat("token_id:", want.token_ids[4]));
  EXPECT_EQ(by_id["logprobs"]["top_logprobs"][0].size(), 1);
  // What the API promises by default: 16 tokens.
  const json plain =
      ParseJson(Complete(server, {{"prompt", "a"}, {"ignore_eos", true}}).body);
  EXPECT_EQ(plain["usage"]["completion_tokens"], 16);
}

TEST(HttpTest, BadRequestsNameTheField) {
  TestServer server;
  struct Case {
    json body;
    const char* param;
    const char* message;
    int status = 400;
  };
  const Case cases[] = {
      {{{"max_tokens", 1}}, "prompt", "prompt is missing"},
      {{{"prompt", "a"}, {"n", 17}},
       "n",
       "n is 17; expected an integer from 1 to 16"},
      {{{"prompt", "a"}, {"suffix", "b"}}, "suffix", "supports \"\" only"},
      {{{"prompt", "a"}, {"min_tokens", 9}, {"max_tokens", 8}},
       "min_tokens",
       "min_tokens is 9; expected at most max_tokens, which is 8"},
      {{{"prompt", std::string(8000, 'a')},
        {"n", 16},
        {"echo", true},
        {"logprobs", 1}},
       "max_tokens",
       "max_tokens is 16 for 16 prompts, which are shown: the answer may come "
       "to 2180624 tokens"},
      {{{"prompt", "a"}, {"best_of", 3}}, "best_of", "best_of is 3"},
      {{{"prompt", "a"}, {"colour", "red"}}, "colour", "no option"},
      {{{"prompt", "a"}, {"temperature", 101}},
       "temperature",
       "temperature is 101; expected 0 to 100"},
      {{{"prompt", "a"}, {"temperature", "hot"}},
       "temperature",
       "temperature is 'hot'; expected a number"},
      {{{"prompt", "a"}, {"top_p", 0}}, "top_p", "above 0, at most 1"},
      // Not what is left of them in a float.
      {{{"prompt", "a"}, {"top_p", 1.0000001}},
       "top_p",
       "top_p is 1.0000001; expected above 0, at most 1"},
      {{{"prompt", "a"}, {"temperature", 1e39}},
       "temperature",
       "temperature is 1e+39; expected 0 to 100"},
      {{{"prompt", "a"}, {"repetition_penalty", 0.009}},
       "repetition_penalty",
       "repetition_penalty is 0.009; expected 0.01 to 10"},
      {{{"prompt", "a"}, {"logit_bias", {{"65", -101}}}},
       "logit_bias",
       "logit_bias[65] is -101; expected -100 to 100"},
      {{{"prompt", "a"}, {"top_k", 1.5}}, "top_k", "expected an integer"},
      {{{"prompt", "a"}, {"max_tokens", 0}},
       "max_tokens",
       "max_tokens is 0; expected an integer from 1"},
      {{{"prompt", "a"}, {"max_tokens", 9000}},
       "max_tokens",
       "max_tokens is 9000; the sequence would reach 0 + 2 + 9000 tokens "
       "(held, appended, to generate), and this server's max_model_len is "
       "8192"},
      {{{"prompt", "a"}, {"max_tokens", 1}, {"max_completion_tokens", 2}},
       "max_tokens",
       "max_tokens is 1 and max_completion_tokens is 2; expected one value"},
      {{{"prompt", std::vector<std::string>(2, "a")},
        {"max_tokens", 8000},
        {"logprobs", 20}},
       "max_tokens",
       "max_tokens is 8000 for 2 prompts: the answer may come to 2704000 "
       "tokens, where a logprob counts as 8; without stream at most 2097152"},
      {{{"prompt", "a"}, {"logprobs", 21}}, "logprobs", "from 0 to 20"},
      {{{"prompt", "a"}, {"logprobs", true}}, "logprobs", "logprobs is true"},
      {{{"prompt", "a"}, {"seed", 1.5}}, "seed", "expected an integer"},
      {{{"prompt", "a"}, {"seed", 18446744073709551616.0}},
       "seed",
       "seed is 1.8446744073709552e+19; expected an integer from "
       "-9223372036854775808 to 18446744073709551615"},
      {{{"prompt", "a"}, {"stop", 5}}, "stop", "expected a string or a list"},
      {{{"prompt", "a"}, {"stop", {"a", ""}}},
       "stop",
       "stop[1] has 0 bytes; expected 1 to 256"},
      {{{"prompt", "a"}, {"logit_bias", {{"A", 1}}}},
       "logit_bias",
       "has the key 'A'"},
      {{{"prompt", "a"}, {"logit_bias", {{" 65", 1}}}},
       "logit_bias",
       "has the key ' 65'"},
      {{{"prompt", "a"}, {"logit_bias", {{"4294967295", 1}}}},
       "logit_bias",
       "has the key '4294967295'; expected a token id from 0 to 257"},
      {{{"prompt", "a"}, {"logit_bias", {{"65", 1}, {"065", 2}}}},
       "logit_bias",
       "has the key '065'"},
      {{{"prompt", "a"}, {"logit_bias", {{"999", 1}}}}, "logit_bias", "999"},
      {{{"prompt", std::string(9000, 'a')}},
       "prompt",
       "prompt has 9001 tokens; this server's max_model_len is 8192"},
      {{{"prompt", "a"}, {"stream_options", {{"include_usage", false}}}},
       "stream_options",
       "stream is not true"},
      {{{"prompt", "a"},
        {"stream", true},
        {"stream_options", {{"include_obfuscation", true}}}},
       "stream_options",
       "no such option"},
      {{{"prompt", "a"},
        {"stream", true},
        {"stream_options", {{"continuous_usage_stats", 1}}}},
       "stream_options",
       "continuous_usage_stats is 1; expected true or false"},
      {{{"prompt", {1, 2, 258}}},
       "prompt",
       "prompt[2] is 258; the vocabulary has ids 0 to 257"},
      {{{"prompt", {1, -2}}},
       "prompt",
       "prompt[1] is -2; expected a token id from 0 to 257"},
      {{{"prompt", {4294967295u}}},
       "prompt",
       "prompt[0] is 4294967295; expected a token id from 0 to 257"},
      {{{"prompt", "a"}, {"stop_token_ids", {1, 258}}},
       "stop_token_ids",
       "stop_token_ids[1] is 258; expected an integer from 0 to 257"},
      {{{"prompt", json::array()}}, "prompt", "has 0 entries"},
      {{{"prompt", json::array({"a", json::array({999})})}},
       "prompt",
       "prompt[1][0] is 999"},
      {{{"prompt", json::object()}}, "prompt", "expected a string or a list"},
      {{{"prompt", json::array()}, {"model", "gpt-9"}},
       "model",
       "the model 'gpt-9' is not here; this server has 'demo'",
       404},
      {json::array(), nullptr, "the body is a list of 0; expected an object"},
  };
  for (const Case& c : cases) {
    const HttpResult result = Complete(server, c.body);
    EXPECT_EQ(result.status, c.status) << c.body;
    const json error = ParseJson(result.body)["error"];
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(c.message));
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], c.param != nullptr ? json(c.param) : json());
  }
  for (const std::string body :
       {"", "{", "{\"prompt\": \"a\"} x", "{\"prompt\": \"\xff\"}",
        "{\"prompt\": \"a\", \"prompt\": \"b\"}", "[[[[[[[[[[[[[[",
        "{\"prompt\": \"\\ud800\"}"}) {
    EXPECT_EQ(
        Fetch(server.server().http_port(), PostText(kCompletionsPath, body))
            .status,
        400)
        << body;
  }
  EXPECT_EQ(RefusedRequests(server, "invalid"), std::size(cases) + 7);
  server.ExpectIdle();
}

// A body of 4 MiB must not block an HTTP thread for long.
TEST(HttpTest, JunkIsRefusedBeforeItIsRead) {
  TestServer server;
  const auto junk = [](const std::string& begin, auto piece,
                       const std::string& end) {
    std::string text = begin;
    for (int i = 0; text.size() < (4 << 20) - 100; ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ",", piece(i));
    }
    return text + end;
  };
  const auto key = [](int i) { return absl::StrCat("\"", i, "\":1"); };
  const auto list = [](int) { return "[]"; };
  const auto id = [](int) { return "1"; };
  for (const std::string& body :
       {junk("{", key, "}"), junk("{\"x\":{", key, "}}"),
        junk("{\"logit_bias\":{", key, "}}"), junk("{\"prompt\":{", key, "}}"),
        junk("{\"prompt\":[", list, "]}"), junk("{\"prompt\":[[", list, "]]}"),
        junk("{\"prompt\":[", id, "]}"), junk("{\"prompt\":[[1],[", id, "]]}"),
        junk("[", list, "]")}) {
    const HttpResult result =
        Fetch(server.server().http_port(), PostText(kCompletionsPath, body));
    EXPECT_EQ(result.status, 400) << body.substr(0, 40);
    EXPECT_THAT(result.body,
                testing::AnyOf(HasSubstr("the body has more than 4096 values"),
                               HasSubstr("prompt has more than 8192 token ids"),
                               HasSubstr("prompt is, or has, an object")))
        << body.substr(0, 40);
  }
}

TEST(HttpTest, KeepsConnectionsAndAnswersPipelinedRequests) {
  TestServer server;
  HttpConnection connection(server.server().http_port());
  const json body = {{"prompt", "ab"}, {"max_tokens", 3}, {"ignore_eos", true}};
  json streamed = body;
  streamed["stream"] = true;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(connection.Send(PostText(kCompletionsPath, body.dump()) +
                                PostText(kCompletionsPath, streamed.dump()) +
                                HttpRequestText("GET", "/health")));
    EXPECT_EQ(ParseJson(connection.Read().body)["usage"]["completion_tokens"],
              3);
    EXPECT_EQ(SseEvents(connection.Read().body).back(), "[DONE]");
    EXPECT_EQ(connection.Read().status, 200);
  }
  // A chunked body, byte by byte, after 100 Continue.
  const std::string text = body.dump();
  std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
      "application/json\r\nExpect: 100-continue\r\nTransfer-Encoding: "
      "chunked\r\n\r\n";
  ASSERT_TRUE(connection.Send(request));
  EXPECT_EQ(connection.ReadSome(), "HTTP/1.1 100 Continue\r\n\r\n");
  for (const char c : text)
    connection.Send(absl::StrCat("1\r\n", std::string(1, c), "\r\n"));
  connection.Send("0\r\n\r\n");
  EXPECT_EQ(connection.Read().status, 200);
  // HTTP/1.0: the end of the connection is the end of the stream.
  const std::string old = streamed.dump();
  const HttpResult result =
      Fetch(server.server().http_port(),
            absl::StrCat("POST /v1/completions HTTP/1.0\r\nContent-Type: "
                         "application/json\r\nContent-Length: ",
                         old.size(), "\r\n\r\n", old));
  EXPECT_EQ(result.status, 200);
  EXPECT_EQ(SseEvents(result.body).back(), "[DONE]");
  server.ExpectIdle();
}

TEST(HttpTest, AClientThatLeavesEndsItsRequest) {
  TestServer server;
  const auto open = [&] { return server.server().engine().load().open; };
  for (const bool stream : {true, false}) {
    for (const bool half : {true, false}) {
      HttpConnection connection(server.server().http_port());
      ASSERT_TRUE(connection.Send(
          PostText(kCompletionsPath, json({{"prompt", json::array({"a", "b"})},
                                           {"max_tokens", 8000},
                                           {"ignore_eos", true},
                                           {"stream", stream}})
                                         .dump())));
      ASSERT_TRUE(WaitFor([&] { return open() == 2; }));
      if (stream) {
        EXPECT_THAT(connection.ReadSome(), HasSubstr("200 OK"));
      }
      half ? connection.HalfClose() : connection.Reset();
      EXPECT_TRUE(WaitFor([&] { return open() == 0; }));
    }
  }
  server.ExpectIdle();
}

TEST(HttpTest, ADrainLetsStreamsFinishAndRefusesNewRequests) {
  auto server = std::make_unique<TestServer>();
  const int port = server->server().http_port();
  StepHold hold(*server, 20);
  HttpConnection stream(port);
  HttpConnection other(port);
  const json body = {{"prompt", "a"},
                     {"max_tokens", 600},
                     {"ignore_eos", true},
                     {"stream", true}};
  stream.Send(PostText(kCompletionsPath, body.dump()));
  std::string text = stream.ReadSome();
  server->server().RequestDrain();
  other.Send(HttpRequestText("GET", "/health"));
  const HttpResult health = other.Read();
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.headers.at("connection"), "close");
  const HttpResult refused = Complete(*server, body);
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  hold.Open();
  for (std::string more; !(more = stream.ReadSome()).empty();) text += more;
  EXPECT_THAT(text, HasSubstr("data: [DONE]"));
  EXPECT_THAT(text, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_TRUE(server->server().Wait().ok());
}

TEST(HttpTest, StreamsAtTheShutdownTimeoutEndWithAnError) {
  ServerOptions options = DemoOptions();
  options.shutdown_timeout = std::chrono::milliseconds(100);
  TestServer server(options);
  HttpConnection stream(server.server().http_port());
  stream.Send(PostText(kCompletionsPath, json({{"prompt", "a"},
                                               {"max_tokens", 8000},
                                               {"ignore_eos", true},
                                               {"stream", true}})
                                             .dump()));
  EXPECT_NE(stream.ReadSome(), "");
  // Read all the time, or the error could find the connection full.
  auto rest = std::async(std::launch::async, [&stream] {
    std::string text;
    for (std::string more; !(more = stream.ReadSome()).empty();) text += more;
    return text;
  });
  server.server().RequestDrain();
  EXPECT_TRUE(server.server().Wait().ok());
  const std::string text = rest.get();
  EXPECT_THAT(text, Not(HasSubstr("[DONE]")));
  EXPECT_THAT(text, HasSubstr("--shutdown-timeout has passed"));
  EXPECT_THAT(text, HasSubstr("\"type\":\"server_error\""));
  EXPECT_THAT(text, testing::EndsWith("\r\n0\r\n\r\n"));
}

TEST(HttpTest, FailuresHaveAStatusBeforeTheStreamAndAnEventWithin) {
  TestServer server;
  std::atomic<bool> broken = false;
  server.runner().SetBeforeRun([&](const StepBatch&, CacheStorage&) {
    return broken ? absl::InternalError("broken") : absl::OkStatus();
  });
  const json body = {{"prompt", "a"},
                     {"max_tokens", 8000},
                     {"ignore_eos", true},
                     {"stream", true}};
  HttpConnection within(server.server().http_port());
  ASSERT_TRUE(within.Send(PostText(kCompletionsPath, body.dump())));
  std::string text = within.ReadSome();
  EXPECT_THAT(text, HasSubstr("200 OK"));
  broken = true;  // it has begun
  while (!absl::EndsWith(text, "\r\n0\r\n\r\n")) {
    const std::string more = within.ReadSome();
    ASSERT_NE(more, "") << text;
    text += more;
  }
  EXPECT_THAT(text, HasSubstr("\"type\":\"server_error\""));
  EXPECT_THAT(text, Not(HasSubstr("[DONE]")));
  const HttpResult after = Complete(server, body);
  EXPECT_GE(after.status, 500);
  EXPECT_EQ(ParseJson(after.body)["error"]["type"], "server_error");
}

TEST(HttpTest, AFullQueueIs429) {
  ServerOptions options = DemoOptions();
  options.engine.max_num_seqs = 1;
  options.engine.max_queued_requests = 0;
  TestServer server(options);
  HttpConnection first(server.server().http_port());
  const json body = {
      {"prompt", "a"}, {"max_tokens", 8000}, {"ignore_eos", true}};
  first.Send(PostText(kCompletionsPath, body.dump()));
  ASSERT_TRUE(
      WaitFor([&] { return server.server().engine().load().open == 1; }));
  const HttpResult result = Complete(server, body);
  EXPECT_EQ(result.status, 429);
  EXPECT_EQ(result.headers.at("retry-after"), "1");
  EXPECT_EQ(ParseJson(result.body)["error"]["code"], "rate_limit_exceeded");
  EXPECT_EQ(RefusedRequests(server, "queue_full"), 1);
  EXPECT_EQ(RefusedRequests(server, "quota"), 0);
  first.Reset();
  server.ExpectIdle();
}

TEST(HttpTest, PromptsAreQueuedTogetherOrNotAtAll) {
  ServerOptions options = DemoOptions();
  options.engine.max_num_seqs = 2;
  options.engine.max_queued_requests = 1;
  TestServer server(options);
  const int port = server.server().http_port();
  json body = {{"prompt", "a"}, {"max_tokens", 8000}, {"ignore_eos", true}};
  HttpConnection first(port);
  first.Send(PostText(kCompletionsPath, body.dump()));
  ASSERT_TRUE(
      WaitFor([&] { return server.server().engine().load().open == 1; }));
  body["max_tokens"] = 1;
  body["prompt"] = json::array({"a", "b", "c"});
  const HttpResult full = Complete(server, body);
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.headers.count("retry-after"), 1);
  EXPECT_THAT(full.body, HasSubstr("1 requests are running or waiting and 3 "
                                   "come; this server takes 2 running and 1 "
                                   "waiting"));
  // None was begun and ended again.
  EXPECT_EQ(
      MetricValue(port, "recurve_request_failure_total{status=\"CANCELLED\"}"),
      -1);
  body["prompt"] = json::array({"a", "b"});
  EXPECT_EQ(Complete(server, body).status, 200);
  // What is more than there ever is room for.
  body["prompt"] = json::array({"a", "b", "c", "d"});
  const HttpResult never = Complete(server, body);
  EXPECT_EQ(never.status, 400);
  EXPECT_EQ(never.headers.count("retry-after"), 0);
  const json error = ParseJson(never.body)["error"];
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_EQ(error["message"],
            "prompt has 4 entries; this server takes 2 running and 1 waiting");
  first.Reset();
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
