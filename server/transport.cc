#include "server/transport.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr int kMaxMetadataBytes = 8 << 10;
// A peer that has not been heard of for so long is asked; one that does not
// answer is gone, and its streams are cancelled.
constexpr int kKeepaliveMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
// Clients may ask this often themselves. Those that do it more often are sent
// away after two warnings.
constexpr int kMinPingIntervalMs = 10'000;
constexpr int kMaxPingStrikes = 2;

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

absl::Status Unusable(absl::string_view flag, const std::string& file) {
  const uint64_t error = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(error);
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, " ", file,
      " cannot be used: ", reason != nullptr ? reason : "not a PEM file"));
}

// Also finds out what gRPC would at the first connection, and keep to itself.
absl::StatusOr<Context> ReadFiles(const TransportOptions& o) {
  Context context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr)
    return absl::InternalError("OpenSSL gives no context");
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context.get(), o.tls_cert.c_str()) !=
      1) {
    return Unusable("tls-cert", o.tls_cert);
  }
  // Also that the key is the certificate's.
  if (SSL_CTX_use_PrivateKey_file(context.get(), o.tls_key.c_str(),
                                  SSL_FILETYPE_PEM) != 1) {
    return Unusable("tls-key", o.tls_key);
  }
  if (!o.tls_client_ca.empty()) {
    if (SSL_CTX_load_verify_locations(context.get(), o.tls_client_ca.c_str(),
                                      nullptr) != 1) {
      return Unusable("tls-client-ca", o.tls_client_ca);
    }
    SSL_CTX_set_verify(context.get(),
                       SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       nullptr);
  }
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Every connection shows its certificate anew, also after a reload.
  SSL_CTX_set_options(context.get(),
                      SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  // Buffers only while they are used: thousands of connections may be idle.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
  return context;
}

}  // namespace

absl::Status CheckTransport(const TransportOptions& o) {
  if (o.tls_cert.empty() != o.tls_key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-", o.tls_cert.empty() ? "key" : "cert",
                     " needs --tls-", o.tls_cert.empty() ? "cert" : "key"));
  }
  if (o.tls_cert.empty()) {
    if (!o.tls_client_ca.empty()) {
      return absl::InvalidArgumentError(
          "--tls-client-ca needs --tls-cert and --tls-key");
    }
    return absl::OkStatus();
  }
  return ReadFiles(o).status();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TransportOptions& o) {
  RECURVE_RETURN_IF_ERROR(CheckTransport(o));
  if (o.tls_cert.empty()) return grpc::InsecureServerCredentials();
  using grpc::experimental::FileWatcherCertificateProvider;
  const auto seconds = static_cast<unsigned int>(o.tls_reload.count());
  grpc::experimental::TlsServerCredentialsOptions tls(
      std::make_shared<FileWatcherCertificateProvider>(
          o.tls_key, o.tls_cert, o.tls_client_ca, seconds));
  tls.watch_identity_key_cert_pairs();
  if (!o.tls_client_ca.empty()) {
    tls.watch_root_certs();
    tls.set_cert_request_type(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(tls);
}

absl::StatusOr<SSL_CTX*> MakeTlsContext(const TransportOptions& options) {
  RECURVE_ASSIGN_OR_RETURN(Context context, ReadFiles(options));
  return context.release();
}

void LimitTransport(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                              kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxPingStrikes);
}

}  // namespace recurve
