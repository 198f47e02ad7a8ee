#ifndef RECURVE_SERVER_SERVICES_GENERATE_CALL_H_
#define RECURVE_SERVER_SERVICES_GENERATE_CALL_H_

#include <memory>
#include <optional>

#include "recurve/v1/inference.pb.h"
#include "server/requests/stream_call.h"
#include "server/services/output_parts.h"

namespace recurve {

// One Generate call. Lifetime and threads: see StreamCall.
class GenerateCall : public StreamCall<v1::GenerateEvent> {
 public:
  using StreamCall::StreamCall;

  // Refuses the call, or reads the request and submits it.
  void Begin();

  void OnMessage(std::string message) override;
  void OnHalfClose() override;

  void OnAdmitted(double queue_seconds) override;
  bool OnStep(StepEvent event) override;
  void OnCommandDone(CommandResult result) override;

 protected:
  bool TakeOutput(v1::GenerateEvent* message, bool* read_next) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Buffered buffered() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return {tokens_.tokens(), tokens_.bytes()};
  }

 private:
  // Submits the request to the engine.
  absl::Status Open(const v1::GenerateRequest& request);

  // Set before the engine knows the sequence, then constant.
  bool with_logprobs_ = false;
  uint64_t seed_ = 0;
  int64_t prompt_tokens_ = 0;

  std::optional<v1::Admitted> admitted_ ABSL_GUARDED_BY(mu_);
  OutputParts<v1::Tokens> tokens_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::Finished> finished_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_GENERATE_CALL_H_
