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

// Takes the response of a call, or its error; once, on any thread.
template <typename Response>
using UnaryDone = std::function<void(absl::StatusOr<Response>)>;

// Makes a method with one request and one response. `check` examines the head
// before the request is read, returns the caller, and calls RpcStream::Trust if
// it is authorised; `answer` must not block: it may call its argument later.
template <typename Request, typename Response, typename Caller>
RpcMethod AsyncUnaryMethod(
    std::function<absl::StatusOr<Caller>(const RpcHead&, RpcStream&)> check,
    std::function<void(const Caller&, const Request&, UnaryDone<Response>)>
        answer) {
  using Answer =
      std::function<void(const Caller&, const Request&, UnaryDone<Response>)>;
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
      answer_(caller_, request,
              [stream = stream_](absl::StatusOr<Response> response) {
                if (response.ok()) stream->Write(response->SerializeAsString());
                stream->Finish(response.status(), {});
              });
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

// As above, for an answer that is there at once.
template <typename Request, typename Response, typename Caller>
RpcMethod UnaryMethod(
    std::function<absl::StatusOr<Caller>(const RpcHead&, RpcStream&)> check,
    std::function<absl::StatusOr<Response>(const Caller&, const Request&)>
        answer) {
  return AsyncUnaryMethod<Request, Response, Caller>(
      std::move(check),
      [answer = std::move(answer)](const Caller& caller, const Request& request,
                                   const UnaryDone<Response>& done) {
        done(answer(caller, request));
      });
}

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_UNARY_H_
