#include "server/openai/completion_call.h"

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "server/openai/completion_format.h"
#include "server/requests/encode_threads.h"
#include "tests/e2e/http_fixture.h"

namespace recurve {
namespace {

// Keeps the way to make an answer.
struct KeptReply : public HttpReply {
  void Listen(std::shared_ptr<HttpListener>) override {}
  void Send(HttpResponse response) override {
    ADD_FAILURE();
    made.set_value([response] { return response; });
  }
  void SendMade(std::function<HttpResponse()> make) override {
    made.set_value(std::move(make));
  }
  void Begin(HttpResponse) override { ADD_FAILURE(); }
  void Write(std::string) override { ADD_FAILURE(); }
  void Finish() override { ADD_FAILURE(); }
  void Continue(std::function<void()>) override { ADD_FAILURE(); }
  void Drop() override { ADD_FAILURE(); }
  std::promise<std::function<HttpResponse()>> made;
};

// All streams wait for the engine's thread, which ends the last prompt.
TEST(CompletionCallTest, AWholeAnswerIsNotMadeOnTheEnginesThread) {
  std::atomic<int64_t> open = 0, accepted = 0;
  Metrics metrics;
  CallEnvironment environment = {};
  const std::string name = "demo";
  TestServer server;
  Engine& engine = server.server().engine();
  const std::unique_ptr<EncodeThreads> encode_threads = *EncodeThreads::Start();
  environment.engine = &engine;
  environment.context = {nullptr, 100, 16, engine.limits().vocab_size};
  environment.metrics = &metrics;
  environment.encode_threads = encode_threads.get();
  environment.open_streams = &open;
  environment.accepted_streams = &accepted;
  const auto reply = std::make_shared<KeptReply>();
  HttpRequest request;
  request.body = R"({"prompt": [[256], [256, 65]], "ignore_eos": true})";
  const auto call = std::make_shared<CompletionCall>(
      environment, name, std::make_unique<CompletionFormat>(), reply);
  call->Begin(request);
  const HttpResponse response = reply->made.get_future().get()();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(ParseJson(response.body)["usage"]["completion_tokens"], 32);
  call->OnDone(absl::OkStatus());
}

}  // namespace
}  // namespace recurve
