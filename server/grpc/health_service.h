#ifndef RECURVE_SERVER_GRPC_HEALTH_SERVICE_H_
#define RECURVE_SERVER_GRPC_HEALTH_SERVICE_H_

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/grpc/rpc.h"

namespace recurve {

// grpc.health.v1.Health: whether the server serves, with the same answer for
// all its services and for "" (the whole server). Needs no API key.
//
// Thread-safe.
class HealthService {
 public:
  // The service names that clients may query.
  explicit HealthService(std::set<std::string> services);
  ~HealthService();

  void SetServing(bool serving);
  // The service outlives the server with these methods.
  void AddMethods(RpcMethods* methods);

 private:
  class Watcher;

  bool Knows(const std::string& service) const {
    return services_.count(service) > 0;
  }

  const std::set<std::string> services_;
  Mutex mu_;
  bool serving_ ABSL_GUARDED_BY(mu_) = false;
  // Expired pointers are removed when next_clean_ is reached.
  std::vector<std::weak_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(mu_);
  size_t next_clean_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_HEALTH_SERVICE_H_
