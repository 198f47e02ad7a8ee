#ifndef RECURVE_SERVER_SERVICES_GENERATE_CALL_H_
#define RECURVE_SERVER_SERVICES_GENERATE_CALL_H_

#include <memory>
#include <vector>

#include "recurve/v1/inference.pb.h"
#include "server/requests/stream_call.h"
#include "server/services/output_parts.h"

namespace recurve {

// One Generate call: a part for each continuation. Lifetime and threads: see
// StreamCall.
class GenerateCall : public StreamCall<v1::GenerateEvent> {
 public:
  GenerateCall(const CallEnvironment& environment, const RpcHead& head,
               std::shared_ptr<RpcStream> stream);
  ~GenerateCall() override;

  // Refuses the call, or reads the request and submits it.
  void Begin();

  void OnMessage(std::string message) override;
  void OnHalfClose() override;

 protected:
  bool TakeOutput(v1::GenerateEvent* message, bool* read_next) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Buffered buffered(size_t index) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

 private:
  // One continuation.
  class Sample;

  // Submits the request to the engine.
  absl::Status Open(const v1::GenerateRequest& request);

  // Set before the engine knows the sequences, then constant.
  bool with_logprobs_ = false;
  int64_t prompt_tokens_ = 0;
  std::vector<std::unique_ptr<Sample>> samples_;

  // The one whose output is sent next, so that each gets its turn.
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_GENERATE_CALL_H_
