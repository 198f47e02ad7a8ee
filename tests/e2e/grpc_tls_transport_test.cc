// The gRPC transport over TLS: handshakes that fail, and calls.

#include <openssl/ssl.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/transport/stranger_bytes.h"
#include "server/transport/tls_files.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/certificates.h"
#include "tests/testing/http2_client.h"
#include "tests/testing/toy_service.h"

namespace recurve {
namespace {

using std::chrono::milliseconds;

struct FreeTls {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeTls>;

class GrpcTlsTransportTest : public testing::Test {
 protected:
  GrpcTlsTransportTest() {
    std::string name = testing::TempDir() + "recurve_grpc_tls_XXXXXX";
    folder_ = mkdtemp(name.data());
    const PemPair pair = authority_.Sign("server");
    TransportOptions transport;
    transport.tls_cert = Write("server.pem", pair.certificate);
    transport.tls_key = Write("server.key", pair.key);
    files_ = TlsFiles::Load(transport).value();
    client_.reset(SSL_CTX_new(TLS_client_method()));
  }
  ~GrpcTlsTransportTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  GrpcServerOptions Options() {
    GrpcServerOptions options;
    options.tls = files_.get();
    options.strangers = &strangers_;
    return options;
  }
  bool NothingIsLeft(ToyServer& server) {
    return WaitFor([&] {
      return server.server().connections() == 0 &&
             server.service().alive() == 0 && strangers_.total() == 0;
    });
  }

  const TestAuthority authority_;
  std::string folder_;
  std::unique_ptr<TlsFiles> files_;
  TlsContext client_;
  StrangerBytes strangers_{1 << 20, 256 << 20};
};

TEST_F(GrpcTlsTransportTest, CarriesCalls) {
  ToyServer server(Options());
  {
    Http2Client client(server.port(), client_.get());
    const std::string message(1'000'000, 'x');
    client.Open(1, "/known/Echo");
    ASSERT_TRUE(client.SendData(1, GrpcMessage(message), /*end=*/true));
    EXPECT_EQ(client.Await(1).status(), 0);
    EXPECT_TRUE(client.answer(1).data == GrpcMessage(message));
    client.Open(3, "/strange/Hold");
    ASSERT_TRUE(WaitFor([&] { return server.service().begun() == 2; }));
  }
  EXPECT_TRUE(NothingIsLeft(server));
}

TEST_F(GrpcTlsTransportTest, HandshakesThatFailLeaveNothing) {
  ToyServer server(Options());
  // The first bytes of a handshake.
  std::string hello("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  hello.resize(200, 'x');
  TlsContext http1(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_alpn_protos(
      http1.get(), reinterpret_cast<const unsigned char*>("\x08http/1.1"), 9);
  TlsContext old(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_max_proto_version(old.get(), TLS1_1_VERSION);
  TlsContext careful(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_verify(careful.get(), SSL_VERIFY_PEER, nullptr);
  for (int i = 0; i < 50; ++i) {
    for (const std::string& bytes :
         {std::string(), hello, hello.substr(0, 3), http2::Preface(),
          std::string(20'000, 'x')}) {
      HttpConnection connection(server.port());
      connection.Send(bytes);
    }
    for (SSL_CTX* const tls : {http1.get(), old.get(), careful.get()}) {
      EXPECT_FALSE(HttpConnection(server.port(), tls).connected());
    }
  }
  EXPECT_TRUE(NothingIsLeft(server));
  Http2Client client(server.port(), client_.get());
  client.Open(1, "/known/Echo", kHttp2EndStream);
  EXPECT_EQ(client.Await(1).status(), 0);
}

TEST_F(GrpcTlsTransportTest, AHandshakeHasItsTime) {
  GrpcServerOptions options = Options();
  options.handshake_timeout = milliseconds(200);
  ToyServer server(options);
  HttpConnection silent(server.port());
  EXPECT_EQ(silent.ReadSome(), "");
  EXPECT_TRUE(NothingIsLeft(server));
}

// As without TLS; the library of TLS, too, has the output at hand.
TEST_F(GrpcTlsTransportTest, WhoIsEndedWhileOutputWaitsGetsWholeFrames) {
  constexpr int kSize = 30'000;
  constexpr uint32_t kHeld = 300;
  GrpcServerOptions options = Options();
  options.penalty = std::chrono::minutes(1);  // however long it reads
  ToyServer server(options);
  Http2Client client(server.port(), client_.get(), /*receive_buffer=*/4096);
  client.GrantAll();
  client.Open(1, "/known/Echo", kHttp2EndStream);
  EXPECT_EQ(client.Await(1).status(), 0);
  for (uint32_t i = 0; i < kHeld; ++i) client.Open(3 + 2 * i, "/known/Hold");
  constexpr uint32_t kFill = 3 + 2 * kHeld;
  client.Open(kFill, "/known/Fill");
  client.SendData(kFill, GrpcMessage(absl::StrCat("1000 ", kSize)), true);
  int64_t written = -1;
  ASSERT_TRUE(WaitFor([&] {
    std::this_thread::sleep_for(milliseconds(200));
    const int64_t now = server.service().written();
    return now > 0 && std::exchange(written, now) == now;
  }));
  client.Send(http2::EndlessHead(kFill + 2));
  ASSERT_TRUE(client.AwaitGoAway());
  const std::string& data = client.answer(kFill).data;
  std::string expected;
  for (int i = 0; expected.size() < data.size(); ++i) {
    expected += GrpcMessage(ToyFill(i, kSize));
  }
  EXPECT_GT(data.size(), size_t{kSize});
  EXPECT_TRUE(data == expected.substr(0, data.size()));
}

}  // namespace
}  // namespace recurve
