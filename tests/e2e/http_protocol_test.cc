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

}  // namespace
}  // namespace recurve
