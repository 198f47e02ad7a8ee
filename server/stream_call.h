#ifndef RECURVE_SERVER_STREAM_CALL_H_
#define RECURVE_SERVER_STREAM_CALL_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "engine/engine.h"
#include "engine/event_sink.h"
#include "grpcpp/alarm.h"
#include "grpcpp/grpcpp.h"
#include "server/convert.h"
#include "server/encode_threads.h"
#include "server/grpc_status.h"
#include "server/metrics.h"
#include "server/proto_buffer.h"
#include "server/refusal.h"
#include "server/tenants.h"

namespace recurve {

// What all calls of the Inference service share.
struct CallEnvironment {
  Engine* engine;
  RequestContext context;
  // A call that holds this much unsent output is paused until its client reads.
  int64_t max_buffered_tokens = 256;
  int64_t max_buffered_bytes = 1 << 20;
  // A call whose client takes nothing for so long, although only reading is
  // left to do, is broken off.
  std::chrono::milliseconds stalled_client_timeout{60'000};
  // When a client refused for load should come back.
  std::chrono::milliseconds retry_pushback{1000};
  Tenants* tenants = nullptr;  // null: whoever can connect may call
  EncodeThreads* encode_threads;
  Metrics* metrics;                        // hears of refusals
  std::atomic<int64_t>* open_streams;      // calls alive
  std::atomic<int64_t>* accepted_streams;  // those that have a sequence
};

// One streaming call: the meeting of a gRPC reactor, driven by gRPC's threads,
// and an EventSink, driven by the engine's. The engine puts output into the
// subclass's buffer; Pump sends it, one message at a time, merging what gathers
// while a message is on its way into messages of bounded length
// (output_parts.h). So a slow reader holds a bounded buffer and delays nobody
// else.
//
// Lifetime: the object keeps itself alive until gRPC calls OnDone; the engine
// holds another reference until OnEnd. Whichever comes last frees it.
//
// Thread safety: gRPC and engine threads may call at once; mu_ guards all
// state. gRPC and the engine are never called with mu_ held.
template <typename Reactor, typename Response>
class StreamCall : public Reactor, public EventSink {
 public:
  StreamCall(const CallEnvironment& environment,
             grpc::CallbackServerContext* context)
      : environment_(environment), context_(context) {
    environment_.open_streams->fetch_add(1);
  }
  ~StreamCall() override { environment_.open_streams->fetch_sub(1); }

  // --- gRPC reactor ---

  void OnWriteDone(bool ok) override {
    std::optional<uint64_t> behind;
    {
      MutexLock lock(&mu_);
      write_in_flight_ = false;
      break_off_.reset();  // the client does read
      if (ok && stalled_) behind = id_;
    }
    // What waits may take a slow reader longer than the engine waits for a
    // client that does not read.
    if (behind) environment_.engine->GiveReaderTime(*behind);
    if (!ok) CancelSequence(absl::CancelledError("the client went away"));
    Pump();
  }

  void OnCancel() override {
    const bool late = context_->deadline() <= std::chrono::system_clock::now();
    CancelSequence(
        late ? absl::DeadlineExceededError("the deadline of the call passed")
             : absl::CancelledError("the client cancelled the call"));
  }

  void OnDone() override {
    const std::shared_ptr<StreamCall> self = std::move(self_);
    environment_.encode_threads->Remove(this);  // nothing waits for it now
    MutexLock lock(&mu_);
    break_off_.reset();
    if (accepted_) environment_.accepted_streams->fetch_sub(1);
  }

  // --- EventSink ---

  void OnEnd(absl::Status status) override {
    bool stalled;
    {
      MutexLock lock(&mu_);
      // Of a client that does not read the output waits, too. If a quota ended
      // the sequence, or a want of memory for logits, that is for the client to
      // read.
      stalled = write_in_flight_ && stalled_ &&
                absl::IsResourceExhausted(status) && !retry_after_;
      end_ = std::move(status);
      if (write_in_flight_) WatchReader();
    }
    if (stalled) BreakOff();
    Pump();
  }

 protected:
  // Moves buffered output, as much as one message may have, into `message`;
  // false when there is none. Sets `*read_next` when the client's next message
  // is wanted after it.
  virtual bool TakeOutput(Response* message, bool* read_next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // What TakeOutput would yet give.
  struct Buffered {
    int64_t tokens;
    int64_t bytes;
  };
  virtual Buffered buffered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) = 0;
  // Starts the read that TakeOutput asked for.
  virtual void ReadNext() {}

