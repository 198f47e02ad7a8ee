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

// One streaming call over gRPC. It is an RpcListener, driven by the transport's
// threads; the subclass has an EventSink for each part, driven by the engine's.
// The engine adds output to the subclass's buffers; Pump sends it, one message
// at a time. Output that accumulates while a message is in transit
// is merged into messages of bounded length (output_parts.h). So a slow reader
// holds a bounded buffer and delays no other call.
//
// Lifetime and thread safety: RequestCall.
template <typename Response>
class StreamCall : public RequestCall, public RpcListener {
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

 protected:
  // For EventSink::OnEnd of a part. An error ends the others, too.
  void EndOf(size_t index, absl::Status status) {
    const bool failed = !status.ok();
    if (EndPart(parts_[index], status)) stream_->Break();
    if (failed && parts_.size() > 1) CancelAll(status);
    Pump();
  }

  // Moves buffered output, up to the size of one message, into `message`; false
  // if there is none. Sets `*read_next` if the client's next message is wanted
  // with it.
  virtual bool TakeOutput(Response* message, bool* read_next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // The remaining output of a part.
  struct Buffered {
    int64_t tokens;
    int64_t bytes;
  };
  virtual Buffered buffered(size_t index) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // Starts the read that TakeOutput asked for.
  virtual void ReadNext() {}

  Part& part(size_t index = 0) { return parts_[index]; }

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

  // Submits the inputs, one for each part, sends the first one's id to the
  // client and enables output. `sinks` outlive the call's last reference.
  absl::Status Start(std::vector<GenerateInput> inputs,
                     const std::vector<EventSink*>& sinks,
                     const FieldNames& names, bool close_when_done) {
    std::vector<Engine::Submission> all;
    for (size_t i = 0; i < inputs.size(); ++i) {
      all.push_back(MakeSubmission(
          std::move(inputs[i]), names,
          std::shared_ptr<EventSink>(shared_from_this(), sinks[i]),
          head_.deadline));
      all.back().close_when_done = close_when_done;
    }
    RECURVE_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> ids,
        Submit(std::move(all), [](auto) { return absl::OkStatus(); }));
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
    for (Part& part : parts_) EndPart(part, status);
    LetGo();
  }

  // Whether the engine may continue a part; if not, records that it must be
  // resumed.
  bool HasRoom(size_t index = 0) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Buffered waiting = buffered(index);
    return RequestCall::HasRoom(part(index), waiting.tokens, waiting.bytes);
  }

  // Sends the next message, or the final status, unless one is in transit.
  void Pump() {
    bool write = false;
    bool read_next = false;
    std::vector<uint64_t> resume;
    std::optional<std::chrono::milliseconds> retry_after;
    absl::Status status;
    Response message;
    {
      MutexLock lock(&mu_);
      if (!started_ || write_in_flight_ || over_) return;
      if (TakeOutput(&message, &read_next)) {
        write = write_in_flight_ = true;
        for (size_t i = 0; i < parts_.size(); ++i) {
          if (part(i).stalled && HasRoom(i)) resume.push_back(*part(i).id);
        }
      } else if (AllEnded()) {
        over_ = true;
        status = FirstError();
        if (absl::IsResourceExhausted(status)) retry_after = retry_after_;
        CloseTickets();
      } else {
        return;
      }
    }
    for (const uint64_t id : resume) environment_.engine->Resume(id);
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
  // The error of the part that failed by itself: the others are cancelled
  // with it.
  absl::Status FirstError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const Part& part : parts_) {
      if (!part.end->ok()) return *part.end;
    }
    return absl::OkStatus();
  }

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
