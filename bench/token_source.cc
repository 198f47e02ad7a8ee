// A server that speaks recurve.v1 and computes nothing: every step each open
// stream gets one token. For measuring what a load client can take
// (bench/client_rate.sh).

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/server_callback.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "recurve/v1/control.grpc.pb.h"
#include "recurve/v1/inference.grpc.pb.h"

namespace recurve {
namespace {

constexpr uint32_t kVocabSize = 1024;

class Source;

// One Generate call. Writes what the steps so far have made, one token an
// event.
class Stream final : public grpc::ServerWriteReactor<v1::GenerateEvent> {
 public:
  Stream(Source* source, uint32_t prompt_tokens, uint32_t max_new_tokens)
      : source_(source), prompt_tokens_(prompt_tokens), total_(max_new_tokens) {
    event_.mutable_admitted()->set_request_id("source");
    writing_ = true;
    StartWrite(&event_);
  }

  void Step() {
    MutexLock lock(&mu_);
    if (made_ < total_) ++made_;
    Advance();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (ok) {
      Advance();
    } else {
      End(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
    }
  }
  void OnCancel() override {
    MutexLock lock(&mu_);
    cancelled_ = true;
    Advance();
  }
  void OnDone() override;

 private:
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_) return;
    if (cancelled_) {
      End(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"));
    } else if (sent_ < made_) {
      v1::Tokens* const tokens = event_.mutable_tokens();
      tokens->set_index(sent_);
      tokens->clear_ids();
      tokens->add_ids(sent_ % kVocabSize);
      ++sent_;
      writing_ = true;
      StartWrite(&event_);
    } else if (sent_ == total_ && !finished_sent_) {
      v1::Finished* const finished = event_.mutable_finished();
      finished->set_reason(v1::FINISH_REASON_LENGTH);
      finished->mutable_usage()->set_prompt_tokens(prompt_tokens_);
      finished->mutable_usage()->set_completion_tokens(total_);
      finished_sent_ = true;
      writing_ = true;
      StartWrite(&event_);
    } else if (finished_sent_) {
      End(grpc::Status::OK);
    }
  }
  void End(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ended_) return;
    ended_ = true;
    Finish(status);
  }

  Source* const source_;
  const uint32_t prompt_tokens_;
  const uint32_t total_;
  Mutex mu_;
  v1::GenerateEvent event_ ABSL_GUARDED_BY(mu_);
  uint32_t made_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t sent_ ABSL_GUARDED_BY(mu_) = 0;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class Source final : public v1::Inference::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext*,
      const v1::GenerateRequest* request) override {
    Stream* const stream = new Stream(this, request->prompt_ids().ids_size(),
                                      request->stopping().max_new_tokens());
    MutexLock lock(&mu_);
    streams_.insert(stream);
    return stream;
  }
  void Step() {
    MutexLock lock(&mu_);
    for (Stream* const stream : streams_) stream->Step();
  }
  void Remove(Stream* stream) {
    MutexLock lock(&mu_);
    streams_.erase(stream);
  }

 private:
  Mutex mu_;
  std::set<Stream*> streams_ ABSL_GUARDED_BY(mu_);
};

void Stream::OnDone() {
  source_->Remove(this);
  delete this;
}

class Control final : public v1::Control::Service {
  grpc::Status GetModelInfo(grpc::ServerContext*,
                            const v1::GetModelInfoRequest*,
                            v1::ModelInfo* response) override {
    response->set_name("token-source");
    response->set_vocab_size(kVocabSize);
    response->set_max_model_len(1 << 20);
    return grpc::Status::OK;
  }
  grpc::Status GetServerInfo(grpc::ServerContext*,
                             const v1::GetServerInfoRequest*,
                             v1::ServerInfo* response) override {
    response->set_version(RECURVE_VERSION);
    response->set_device("none");
    return grpc::Status::OK;
  }
};

std::atomic<bool> g_stop{false};

int Run(double step_ms) {
  Source source;
  Control control;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&source);
  builder.RegisterService(&control);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    std::fprintf(stderr, "token-source: no port to listen on\n");
    return 1;
  }
  std::printf("listening grpc=127.0.0.1:%d\n", port);
  std::fflush(stdout);
  const auto step = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double, std::milli>(step_ms));
  auto due = std::chrono::steady_clock::now();
  while (!g_stop.load()) {
    due += step;
    std::this_thread::sleep_until(due);
    source.Step();
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace recurve

// An exception ends the program, as it should.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("Streams tokens to every client, one a step; computes nothing");
  double step_ms = 10;
  app.add_option("--step-ms", step_ms, "Milliseconds between two tokens")
      ->check(CLI::Range(0.1, 10000.0))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::signal(SIGTERM, [](int) { recurve::g_stop.store(true); });
  std::signal(SIGINT, [](int) { recurve::g_stop.store(true); });
  return recurve::Run(step_ms);
}
