#ifndef RECURVE_SERVER_GRPC_UNARY_H_
#define RECURVE_SERVER_GRPC_UNARY_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/grpc/proto_message.h"
#include "server/grpc/rpc.h"

namespace recurve {

// The caller of a method that needs no authorisation.
struct Anybody {};

// Makes a method with one request and one response. `check` examines the head
// before the request is read, returns the caller, and calls RpcStream::Trust if
// it is authorised; `answer` must not block.
template <typename Request, typename Response, typename Caller>
RpcMethod UnaryMethod(
    std::function<absl::StatusOr<Caller>(const RpcHead&, RpcStream&)> check,
    std::function<absl::StatusOr<Response>(const Caller&, const Request&)>
        answer) {
  using Answer =
      std::function<absl::StatusOr<Response>(const Caller&, const Request&)>;
  class Call : public RpcListener {
   public:
    Call(std::shared_ptr<RpcStream> stream, Caller caller, const Answer& answer)
        : stream_(std::move(stream)),
          caller_(std::move(caller)),
          answer_(answer) {}

    void OnMessage(std::string message) override {
      Request request;
      if (!ParseMessage(message, &request)) {
        return stream_->Finish(absl::InvalidArgumentError(kMalformedMessage),
                               {});
      }
      const absl::StatusOr<Response> response = answer_(caller_, request);
      if (response.ok()) stream_->Write(response->SerializeAsString());
      stream_->Finish(response.status(), {});
    }
    void OnHalfClose() override {
      stream_->Finish(absl::InvalidArgumentError("the request is missing"), {});
    }
    void OnWritten() override {}
    void OnDone(const absl::Status&) override {}

   private:
    const std::shared_ptr<RpcStream> stream_;
    const Caller caller_;
    const Answer& answer_;  // owned by the method, which outlives its calls
  };
  // Shared by copies of the method.
  const auto shared = std::make_shared<Answer>(std::move(answer));
  return
      [check = std::move(check), shared](
          const RpcHead& head,
          std::shared_ptr<RpcStream> stream) -> std::shared_ptr<RpcListener> {
        absl::StatusOr<Caller> caller = check(head, *stream);
        if (!caller.ok()) {
          stream->Finish(std::move(caller).status(), {});
          return nullptr;
        }
        RpcStream& answering = *stream;
        auto call = std::make_shared<Call>(std::move(stream),
                                           *std::move(caller), *shared);
        answering.Read(kRequestTimeout);
        return call;
      };
}

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_UNARY_H_
