// What RFC 9112 has a server look at in the head of a request, and where one
// request ends and the next begins.

#include "absl/strings/str_cat.h"
#include "tests/e2e/http_fixture.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kPost =
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    "Content-Type: application/json\r\n";

// The server would take the body for the next request, which a proxy before it
// has not seen.
TEST(HttpProtocolTest, OnlyChunkedIsATransferEncoding) {
  TestServer server;
  const std::string smuggled = HttpRequestText("GET", "/v1/models");
  const std::string body = absl::StrCat(absl::Hex(smuggled.size()), "\r\n",
                                        smuggled, "\r\n0\r\n\r\n");
  for (const std::string encoding :
       {"Transfer-Encoding: xchunked", "Transfer-Encoding: gzip",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: ",
        "Transfer-Encoding: chunked;a=b", "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"}) {
    for (const std::string& rest : {body, smuggled}) {
      HttpConnection connection(server.server().http_port());
      ASSERT_TRUE(connection.Send(kPost + encoding + "\r\n\r\n" + rest));
      const HttpResult refused = connection.Read();
      EXPECT_EQ(refused.status, 400) << encoding;
      EXPECT_EQ(refused.headers.at("connection"), "close") << encoding;
      EXPECT_EQ(connection.Read().status, 0) << encoding;
    }
  }
  HttpConnection named(server.server().http_port());
  named.Send(kPost + "Transfer-Encoding: gzip\r\n\r\n");
  EXPECT_THAT(named.Read().body,
              HasSubstr("Transfer-Encoding is 'gzip'; expected chunked"));
  // HTTP/1.0 has none.
  HttpConnection old(server.server().http_port());
  old.Send(
      "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" +
      body);
  EXPECT_EQ(old.Read().status, 400);
  // And this is how it is written.
  const std::string text = R"({"prompt": "a", "max_tokens": 1})";
  for (const std::string encoding : {"chunked", "Chunked", " chunked "}) {
    HttpConnection connection(server.server().http_port());
    connection.Send(absl::StrCat(kPost, "Transfer-Encoding:", encoding,
                                 "\r\n\r\n", absl::Hex(text.size()), "\r\n",
                                 text, "\r\n0\r\n\r\n"));
    EXPECT_EQ(connection.Read().status, 200) << encoding;
  }
}

TEST(HttpProtocolTest, ATargetMayNameTheServer) {
  TestServer server;
  const auto get = [&](const std::string& target) {
    return Fetch(server.server().http_port(), HttpRequestText("GET", target));
  };
  for (const std::string target :
       {"/health", "http://127.0.0.1:9090/health", "HTTP://x/health",
        "https://x/health?http://y/z", "http://[::1]:9090/health?a=/b"}) {
    EXPECT_EQ(get(target).body, "{\"status\":\"SERVING\"}") << target;
  }
  for (const std::string target :
       {"http://x", "http://x?/health", "http://x/", "http:/health",
        "ftp://x/health", "/http://x/health"}) {
    EXPECT_EQ(get(target).status, 404) << target;
  }
  const HttpResult models = get("http://x/v1/models/demo");
  EXPECT_EQ(ParseJson(models.body)["id"], "demo");
}

TEST(HttpProtocolTest, ARequestHasOneHost) {
  TestServer server;
  const auto get = [&](const std::string& rest) {
    return Fetch(server.server().http_port(), "GET /health HTTP/1." + rest);
  };
  const HttpResult none = get("1\r\nA: b\r\n\r\n");
  EXPECT_EQ(none.status, 400);
  EXPECT_THAT(none.body, HasSubstr("Host is missing"));
  const HttpResult two = get("1\r\nHost: x\r\nHost: x\r\n\r\n");
  EXPECT_EQ(two.status, 400);
  EXPECT_THAT(two.body, HasSubstr("more than one Host"));
  EXPECT_EQ(get("0\r\nHost: x\r\nHost: y\r\n\r\n").status, 400);
  EXPECT_EQ(get("1\r\nHost:\r\n\r\n").status, 200);
  EXPECT_EQ(get("0\r\n\r\n").status, 200);
}

}  // namespace
}  // namespace recurve
