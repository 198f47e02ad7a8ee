#ifndef RECURVE_SERVER_TRANSPORT_H_
#define RECURVE_SERVER_TRANSPORT_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

typedef struct ssl_ctx_st SSL_CTX;  // OpenSSL's

namespace recurve {

// How connections are protected, of gRPC and HTTP alike. Files are PEM and are
// read again every `tls_reload`, so that certificates can be renewed while the
// server runs: new connections get the new ones. Files that have become
// unusable make new connections fail until they are good again; open ones stay.
struct TransportOptions {
  std::string tls_cert;  // the server's chain, its own first; empty: plaintext
  std::string tls_key;   // of the first certificate
  // Not empty: clients must have a certificate that one of these signed.
  std::string tls_client_ca;
  std::chrono::seconds tls_reload{60};
};

// InvalidArgument, with the flag and the file, if a file cannot be used or one
// of a pair is missing.
absl::Status CheckTransport(const TransportOptions& options);

// Errors as above.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TransportOptions& options);

// The same protection for a server that uses OpenSSL itself, from the files as
// they are now. Errors as above. The caller owns the context.
// REQUIRES: options.tls_cert and options.tls_key are set.
absl::StatusOr<SSL_CTX*> MakeTlsContext(const TransportOptions& options);

// Bounds what a peer may ask of a connection: metadata, pings; and finds out
// about peers that are gone.
void LimitTransport(grpc::ServerBuilder* builder);

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_H_
