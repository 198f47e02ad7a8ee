#ifndef RECURVE_SERVER_TRANSPORT_TRANSPORT_H_
#define RECURVE_SERVER_TRANSPORT_TRANSPORT_H_

#include <chrono>
#include <string>

namespace recurve {

// How connections are protected, of gRPC and HTTP alike. Files are PEM and are
// read again every `tls_reload`, so that certificates can be renewed while the
// server runs: new connections get the new ones, open ones stay. See TlsFiles.
struct TransportOptions {
  std::string tls_cert;  // the server's chain, its own first; empty: plaintext
  std::string tls_key;   // of the first certificate
  // Not empty: clients must have a certificate that one of these signed.
  std::string tls_client_ca;
  std::chrono::seconds tls_reload{60};
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_TRANSPORT_H_
