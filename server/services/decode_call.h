#ifndef RECURVE_SERVER_SERVICES_DECODE_CALL_H_
#define RECURVE_SERVER_SERVICES_DECODE_CALL_H_

#include <memory>
#include <optional>

#include "recurve/v1/inference.pb.h"
#include "server/requests/stream_call.h"
#include "server/services/output_parts.h"

namespace recurve {

// One Decode call. It reads a command only when the response with `done` for
// the previous one is in transit, so that HTTP/2 flow control throttles a
// client that runs ahead. Lifetime and threads: see StreamCall.
class DecodeCall : public StreamCall<v1::DecodeResponse>, public EventSink {
 public:
  using StreamCall::StreamCall;

  // Refuses the call, or starts to read.
  void Begin();

  void OnMessage(std::string message) override;
  void OnHalfClose() override;

  void OnAdmitted(double queue_seconds) override;
  bool OnStep(StepEvent event) override;
  void OnCommandDone(CommandResult result) override;
  void OnEnd(absl::Status status) override { EndOf(0, std::move(status)); }

 protected:
  bool TakeOutput(v1::DecodeResponse* message, bool* read_next) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Buffered buffered(size_t) const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return {output_.tokens(), output_.bytes()};
  }
  void ReadNext() override;

 private:
  // The first command opens the sequence, later ones extend it.
  absl::Status Open(const v1::DecodeRequest& request);
  absl::Status Extend(uint64_t id, const v1::DecodeRequest& request);
  absl::Status CheckKept(const v1::DecodeRequest& request);

  // Set by the first command before the engine knows the sequence.
  bool with_logprobs_ = false;
  uint64_t seed_ = 0;
  int64_t prompt_tokens_ = 0;  // of the first command

  int64_t sequence_tokens_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> kept_ ABSL_GUARDED_BY(mu_);  // ascending
  bool keeps_ ABSL_GUARDED_BY(mu_) = false;         // the command given last
  // Output not sent yet.
  OutputParts<v1::DecodeResponse> output_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_DECODE_CALL_H_
