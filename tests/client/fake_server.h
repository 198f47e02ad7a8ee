#ifndef RECURVE_TESTS_CLIENT_FAKE_SERVER_H_
#define RECURVE_TESTS_CLIENT_FAKE_SERVER_H_

#include <grpcpp/server.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "recurve/v1/control.grpc.pb.h"
#include "recurve/v1/inference.grpc.pb.h"

namespace recurve {

// The fake's behaviour in one Generate call.
struct FakeScript {
  struct Step {
    absl::Duration delay;
    v1::GenerateEvent event;
  };
  std::vector<Step> steps;
  grpc::Status status;
};

// Builders of steps.
v1::GenerateEvent AdmittedEvent(const std::string& request_id, uint64_t seed);
// Token i has the id 10 + i and the text "<i>".
v1::GenerateEvent TokensEvent(uint32_t index, uint32_t count);
v1::GenerateEvent FinishedEvent(v1::FinishReason reason, uint32_t prompt_tokens,
                                uint32_t completion_tokens);

// Admitted, max_new_tokens tokens one by one, `gap` before each, then finished
// with LENGTH.
FakeScript FullScript(const v1::GenerateRequest& request,
                      absl::Duration gap = absl::ZeroDuration());

// Serves the public protos and health on a free loopback port from scripts.
//
// Thread safety: set the public members before the first call; the methods may
// be called at any time.
class FakeServer {
 public:
  FakeServer();
  ~FakeServer();

  // HOST:PORT.
  const std::string& address() const { return address_; }

  // Called for each Generate call, from several threads.
  std::function<FakeScript(const v1::GenerateRequest&)> script =
      [](const v1::GenerateRequest& request) { return FullScript(request); };
  v1::ModelInfo model;

  void SetServing(bool serving);

  std::vector<v1::GenerateRequest> requests() const;
  std::vector<std::string> aborted() const;
  // Generate calls that ended because the client cancelled them or their
  // deadline passed.
  int cancelled() const { return cancelled_.load(); }
  // Maximum number of Generate calls open at a time.
  int peak_streams() const { return peak_streams_.load(); }

 private:
  class InferenceService;
  class ControlService;

  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<ControlService> control_;
  std::string address_;
  std::atomic<int> cancelled_{0};
  std::atomic<int> streams_{0};
  std::atomic<int> peak_streams_{0};
  mutable Mutex mu_;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> aborted_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_CLIENT_FAKE_SERVER_H_
