// What RFC 9112 has a server look at in the head of a request, and where one
// request ends and the next begins.

#include <thread>

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

// What proxies read in other ways than this server would, or than each other:
// with any of these a client could have one see requests that another does not.
TEST(HttpProtocolTest, HeadsThatCanBeReadInTwoWaysAreRefused) {
  TestServer server;
  const std::string text = R"({"prompt": "a", "max_tokens": 1})";
  const std::string length =
      absl::StrCat("Content-Length: ", text.size(), "\r\n");
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const std::string chunks =
      absl::StrCat(absl::Hex(text.size()), "\r\n", text, "\r\n0\r\n\r\n");
  const std::string end = "\r\n";
  const std::string smuggled = HttpRequestText("GET", "/v1/models");
  struct Case {
    std::string head;  // behind that of kPost
    std::string body;
  };
  const Case cases[] = {
      // Lines that go on in the next.
      {"Transfer-Encoding:\r\n chunked\r\n\r\n", chunks},
      {"Transfer-Encoding:\r\n\tchunked\r\n\r\n", chunks},
      {"Transfer-Encoding: chunked\r\n , identity\r\n\r\n", chunks},
      {"Transfer-Encoding: x\r\n chunked\r\n" + length + end, text},
      {"X: y\r\n " + chunked + length + end, text},
      {"X: y\r\n z\r\n" + length + end, text},
      {"X: y\r\n \r\n" + length + end, text},
      {"Content-Length:\r\n 1\r\n\r\n", text},
      // Two lengths.
      {length + chunked + end, chunks},
      {chunked + length + end, chunks},
      {length + length + end, text},
      {length + "Content-Length: 5\r\n\r\n", text},
      {"Content-Length: 5, 5\r\n\r\n", "12345"},
      {absl::StrCat("Content-Length: ", text.size(), ", ", text.size(),
                    "\r\n\r\n"),
       text},
      // No number, or not as RFC 9110 has one.
      {"Content-Length: +5\r\n\r\n", "12345"},
      {"Content-Length: -5\r\n\r\n", "12345"},
      {"Content-Length: 0x5\r\n\r\n", "12345"},
      {"Content-Length: 5 5\r\n\r\n", "12345"},
      {"Content-Length: 5a\r\n\r\n", "12345"},
      {"Content-Length:\r\n\r\n", text},
      {"Content-Length: 18446744073709551621\r\n\r\n", "12345"},
      {"Content-Length: 36893488147419103237\r\n\r\n", "12345"},
      // Names.
      {"Content-Length : 5\r\n" + length + end, text},
      {"Transfer-Encoding : chunked\r\n" + length + end, text},
      {"Transfer-Encoding\t: chunked\r\n" + length + end, text},
      {"Transfer\rEncoding: chunked\r\n" + length + end, text},
      {"Transfer-Encoding\v: chunked\r\n" + length + end, text},
      {" Transfer-Encoding: chunked\r\n" + length + end, text},
      {": chunked\r\n" + length + end, text},
      {"Transfer-Encoding chunked\r\n" + length + end, text},
      {std::string("Transfer-Encoding\0: chunked\r\n", 28) + length + end,
       text},
      // Ends of lines.
      {"X: y\n" + chunked + length + end, text},
      {"X: y\nTransfer-Encoding: chunked\n" + length + end, text},
      {"X: y\rTransfer-Encoding: chunked\r\n" + length + end, text},
      {"X: y\r\r\n" + length + end, text},
      {length + "\n", text},
      {std::string("X: a\0b\r\n", 8) + length + end, text},
      {"Transfer-Encoding: \vchunked\r\n" + length + end, text},
      {"Transfer-Encoding: chunked\v\r\n" + length + end, text},
  };
  for (const Case& c : cases) {
    HttpConnection connection(server.server().http_port());
    ASSERT_TRUE(connection.Send(kPost + c.head + c.body + smuggled));
    const HttpResult refused = connection.Read();
    EXPECT_EQ(refused.status, 400) << c.head << refused.body;
    EXPECT_THAT(refused.headers,
                testing::Contains(std::pair<const std::string, std::string>(
                    "connection", "close")))
        << c.head;
    EXPECT_EQ(connection.Read().status, 0) << c.head;
  }
  // However it comes.
  HttpConnection slow(server.server().http_port());
  ASSERT_TRUE(slow.Send("GET /health HTTP/1.1\r\nHost: x\r\n"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(slow.Send(" y\r\n\r\n"));
  const HttpResult folded = slow.Read();
  EXPECT_EQ(folded.status, 400);
  EXPECT_THAT(folded.body, HasSubstr("begins with a space or a tab"));
}

TEST(HttpProtocolTest, ChunksThatCanBeReadInTwoWaysAreRefused) {
  TestServer server;
  const std::string text = R"({"prompt": "a", "max_tokens": 1})";
  const std::string size = absl::StrCat(absl::Hex(text.size()));
  const std::string smuggled = HttpRequestText("GET", "/v1/models");
  for (const std::string& begin :
       {"0x" + size + "\r\n", "+" + size + "\r\n", "-" + size + "\r\n",
        " " + size + "\r\n", size + "\n", size + "\r", size + ";a\n\r\n",
        size + ";\n", size + "g\r\n",
        "1" + std::string(16, '0') + size + "\r\n", std::string("\r\n"),
        std::string(";a=b\r\n")}) {
    HttpConnection connection(server.server().http_port());
    ASSERT_TRUE(connection.Send(kPost + "Transfer-Encoding: chunked\r\n\r\n" +
                                begin + text + "\r\n0\r\n\r\n" + smuggled));
    EXPECT_THAT(connection.Read().status, testing::AnyOf(400, 413)) << begin;
    EXPECT_EQ(connection.Read().status, 0) << begin;
  }
  // Behind the chunk, and trailers: these change nothing of what comes next.
  HttpConnection longer(server.server().http_port());
  ASSERT_TRUE(longer.Send(kPost + "Transfer-Encoding: chunked\r\n\r\n" + size +
                          "\r\n" + text + "X\r\n0\r\n\r\n" + smuggled));
  EXPECT_EQ(longer.Read().status, 400);
  EXPECT_EQ(longer.Read().status, 0);
  for (const std::string trailer :
       {"Content-Length: 5", "Transfer-Encoding: gzip", "Host: y",
        "Authorization: x", "Connection: close"}) {
    HttpConnection connection(server.server().http_port());
    ASSERT_TRUE(connection.Send(kPost + "Transfer-Encoding: chunked\r\n\r\n" +
                                size + "\r\n" + text + "\r\n0\r\n" + trailer +
                                "\r\n\r\n" + smuggled));
    const int status = connection.Read().status;
    EXPECT_THAT(status, testing::AnyOf(200, 400)) << trailer;
    EXPECT_EQ(connection.Read().status, status == 200 ? 200 : 0) << trailer;
  }
}

TEST(HttpProtocolTest, ATargetMayNameTheServer) {
  ServerOptions options = DemoOptions();
  options.ui = "off";  // there is nothing at /
  TestServer server(options);
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

// Java's HttpClient offers HTTP/2 with every request, unless it is told not to.
TEST(HttpProtocolTest, AnOfferOfAnotherProtocolIsPassedOver) {
  TestServer server;
  const std::string text = R"({"prompt": "a", "max_tokens": 1})";
  HttpConnection connection(server.server().http_port());
  for (int i = 0; i < 2; ++i) {
    connection.Send(absl::StrCat(
        kPost, "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n",
        "Content-Length: ", text.size(), "\r\n\r\n", text));
    const HttpResult result = connection.Read();
    EXPECT_EQ(result.status, 200) << result.body;
    EXPECT_EQ(result.headers.count("upgrade"), 0);
  }
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