  // Makes the object keep itself alive until OnDone. Call once, at the start.
  void KeepAlive(std::shared_ptr<StreamCall> self) { self_ = std::move(self); }
  std::shared_ptr<EventSink> sink() { return self_; }

  // Finds out whose call this is and takes one of the tenant's streams, or
  // refuses the call and returns false.
  bool Enter() {
    if (environment_.tenants == nullptr) return true;
    std::chrono::milliseconds retry_after = environment_.retry_pushback;
    absl::StatusOr<StreamTicket> ticket = environment_.tenants->OpenStream(
        context_->client_metadata(), &retry_after);
    if (!ticket.ok()) {
      {
        MutexLock lock(&mu_);
        retry_after_ = retry_after;
      }
      Refuse(ticket.status());
      return false;
    }
    MutexLock lock(&mu_);
    ticket_ = *std::move(ticket);
    return true;
  }

  // Takes the tokens of a command, which has been checked, off the tenant's
  // rate. After ResourceExhausted the call has to end with this status.
  absl::Status Charge(const Command& command) {
    MutexLock lock(&mu_);
    std::chrono::milliseconds retry_after{0};
    absl::Status status =
        ticket_.Charge(static_cast<int64_t>(command.append.size()),
                       command.generate, &retry_after);
    if (!status.ok()) retry_after_ = retry_after;
    return status;
  }

  // Runs `work`, which encodes `bytes` of text and goes on from there: at once
  // if they are few, else on a thread for it when its turn comes, and not at
  // all if the call ends before.
  void RunEncoding(int64_t bytes, std::function<void()> work) {
    if (bytes <= EncodeThreads::kShortBytes) return work();
    absl::Status status;
    {
      MutexLock lock(&mu_);
      if (end_) return;
      status = early_cancel_;
      if (status.ok()) {
        status = environment_.encode_threads->Add(
            this, bytes, [self = self_, work = std::move(work)] {
              if (self->StillWanted()) work();
            });
        if (!status.ok() && id_) retry_after_ = environment_.retry_pushback;
      }
    }
    if (!status.ok()) Fail(status);
  }

  // The call ends with `status`, whether or not it has a sequence.
  void Fail(const absl::Status& status) {
    std::optional<uint64_t> id;
    {
      MutexLock lock(&mu_);
      id = id_;
    }
    if (id) {
      environment_.engine->Cancel(*id, status);
    } else {
      Refuse(status);
    }
  }

  // The engine accepted the sequence: tells the client its id and lets output
  // go.
  void Accepted(uint64_t id) {
    absl::Status early;
    {
      MutexLock lock(&mu_);
      id_ = id;
      early = early_cancel_;
      accepted_ = true;
      environment_.accepted_streams->fetch_add(1);
    }
    if (!early.ok()) environment_.engine->Cancel(id, std::move(early));
    context_->AddInitialMetadata("recurve-request-id", FormatRequestId(id));
    this->StartSendInitialMetadata();
    Start();
  }

  // The call ends with `status` and has no sequence.
  void Refuse(const absl::Status& status) {
    bool by_quota;
    {
      MutexLock lock(&mu_);
      end_ = status;
      by_quota = retry_after_.has_value();
      if (!by_quota) retry_after_ = environment_.retry_pushback;
      ticket_.Refund();
    }
    // A Decode call that was closed before it sent anything is no refusal, nor
    // is a call whose client left while its text waited to be encoded.
    if (!status.ok() && !absl::IsCancelled(status) &&
        !absl::IsDeadlineExceeded(status)) {
      environment_.metrics->OnRefused(
          RefusalReasonOf(status.code(), by_quota, *environment_.engine));
    }
    Start();
  }

  void CancelSequence(absl::Status status) {
    std::optional<uint64_t> id;
    {
      MutexLock lock(&mu_);
      if (end_) return;
      id = id_;
      if (!id) early_cancel_ = status;
    }
    if (id) {
      environment_.engine->Cancel(*id, std::move(status));
    } else if (environment_.encode_threads->Remove(this)) {
      Refuse(status);
    }
  }

