#ifndef RECURVE_CLIENT_LIB_GENERATE_STREAM_H_
#define RECURVE_CLIENT_LIB_GENERATE_STREAM_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "recurve/v1/inference.grpc.pb.h"

namespace recurve {

// One asynchronous Generate call: it needs no thread of its own, so one process
// can drive thousands. Made by RecurveClient::StartGenerate.
//
// The callbacks run on gRPC's threads, one at a time for each stream, and must
// not block for long: they hold up other streams. on_event is called for every
// event in order and returns false to cancel the call (events already in
// transit still arrive); on_done is called once, last, with the status of the
// call.
//
// Ownership: the object owns the call. Destroying it cancels a running call and
// waits until on_done has returned, so objects that the callbacks use need only
// outlive it. It must therefore not be destroyed inside its own callbacks.
//
// Thread safety: Cancel may be called from any thread, callbacks included.
class GenerateStream {
 public:
  struct Callbacks {
    std::function<bool(const v1::GenerateEvent&)> on_event;
    std::function<void(const absl::Status&)> on_done;
  };

  // Sends the request. An infinite timeout sets no deadline, an empty
  // `authorization` no header.
  // REQUIRES: *stub outlives the object; both callbacks are set.
  GenerateStream(v1::Inference::StubInterface* stub,
                 const v1::GenerateRequest& request, Callbacks callbacks,
                 absl::Duration timeout, const std::string& authorization);
  ~GenerateStream();
  GenerateStream(const GenerateStream&) = delete;
  GenerateStream& operator=(const GenerateStream&) = delete;

  // Asks the server to stop. The stream then ends with CANCELLED, unless it has
  // ended already. Events in transit may still be delivered.
  void Cancel();

  // Blocks until on_done has returned.
  void Wait();

 private:
  class Reactor;
  std::unique_ptr<Reactor> reactor_;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LIB_GENERATE_STREAM_H_
