#ifndef RECURVE_SERVER_REQUESTS_STREAM_CALL_H_
#define RECURVE_SERVER_REQUESTS_STREAM_CALL_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "engine/serving/engine.h"
#include "engine/serving/event_sink.h"
#include "server/grpc/proto_message.h"
#include "server/grpc/rpc.h"
#include "server/requests/convert.h"
#include "server/requests/encode_threads.h"
#include "server/requests/refusal.h"
#include "server/telemetry/metrics.h"
#include "server/tenants/tenants.h"

namespace recurve {

// Shared by all calls of the Inference service.
struct CallEnvironment {
  Engine* engine;
  RequestContext context;
  // A call with this much unsent output is paused until its client reads.
  int64_t max_buffered_tokens = 256;
  int64_t max_buffered_bytes = 1 << 20;
  // A Decode call whose client sends no command for this long ends; 0: never.
  std::chrono::milliseconds decode_idle_timeout{600'000};
  // When a client refused under overload should retry.
  std::chrono::milliseconds retry_pushback{1000};
  Tenants* tenants = nullptr;  // null: anyone who can connect may call
  EncodeThreads* encode_threads;
  Metrics* metrics;                        // counts refusals
  std::atomic<int64_t>* open_streams;      // current calls
  std::atomic<int64_t>* accepted_streams;  // calls with a sequence
};

// One streaming call: an RpcListener, driven by the transport's threads, and an
// EventSink, driven by the engine's. The engine adds output to the subclass's
// buffer; Pump sends it, one message at a time. Output that accumulates while a
// message is in transit is merged into messages of bounded length
// (output_parts.h). So a slow reader holds a bounded buffer and delays no other
// call.
//
// Lifetime: the transport holds the object until OnDone, the engine until
// OnEnd, and work that waits for a thread until it is done.
//
// Thread safety: the transport's and the engine's threads may call
// concurrently; mu_ guards all state. Neither is called with mu_ held.
template <typename Response>
class StreamCall : public RpcListener,
                   public EventSink,
                   public std::enable_shared_from_this<StreamCall<Response>> {
 public:
  StreamCall(const CallEnvironment& environment, const RpcHead& head,
             std::shared_ptr<RpcStream> stream)
      : environment_(environment), head_(head), stream_(std::move(stream)) {
    environment_.open_streams->fetch_add(1);
  }
  ~StreamCall() override { environment_.open_streams->fetch_sub(1); }

  // --- RpcListener ---

  void OnWritten() override {
    {
      MutexLock lock(&mu_);
      write_in_flight_ = false;
    }
    OnProgress();
    Pump();
  }

  // A slow reader may need longer for the pending output than the engine waits
  // for a client that does not read.
  void OnProgress() override {
    std::optional<uint64_t> behind;
    {
      MutexLock lock(&mu_);
      if (stalled_) behind = id_;
    }
    if (behind) environment_.engine->GiveReaderTime(*behind);
  }

  void OnDone(const absl::Status& status) override {
    const bool waited = environment_.encode_threads->Remove(this);
    if (!status.ok()) CancelSequence(status, waited);
    MutexLock lock(&mu_);
    over_ = true;
    if (std::exchange(accepted_, false)) {
      environment_.accepted_streams->fetch_sub(1);
    }
  }

  // --- EventSink ---

  void OnEnd(absl::Status status) override {
    bool stalled;
    {
      MutexLock lock(&mu_);
      // Output for a client that does not read is pending, too. If a quota, or
      // missing memory for logits, ended the sequence, the client gets the
      // error.
      stalled = write_in_flight_ && stalled_ &&
                absl::IsResourceExhausted(status) && !retry_after_;
      end_ = std::move(status);
    }
    if (stalled) stream_->Break();
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

  std::shared_ptr<EventSink> sink() { return this->shared_from_this(); }

  // Authenticates the call and opens one of the tenant's streams, or refuses
  // the call and returns false.
  bool Enter() {
    if (environment_.tenants == nullptr) return true;
    std::chrono::milliseconds retry_after = environment_.retry_pushback;
    absl::StatusOr<StreamTicket> ticket =
        environment_.tenants->OpenStream(head_.authorization, &retry_after);
    if (!absl::IsUnauthenticated(ticket.status())) stream_->Trust();
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

  // The status that the engine would return for any request now.
  absl::Status CheckAccepts() {
    Flow flow;
    {
      MutexLock lock(&mu_);
      flow = ticket_.flow();
    }
    return environment_.engine->CheckAccepts(flow);
  }

  // Has the engine check the request, charges it to the call's tenant, and
  // submits it.
  absl::StatusOr<uint64_t> Submit(GenerateInput input, FieldNames names,
                                  bool close_when_done) {
    {
      MutexLock lock(&mu_);
      input.options.flow = ticket_.flow();
    }
    std::vector<Engine::Submission> one;
    one.push_back({std::move(input.options), std::move(input.command),
                   close_when_done, sink(), head_.deadline, std::move(names),
                   std::move(input.prompt_name)});
    RECURVE_ASSIGN_OR_RETURN(
        const std::vector<uint64_t> ids,
        environment_.engine->SubmitAll(
            std::move(one),
            [&](absl::Span<const Engine::Submission> valid) -> absl::Status {
              RECURVE_RETURN_IF_ERROR(CheckPriority(valid[0].options.priority));
              return Charge(valid[0].command);
            }));
    return ids[0];
  }

  // PermissionDenied if the tenant may not request this priority.
  absl::Status CheckPriority(int32_t priority) {
    MutexLock lock(&mu_);
    return ticket_.CheckPriority(priority);
  }

  // Charges the tokens of a checked command to the tenant's rate. After
  // ResourceExhausted the call has to end with this status.
  absl::Status Charge(const Command& command) {
    MutexLock lock(&mu_);
    std::chrono::milliseconds retry_after{0};
    absl::Status status =
        ticket_.Charge(static_cast<int64_t>(command.append.size()),
                       command.generate, &retry_after);
    if (!status.ok()) retry_after_ = retry_after;
    return status;
  }

  // Runs `work`, which encodes `bytes` of text and continues the call:
  // immediately if the text is short, else on an encoding thread in its turn,
  // and not at all if the call ends before.
  void RunEncoding(int64_t bytes, std::function<void()> work) {
    if (bytes <= EncodeThreads::kShortBytes) return work();
    absl::Status status;
    {
      MutexLock lock(&mu_);
      if (end_) return;
      status = early_cancel_;
      if (status.ok()) {
        status = environment_.encode_threads->Add(
            this, ticket_.flow(), bytes,
            [self = this->shared_from_this(), work = std::move(work)] {
              if (self->StillWanted()) work();
            });
        if (!status.ok() && id_) retry_after_ = environment_.retry_pushback;
      }
    }
    if (!status.ok()) Fail(status);
  }

  // Ends the call with `status`, with or without a sequence.
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

  // The engine accepted the sequence: sends its id to the client and enables
  // output.
  void Accepted(uint64_t id) {
    absl::Status early;
    {
      MutexLock lock(&mu_);
      id_ = id;
      early = early_cancel_;
      if (!over_) {
        accepted_ = true;
        environment_.accepted_streams->fetch_add(1);
      }
    }
    if (!early.ok()) environment_.engine->Cancel(id, std::move(early));
    stream_->Accept();
    stream_->SendHead({{"recurve-request-id", FormatRequestId(id)}});
    LetGo();
  }

  // Ends the call with `status`; it has no sequence.
  void Refuse(const absl::Status& status) {
    bool by_quota;
    {
      MutexLock lock(&mu_);
      end_ = status;
      by_quota = retry_after_.has_value();
      if (!by_quota) retry_after_ = environment_.retry_pushback;
      ticket_.Refund();
    }
    // A Decode call closed before it sent anything is no refusal, nor is a call
    // whose client left while its text waited to be encoded.
    if (!status.ok() && !absl::IsCancelled(status) &&
        !absl::IsDeadlineExceeded(status)) {
      environment_.metrics->OnRefused(
          RefusalReasonOf(status, by_quota, *environment_.engine));
    }
    LetGo();
  }

  // Whether the engine may continue; if not, records that it must be resumed.
  bool HasRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Buffered waiting = buffered();
    stalled_ = waiting.tokens >= environment_.max_buffered_tokens ||
               waiting.bytes >= environment_.max_buffered_bytes;
    return !stalled_;
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
        if (stalled_ && HasRoom()) resume = id_;
      } else if (end_) {
        over_ = true;
        status = *end_;
        if (absl::IsResourceExhausted(*end_)) retry_after = retry_after_;
        // Before the client learns of the end, so that its next call finds its
        // place free.
        ticket_.Close();
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

  const CallEnvironment& environment_;
  const RpcHead head_;
  const std::shared_ptr<RpcStream> stream_;
  Mutex mu_;
  std::optional<uint64_t> id_ ABSL_GUARDED_BY(mu_);       // of the sequence
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // the status of the
                                                          // call
  StreamTicket ticket_ ABSL_GUARDED_BY(mu_);

 private:
  // Called when a text's turn to be encoded has come. False: the call is over,
  // or ends now, as it would without the text.
  bool StillWanted() {
    absl::Status status;
    {
      MutexLock lock(&mu_);
      if (end_) return false;
      if (id_) return true;
      status = early_cancel_;
    }
    if (status.ok()) status = CheckAccepts();
    if (!status.ok()) Refuse(status);
    return status.ok();
  }

  void LetGo() {
    {
      MutexLock lock(&mu_);
      started_ = true;
    }
    Pump();
  }

  // The client has disconnected, or its deadline has passed. `waited`: its text
  // was waiting to be encoded.
  void CancelSequence(const absl::Status& status, bool waited) {
    std::optional<uint64_t> id;
    {
      MutexLock lock(&mu_);
      if (end_) return;
      id = id_;
      if (!id) early_cancel_ = status;
    }
    if (id) {
      environment_.engine->Cancel(*id, status);
    } else if (waited) {
      Refuse(status);
    }
  }

  // When the client should retry, if the call ends for overload or a quota.
  std::optional<std::chrono::milliseconds> retry_after_ ABSL_GUARDED_BY(mu_);
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;  // counted in accepted_streams
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool write_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // no more output follows
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status early_cancel_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_REQUESTS_STREAM_CALL_H_