  // Whether the engine may go on; remembers that it must be woken if not.
  bool HasRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Buffered waiting = buffered();
    stalled_ = waiting.tokens >= environment_.max_buffered_tokens ||
               waiting.bytes >= environment_.max_buffered_bytes;
    return !stalled_;
  }

  // Whether the sequence waits for its client's next command.
  void SetIdle(bool idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    idle_ = idle;
    if (idle && write_in_flight_) WatchReader();
  }

  // Sends the next message, or the final status, unless one is on its way.
  void Pump() {
    bool write = false;
    bool read_next = false;
    std::optional<uint64_t> resume;
    std::optional<std::chrono::milliseconds> retry_after;
    grpc::Status status;
    {
      MutexLock lock(&mu_);
      if (!started_ || write_in_flight_ || cancelling_ || finish_called_) {
        return;
      }
      Response message;
      if (TakeOutput(&message, &read_next)) {
        message_ = SerializeToBuffer(message);
        write = write_in_flight_ = true;
        if (end_ || idle_) WatchReader();
        if (stalled_ && HasRoom()) resume = id_;
      } else if (end_) {
        finish_called_ = true;
        status = ToGrpcStatus(*end_);
        if (absl::IsResourceExhausted(*end_)) retry_after = retry_after_;
        // Before the client hears of the end, so that its next call finds its
        // place free.
        ticket_.Close();
      } else {
        return;
      }
    }
    if (resume) environment_.engine->Resume(*resume);
    if (write) {
      // The call cannot be finished before this write is, so the read comes
      // first.
      if (read_next) ReadNext();
      this->StartWrite(&message_);
    } else {
      if (retry_after) {
        context_->AddTrailingMetadata("grpc-retry-pushback-ms",
                                      absl::StrCat(retry_after->count()));
      }
      this->Finish(status);
    }
  }

  const CallEnvironment& environment_;
  Mutex mu_;
  std::optional<uint64_t> id_ ABSL_GUARDED_BY(mu_);       // of the sequence
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // how the call ends
  StreamTicket ticket_ ABSL_GUARDED_BY(mu_);

 private:
  // The turn of a text to be encoded has come. False: the call is over, or ends
  // now, as it would without the text.
  bool StillWanted() {
    absl::Status status;
    {
      MutexLock lock(&mu_);
      if (end_) return false;
      if (id_) return true;
      status = early_cancel_;
    }
    if (status.ok()) status = environment_.engine->CheckAccepts();
    if (!status.ok()) Refuse(status);
    return status.ok();
  }

  void Start() {
    {
      MutexLock lock(&mu_);
      started_ = true;
    }
    Pump();
  }

  // While the sequence has nothing to run, the engine does not notice a client
  // that does not read: the call gives it a time for the write in flight.
  void WatchReader() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (break_off_ != nullptr) return;
    break_off_ = std::make_unique<grpc::Alarm>();
    // Weak: the alarm belongs to the object that it would keep alive.
    break_off_->Set(
        std::chrono::system_clock::now() + environment_.stalled_client_timeout,
        [weak = std::weak_ptr<StreamCall>(self_)](bool expired) {
          const auto self = weak.lock();
          if (expired && self != nullptr) self->BreakOff();
        });
  }

  // Cancels the call while a write is stuck: the client does not read, so it
  // would never get to see a status.
  void BreakOff() {
    {
      MutexLock lock(&mu_);
      if (!write_in_flight_ || cancelling_) return;
      cancelling_ = true;  // holds Finish back while context_ is in use
    }
    context_->TryCancel();
    {
      MutexLock lock(&mu_);
      cancelling_ = false;
    }
    Pump();
  }

  grpc::CallbackServerContext* const context_;  // valid until OnDone
  std::shared_ptr<StreamCall> self_;
  grpc::ByteBuffer message_;  // on its way while write_in_flight_
  std::unique_ptr<grpc::Alarm> break_off_ ABSL_GUARDED_BY(mu_);

  // When the client should come back, if the call ends for load or for a quota.
  std::optional<std::chrono::milliseconds> retry_after_ ABSL_GUARDED_BY(mu_);
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;
  bool idle_ ABSL_GUARDED_BY(mu_) = false;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool write_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mu_) = false;
  bool finish_called_ ABSL_GUARDED_BY(mu_) = false;
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status early_cancel_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_STREAM_CALL_H_
