// The HTTP server by itself: limits and times, which the completions API leaves
// at their defaults.

#include "server/http/http_server.h"

#include <openssl/ssl.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using testing::HasSubstr;

// Answers with what it was sent; "/stream" with a line for each OnWritten,
// without end; "/short" with a stream of one line; "/quiet" with a stream that
// has nothing to say; "/made" with SendMade; "/wait" not at all. "/known" is
// for those who may call.
class EchoHandler : public HttpHandler {
 public:
  std::optional<HttpResponse> CheckHead(HttpRequest* head) override {
    if (head->path == "/refused") return HttpError(403, "no");
    head->entitled = head->path == "/known";
    return std::nullopt;
  }
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    HttpResponse response;
    if (request.path == "/made") return SendMade(*reply);
    if (request.path == "/short") {
      response.body = "a line\n";
      reply->Begin(std::move(response));
      return reply->Finish();
    }
    if (request.path == "/quiet") {
      reply->Listen(std::make_shared<Quiet>(&written));
      response.ping = ": ping\n";
      return reply->Begin(std::move(response));
    }
    if (request.path != "/stream" && request.path != "/wait") {
      response.body = request.method + " " + request.path + " " + request.body;
      return reply->Send(std::move(response));
    }
    reply->Listen(std::make_shared<Endless>(reply, &streams));
    if (request.path == "/wait") return;
    response.body = std::string(100'000, 'x');
    reply->Begin(std::move(response));
  }

  void OnAnswered(const std::string& path, int status,
                  double seconds) override {
    EXPECT_GE(seconds, 0);
    MutexLock lock(&mu_);
    answered_.push_back(absl::StrCat(path, " ", status));
  }
  std::vector<std::string> answered() {
    MutexLock lock(&mu_);
    return answered_;
  }

  std::atomic<int> streams = 0;
  std::atomic<int> written = 0;  // of "/quiet"

 private:
  struct Quiet : public HttpListener {
    explicit Quiet(std::atomic<int>* written) : written(written) {}
    void OnWritten() override { ++*written; }
    void OnProgress() override {}
    void OnDone(const absl::Status&) override {}
    std::atomic<int>* const written;
  };

  static void SendMade(HttpReply& reply) {
    const auto made = std::make_shared<bool>(false);
    reply.SendMade([made] {
      *made = true;
      HttpResponse response;
      response.body = "made";
      return response;
    });
    EXPECT_FALSE(*made);  // the caller does not wait for it
  }

  Mutex mu_;
  std::vector<std::string> answered_ ABSL_GUARDED_BY(mu_);

