#ifndef RECURVE_SERVER_TRANSPORT_CERTIFICATES_H_
#define RECURVE_SERVER_TRANSPORT_CERTIFICATES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace recurve {

// Whose certificates a file has.
enum class CertificateRole {
  kServer,     // the server's own, and the chain behind it
  kClientCas,  // who may sign those of clients
};

struct CertificateReport {
  // For the log: certificates that some or all clients cannot use, now or soon.
  std::vector<std::string> warnings;
  // When the first of them expires; nothing without any.
  std::optional<absl::Time> first_expiry;
};

// Looks at the certificates of a PEM file, which OpenSSL can use. `name` is
// what warnings call the file. What is not a certificate is passed over.
//
// Clients that are built on BoringSSL, as gRPC's for Python and Chrome are,
// take fewer kinds of keys than OpenSSL does.
CertificateReport InspectCertificates(CertificateRole role,
                                      absl::string_view name,
                                      absl::string_view pem, absl::Time now);

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_CERTIFICATES_H_
