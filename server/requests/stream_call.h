#ifndef RECURVE_SERVER_REQUESTS_STREAM_CALL_H_
#define RECURVE_SERVER_REQUESTS_STREAM_CALL_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "engine/serving/event_sink.h"
#include "server/grpc/proto_message.h"
#include "server/grpc/rpc.h"
#include "server/requests/request_call.h"

namespace recurve {

// One streaming call over gRPC: a request of one sequence. It is an
// RpcListener, driven by the transport's threads, and an EventSink, driven by
// the engine's. The engine adds output to the subclass's buffer; Pump sends it,
// one message at a time. Output that accumulates while a message is in transit
// is merged into messages of bounded length (output_parts.h). So a slow reader
// holds a bounded buffer and delays no other call.
//
// Lifetime and thread safety: RequestCall.
template <typename Response>
class StreamCall : public RequestCall, public RpcListener, public EventSink {
 public:
  StreamCall(const CallEnvironment& environment, const RpcHead& head,
             std::shared_ptr<RpcStream> stream)
      : RequestCall(environment), head_(head), stream_(std::move(stream)) {
    SetParts(1);
  }

  // --- RpcListener ---

  void OnWritten() override {
    {
      MutexLock lock(&mu_);
      write_in_flight_ = false;
    }
    OnProgress();
    Pump();
  }

  void OnProgress() override { GiveReaderTime(); }

  void OnDone(const absl::Status& status) override { Leave(status); }

  // --- EventSink ---

  void OnEnd(absl::Status status) override {
    if (EndPart(part(), std::move(status))) stream_->Break();
    Pump();
  }

 protected:
  // Moves buffered output, up to the size of one message, into `message`; false
  // if there is none. Sets `*read_next` if the client's next message is wanted
  // with it.
  virtual bool TakeOutput(Response* message, bool* read_next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // The remaining output of TakeOutput.
  struct Buffered {
    int64_t tokens;
    int64_t bytes;
  };
  virtual Buffered buffered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // Starts the read that TakeOutput asked for.
  virtual void ReadNext() {}

  Part& part() { return parts_[0]; }

  // Authenticates the call and opens one of the tenant's streams, or refuses
  // the call and returns false.
  bool Enter() {
    absl::Status status = Authenticate(head_.authorization, "metadata entry");
    if (status.ok()) {
      if (environment_.tenants != nullptr) stream_->Trust();
      status = OpenStreams();
    }
    if (!status.ok()) Refuse(status);
    return status.ok();
  }

  // Submits the request, sends its id to the client and enables output.
  absl::Status Start(GenerateInput input, FieldNames names,
                     bool close_when_done) {
    std::vector<Engine::Submission> one;
    one.push_back(MakeSubmission(
        std::move(input), std::move(names),
        std::shared_ptr<EventSink>(shared_from_this(), this), head_.deadline));
    one[0].close_when_done = close_when_done;
    RECURVE_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> ids,
        Submit(std::move(one), [](auto) { return absl::OkStatus(); }));
    stream_->Accept();
    stream_->SendHead({{"recurve-request-id", FormatRequestId(ids[0])}});
    LetGo();
    return absl::OkStatus();
  }

  // Calls `next` after Encode, or ends the call.
  void RunEncoding(int64_t bytes, std::function<absl::Status()> next) {
    Encode(bytes, [this, next = std::move(next)](absl::Status status) {
      if (status.ok()) status = next();
      if (!status.ok()) Fail(status);
    });
  }

  // Ends the call with `status`, with or without a sequence.
  void Fail(const absl::Status& status) {
    std::optional<uint64_t> id;
    {
      MutexLock lock(&mu_);
      id = part().id;
    }
    if (id) {
      environment_.engine->Cancel(*id, status);
    } else {
      Refuse(status);
    }
  }

  // Ends the call with `status`; it has no sequence.
  void Refuse(const absl::Status& status) {
    Refused(status);
    EndPart(part(), status);
    LetGo();
  }

  // Whether the engine may continue; if not, records that it must be resumed.
  bool HasRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Buffered waiting = buffered();
    return RequestCall::HasRoom(part(), waiting.tokens, waiting.bytes);
  }

  // Sends the next message, or the final status, unless one is in transit.
  void Pump() {
    bool write = false;
    bool read_next = false;
    std::optional<uint64_t> resume;
    std::optional<std::chrono::milliseconds> retry_after;
    absl::Status status;
    Response message;
    {
      MutexLock lock(&mu_);
      if (!started_ || write_in_flight_ || over_) return;
      if (TakeOutput(&message, &read_next)) {
        write = write_in_flight_ = true;
        if (part().stalled && HasRoom()) resume = part().id;
      } else if (part().end) {
        over_ = true;
        status = *part().end;
        if (absl::IsResourceExhausted(status)) retry_after = retry_after_;
        CloseTickets();
      } else {
        return;
      }
    }
    if (resume) environment_.engine->Resume(*resume);
    if (write) {
      if (read_next) ReadNext();
      stream_->Write(message.SerializeAsString());
      return;
    }
    RpcMetadata trailers;
    if (retry_after) {
      trailers.emplace_back("grpc-retry-pushback-ms",
                            absl::StrCat(retry_after->count()));
    }
    stream_->Finish(std::move(status), std::move(trailers));
  }

  const RpcHead head_;
  const std::shared_ptr<RpcStream> stream_;

 private:
  void LetGo() {
    {
      MutexLock lock(&mu_);
      started_ = true;
    }
    Pump();
  }
};

}  // namespace recurve

#endif  // RECURVE_SERVER_REQUESTS_STREAM_CALL_H_
