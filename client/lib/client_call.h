#ifndef RECURVE_CLIENT_LIB_CLIENT_CALL_H_
#define RECURVE_CLIENT_LIB_CLIENT_CALL_H_

#include <grpcpp/client_context.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "client/lib/grpc_status.h"
#include "client/lib/recurve_client.h"

namespace recurve {

// The gRPC context of one blocking call.
class ClientCall {
 public:
  ClientCall(const CallOptions& options, const std::string& authorization)
      : canceller_(options.canceller) {
    if (!authorization.empty()) {
      context_.AddMetadata("authorization", authorization);
    }
    if (options.timeout < absl::InfiniteDuration()) {
      context_.set_deadline(absl::ToChronoTime(absl::Now() + options.timeout));
    }
    if (canceller_ != nullptr) canceller_->Bind(&context_);
  }
  ~ClientCall() {
    if (canceller_ != nullptr) canceller_->Unbind();
  }
  ClientCall(const ClientCall&) = delete;
  ClientCall& operator=(const ClientCall&) = delete;

  grpc::ClientContext* context() { return &context_; }

 private:
  grpc::ClientContext context_;
  Canceller* const canceller_;
};

// A call with one request and one response.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Unary(
    Stub* stub,
    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                 Response*),
    const Request& request, const CallOptions& options,
    const std::string& authorization) {
  ClientCall call(options, authorization);
  Response response;
  RECURVE_RETURN_IF_ERROR(
      FromGrpcStatus((stub->*method)(call.context(), request, &response)));
  return response;
}

}  // namespace recurve

#endif  // RECURVE_CLIENT_LIB_CLIENT_CALL_H_
