// The completions API over HTTP with API keys, and over TLS.

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "openssl/ssl.h"
#include "tests/e2e/http_fixture.h"
#include "tests/testing/certificates.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class HttpKeysTest : public testing::Test {
 protected:
  HttpKeysTest() {
    std::string name = testing::TempDir() + "recurve_http_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~HttpKeysTest() override { std::filesystem::remove_all(folder_); }

  // Replaces the file at once: gRPC ends the process over an empty certificate.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }

  std::string folder_;
};

TEST_F(HttpKeysTest, KeysAndQuotasHoldAsOverGrpc) {
  ServerOptions options = DemoOptions();
  options.api_keys_file =
      Write("keys",
            KeyLine("acme", "key", "max_streams=2") +
                KeyLine("slow", "slow", "tokens_per_second=1 token_burst=100"));
  TestServer server(options);
  const int port = server.server().http_port();
  const json body = {{"prompt", "a"}, {"max_tokens", 2}};
  for (const std::vector<std::string>& headers :
       {std::vector<std::string>{},
        {"Authorization: Bearer wrong"},
        {"Authorization: Basic key"},
        {"Authorization: Bearer key", "Authorization: Bearer key"}}) {
    const HttpResult result = Complete(server, body, headers);
    EXPECT_EQ(result.status, 401);
    EXPECT_EQ(result.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(ParseJson(result.body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(
        Fetch(port, HttpRequestText("GET", "/v1/models", "", headers)).status,
        401);
  }
  for (const std::string header :
       {"Authorization: Bearer  key", "authorization:BEARER     key"}) {
    EXPECT_EQ(
        Fetch(port, HttpRequestText("GET", "/v1/models", "", {header})).status,
        200)
        << header;
  }
  // Refused before the body comes.
  HttpConnection early(port);
  early.Send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
      "application/json\r\n"
      "Content-Length: 1000000\r\n\r\n");
  EXPECT_EQ(early.Read().status, 401);
  EXPECT_EQ(Fetch(port, HttpRequestText("GET", "/health")).status, 200);
  const std::vector<std::string> key = {"Authorization: Bearer key"};
  // Each prompt is a stream.
  json many = body;
  many["prompt"] = json::array({"a", "b"});
  EXPECT_EQ(Complete(server, many, key).status, 200);
  many["prompt"].push_back("c");
  for (int i = 0; i < 3; ++i) {
    const HttpResult full = Complete(server, many, key);
    // No retry time: three can never succeed.
    EXPECT_EQ(full.status, 400);
    EXPECT_EQ(full.headers.count("retry-after"), 0);
    EXPECT_EQ(ParseJson(full.body)["error"]["code"], "quota_exceeded");
    EXPECT_THAT(full.body, HasSubstr("max_streams is 2"));
    EXPECT_EQ(Complete(server, body, key).status, 200) << i;
  }
  const std::vector<std::string> slow = {"authorization: bearer slow"};
  const json large = {
      {"prompt", "a"}, {"max_tokens", 98}, {"ignore_eos", true}};
  EXPECT_EQ(Complete(server, large, slow).status, 200);
  const HttpResult spent = Complete(server, large, slow);
  EXPECT_EQ(spent.status, 429);
  EXPECT_GT(std::stoi(spent.headers.at("retry-after")), 10);
  // Counts completions only, each once.
  EXPECT_EQ(RefusedRequests(server, "unauthenticated"), 5);
  EXPECT_EQ(RefusedRequests(server, "quota"), 4);
  EXPECT_EQ(RefusedRequests(server, "invalid"), 0);
  EXPECT_TRUE(WaitFor([&] {
    return MetricValue(server.metrics_port(),
                       "recurve_tenant_open_streams{tenant=\"acme\"}") == 0;
  }));
  EXPECT_TRUE(
      WaitFor([&] { return server.server().engine().load().open == 0; }));
}

TEST_F(HttpKeysTest, TlsIsForHttpTooAndMetricsMayHaveTheirOwnPort) {
  const TestAuthority authority;
  const TestAuthority clients;
  const PemPair pair = authority.Sign("server");
  ServerOptions options = DemoOptions();
  options.transport.tls_cert = Write("server.pem", pair.certificate);
  options.transport.tls_key = Write("server.key", pair.key);
  options.transport.tls_client_ca = Write("clients.pem", clients.certificate());
  options.transport.tls_reload = std::chrono::seconds(1);
  options.metrics_port = 0;
  auto model = LoadModel(options.model, &options.engine);
  const std::unique_ptr<Server> server =
      Server::Start(options, *std::move(model)).value();
  const PemPair client = clients.Sign("client");
  const std::string ca = Write("ca.pem", authority.certificate());
  const std::string cert = Write("client.pem", client.certificate);
  const std::string key = Write("client.key", client.key);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> tls(
      SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX_load_verify_locations(tls.get(), ca.c_str(), nullptr);
  SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER, nullptr);
  const std::string health = HttpRequestText("GET", "/health");
  {  // without a certificate of its own
    HttpConnection connection(server->http_port(), tls.get());
    connection.Send(health);
    EXPECT_EQ(connection.Read().status, 0);
  }
  SSL_CTX_use_certificate_chain_file(tls.get(), cert.c_str());
  SSL_CTX_use_PrivateKey_file(tls.get(), key.c_str(), SSL_FILETYPE_PEM);
  HttpConnection connection(server->http_port(), tls.get());
  ASSERT_TRUE(connection.connected());
  connection.Send(health);
  EXPECT_EQ(connection.Read().status, 200);
  connection.Send(PostText(kCompletionsPath, json({{"prompt", "a"},
                                                   {"max_tokens", 30},
                                                   {"ignore_eos", true},
                                                   {"stream", true}})
                                                 .dump()));
  EXPECT_EQ(SseEvents(connection.Read().body).back(), "[DONE]");
  connection.Send(HttpRequestText("GET", "/metrics"));
  EXPECT_EQ(connection.Read().status, 404);
  // In the clear: nothing on one port, metrics alone on the other.
  EXPECT_EQ(Fetch(server->http_port(), health).status, 0);
  EXPECT_EQ(Fetch(server->metrics_port(), health).status, 200);
  EXPECT_EQ(
      Fetch(server->metrics_port(), HttpRequestText("GET", "/metrics")).status,
      200);
  EXPECT_EQ(
      Fetch(server->metrics_port(), PostText(kCompletionsPath, "{}")).status,
      404);
  // New connections get new files.
  const auto connects = [&] {
    return HttpConnection(server->http_port(), tls.get()).connected();
  };
  const PemPair strange = TestAuthority().Sign("server");
  Write("server.key", strange.key);
  Write("server.pem", strange.certificate);
  EXPECT_TRUE(WaitFor([&] { return !connects(); }));
  Write("server.key", pair.key);
  Write("server.pem", pair.certificate);
  EXPECT_TRUE(WaitFor(connects));
}

}  // namespace
}  // namespace recurve
