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

// The TLS files of a server, of gRPC and HTTP alike, as they were when they
// could last be used: new ones are tried before they count, so that a file that
// is half written, or a key that is renamed before its certificate, changes
// nothing.
//
// Thread safety: all methods but ReloadIfDue may be called from any thread.
class TlsFiles {
 public:
  // Null where the options name no files: plaintext. InvalidArgument, with the
  // flag and the file, if a file cannot be used or one of a pair is missing.
  // The log warns of certificates that clients cannot use, now or soon, when
  // they are loaded and once a day (certificates.h). `metrics`, which outlives
  // this, hears when certificates expire; it may be null.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Load(
      const TransportOptions& options, Metrics* metrics = nullptr);
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  // The protocol that a port speaks over TLS. Clients that name protocols
  // (ALPN) must name it.
  enum class Protocol { kHttp1, kHttp2 };

  // What new connections are to use.
  std::shared_ptr<SSL_CTX> Context(Protocol protocol) const;

  // Reads the files again when it is time to. What cannot be used changes
  // nothing, is told in the log, and is looked at again every second. Call it
  // often, from one thread.
  void ReloadIfDue();

 private:
  struct Texts {
    std::string cert;
    std::string key;
    std::string client_ca;
    bool operator==(const Texts& other) const;
  };
  // Files in memory, by their descriptors; -1: none.
  struct Copies {
    int cert = -1;
    int key = -1;
    int client_ca = -1;
  };

  using Contexts = std::array<std::shared_ptr<SSL_CTX>, 2>;  // by Protocol

  TlsFiles(const TransportOptions& options, Metrics* metrics)
      : options_(options), metrics_(metrics) {}
  absl::StatusOr<Texts> Read() const;
  // Tries the texts and, if they can be used, makes them count.
  absl::Status Use(const Texts& texts);
  // Looks at the certificates that are in use.
  void Inspect();
  absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const Copies& copies,
                                                       Protocol protocol) const;

  const TransportOptions options_;
  Metrics* const metrics_;
  std::chrono::steady_clock::time_point next_read_;
  std::chrono::steady_clock::time_point next_inspection_;
  Texts used_;
  // What the log has told of: it is not told again.
  std::optional<std::string> problem_;

  mutable Mutex mu_;
  Contexts contexts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TRANSPORT_TLS_FILES_H_
