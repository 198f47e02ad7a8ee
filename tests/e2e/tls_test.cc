// TLS through real channels: who gets in, and renewed certificates.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "server/transport/tls_files.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/certificates.h"

namespace recurve {
namespace {

using testing::HasSubstr;

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    std::string name = testing::TempDir() + "recurve_tls_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TlsTest() override { std::filesystem::remove_all(folder_); }

  // Replaces the file at once, as who renews certificates should.
  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
    return path;
  }
  ServerOptions Options(const TestAuthority& authority) const {
    const PemPair pair = authority.Sign("server");
    ServerOptions options = DemoOptions();
    options.transport.tls_cert = Write("server.pem", pair.certificate);
    options.transport.tls_key = Write("server.key", pair.key);
    options.transport.tls_reload = std::chrono::seconds(1);
    return options;
  }
  absl::Status Call(const TestServer& server, const TlsOptions& tls) const {
    const auto client =
        RecurveClient::Create(server.address(),
                              {.own_connection = true, .tls = tls})
            .value();
    return client->GetLoad({.timeout = absl::Seconds(20)}).status();
  }
  static TlsOptions Tls(const std::string& ca) {
    TlsOptions tls;
    tls.enabled = true;
    tls.ca = ca;
    return tls;
  }
  TlsOptions Trusting(const TestAuthority& authority) const {
    return Tls(Write("client_ca.pem", authority.certificate()));
  }

