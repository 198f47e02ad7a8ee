// States over HTTP: kept by completions, cut, forked, pinned, released,
// refused.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/http_fixture.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ServerOptions WithStates() {
  ServerOptions options = DemoOptions();
  options.model.prefix_cache_bytes = int64_t{64} << 20;
  return options;
}

// A client of one server.
class Client {
 public:
  explicit Client(TestServer& server, const std::string& key = "")
      : server_(server) {
    if (!key.empty()) headers_ = {"Authorization: Bearer " + key};
  }

  HttpResult Complete(const json& body) {
    return recurve::Complete(server_, body, headers_);
  }
  // The only choice of a completion, which is not refused.
  json Choice(const json& body) {
    const HttpResult result = Complete(body);
    EXPECT_EQ(result.status, 200) << result.body;
    return ParseJson(result.body)["choices"][0];
  }
  HttpResult Get(const std::string& path) { return Call("GET", path); }
  HttpResult Call(const std::string& method, const std::string& path) {
    return Fetch(server_.server().http_port(),
                 HttpRequestText(method, path, "", headers_));
  }
  HttpResult Post(const std::string& path, const std::string& body) {
    return Fetch(server_.server().http_port(), PostText(path, body, headers_));
  }
  json States() {
    const HttpResult result = Get("/v1/states");
    EXPECT_EQ(result.status, 200) << result.body;
    return ParseJson(result.body);
  }

 private:
  TestServer& server_;
  std::vector<std::string> headers_;
};

const json& Body() {
  static const auto& body = *new json{{"prompt", "def add(a, b):"},
                                      {"max_tokens", 20},
                                      {"seed", 3},
                                      {"ignore_eos", true}};
  return body;
}

json With(json body, const json& more) {
  body.update(more);
  return body;
}

// The output may be whole before its request has the sequence's id.
TEST(HttpStatesTest, ShortOutputsOfManyAtATimeAreKept) {
  TestServer server(WithStates());
  Client client(server);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 25; ++i) {
        const json kept = client.Choice({{"prompt", absl::StrCat(thread, i)},
                                         {"max_tokens", 1},
                                         {"keep_state", true}});
        ASSERT_TRUE(kept["state"].contains("id")) << kept;
        const std::string id = kept["state"]["id"];
        EXPECT_EQ(client.Call("DELETE", "/v1/states/" + id).status, 200);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.ExpectIdle();
}

TEST(HttpStatesTest, ACompletionKeepsItsEndAndGoesOnFromAnyToken) {
  TestServer server(WithStates());
  Client client(server);
  const json first =
      client.Choice(With(Body(), {{"keep_state", true}, {"logprobs", 0}}));
  const std::string id = first["state"]["id"];
  EXPECT_EQ(first["state"]["tokens"], 1 + 14 + 20);
  EXPECT_EQ(first, With(client.Choice(With(Body(), {{"logprobs", 0}})),
                        {{"state", first["state"]}}));

  const std::string path = absl::StrCat("/v1/states/", id);
  const json tokens = ParseJson(client.Get(path + "/tokens").body);
  ASSERT_EQ(tokens["tokens"].size(), 35u);
  EXPECT_EQ(tokens["token_strs"][0], "token_id:256");
  EXPECT_EQ(tokens["token_strs"][1], "d");
  std::string text;
  for (size_t i = 15; i < 35; ++i) text += tokens["token_strs"][i];
  EXPECT_EQ(text, first["text"]);

  // What goes on from a cut, greedily, is as from the tokens themselves: in the
  // output, in the prompt, and of the first token alone.
  for (const int at : {34, 25, 16, 15, 9, 1}) {
    const HttpResult fork = client.Post(
        path + "/fork", absl::StrCat(R"({"at":)", at, R"(,"seed":1})"));
    ASSERT_EQ(fork.status, 200) << fork.body;
    const json cut = ParseJson(fork.body)["data"][0];
    EXPECT_EQ(cut["tokens"], at);
    EXPECT_EQ(cut["parent"], id);
    const json greedy = {
        {"temperature", 0}, {"max_tokens", 8}, {"ignore_eos", true}};
    const json got = client.Choice(With(greedy, {{"from_state", cut["id"]}}));
    json prefix = json::array();
    for (int i = 0; i < at; ++i) prefix.push_back(tokens["tokens"][i]);
    if (at <= 15) {  // of the prompt: computed as that prompt would be
      EXPECT_EQ(got["text"],
                client.Choice(With(greedy, {{"prompt", prefix}}))["text"])
          << at;
    }
  }
  // The end goes on as the completion would have.
  const json longer =
      client.Choice(With(Body(), {{"temperature", 0}, {"max_tokens", 30}}));
  const json half = client.Choice(With(
      Body(), {{"temperature", 0}, {"max_tokens", 12}, {"keep_state", true}}));
  const json rest = client.Choice({{"from_state", half["state"]["id"]},
                                   {"temperature", 0},
                                   {"ignore_eos", true},
                                   {"max_tokens", 18}});
  EXPECT_EQ(longer["text"],
            half["text"].get<std::string>() + rest["text"].get<std::string>());
  // So does a cut in the middle of what was generated.
  const json cut = ParseJson(
      client
          .Post(absl::StrCat("/v1/states/",
                             half["state"]["id"].get<std::string>(), "/fork"),
                R"({"at":20})")
          .body)["data"][0];
  const json on = client.Choice({{"from_state", cut["id"]},
                                 {"temperature", 0},
                                 {"ignore_eos", true},
                                 {"max_tokens", 25}});
  EXPECT_EQ(longer["text"].get<std::string>().substr(5), on["text"]);
}

