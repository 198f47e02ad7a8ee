#ifndef RECURVE_SERVER_TRANSPORT_TRANSPORT_H_
#define RECURVE_SERVER_TRANSPORT_TRANSPORT_H_

#include <chrono>
#include <string>

namespace recurve {

// How connections are protected, for gRPC and HTTP. Files are PEM and are read
// again every `tls_reload`, so that certificates can be renewed while the
// server runs: new connections use the new ones, open ones are unchanged. See
// TlsFiles.
struct TransportOptions {
  std::string tls_cert;  // the server's chain, leaf first; empty: plaintext
  std::string tls_key;   // for the leaf certificate
  // Not empty: clients must have a certificate signed by one of these.
  std::string tls_client_ca;
  std::chrono::seconds tls_reload{60};
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_TRANSPORT_H_
