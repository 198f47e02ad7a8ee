#ifndef RECURVE_SERVER_TRANSPORT_CERTIFICATES_H_
#define RECURVE_SERVER_TRANSPORT_CERTIFICATES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace recurve {

// The owner of a file's certificates.
enum class CertificateRole {
  kServer,     // the server's own, and its chain
  kClientCas,  // CAs of client certificates
};

struct CertificateReport {
  // For the log: certificates that some or all clients cannot use, now or soon.
  std::vector<std::string> warnings;
  // When the first of them expires; nothing if there are none.
  std::optional<absl::Time> first_expiry;
};

// Inspects the certificates of a PEM file that OpenSSL can use. `name` is the
// file's name in warnings. Other PEM blocks are ignored.
//
// Clients based on BoringSSL, such as Chrome and gRPC for Python, support fewer
// kinds of keys than OpenSSL does.
CertificateReport InspectCertificates(CertificateRole role,
                                      absl::string_view name,
                                      absl::string_view pem, absl::Time now);

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_CERTIFICATES_H_