TEST(HttpStatesTest, AStreamNamesTheStateInItsLastEventAndPromptsFollowIt) {
  TestServer server(WithStates());
  Client client(server);
  const HttpResult stream = client.Complete(
      With(Body(), {{"keep_state", true},
                    {"stream", true},
                    {"n", 2},
                    {"stream_options", {{"include_usage", true}}}}));
  ASSERT_EQ(stream.status, 200) << stream.body;
  EXPECT_THAT(stream.body, HasSubstr("data: [DONE]"));
  std::vector<std::string> ids;
  size_t at = 0;
  while ((at = stream.body.find("\"state\":{\"id\":\"", at)) !=
         std::string::npos) {
    ids.push_back(stream.body.substr(at + 15, 32));
    at += 47;
  }
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(client.States()["data"].size(), 2u);

  // A prompt after a state, which is named; usage counts both.
  EXPECT_EQ(client
                .Post(absl::StrCat("/v1/states/", ids[0], "/pin"),
                      R"({"name":"here"})")
                .status,
            200);
  const HttpResult after = client.Complete({{"from_state", "here"},
                                            {"prompt", " and"},
                                            {"max_tokens", 4},
                                            {"keep_state", true}});
  ASSERT_EQ(after.status, 200) << after.body;
  const json answer = ParseJson(after.body);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 35 + 4);
  const json kept =
      ParseJson(client
                    .Get(absl::StrCat(
                        "/v1/states/",
                        answer["choices"][0]["state"]["id"].get<std::string>()))
                    .body);
  EXPECT_EQ(kept["parent"], ids[0]);
}

TEST(HttpStatesTest, ArePinnedGivenTimeAndReleased) {
  TestServer server(WithStates());
  Client client(server);
  const std::string id =
      client.Choice(With(Body(), {{"keep_state", true}}))["state"]["id"];
  const std::string path = absl::StrCat("/v1/states/", id);
  json state = ParseJson(client.Get(path).body);
  EXPECT_EQ(state["object"], "state");
  EXPECT_EQ(state["pinned"], false);
  EXPECT_EQ(state["ttl_seconds"], 600);
  EXPECT_EQ(state["name"], nullptr);
  EXPECT_EQ(state["parent"], nullptr);
  EXPECT_EQ(state["seed"], nullptr);
  state = ParseJson(client.Post(path + "/pin", R"({"name":"fib"})").body);
  EXPECT_EQ(state["pinned"], true);
  EXPECT_EQ(state["name"], "fib");
  state = ParseJson(
      client.Post("/v1/states/fib/pin", R"({"ttl_seconds":50})").body);
  EXPECT_EQ(state["pinned"], false);
  EXPECT_EQ(state["ttl_seconds"], 50);
  const json forks = ParseJson(
      client.Post("/v1/states/fib/fork", R"({"count":3,"seed":7})").body);
  ASSERT_EQ(forks["data"].size(), 3u);
  EXPECT_NE(forks["data"][0]["seed"], forks["data"][1]["seed"]);
  const json all = client.States();
  EXPECT_EQ(all["data"].size(), 4u);
  EXPECT_GT(all["bytes"], 0);
  EXPECT_GT(all["max_bytes"], all["bytes"]);
  const HttpResult gone = client.Call("DELETE", "/v1/states/fib");
  EXPECT_EQ(ParseJson(gone.body),
            json({{"object", "state"}, {"id", id}, {"deleted", true}}));
  EXPECT_EQ(client.Get(path).status, 404);
  EXPECT_EQ(client.States()["data"].size(), 3u);
}

