// Ids that clients give to their requests over HTTP.

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/e2e/http_fixture.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(HttpRequestIdTest, AClientMayNameItsRequest) {
  TestServer server;
  json body = {{"prompt", "a"}, {"max_tokens", 2}};
  const std::string longest(128, '~');
  for (const std::string& id :
       {std::string("!"), std::string("a-1/\"b\\:=+"), longest}) {
    for (const bool stream : {false, true}) {
      body["stream"] = stream;
      const HttpResult result = Complete(server, body, {"X-Request-ID: " + id});
      ASSERT_EQ(result.status, 200) << result.body;
      EXPECT_EQ(result.headers.at("x-request-id"), id);
      // Which Abort takes.
      EXPECT_EQ(result.headers.at("recurve-request-id").size(), 16);
      const json answer =
          ParseJson(stream ? SseEvents(result.body)[0] : result.body);
      EXPECT_EQ(answer["id"], "cmpl-" + id);
      // The header goes before vLLM's field.
      json named = body;
      named["request_id"] = "theirs";
      EXPECT_EQ(Complete(server, named, {"X-Request-ID: " + id})
                    .headers.at("x-request-id"),
                id);
    }
  }
  body["stream"] = false;
  body["request_id"] = longest;
  const HttpResult by_field = Complete(server, body);
  ASSERT_EQ(by_field.status, 200) << by_field.body;
  EXPECT_EQ(by_field.headers.at("x-request-id"), longest);
  EXPECT_EQ(ParseJson(by_field.body)["id"], "cmpl-" + longest);
  body["request_id"] = longest + "x";
  EXPECT_EQ(Complete(server, body).status, 400);
  body.erase("request_id");
  // An error can be found again, too.
  body["temperature"] = 101;
  const HttpResult error = Complete(server, body, {"X-Request-Id: mine"});
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.headers.at("x-request-id"), "mine");
  const HttpResult by_head =
      Fetch(server.server().http_port(),
            HttpRequestText("GET", kCompletionsPath, "", {"X-Request-Id: x"}));
  EXPECT_EQ(by_head.status, 405);
  EXPECT_EQ(by_head.headers.at("x-request-id"), "x");
  EXPECT_EQ(RefusedRequests(server, "invalid"), 2);

  body.erase("temperature");
  const std::string expected =
      "; expected one of 1 to 128 visible ASCII characters, ! to ~";
  const std::pair<std::vector<std::string>, std::string> bad[] = {
      {{"X-Request-Id:"}, "X-Request-Id has 0 bytes"},
      {{"X-Request-Id: " + longest + "x"}, "X-Request-Id has 129 bytes"},
      {{"X-Request-Id: a b"}, "X-Request-Id is 'a b'"},
      {{"X-Request-Id: \xc3\xa4"}, "X-Request-Id is '"},
      {{"X-Request-Id: a", "x-request-id: a"},
       "there are 2 headers X-Request-Id"},
  };
  for (const auto& [headers, message] : bad) {
    const HttpResult refused = Complete(server, body, headers);
    EXPECT_EQ(refused.status, 400) << message;
    EXPECT_EQ(refused.headers.count("x-request-id"), 0) << message;
    const json problem = ParseJson(refused.body)["error"]["message"];
    EXPECT_THAT(problem.get<std::string>(), HasSubstr(message));
    EXPECT_THAT(problem.get<std::string>(), HasSubstr(expected));
  }
  EXPECT_EQ(RefusedRequests(server, "invalid"), 2 + std::size(bad));
  // Probes go on, whatever a proxy adds to them.
  EXPECT_EQ(Fetch(server.server().http_port(),
                  HttpRequestText("GET", "/health", "", {"X-Request-Id:"}))
                .status,
            200);
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
