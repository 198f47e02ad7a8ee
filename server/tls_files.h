#ifndef RECURVE_SERVER_TLS_FILES_H_
#define RECURVE_SERVER_TLS_FILES_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "grpcpp/security/server_credentials.h"
#include "server/transport.h"

typedef struct ssl_ctx_st SSL_CTX;  // OpenSSL's

namespace recurve {

// The TLS files of a server, of gRPC and HTTP alike, as they were when they
// could last be used.
//
// gRPC could watch the files by itself. But it ends the process when it finds
// an empty one, and lets nobody in as long as a key and a certificate do not
// fit each other, as between the renaming of one and of the other. So it is
// shown copies in memory, which are exchanged when new ones have been tried.
//
// Thread safety: all methods but ReloadIfDue may be called from any thread.
class TlsFiles {
 public:
  // Null where the options name no files: plaintext. InvalidArgument, with the
  // flag and the file, if a file cannot be used or one of a pair is missing.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Load(
      const TransportOptions& options);
  TlsFiles(const TlsFiles&) = delete;
  TlsFiles& operator=(const TlsFiles&) = delete;

  // For a gRPC server: new connections get what was read last, a second later
  // at most.
  std::shared_ptr<grpc::ServerCredentials> GrpcCredentials() const;

  // The same for a server that uses OpenSSL itself.
  std::shared_ptr<SSL_CTX> Context() const;

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

  explicit TlsFiles(const TransportOptions& options) : options_(options) {}
  absl::StatusOr<Texts> Read() const;
  // Tries the texts and, if they can be used, makes them count.
  absl::Status Use(const Texts& texts);
  absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(
      const Copies& copies) const;

  const TransportOptions options_;
  std::chrono::steady_clock::time_point next_read_;
  Texts used_;
  // What the log has told of: it is not told again.
  std::optional<std::string> problem_;
  // Numbers that stay, of files that are exchanged. Never closed: gRPC may look
  // at them for a while after its server has ended.
  Copies copies_;

  mutable Mutex mu_;
  std::shared_ptr<SSL_CTX> context_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TLS_FILES_H_
