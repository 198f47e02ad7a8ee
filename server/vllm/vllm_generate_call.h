#ifndef RECURVE_SERVER_VLLM_VLLM_GENERATE_CALL_H_
#define RECURVE_SERVER_VLLM_VLLM_GENERATE_CALL_H_

#include <memory>
#include <string>
#include <vector>

#include "server/requests/stream_call.h"
#include "server/vllm/open_requests.h"
#include "vllm/grpc/engine.pb.h"

namespace recurve {

// One VllmEngine.Generate call: a part for each continuation. Lifetime and
// threads: see StreamCall.
class VllmGenerateCall
    : public StreamCall<::vllm::grpc::engine::GenerateResponse> {
 public:
  // `requests` outlives the call.
  VllmGenerateCall(const CallEnvironment& environment, OpenRequests* requests,
                   const RpcHead& head, std::shared_ptr<RpcStream> stream);
  ~VllmGenerateCall() override;

  // Refuses the call, or reads the request and submits it.
  void Begin();

  void OnMessage(std::string message) override;
  void OnHalfClose() override;
  void OnDone(const absl::Status& status) override;

 protected:
  bool TakeOutput(::vllm::grpc::engine::GenerateResponse* message,
                  bool* read_next) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Buffered buffered(size_t index) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

 private:
  // One continuation.
  class Sample;

  // Submits the request to the engine.
  absl::Status Open(const ::vllm::grpc::engine::GenerateRequest& request);

  OpenRequests* const requests_;
  std::string request_id_;  // set before the call is among `requests_`
  // Set before the engine knows the sequences, then constant.
  bool stream_output_ = false;
  int num_logprobs_ = -1;         // as SamplingParams has it
  int num_prompt_logprobs_ = -1;  // as Command has it
  int64_t prompt_tokens_ = 0;
  uint32_t first_prompt_id_ = 0;
  std::vector<std::unique_ptr<Sample>> samples_;

  // The one whose output is sent next, so that each gets its turn.
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_VLLM_VLLM_GENERATE_CALL_H_
