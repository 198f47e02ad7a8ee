#ifndef RECURVE_SERVER_TELEMETRY_METRICS_H_
#define RECURVE_SERVER_TELEMETRY_METRICS_H_

#include <memory>
#include <string>

#include "engine/serving/observer.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace recurve {

// Why a request was refused before the engine took it in.
enum class RefusalReason {
  kQueueFull,
  kDeadline,  // it would be done too late
  kQuota,     // of a tenant
  kDraining,
  kDeviceFailed,
  kUnauthenticated,
  kInvalid,
  kInternal,
};

// Counts what the engine does, as Prometheus metrics named recurve_…; the list
// is in docs/metrics.md. Nothing in them comes from a request's content.
//
// Thread safety: the observer's methods are called on the step thread, all
// others from any; scraped from any.
class Metrics : public EngineObserver {
 public:
  Metrics();
  ~Metrics() override;

  std::shared_ptr<prometheus::Registry> registry() const;

  // What the server is; stays as it is.
  void SetBuild(const std::string& version, const std::string& device);
  // Sizes that stay as they are.
  void SetCapacity(int64_t state_bytes, int64_t slots, int64_t pages);
  void SetMaxGrpcConnections(int64_t connections);

  // What health says.
  void SetServing(bool serving);

  void OnStepDone(int64_t sequences, int64_t tokens, double seconds) override;
  void OnLoad(const EngineLoad& load) override;
  void OnQueued(double queue_seconds) override;
  void OnFirstToken(double seconds_since_submit) override;
  void OnNextToken(double seconds_since_last_token) override;
  void OnCommandDone(const CommandResult& result) override;
  void OnFailed(const absl::Status& status) override;

  // A Generate or Decode call, or a completion over HTTP, was refused.
  void OnRefused(RefusalReason reason);
  // A stream's first command was let in by the tenant's quotas.
  void OnTenantAdmitted(const std::string& tenant);
  // Something of the tenant was refused: "streams", "tokens", "pages" or
  // "admin".
  void OnTenantRefused(const std::string& tenant, const char* reason);
  void AddTenantStreams(const std::string& tenant, int difference);
  void AddTenantPages(const std::string& tenant, double difference);
  // A call without a key ("missing") or with one that is "unknown".
  void OnUnauthenticated(const char* reason);
  void SetGrpcConnections(int64_t connections);  // that are open
  // When the first certificate of a TLS file expires, in seconds since 1970;
  // `file` is "cert" or "client_ca".
  void SetTlsExpiry(const char* file, int64_t seconds);
  // A connection was closed since there were as many as there may be.
  void OnGrpcRefused();
  // Has the counter of connections that end for this reason at 0.
  void DeclareGrpcConnectionEnd(const char* reason);
  // A connection was ended since its client sent what it should not, or held
  // too much; `reason` is one of a few (OffenceName).
  void OnGrpcConnectionEnded(const char* reason);
  // An idle HTTP connection was ended to make room for another.
  void OnHttpDisplaced();
  // Of an HTTP port; `endpoint` is one of a few.
  void OnHttpAnswered(const char* endpoint, int status, double seconds);

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TELEMETRY_METRICS_H_
