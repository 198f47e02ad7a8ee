#ifndef RECURVE_SERVER_VLLM_VLLM_SERVICE_H_
#define RECURVE_SERVER_VLLM_VLLM_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "server/grpc/rpc.h"
#include "server/requests/request_call.h"
#include "server/services/control_service.h"
#include "server/vllm/model_files.h"
#include "server/vllm/open_requests.h"
#include "server/vllm/throughput.h"
#include "vllm/grpc/engine.pb.h"

namespace recurve {

// vllm.grpc.engine.VllmEngine, which routers speak: Generate as one more form
// of a request (vllm_generate_call.h), and what ControlService knows in that
// service's messages. Thread-safe.
class VllmService {
 public:
  // All outlive the service.
  struct Options {
    const CallEnvironment* environment;
    const ControlService* control;
    // Whether the server takes requests.
    std::function<bool()> serving;
    // --admin: without it, and without keys that tell tenants apart, no call
    // may end another.
    bool admin = true;
    ModelFiles files;
  };
  explicit VllmService(Options options) : options_(std::move(options)) {}

  // The service outlives the server with these methods.
  void AddMethods(RpcMethods* methods);

 private:
  using Caller = ControlService::Caller;

  ::vllm::grpc::engine::HealthCheckResponse HealthCheck() const;
  ::vllm::grpc::engine::GetModelInfoResponse GetModelInfo() const;
  ::vllm::grpc::engine::GetServerInfoResponse GetServerInfo(
      const Caller& caller) const;
  absl::StatusOr<::vllm::grpc::engine::GetLoadsResponse> GetLoads(
      const Caller& caller,
      const ::vllm::grpc::engine::GetLoadsRequest& request);
  absl::StatusOr<::vllm::grpc::engine::AbortResponse> Abort(
      const Caller& caller, const ::vllm::grpc::engine::AbortRequest& request);
  std::shared_ptr<RpcListener> GetTokenizer(
      const RpcHead& head, std::shared_ptr<RpcStream> stream) const;

  const Options options_;
  OpenRequests requests_;
  Throughput throughput_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_VLLM_VLLM_SERVICE_H_
