#ifndef RECURVE_SERVER_REQUESTS_REQUEST_CALL_H_
#define RECURVE_SERVER_REQUESTS_REQUEST_CALL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "engine/serving/engine.h"
#include "server/requests/convert.h"
#include "server/requests/encode_threads.h"
#include "server/telemetry/metrics.h"
#include "server/tenants/tenants.h"

namespace recurve {

// Shared by all requests of the server, of every interface.
struct CallEnvironment {
  Engine* engine;
  RequestContext context;
  // A sequence with this much unsent output is paused until its client reads.
  int64_t max_buffered_tokens = 256;
  int64_t max_buffered_bytes = 1 << 20;
  // A Decode call whose client sends no command for this long ends; 0: never.
  std::chrono::milliseconds decode_idle_timeout{600'000};
  // When a client refused under overload should retry.
  std::chrono::milliseconds retry_pushback{1000};
  Tenants* tenants = nullptr;  // null: anyone who can connect may call
  EncodeThreads* encode_threads;
  Metrics* metrics;                        // counts refusals
  std::atomic<int64_t>* open_streams;      // current requests
  std::atomic<int64_t>* accepted_streams;  // requests with a sequence
};

// The life of one request, whatever its interface: authenticate, encode, check,
// charge, submit, buffer, end. The call of a transport derives from it and adds
// how the request is read and how its output is written. A request has one
// sequence over gRPC and one a prompt over HTTP: its parts.
//
// Order of calls: SetParts, Authenticate and CheckAccepts, in any order; then
// Encode, which is to lead to Submit, or to Refused; then, from the engine,
// output and EndPart. Leave may come at any time.
//
// Lifetime: the transport holds the object until its OnDone, the engine until
// OnEnd of each part, and a text that waits to be encoded until its turn.
//
// Thread safety: the transport's and the engine's threads may call
// concurrently; mu_ guards all state. Neither is called with mu_ held.
class RequestCall : public std::enable_shared_from_this<RequestCall> {
 protected:
  // One sequence of the request.
  struct Part {
    StreamTicket ticket;         // its place at the tenant
    std::optional<uint64_t> id;  // of the sequence, once it is accepted
    bool stalled = false;        // paused until the client reads
    std::optional<absl::Status> end;
  };

  explicit RequestCall(const CallEnvironment& environment);
  virtual ~RequestCall();
  RequestCall(const RequestCall&) = delete;
  RequestCall& operator=(const RequestCall&) = delete;

  // --- Before the engine knows of the request; on one thread at a time ---

  // Before anything that needs parts.
  void SetParts(size_t count);
  // Unauthenticated without a known key. `entry` is what errors call a header.
  absl::Status Authenticate(absl::Span<const std::string> authorization,
                            absl::string_view entry);
  // The status that the engine would return for any request now. First, so that
  // a refusal under overload costs as little as possible.
  absl::Status CheckAccepts() const;
  // Opens one of the tenant's streams for each part, or none; once.
  absl::Status OpenStreams();
  // Makes it `count` parts, in place of one, and opens their streams, or none.
  absl::Status Widen(size_t count);
  // Calls `next`, which encodes `bytes` of text and goes on with the request:
  // now if the text is short, else on an encoding thread in its turn, and not
  // at all if all parts have ended by then. Its argument is not OK if the
  // request must end instead of going on.
  void Encode(int64_t bytes,
              const std::function<void(const absl::Status&)>& next);
  // Finds the state of the tenant that `key` names; null if it is empty. Draws
  // its seed if the request has none.
  // `*id` is its id, if that is not null.
  absl::StatusOr<SequenceStatePtr> FindState(const std::string& key,
                                             std::optional<uint64_t>* seed,
                                             std::string* id = nullptr);
  // A submission for Submit, with the fields of the call.
  Engine::Submission MakeSubmission(
      GenerateInput input, FieldNames names, std::shared_ptr<EventSink> sink,
      std::optional<std::chrono::steady_clock::time_point> deadline) const;
  // Has the engine check all parts; then has the caller check them; then
  // charges their tokens to the tenant, and submits them. All or none. After an
  // error the request is to end by Refused.
  absl::StatusOr<std::vector<uint64_t>> Submit(
      std::vector<Engine::Submission> submissions,
      absl::FunctionRef<absl::Status(absl::Span<const Engine::Submission>)>
          check);
  // The engine refused the request, or never heard of it: counts that, and
  // gives back all that it holds. Returns when the client should retry, if a
  // quota refused it.
  std::optional<std::chrono::milliseconds> Refused(const absl::Status& status);

  // --- Later ---

  // Charges a further command of a part, which is checked. After
  // ResourceExhausted the part is to end with this status.
  absl::Status Charge(Part& part, const Command& command);
  // Whether the engine may go on with the part, which has this much unsent
  // output; if not, it must be resumed.
  bool HasRoom(Part& part, int64_t tokens, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The engine is done with the part. True: it gave up a client that does not
  // read, to which therefore no status can be sent either.
  bool EndPart(Part& part, absl::Status status);
  // The client reads: it may need longer for its pending output than the engine
  // waits for one that does not.
  void GiveReaderTime();
  // The transport is done with the request; `status` as in its OnDone. Cancels
  // what still runs.
  void Leave(const absl::Status& status);
  void CancelAll(const absl::Status& status);
  // Gives back the places of all parts. To be called before the client learns
  // of the end, so that its next request finds them free.
  void CloseTickets() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Whose the states are that the request keeps.
  StateOwner state_owner() const {
    return {flow().id, tenant_ == nullptr ? 0 : tenant_->max_state_bytes()};
  }
  Flow flow() const { return tenant_ == nullptr ? Flow() : tenant_->flow(); }

  const CallEnvironment& environment_;
  Mutex mu_;
  // The vector itself changes only before the engine knows of the request.
  std::vector<Part> parts_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;  // output may be sent
  bool write_in_flight_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // no more output follows
  // When the client should retry, if a quota or overload ends the request.
  std::optional<std::chrono::milliseconds> retry_after_ ABSL_GUARDED_BY(mu_);

 private:
  // Charges the tenant for submissions that are valid.
  absl::Status Approve(absl::Span<const Engine::Submission> submissions);

  std::shared_ptr<Tenant> tenant_;  // null on a server without keys
  bool has_streams_ = false;
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;  // counted in accepted_streams
  // Why the transport was done before the engine knew of the request.
  absl::Status left_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_REQUESTS_REQUEST_CALL_H_
