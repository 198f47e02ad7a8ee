#ifndef RECURVE_SERVER_CONTROL_SERVICE_H_
#define RECURVE_SERVER_CONTROL_SERVICE_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "engine/engine.h"
#include "engine/model_loader.h"
#include "recurve/v1/control.grpc.pb.h"
#include "server/tenants.h"

namespace recurve {

// recurve.v1.Control: facts, for every tenant, and switches, for admins.
// Thread-safe.
class ControlService : public v1::Control::CallbackService {
 public:
  struct Options {
    Engine* engine;
    std::string model_name;
    Capacity capacity;
    int64_t default_max_new_tokens = 0;
    Tenants* tenants = nullptr;  // null: whoever can connect may call
    bool admin = true;           // false: nobody may abort or drain
    const std::atomic<int64_t>* open_streams;
    std::function<int64_t()> drain;  // starts draining; returns requests left
  };
  explicit ControlService(Options options) : options_(std::move(options)) {}

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::GetModelInfoRequest* request,
                                         v1::ModelInfo* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* context,
      const v1::GetServerInfoRequest* request,
      v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const v1::GetLoadRequest* request,
                                    v1::Load* response) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;

 private:
  // Whether the call is from a tenant.
  absl::Status Authenticate(const grpc::CallbackServerContext& context) const;
  // Whether it is from one that may use the switches.
  absl::Status AuthorizeAdmin(const grpc::CallbackServerContext& context) const;

  const Options options_;
  const std::chrono::steady_clock::time_point started_ =
      std::chrono::steady_clock::now();
};

}  // namespace recurve

#endif  // RECURVE_SERVER_CONTROL_SERVICE_H_
