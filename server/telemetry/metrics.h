#ifndef RECURVE_SERVER_TELEMETRY_METRICS_H_
#define RECURVE_SERVER_TELEMETRY_METRICS_H_

#include <memory>
#include <string>

#include "engine/serving/observer.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace recurve {

// Why a request was refused before the engine accepted it.
enum class RefusalReason {
  kQueueFull,
  kDeadline,  // it would miss its deadline
  kQuota,     // a tenant's quota
  kDraining,
  kDeviceFailed,
  kUnauthenticated,
  kInvalid,
  kInternal,
};

// Counts engine events as Prometheus metrics named recurve_…, listed in
// docs/metrics.md. They contain nothing from a request's content.
//
// Thread safety: the observer's methods are called on the step thread, all
// others, and scrapes, on any thread.
class Metrics : public EngineObserver {
 public:
  Metrics();
  ~Metrics() override;

  std::shared_ptr<prometheus::Registry> registry() const;

  // Constant facts about the server.
  void SetBuild(const std::string& version, const std::string& device);
  // Constant sizes.
  void SetCapacity(int64_t state_bytes, int64_t slots, int64_t pages);
  void SetMaxGrpcConnections(int64_t connections);

  // The health status.
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
  // The tenant's quotas admitted a stream's first command.
  void OnTenantAdmitted(const std::string& tenant);
  // A tenant's request was refused by "streams", "tokens", "pages" or "admin".
  void OnTenantRefused(const std::string& tenant, const char* reason);
  void AddTenantStreams(const std::string& tenant, int difference);
  void AddTenantPages(const std::string& tenant, double difference);
  // A call without a key ("missing") or with one that is "unknown".
  void OnUnauthenticated(const char* reason);
  void SetGrpcConnections(int64_t connections);  // open connections
  // When the first certificate of a TLS file expires, in seconds since 1970;
  // `file` is "cert" or "client_ca".
  void SetTlsExpiry(const char* file, int64_t seconds);
  // A connection was closed because the limit was reached.
  void OnGrpcRefused();
  // Starts the counter of this reason at 0.
  void DeclareGrpcConnectionEnd(const char* reason);
  // A connection was ended because its client violated a limit; `reason` is one
  // of OffenceName.
  void OnGrpcConnectionEnded(const char* reason);
  // An idle HTTP connection was ended to make room for another.
  void OnHttpDisplaced();
  // For an HTTP port; `endpoint` is one of a few.
  void OnHttpAnswered(const char* endpoint, int status, double seconds);

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_TELEMETRY_METRICS_H_
