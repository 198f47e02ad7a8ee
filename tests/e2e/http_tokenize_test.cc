// Text to token ids and back, over HTTP.

#include <fstream>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/e2e/http_fixture.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

HttpResult Post(TestServer& server, const std::string& path, const json& body,
                const std::vector<std::string>& headers = {}) {
  return Fetch(server.server().http_port(),
               PostText(path, body.dump(), headers));
}

json Answer(TestServer& server, const std::string& path, const json& body) {
  const HttpResult result = Post(server, path, body);
  EXPECT_EQ(result.status, 200) << result.body;
  return ParseJson(result.body);
}

TEST(HttpTokenizeTest, IdsAreThoseOfAPromptAndGiveTheTextBack) {
  TestServer server;
  // Short texts are encoded at once, long ones in their turn.
  for (const std::string& text :
       {std::string(""), std::string("def fib(n):\n"),
        std::string("é☃\U0001F600"), std::string(100'000, 'x')}) {
    SCOPED_TRACE(text.substr(0, 20));
    const json made = Answer(server, "/tokenize", {{"prompt", text}});
    EXPECT_EQ(made["count"], made["tokens"].size());
    EXPECT_EQ(made["max_model_len"], 8192);
    EXPECT_TRUE(made["token_strs"].is_null());
    const json back =
        Answer(server, "/detokenize", {{"tokens", made["tokens"]}});
    EXPECT_EQ(back["prompt"], text);
    if (text.empty() || text.size() > 8000) continue;
    // The completion of the ids is that of the text.
    json request = {{"prompt", text}, {"max_tokens", 5}, {"temperature", 0}};
    const json of_text = ParseJson(Complete(server, request).body);
    request["prompt"] = made["tokens"];
    const json of_ids = ParseJson(Complete(server, request).body);
    EXPECT_EQ(of_ids["choices"], of_text["choices"]);
    EXPECT_EQ(of_ids["usage"]["prompt_tokens"], made["count"]);
  }
}

TEST(HttpTokenizeTest, NamesTokensAsLogprobsDo) {
  TestServer server;
  json request = {
      {"prompt", "aé"}, {"return_token_strs", true}, {"model", "demo"}};
  EXPECT_EQ(Answer(server, "/tokenize", request)["token_strs"],
            json({"token_id:256", "a", "bytes:\\xc3", "bytes:\\xa9"}));
  // Without the beginning of a sequence.
  request["add_special_tokens"] = false;
  EXPECT_EQ(Answer(server, "/tokenize", request)["token_strs"],
            json({"a", "bytes:\\xc3", "bytes:\\xa9"}));
}

TEST(HttpTokenizeTest, ErrorsNameTheField) {
  TestServer server;
  const auto expect = [&](const std::string& path, const json& body, int status,
                          const std::string& param, const std::string& text) {
    SCOPED_TRACE(body.dump());
    const HttpResult result = Post(server, path, body);
    EXPECT_EQ(result.status, status) << result.body;
    const json error = ParseJson(result.body)["error"];
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"], param);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(text));
  };
  expect("/tokenize", json::object(), 400, "prompt", "is missing");
  expect("/tokenize", {{"prompt", 5}}, 400, "prompt",
         "is 5; expected a string");
  expect("/tokenize", {{"prompt", "a"}, {"add_special_tokens", 1}}, 400,
         "add_special_tokens", "expected true or false");
  expect("/tokenize", {{"prompt", "a"}, {"tokens", {1}}}, 400, "tokens",
         "no option");
  expect("/tokenize", {{"messages", json::array()}}, 400, "messages",
         "no option");
  expect("/tokenize", {{"prompt", "a"}, {"model", "other"}}, 404, "model",
         "'other' is not here");
  expect("/tokenize", json::array(), 400, "", "expected an object");
  expect("/detokenize", json::object(), 400, "tokens", "is missing");
  expect("/detokenize", {{"tokens", "a"}}, 400, "tokens", "list of token ids");
  expect("/detokenize", {{"tokens", {1, -1}}}, 400, "tokens",
         "tokens[1] is -1");
  expect("/detokenize", {{"tokens", {1, 1'000'000}}}, 400, "tokens",
         "tokens[1] is 1000000; expected a token id from 0 to");
  const int port = server.server().http_port();
  EXPECT_EQ(Fetch(port, HttpRequestText("GET", "/tokenize")).status, 405);
}

TEST(HttpTokenizeTest, NeedsAKeyWhereThereAreKeys) {
  ServerOptions options = DemoOptions();
  options.api_keys_file = testing::TempDir() + "/tokenize_keys";
  std::ofstream(options.api_keys_file) << KeyLine("acme", "key-a");
  TestServer server(options);
  for (const auto& [path, body] :
       {std::pair("/tokenize", json({{"prompt", "a"}})),
        std::pair("/detokenize", json({{"tokens", {97}}}))}) {
    EXPECT_EQ(Post(server, path, body).status, 401);
    EXPECT_EQ(Post(server, path, body, {"Authorization: Bearer key-a"}).status,
              200);
  }
}

}  // namespace
}  // namespace recurve