TEST(HttpStatesTest, WhatCannotBeIsSaid) {
  TestServer server(WithStates());
  Client client(server);
  const std::string id =
      client.Choice(With(Body(), {{"keep_state", true}}))["state"]["id"];
  const std::string path = absl::StrCat("/v1/states/", id);
  struct Case {
    std::string path;
    std::string body;
    int status;
    std::string error;
  };
  for (const Case& c : std::vector<Case>{
           {path + "/fork", R"({"at":36})", 400,
            "at is 36; expected 1 to 35, the tokens of the state"},
           {path + "/fork", R"({"at":0})", 400, "at is 0; expected an integer"},
           {path + "/fork", R"({"count":17})", 400, "count is 17"},
           {path + "/fork", R"({"name":"x"})", 400, "'name' is no option"},
           {path + "/fork", R"({"ttl_seconds":0})", 400, "ttl_seconds is 0"},
           {path + "/fork", R"([])", 400, ""},
           {path + "/pin", "", 400, ""},
           {path + "/pin", R"({"name":"a b"})", 400, "byte 32"},
           {path + "/pin", R"({"pinned":1})", 400, "pinned is 1"},
           {path + "/pin", R"({"pinned":true,"ttl_seconds":3})", 400,
            "what is pinned has no end"},
           {"/v1/states/nothing/fork", "{}", 404, "no state 'nothing'"},
           {"/v1/states/nothing/pin", "{}", 404, "no state 'nothing'"},
           {path + "/other", "{}", 404, "there is nothing under"},
           {"/v1/states", "{}", 405, "GET, HEAD"},
           {path, "{}", 405, "GET, HEAD, DELETE"}}) {
    const HttpResult result = client.Post(c.path, c.body);
    EXPECT_EQ(result.status, c.status) << c.path << " " << c.body;
    const json error = ParseJson(result.body)["error"];
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(c.error));
  }
  EXPECT_EQ(client.Call("DELETE", path + "/pin").status, 405);
  EXPECT_EQ(client.Get("/v1/states/").status, 404);
  EXPECT_EQ(client.Get("/v1/statesx").status, 404);
  EXPECT_EQ(client.Get("/v1/states/nothing/tokens").status, 404);
  EXPECT_EQ(client.States()["data"].size(), 1u);  // nothing lost or made

  const HttpResult unknown =
      client.Complete({{"from_state", "nothing"}, {"max_tokens", 1}});
  EXPECT_EQ(unknown.status, 404);
  const json error = ParseJson(unknown.body)["error"];
  EXPECT_EQ(error["param"], "from_state");
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("from_state: there is no state 'nothing'"));
  EXPECT_EQ(client.Complete(With(Body(), {{"keep_state", 1}})).status, 400);
  EXPECT_EQ(client.Complete({{"from_state", ""}, {"max_tokens", 1}}).status,
            400);
}

TEST(HttpStatesTest, AFullStoreCostsNoOutput) {
  ServerOptions options = WithStates();
  options.engine.state_bytes = 2000;  // less than one takes
  TestServer server(options);
  Client client(server);
  const json whole = client.Choice(Body());
  const json choice = client.Choice(With(Body(), {{"keep_state", true}}));
  EXPECT_EQ(choice["text"], whole["text"]);
  EXPECT_EQ(choice["state"], nullptr);
  EXPECT_THAT(choice["state_error"].get<std::string>(),
              HasSubstr("--state-bytes"));
}

TEST(HttpStatesTest, AServerWithoutStatesRefuses) {
  ServerOptions options = DemoOptions();
  options.model.prefix_cache_bytes = 0;
  TestServer server(options);
  Client client(server);
  const HttpResult result =
      client.Complete(With(Body(), {{"keep_state", true}}));
  EXPECT_EQ(result.status, 409);
  EXPECT_EQ(ParseJson(result.body)["error"]["param"], "keep_state");
  EXPECT_THAT(result.body, HasSubstr("keeps no states"));
  EXPECT_EQ(client.States()["max_bytes"], 0);
}

TEST(HttpStatesTest, BelongToTheirTenant) {
  std::string folder = testing::TempDir() + "recurve_http_states_XXXXXX";
  mkdtemp(folder.data());
  std::ofstream(folder + "/keys")
      << KeyLine("acme", "a", "") + KeyLine("other", "b", "");
  ServerOptions options = WithStates();
  options.api_keys_file = folder + "/keys";
  TestServer server(options);
  Client acme(server, "a");
  Client other(server, "b");
  Client none(server);
  const std::string id =
      acme.Choice(With(Body(), {{"keep_state", true}}))["state"]["id"];
  const std::string path = absl::StrCat("/v1/states/", id);
  EXPECT_EQ(acme.Get(path).status, 200);
  EXPECT_EQ(other.States()["data"].size(), 0u);
  EXPECT_EQ(other.Get(path).status, 404);
  EXPECT_EQ(other.Get(path + "/tokens").status, 404);
  EXPECT_EQ(other.Post(path + "/fork", "{}").status, 404);
  EXPECT_EQ(other.Post(path + "/pin", "{}").status, 404);
  EXPECT_EQ(other.Call("DELETE", path).status, 404);
  EXPECT_EQ(other.Complete({{"from_state", id}, {"max_tokens", 1}}).status,
            404);
  for (const std::string& one : {std::string("/v1/states"), path}) {
    EXPECT_EQ(none.Get(one).status, 401);
  }
  EXPECT_EQ(none.Post(path + "/fork", "{}").status, 401);
  EXPECT_EQ(none.Call("DELETE", path).status, 401);
  EXPECT_EQ(acme.Get(path).status, 200);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace recurve