  struct Endless : public HttpListener {
    Endless(std::shared_ptr<HttpReply> reply, std::atomic<int>* streams)
        : reply(std::move(reply)), streams(streams) {
      ++*streams;
    }
    void OnWritten() override { reply->Write(std::string(100'000, 'y')); }
    void OnProgress() override {}
    void OnDone(const absl::Status&) override { --*streams; }
    const std::shared_ptr<HttpReply> reply;
    std::atomic<int>* const streams;
  };
};

// A server's certificate, and a client that takes any.
class Tls {
 public:
  Tls() : client_(SSL_CTX_new(TLS_client_method())) {
    std::string name = testing::TempDir() + "recurve_http_tls_XXXXXX";
    folder_ = mkdtemp(name.data());
    const PemPair pair = TestAuthority().Sign("server");
    TransportOptions options;
    options.tls_cert = folder_ + "/server.pem";
    options.tls_key = folder_ + "/server.key";
    std::ofstream(options.tls_cert) << pair.certificate;
    std::ofstream(options.tls_key) << pair.key;
    server_ = TlsFiles::Load(options).value();
  }
  ~Tls() {
    SSL_CTX_free(client_);
    std::filesystem::remove_all(folder_);
  }
  const TlsFiles* server() const { return server_.get(); }
  SSL_CTX* client() const { return client_; }

 private:
  SSL_CTX* const client_;
  std::string folder_;
  std::unique_ptr<TlsFiles> server_;
};

HttpServerOptions Options() {
  HttpServerOptions options;
  options.host = "127.0.0.1";
  return options;
}

const std::string kGet = HttpRequestText("GET", "/");

TEST(HttpServerTest, TooManyConnectionsAreToldSo) {
  EchoHandler handler;
  HttpServerOptions options = Options();
  options.max_connections = 3;
  const auto server = *HttpServer::Start(options, &handler);
  {
    HttpConnection held[3] = {HttpConnection(server->port()),
                              HttpConnection(server->port()),
                              HttpConnection(server->port())};
    ASSERT_TRUE(WaitFor([&] { return server->connections() == 3; }));
    HttpConnection fourth(server->port());
    const HttpResult result = fourth.Read();  // without being asked
    EXPECT_EQ(result.status, 503);
    EXPECT_EQ(result.headers.at("retry-after"), "1");
    EXPECT_THAT(result.body, HasSubstr("the server has 3 connections, the "
                                       "limit of --max-http-connections"));
    for (HttpConnection& connection : held) {
      connection.Send(kGet);
      EXPECT_EQ(connection.Read().body, "GET / ");
    }
  }
  ASSERT_TRUE(WaitFor([&] { return server->connections() == 0; }));
  EXPECT_EQ(Fetch(server->port(), kGet).status, 200);
}

// They are told so for seconds if they do not leave by themselves.
TEST(HttpServerTest, ThoseWhoAreRefusedKeepNobodyOut) {
  EchoHandler handler;
  HttpServerOptions options = Options();
  options.max_connections = 1;
  const auto server = *HttpServer::Start(options, &handler);
  auto served = std::make_unique<HttpConnection>(server->port());
  ASSERT_TRUE(WaitFor([&] { return server->connections() == 1; }));
  std::deque<std::unique_ptr<HttpConnection>> others;
  const auto status_of_another = [&] {
    others.push_back(std::make_unique<HttpConnection>(server->port()));
    others.back()->Send(kGet);
    return others.back()->Read().status;
  };
  for (int i = 0; i < 6; ++i) EXPECT_EQ(status_of_another(), 503);
  served.reset();
  // As soon as the server has seen that; each try is one that is refused more.
  EXPECT_TRUE(WaitFor([&] {
    others.pop_front();
    return status_of_another() == 200;
  }));
}

// The client's end of file may reach the server before or after its own write
// completes: both long before the idle timeout.
TEST(HttpServerTest, ClientsThatLeaveAfterTheirAnswersTakeNoPlace) {
  EchoHandler handler;
  HttpServerOptions options = Options();
  options.idle_timeout = std::chrono::minutes(10);
  const auto server = *HttpServer::Start(options, &handler);
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      for (int k = 0; k < 250; ++k) {
        HttpConnection connection(server->port());
        connection.Send(kGet);
        EXPECT_EQ(connection.Read().body, "GET / ");
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(WaitFor([&] { return server->connections() == 0; }))
      << server->connections() << " are left";
}

TEST(HttpServerTest, SlowRequestsAndIdleConnectionsEnd) {
  EchoHandler handler;
  HttpServerOptions options = Options();
  // Long enough that a request is sent in time on a busy machine.
  options.head_timeout = std::chrono::milliseconds(500);
  options.body_timeout = std::chrono::milliseconds(500);
  options.idle_timeout = std::chrono::milliseconds(500);
  const auto server = *HttpServer::Start(options, &handler);
  HttpConnection silent(server->port());
  EXPECT_EQ(silent.ReadSome(), "");
  for (const std::string part :
       {"GET", "GET / HTTP/1.1\r\nA: b\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"}) {
    EXPECT_EQ(Fetch(server->port(), part).status, 408) << part;
  }
  HttpConnection idle(server->port());
  idle.Send(kGet);
  EXPECT_EQ(idle.Read().status, 200);
  EXPECT_EQ(idle.ReadSome(), "");
}

TEST(HttpServerTest, AStreamWithNothingToSendIsPinged) {
  const Tls tls;
  for (const bool secure : {false, true}) {
    EchoHandler handler;
    HttpServerOptions options = Options();
    options.stream_ping = std::chrono::milliseconds(20);
    if (secure) options.tls = tls.server();
    const auto server = *HttpServer::Start(options, &handler);
    HttpConnection chunked(server->port(), secure ? tls.client() : nullptr);
    chunked.Send(HttpRequestText("GET", "/quiet"));
    HttpConnection old(server->port(), secure ? tls.client() : nullptr);
    old.Send("GET /quiet HTTP/1.0\r\n\r\n");
    const std::string ping = "7\r\n: ping\n\r\n";
    for (auto& [connection, pings] :
         {std::pair(&chunked, ping + ping + ping),
          std::pair(&old, std::string(": ping\n: ping\n: ping\n"))}) {
      std::string text;
      while (!absl::StrContains(text, "\r\n\r\n" + pings)) {
        const std::string more = connection->ReadSome();
        ASSERT_NE(more, "") << text;
        text += more;
      }
    }
    EXPECT_EQ(handler.written, 2);  // the heads
  }
}

// Who has a key may keep a connection for as long as proxies do.
TEST(HttpServerTest, IdleConnectionsOfStrangersEndSooner) {
  EchoHandler handler;
  StrangerBytes strangers(1 << 20, 1 << 20);
  HttpServerOptions options = Options();
  options.stranger_idle_timeout = std::chrono::milliseconds(100);
  options.strangers = &strangers;
  const auto server = *HttpServer::Start(options, &handler);
  HttpConnection known(server->port());
  known.Send(HttpRequestText("GET", "/known"));
  EXPECT_EQ(known.Read().status, 200);
  known.Send(kGet);  // and still may
  EXPECT_EQ(known.Read().status, 200);
  HttpConnection stranger(server->port());
  stranger.Send(kGet);
  EXPECT_EQ(stranger.Read().status, 200);
  EXPECT_EQ(stranger.ReadSome(), "");
  known.Send(kGet);
  EXPECT_EQ(known.Read().status, 200);
  // On the metrics port every client is known.
  options.strangers = nullptr;
  const auto open = *HttpServer::Start(options, &handler);
  HttpConnection any(open->port());
  any.Send(kGet);
  EXPECT_EQ(any.Read().status, 200);
  EXPECT_FALSE(any.Readable(std::chrono::milliseconds(300)));
}

TEST(HttpServerTest, EveryRequestIsCountedOnce) {
  EchoHandler handler;
  HttpServerOptions options = Options();
  options.head_timeout = std::chrono::seconds(1);
  const auto server = *HttpServer::Start(options, &handler);
  // An answer is counted behind its last byte, each here before the next
  // connection's.
  const auto counted = [&](size_t requests) {
    return WaitFor([&] { return handler.answered().size() >= requests; });
  };
  const auto fetch = [&](const std::string& text) {
    const size_t before = handler.answered().size();
    const int status = Fetch(server->port(), text).status;
    EXPECT_TRUE(counted(before + 1));
    return status;
  };
  EXPECT_EQ(fetch(HttpRequestText("GET", "/a?secret")), 200);
  EXPECT_EQ(fetch(HttpRequestText("GET", "/refused")), 403);
  EXPECT_EQ(fetch("nonsense\r\n\r\n"), 400);
  EXPECT_EQ(fetch("GET /slow"), 408);
  {
    HttpConnection pipelined(server->port());
    pipelined.Send(HttpRequestText("GET", "/b") + HttpRequestText("GET", "/c"));
    EXPECT_EQ(pipelined.Read().status, 200);
    EXPECT_EQ(pipelined.Read().status, 200);
    EXPECT_TRUE(counted(6));
    HttpConnection silent(server->port());  // sends no request
  }
  {
    HttpConnection leaving(server->port());
    leaving.Send(HttpRequestText("GET", "/stream"));
    EXPECT_THAT(leaving.ReadSome(), HasSubstr("200 OK"));
  }
  EXPECT_TRUE(counted(7));
  EXPECT_TRUE(WaitFor([&] { return server->connections() == 0; }));
  EXPECT_THAT(handler.answered(),
              testing::ElementsAre("/a 200", "/refused 403", " 400", " 408",
                                   "/b 200", "/c 200", "/stream 499"));
}

TEST(HttpServerTest, BodiesAreBoundedTogether) {
  EchoHandler handler;
  HttpServerOptions options = Options();
  options.max_bodies_bytes = 1000;
  const auto server = *HttpServer::Start(options, &handler);
  const auto post = [&](size_t size) {
    return Fetch(server->port(),
                 HttpRequestText("POST", "/", std::string(size, 'x')))
        .status;
  };
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(post(900), 200);  // given back each time
    EXPECT_EQ(post(1100), 503);
  }
  // Half of a body takes room. Should another come first, it is the half that
  // is refused, and that is for another try.
  EXPECT_TRUE(WaitFor([&] {
    HttpConnection half(server->port());
    half.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" +
              std::string(800, 'x'));
    for (int i = 0; i < 20; ++i) {
      if (post(300) == 503) return true;
    }
    return false;
  }));
  EXPECT_TRUE(WaitFor([&] { return post(300) == 200; }));
}

TEST(HttpServerTest, AReaderThatStopsIsCutOffAndOneThatLeavesIsNoticed) {
  EchoHandler handler;
  HttpServerOptions options = Options();
  options.stalled_client_timeout = std::chrono::milliseconds(200);
  const auto server = *HttpServer::Start(options, &handler);
  HttpConnection stalled(server->port());
  stalled.Send(HttpRequestText("GET", "/stream"));
  EXPECT_THAT(stalled.ReadSome(), HasSubstr("200 OK"));
  EXPECT_TRUE(WaitFor([&] { return handler.streams == 0; }));
  auto leaving = std::make_unique<HttpConnection>(server->port());
  leaving->Send(HttpRequestText("GET", "/stream"));
  EXPECT_THAT(leaving->ReadSome(), HasSubstr("200 OK"));
  leaving.reset();
  EXPECT_TRUE(WaitFor([&] { return handler.streams == 0; }));
}

TEST(HttpServerTest, ARefusalIsReadAlthoughTheBodyIsStillComing) {
  const Tls tls;
  for (const bool secure : {false, true}) {
    EchoHandler handler;
    HttpServerOptions options = Options();
    if (secure) options.tls = tls.server();
    const auto server = *HttpServer::Start(options, &handler);
    HttpConnection connection(server->port(), secure ? tls.client() : nullptr);
    connection.Send(
        "POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: "
        "2000000\r\n\r\n");
    connection.Send(std::string(2'000'000, 'x'));
    const HttpResult result = connection.Read();
    EXPECT_EQ(result.status, 403) << secure;
    EXPECT_EQ(result.headers.at("connection"), "close");
  }
}

// The end of a connection is all that tells where such an answer ends.
TEST(HttpServerTest, AnEndOverTlsIsToldFromOneThatIsCutOff) {
  const Tls tls;
  EchoHandler handler;
  HttpServerOptions options = Options();
  options.tls = tls.server();
  const auto server = *HttpServer::Start(options, &handler);
  HttpConnection whole(server->port(), tls.client());
  whole.Send("GET /short HTTP/1.0\r\n\r\n");
  EXPECT_EQ(whole.Read().body, "a line\n");
  EXPECT_TRUE(whole.SawTlsEnd());
  HttpConnection cut(server->port(), tls.client());
  cut.Send("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_THAT(cut.ReadSome(), HasSubstr("200 OK"));
  server->Stop();
  while (!cut.ReadSome().empty()) {
  }
  EXPECT_FALSE(cut.SawTlsEnd());
}

TEST(HttpServerTest, AnAnswerIsMadeLater) {
  EchoHandler handler;
  const auto server = *HttpServer::Start(Options(), &handler);
  EXPECT_EQ(Fetch(server->port(), HttpRequestText("GET", "/made")).body,
            "made");
}

// Beast bounds neither a chunk's line nor the trailers.
TEST(HttpServerTest, WhatIsNoBodyIsBoundedToo) {
  EchoHandler handler;
  const auto server = *HttpServer::Start(Options(), &handler);
  const std::string head =
      "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string end = "\r\n\r\n";
  const std::string chunk = "3;x=y\r\nabc\r\n";
  EXPECT_EQ(
      Fetch(server->port(), head + chunk + chunk + "0\r\nT: u" + end).body,
      "POST /a abcabc");
  for (const std::string& part :
       {std::string("1;a="), chunk + "2;a=", std::string("0\r\nT: "),
        chunk + "0\r\nT: u\r\nV: "}) {
    HttpConnection connection(server->port());
    ASSERT_TRUE(connection.Send(head + part));
    for (int i = 0; i < 64; ++i) {
      if (!connection.Send(std::string(4096, 'a'))) break;
    }
    const HttpResult result = connection.Read();
    EXPECT_EQ(result.status, 400) << part;
    EXPECT_THAT(result.body, HasSubstr("more than 8192 bytes"));
  }
  // The head is bounded as a whole, however it comes.
  const std::string line = "GET /" + std::string(5000, 'a');
  const std::string field = " HTTP/1.1\r\nA: " + std::string(4000, 'b');
  EXPECT_EQ(Fetch(server->port(), line + field + end).status, 431);
  HttpConnection slow(server->port());
  ASSERT_TRUE(slow.Send(line + " HTTP/1.1\r\n"));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(slow.Send("A: " + std::string(4000, 'b') + end));
  EXPECT_EQ(slow.Read().status, 431);
  EXPECT_EQ(Fetch(server->port(), line + " HTTP/1.1\r\nHost: x" + end).status,
            200);
}

TEST(HttpServerTest, WhoSendsMuchAheadAndLeavesIsNoticed) {
  EchoHandler handler;
  const auto server = *HttpServer::Start(Options(), &handler);
  const std::string much =
      HttpRequestText("POST", "/b", std::string(100'000, 'x'));
  {
    HttpConnection connection(server->port());
    ASSERT_TRUE(connection.Send(HttpRequestText("GET", "/wait") + much));
    ASSERT_TRUE(WaitFor([&] { return handler.streams == 1; }));
  }
  EXPECT_TRUE(WaitFor([&] { return handler.streams == 0; }));
}

// Neither while its answer is made nor when it is left lying.
TEST(HttpServerTest, WhoSendsWithoutEndIsCutOff) {
  EchoHandler handler;
  const auto server = *HttpServer::Start(Options(), &handler);
  for (const char* path : {"/wait", "/stream"}) {
    HttpConnection connection(server->port());
    ASSERT_TRUE(connection.Send(HttpRequestText("GET", path)));
    ASSERT_TRUE(WaitFor([&] { return handler.streams == 1; }));
    const std::string megabyte(1 << 20, 'x');
    for (int i = 0; i < 64 && connection.Send(megabyte); ++i) {
    }
    EXPECT_TRUE(WaitFor([&] { return handler.streams == 0; })) << path;
  }
}

TEST(HttpServerTest, StopEndsStreams) {
  EchoHandler handler;
  const auto server = *HttpServer::Start(Options(), &handler);
  HttpConnection connection(server->port());
  connection.Send(HttpRequestText("GET", "/stream"));
  EXPECT_NE(connection.ReadSome(), "");
  server->Stop();
  EXPECT_EQ(handler.streams, 0);
  while (!connection.ReadSome().empty()) {
  }
}

TEST(HttpServerTest, APortInUseIsAnError) {
  EchoHandler handler;
  const auto server = *HttpServer::Start(Options(), &handler);
  HttpServerOptions options = Options();
  options.port = server->port();
  const auto second = HttpServer::Start(options, &handler);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("cannot listen for HTTP on 127.0.0.1:"));
}

}  // namespace
}  // namespace recurve
