#ifndef RECURVE_SERVER_TRANSPORT_TLS_FILES_H_
#define RECURVE_SERVER_TRANSPORT_TLS_FILES_H_

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/transport/transport.h"

typedef struct ssl_ctx_st SSL_CTX;  // OpenSSL's

namespace recurve {

class Metrics;

// The TLS files of a server, for gRPC and HTTP, in their last usable versions:
// new ones are tested before use, so that a partly written file, or a key
// renamed before its certificate, changes nothing.
//
// Thread safety: all methods but ReloadIfDue may be called from any thread.
class TlsFiles {
 public:
  // Null if the options name no files: plaintext. InvalidArgument, with the
  // flag and the file, if a file cannot be used or one of a pair is missing.
  // The log warns of certificates that clients cannot use, now or soon, when
  // they are loaded and once a day (certificates.h). `metrics`, which outlives
  // this and may be null, gets their expiry times.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Load(
      const TransportOptions& options, Metrics* metrics = nullptr);
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  // The protocol of a port over TLS. Clients that use ALPN must offer it.
  enum class Protocol { kHttp1, kHttp2 };

  // The context for new connections.
  std::shared_ptr<SSL_CTX> Context(Protocol protocol) const;

  // Reads the files again when due. Unusable ones change nothing, are reported
  // in the log, and are tried again every second. Call it often, from one
  // thread.
  void ReloadIfDue();

 private:
  struct Texts {
    std::string cert;
    std::string key;
    std::string client_ca;
    bool operator==(const Texts& other) const;
  };
  // In-memory files, by their descriptors; -1: none.
  struct Copies {
    int cert = -1;
    int key = -1;
    int client_ca = -1;
  };

  using Contexts = std::array<std::shared_ptr<SSL_CTX>, 2>;  // indexed by
                                                             // Protocol

  TlsFiles(const TransportOptions& options, Metrics* metrics)
      : options_(options), metrics_(metrics) {}
  absl::StatusOr<Texts> Read() const;
  // Tests the texts and, if they are usable, puts them to use.
  absl::Status Use(const Texts& texts);
  // Inspects the certificates in use.
  void Inspect();
  absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const Copies& copies,
                                                       Protocol protocol) const;

  const TransportOptions options_;
  Metrics* const metrics_;
  std::chrono::steady_clock::time_point next_read_;
  std::chrono::steady_clock::time_point next_inspection_;
  Texts used_;
  // The problem last reported in the log; it is not reported again.
  std::optional<std::string> problem_;

  mutable Mutex mu_;
  Contexts contexts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_TLS_FILES_H_
