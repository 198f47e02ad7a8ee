#ifndef RECURVE_SERVER_SERVICES_CONTROL_SERVICE_H_
#define RECURVE_SERVER_SERVICES_CONTROL_SERVICE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "engine/loading/model_loader.h"
#include "engine/serving/engine.h"
#include "recurve/v1/control.pb.h"
#include "server/grpc/rpc.h"
#include "server/tenants/tenants.h"

namespace recurve {

// recurve.v1.Control: information for every tenant, and operations for admins.
// Thread-safe.
class ControlService {
 public:
  struct Options {
    Engine* engine;
    std::string model_name;
    Capacity capacity;
    int64_t default_max_new_tokens = 0;
    Tenants* tenants = nullptr;  // null: anyone who can connect may call
    bool admin = true;           // false: Abort and Drain are disabled
    const std::atomic<int64_t>* open_streams;
    std::function<int64_t()> drain;  // starts draining; returns requests left
  };
  explicit ControlService(Options options) : options_(std::move(options)) {}

  // The service outlives the server with these methods.
  void AddMethods(RpcMethods* methods) const;

  using Caller = std::shared_ptr<Tenant>;  // null on a server without keys

  // The tenant of the call.
  absl::StatusOr<Caller> Authenticate(const RpcHead& head,
                                      RpcStream& stream) const;

  v1::ModelInfo GetModelInfo() const;
  v1::ServerInfo GetServerInfo() const;
  v1::Load GetLoad(const Caller& caller) const;

 private:
  // As above; PermissionDenied if it is not an admin.
  absl::StatusOr<Caller> AuthorizeAdmin(const RpcHead& head,
                                        RpcStream& stream) const;

  // The load visible to a tenant that is not an admin.
  v1::Load OwnLoad(Tenant& tenant) const;
  absl::Status Abort(const v1::AbortRequest& request) const;

  const Options options_;
  const std::chrono::steady_clock::time_point started_ =
      std::chrono::steady_clock::now();
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_CONTROL_SERVICE_H_
