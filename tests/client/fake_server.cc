#include "tests/client/fake_server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace recurve {
namespace {

// False when the call was cancelled meanwhile.
bool SleepUnlessCancelled(grpc::ServerContext* context, absl::Duration time) {
  const auto end =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(time);
  while (std::chrono::steady_clock::now() < end) {
    if (context->IsCancelled()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

v1::GenerateEvent AdmittedEvent(const std::string& request_id, uint64_t seed) {
  v1::GenerateEvent event;
  event.mutable_admitted()->set_request_id(request_id);
  event.mutable_admitted()->set_seed(seed);
  return event;
}

v1::GenerateEvent TokensEvent(uint32_t index, uint32_t count) {
  v1::GenerateEvent event;
  event.mutable_tokens()->set_index(index);
  for (uint32_t i = index; i < index + count; ++i) {
    event.mutable_tokens()->add_ids(10 + i);
    event.mutable_tokens()->mutable_text()->append(absl::StrCat("<", i, ">"));
  }
  return event;
}

v1::GenerateEvent FinishedEvent(v1::FinishReason reason, uint32_t prompt_tokens,
                                uint32_t completion_tokens) {
  v1::GenerateEvent event;
  v1::Finished* finished = event.mutable_finished();
  finished->set_reason(reason);
  finished->mutable_usage()->set_prompt_tokens(prompt_tokens);
  finished->mutable_usage()->set_completion_tokens(completion_tokens);
  finished->mutable_timings()->set_time_to_first_token_seconds(0.25);
  finished->mutable_timings()->set_total_seconds(0.5);
  return event;
}

FakeScript FullScript(const v1::GenerateRequest& request, absl::Duration gap) {
  const uint32_t count = request.stopping().max_new_tokens();
  FakeScript script;
  script.steps.push_back(
      {absl::ZeroDuration(),
       AdmittedEvent("request-1", request.sampling().seed())});
  for (uint32_t i = 0; i < count; ++i) {
    script.steps.push_back({gap, TokensEvent(i, 1)});
  }
  script.steps.push_back(
      {absl::ZeroDuration(),
       FinishedEvent(v1::FINISH_REASON_LENGTH, request.prompt_ids().ids_size(),
                     count)});
  return script;
}

class FakeServer::InferenceService : public v1::Inference::Service {
 public:
  explicit InferenceService(FakeServer* owner) : owner_(owner) {}

  grpc::Status Generate(
      grpc::ServerContext* context, const v1::GenerateRequest* request,
      grpc::ServerWriter<v1::GenerateEvent>* writer) override {
    const int streams = owner_->streams_.fetch_add(1) + 1;
    int peak = owner_->peak_streams_.load();
    while (peak < streams &&
           !owner_->peak_streams_.compare_exchange_weak(peak, streams)) {
    }
    {
      MutexLock lock(&owner_->mu_);
      owner_->requests_.push_back(*request);
    }
    grpc::Status status = Play(context, *request, writer);
    owner_->streams_.fetch_sub(1);
    return status;
  }

 private:
  grpc::Status Play(grpc::ServerContext* context,
                    const v1::GenerateRequest& request,
                    grpc::ServerWriter<v1::GenerateEvent>* writer) {
    const FakeScript script = owner_->script(request);
    for (const FakeScript::Step& step : script.steps) {
      if (!SleepUnlessCancelled(context, step.delay) ||
          !writer->Write(step.event)) {
        owner_->cancelled_.fetch_add(1);
        return grpc::Status(grpc::StatusCode::CANCELLED, "client went away");
      }
    }
    return script.status;
  }

  FakeServer* const owner_;
};

class FakeServer::ControlService : public v1::Control::Service {
 public:
  explicit ControlService(FakeServer* owner) : owner_(owner) {}

  grpc::Status GetModelInfo(grpc::ServerContext*,
                            const v1::GetModelInfoRequest*,
                            v1::ModelInfo* response) override {
    *response = owner_->model;
    return grpc::Status::OK;
  }
  grpc::Status GetServerInfo(grpc::ServerContext*,
                             const v1::GetServerInfoRequest*,
                             v1::ServerInfo* response) override {
    response->set_version("fake");
    response->set_device("cpu");
    return grpc::Status::OK;
  }
  grpc::Status GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*,
                       v1::Load* response) override {
    response->set_state_slots_total(8);
    response->set_steps_total(uint64_t{1} << 53);
    return grpc::Status::OK;
  }
  grpc::Status Abort(grpc::ServerContext*, const v1::AbortRequest* request,
                     v1::AbortResponse*) override {
    if (request->request_id() == "unknown") {
      return grpc::Status(grpc::StatusCode::NOT_FOUND,
                          "request_id: 'unknown' is not running or waiting");
    }
    MutexLock lock(&owner_->mu_);
    owner_->aborted_.push_back(request->request_id());
    return grpc::Status::OK;
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest*,
                     v1::DrainResponse* response) override {
    response->set_remaining(3);
    return grpc::Status::OK;
  }

 private:
  FakeServer* const owner_;
};

FakeServer::FakeServer()
    : inference_(std::make_unique<InferenceService>(this)),
      control_(std::make_unique<ControlService>(this)) {
  model.set_name("fake");
  model.set_family("recurve");
  model.set_vocab_size(100);
  model.set_max_model_len(1000);
  model.set_tokenizer("bytes");
  model.set_bos_token_id(98);
  model.add_eos_token_ids(99);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(inference_.get());
  builder.RegisterService(control_.get());
  server_ = builder.BuildAndStart();
  RECURVE_CHECK(server_ != nullptr && port > 0);
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeServer::~FakeServer() {
  server_->Shutdown(std::chrono::system_clock::now());
}

void FakeServer::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

std::vector<v1::GenerateRequest> FakeServer::requests() const {
  MutexLock lock(&mu_);
  return requests_;
}

std::vector<std::string> FakeServer::aborted() const {
  MutexLock lock(&mu_);
  return aborted_;
}

}  // namespace recurve