  // Whether new connections come to end with this status, within half a minute.
  bool Becomes(const TestServer& server, const TestAuthority& authority,
               absl::StatusCode wanted) const {
    for (int i = 0; i < 150; ++i) {
      if (Call(server, Trusting(authority)).code() == wanted) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    return false;
  }

  TestAuthority authority_;
  std::string folder_;
};

TEST_F(TlsTest, ServesThoseWhoTrustTheCertificate) {
  TestServer server(Options(authority_));
  EXPECT_EQ(Call(server, Trusting(authority_)), absl::OkStatus());
  const TestAuthority other;
  EXPECT_EQ(Call(server, Trusting(other)).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Call(server, {}).code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsTest, GeneratesAsInTheClear) {
  const v1::GenerateRequest request = GreedyRequest({256, 72, 105}, 12);
  TestServer plain;
  const auto want = Generate(*plain.Connect(), request);
  TestServer server(Options(authority_));
  const auto client =
      RecurveClient::Create(server.address(), {.tls = Trusting(authority_)})
          .value();
  const auto got = Generate(*client, request);
  ASSERT_EQ(got.status, absl::OkStatus());
  EXPECT_EQ(got.generation.token_ids, want.generation.token_ids);
}

TEST_F(TlsTest, AsksClientsForACertificate) {
  ServerOptions options = Options(authority_);
  const TestAuthority clients;
  options.transport.tls_client_ca = Write("clients.pem", clients.certificate());
  TestServer server(options);
  TlsOptions tls = Trusting(authority_);
  EXPECT_EQ(Call(server, tls).code(), absl::StatusCode::kUnavailable);
  const auto show = [&](const TestAuthority& authority) {
    const PemPair pair = authority.Sign("client");
    tls.cert = Write("client.pem", pair.certificate);
    tls.key = Write("client.key", pair.key);
  };
  show(TestAuthority());
  EXPECT_EQ(Call(server, tls).code(), absl::StatusCode::kUnavailable);
  show(clients);
  EXPECT_EQ(Call(server, tls), absl::OkStatus());
}

TEST_F(TlsTest, TakesRenewedCertificates) {
  TestServer server(Options(authority_));
  ASSERT_EQ(Call(server, Trusting(authority_)), absl::OkStatus());
  const TestAuthority renewed;
  const PemPair pair = renewed.Sign("server");
  Write("server.key", pair.key);
  Write("server.pem", pair.certificate);
  EXPECT_TRUE(Becomes(server, renewed, absl::StatusCode::kOk));
  EXPECT_EQ(Call(server, Trusting(authority_)).code(),
            absl::StatusCode::kUnavailable);
  // Half written, as by who copies over it: gRPC alone would end the process.
  Write("server.pem", "");
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(Call(server, Trusting(renewed)), absl::OkStatus());
  const PemPair next = authority_.Sign("server");
  Write("server.pem", next.certificate);
  Write("server.key", next.key);
  EXPECT_TRUE(Becomes(server, authority_, absl::StatusCode::kOk));
}

TEST_F(TlsTest, FilesThatCannotBeUsedChangeNothing) {
  TransportOptions options = Options(authority_).transport;
  options.tls_client_ca = Write("clients.pem", authority_.certificate());
  options.tls_reload = std::chrono::seconds(0);  // always due
  const auto files = TlsFiles::Load(options).value();
  const auto first = files->Context(TlsFiles::Protocol::kHttp2);
  files->ReloadIfDue();
  EXPECT_EQ(files->Context(TlsFiles::Protocol::kHttp2), first);
  const PemPair next = authority_.Sign("server");
  for (const std::string& key : {MakeRsaKey(), next.key}) {
    Write("server.key", key);  // not the certificate's
    files->ReloadIfDue();
    EXPECT_EQ(files->Context(TlsFiles::Protocol::kHttp2), first);
  }
  for (const char* text : {"", "nonsense"}) {
    Write("server.pem", text);
    files->ReloadIfDue();
    EXPECT_EQ(files->Context(TlsFiles::Protocol::kHttp2), first) << text;
  }
  std::filesystem::remove(folder_ + "/server.pem");
  files->ReloadIfDue();
  EXPECT_EQ(files->Context(TlsFiles::Protocol::kHttp2), first);
  Write("server.pem", next.certificate);
  Write("clients.pem", "");
  files->ReloadIfDue();
  EXPECT_EQ(files->Context(TlsFiles::Protocol::kHttp2), first);
  Write("clients.pem", authority_.certificate());
  files->ReloadIfDue();
  EXPECT_NE(files->Context(TlsFiles::Protocol::kHttp2), first);
}

TEST_F(TlsTest, RefusesFilesThatCannotBeUsed) {
  const auto error = [](const ServerOptions& options) {
    return std::string(TlsFiles::Load(options.transport).status().message());
  };
  const ServerOptions good = Options(authority_);
  EXPECT_EQ(error(good), "");
  ServerOptions bad = good;
  bad.transport.tls_key = "";
  EXPECT_EQ(error(bad), "--tls-cert needs --tls-key");
  bad = good;
  bad.transport.tls_cert = "";
  EXPECT_EQ(error(bad), "--tls-key needs --tls-cert");
  bad.transport.tls_key = "";
  bad.transport.tls_client_ca = good.transport.tls_cert;
  EXPECT_EQ(error(bad), "--tls-client-ca needs --tls-cert and --tls-key");
  bad = good;
  bad.transport.tls_cert = folder_ + "/none.pem";
  EXPECT_THAT(error(bad), HasSubstr("--tls-cert " + folder_ + "/none.pem"));
  bad = good;
  bad.transport.tls_key = Write("other.key", authority_.Sign("other").key);
  EXPECT_THAT(error(bad), HasSubstr("mismatch"));
  bad.transport.tls_key = Write("rsa.key", MakeRsaKey());
  EXPECT_THAT(error(bad), HasSubstr("--tls-key " + folder_ + "/rsa.key"));
  bad.transport.tls_key = folder_;
  EXPECT_THAT(error(bad), HasSubstr("no regular file"));
  bad = good;
  bad.transport.tls_client_ca = Write("empty.pem", "");
  EXPECT_THAT(error(bad), HasSubstr("--tls-client-ca"));
  bad.transport.tls_client_ca =
      Write("large.pem", std::string((1 << 20) + 1, 'x'));
  EXPECT_THAT(error(bad), HasSubstr("more than 1048576 bytes"));
}

TEST_F(TlsTest, ClientRefusesFilesThatCannotBeUsed) {
  const auto error = [](const TlsOptions& tls) {
    return std::string(
        RecurveClient::Create("127.0.0.1:1", {.tls = tls}).status().message());
  };
  TlsOptions tls = Tls(folder_ + "/none");
  EXPECT_THAT(error(tls), HasSubstr("/none is not a PEM file"));
  tls.enabled = false;
  EXPECT_THAT(error(tls), HasSubstr("without TLS"));
  tls = Tls("");
  tls.cert = folder_ + "/none";
  EXPECT_THAT(error(tls), HasSubstr("go together"));
}

}  // namespace
}  // namespace recurve
