// Texts too long for the threads that serve everybody: they are encoded on
// threads of their own, and calls wait there.

#include <atomic>
#include <deque>
#include <fstream>
#include <future>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/requests/encode_threads.h"
#include "tests/e2e/http_fixture.h"
#include "tests/engine/tokenizer_files.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr size_t kLongBytes = EncodeThreads::kShortBytes + 1;

// Whether long texts may be encoded, and how many are being.
struct Gate {
  void Open() {
    if (!std::exchange(is_open, true)) promise.set_value();
  }

  bool is_open = false;
  std::promise<void> promise;
  std::shared_future<void> opened = promise.get_future().share();
  std::atomic<int> begun{0};
};

// Waits at a gate before it encodes a long text; then its first kFewIds ids do,
// so that the model has little to compute.
constexpr size_t kFewIds = 200;
class GatedTokenizer : public Tokenizer {
 public:
  GatedTokenizer(std::unique_ptr<Tokenizer> base, Gate* gate)
      : Tokenizer(base->vocab_size(), base->bos_id()),
        base_(std::move(base)),
        gate_(gate) {}

  absl::string_view name() const override { return base_->name(); }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              bool add_bos,
                                              int64_t max_ids) const override {
    if (text.size() >= kLongBytes) {
      ++gate_->begun;
      gate_->opened.wait();
    }
    auto ids = base_->Encode(text, add_bos, max_ids);
    if (ids.ok() && ids->size() > kFewIds) ids->resize(kFewIds);
    return ids;
  }
  absl::string_view TokenBytes(int32_t id) const override {
    return base_->TokenBytes(id);
  }

 private:
  const std::unique_ptr<Tokenizer> base_;
  Gate* const gate_;
};

// A server whose long texts wait at a gate.
class GatedServer {
 public:
  explicit GatedServer(ServerOptions options = DemoOptions())
      : server_(std::move(options), [this](std::unique_ptr<Tokenizer> base) {
          return std::make_unique<GatedTokenizer>(std::move(base), &gate_);
        }) {}
  ~GatedServer() { gate_.Open(); }

  Gate& gate() { return gate_; }
  TestServer* operator->() { return &server_; }
  TestServer& operator*() { return server_; }

 private:
  Gate gate_;
  TestServer server_;
};

v1::GenerateRequest TextRequest(size_t bytes) {
  v1::GenerateRequest request;
  request.set_prompt_text(std::string(bytes, 'a'));
  request.mutable_stopping()->set_max_new_tokens(3);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

json TextBody(size_t bytes) {
  return {{"prompt", std::string(bytes, 'a')},
          {"max_tokens", 3},
          {"temperature", 0},
          {"ignore_eos", true},
          {"return_token_ids", true}};
}

// A Generate call on a thread of its own.
class BackgroundCall {
 public:
  BackgroundCall(TestServer& server, v1::GenerateRequest request,
                 absl::Duration timeout = absl::InfiniteDuration())
      : client_(server.Connect()) {
    outcome_ = std::async(
        std::launch::async, [this, request = std::move(request), timeout] {
          return Generate(*client_, request, {timeout, &canceller_});
        });
  }
  ~BackgroundCall() { Cancel(); }
  void Cancel() { canceller_.Cancel(); }
  absl::Status Status() { return outcome_.get().status; }

 private:
  std::unique_ptr<RecurveClient> client_;
  Canceller canceller_;
  std::future<GenerateOutcome> outcome_;
};

int64_t OpenStreams(TestServer& server) {
  const auto load = server.Connect()->GetLoad();
  EXPECT_TRUE(load.ok()) << load.status();
  return load.ok() ? load->open_streams() : -1;
}

bool WaitForOpenStreams(TestServer& server, int64_t count) {
  return WaitFor([&] { return OpenStreams(server) == count; });
}

// Occupies all threads that encode.
std::deque<BackgroundCall> Occupy(GatedServer& server) {
  std::deque<BackgroundCall> calls;
  for (int i = 0; i < EncodeThreads::kThreads; ++i) {
    calls.emplace_back(*server, TextRequest(kLongBytes));
  }
  EXPECT_TRUE(
      WaitFor([&] { return server.gate().begun == EncodeThreads::kThreads; }));
  return calls;
}

// The ids that a text of kLongBytes has.
std::vector<uint32_t> LongIds() {
  std::vector<uint32_t> ids(kFewIds, 'a');
  ids[0] = 256;
  return ids;
}

TEST(EncodingTest, LongTextsHaveTheTokensOfTheirIds) {
  GatedServer server;
  server.gate().Open();
  v1::GenerateRequest request = TextRequest(kLongBytes);
  request.mutable_sampling()->set_temperature(0);
  const auto over_text = Generate(*server->Connect(), request);
  ASSERT_TRUE(over_text.status.ok()) << over_text.status;
  const std::vector<uint32_t> ids = LongIds();
  request.mutable_prompt_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  const auto over_ids = Generate(*server->Connect(), request);
  ASSERT_TRUE(over_ids.status.ok()) << over_ids.status;
  const std::vector<uint32_t> want(over_ids.generation.token_ids.begin(),
                                   over_ids.generation.token_ids.end());
  EXPECT_EQ(over_text.generation.token_ids, over_ids.generation.token_ids);
  json body = TextBody(kLongBytes);
  body["stream"] = true;
  const HttpResult result = Complete(*server, body);
  ASSERT_EQ(result.status, 200) << result.body;
  json got = json::array();
  for (const std::string& event : SseEvents(result.body)) {
    if (event == "[DONE]") continue;
    const json choice = ParseJson(event)["choices"][0];
    for (const json& id : choice["token_ids"]) got.push_back(id);
  }
  EXPECT_EQ(got, json(want));
  server->ExpectIdle();
}

TEST(EncodingTest, DecodeTakesLongTextsFirstAndLater) {
  GatedServer server;
  server.gate().Open();
  const auto stub = v1::Inference::NewStub(server->Channel());
  // The ids of two commands, one as text and one as ids.
  const auto tokens = [&](bool text_first) {
    grpc::ClientContext context;
    const auto stream = stub->Decode(&context);
    std::vector<uint32_t> got;
    for (const bool first : {true, false}) {
      v1::DecodeRequest request;
      request.set_generate(3);
      if (first) request.mutable_stopping()->set_ignore_eos(true);
      if (first == text_first) {
        request.set_append_text(std::string(first ? kLongBytes : 10, 'a'));
      } else if (first) {
        const std::vector<uint32_t> ids = LongIds();
        request.mutable_append_ids()->mutable_ids()->Add(ids.begin(),
                                                         ids.end());
      } else {
        for (int i = 0; i < 10; ++i) request.mutable_append_ids()->add_ids('a');
      }
      EXPECT_TRUE(stream->Write(request));
      v1::DecodeResponse response;
      while (!response.done() && stream->Read(&response)) {
        got.insert(got.end(), response.tokens().ids().begin(),
                   response.tokens().ids().end());
      }
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
    return got;
  };
  const std::vector<uint32_t> want = tokens(true);
  EXPECT_EQ(want.size(), 6);
  EXPECT_EQ(tokens(false), want);

  // A later command may be the long one, and too long together with the others.
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeResponse response;
  v1::DecodeRequest request;
  request.set_append_text("a");
  ASSERT_TRUE(stream->Write(request));
  while (!response.done() && stream->Read(&response)) {
  }
  request.set_append_text(std::string(kLongBytes, 'a'));
  ASSERT_TRUE(stream->Write(request));
  response.Clear();
  while (!response.done() && stream->Read(&response)) {
  }
  EXPECT_EQ(response.sequence_tokens(), 2 + kFewIds);
  request.set_append_text(std::string(8000, 'a'));
  ASSERT_TRUE(stream->Write(request));
  while (stream->Read(&response)) {
  }
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "append_text has 8000 tokens after the sequence's 202; this "
            "server's max_model_len is 8192");
  server->ExpectIdle();
}

TEST(EncodingTest, SeveralTextsOfMegabytesAreRefusedForTheirLength) {
  constexpr size_t kBytes = 4'100'000;
  TestServer server(DemoOptions(), [](std::unique_ptr<Tokenizer>) {
    return LoadGolden("gpt2", "gpt2");
  });
  std::deque<BackgroundCall> calls;
  for (int i = 0; i < 4; ++i) calls.emplace_back(server, TextRequest(kBytes));
  std::vector<std::future<HttpResult>> results;
  for (int i = 0; i < 4; ++i) {
    results.push_back(std::async(std::launch::async, [&] {
      return Complete(server, TextBody(kBytes));
    }));
  }
  for (BackgroundCall& call : calls) {
    const absl::Status status = call.Status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_EQ(status.message(),
              "prompt_text has more than 8192 tokens; this server's "
              "max_model_len is 8192");
  }
  for (auto& result : results) {
    const HttpResult answer = result.get();
    EXPECT_EQ(answer.status, 400);
    const json error = ParseJson(answer.body)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["param"], "prompt");
    EXPECT_EQ(error["message"],
              "prompt has more than 8192 tokens; this server's max_model_len "
              "is 8192");
  }
  server.ExpectIdle();
}

TEST(EncodingTest, LongTextsHoldUpNobodyElse) {
  GatedServer server;
  auto calls = Occupy(server);
  for (int i = 0; i < 3; ++i) calls.emplace_back(*server, TextRequest(5000));
  std::vector<std::future<HttpResult>> results;
  for (int i = 0; i < 3; ++i) {
    results.push_back(std::async(std::launch::async, [&] {
      return Complete(*server, TextBody(kLongBytes));
    }));
  }
  EXPECT_TRUE(WaitForOpenStreams(*server, 3 + 3 + EncodeThreads::kThreads));
  EXPECT_THAT(HttpGet(server->server().http_port(), "/health"),
              HasSubstr("200 OK"));
  EXPECT_TRUE(Generate(*server->Connect(), TextRequest(100)).status.ok());
  EXPECT_EQ(Complete(*server, TextBody(100)).status, 200);
  EXPECT_EQ(server.gate().begun, EncodeThreads::kThreads);
  server.gate().Open();
  for (BackgroundCall& call : calls) EXPECT_TRUE(call.Status().ok());
  for (auto& result : results) EXPECT_EQ(result.get().status, 200);
  server->ExpectIdle();
}

TEST(EncodingTest, CallsEndWhileTheirTextsWait) {
  GatedServer server;
  auto calls = Occupy(server);
  constexpr int64_t kBusy = EncodeThreads::kThreads;
  BackgroundCall cancelled(*server, TextRequest(kLongBytes));
  auto left = std::make_unique<HttpConnection>(server->server().http_port());
  ASSERT_TRUE(
      left->Send(PostText(kCompletionsPath, TextBody(kLongBytes).dump())));
  const auto stub = v1::Inference::NewStub(server->Channel());
  grpc::ClientContext context;
  const auto stream = stub->Decode(&context);
  v1::DecodeRequest command;
  command.set_append_text(std::string(kLongBytes, 'a'));
  ASSERT_TRUE(stream->Write(command));
  ASSERT_TRUE(WaitForOpenStreams(*server, kBusy + 3));

  // Nothing is encoded meanwhile, and yet they go.
  cancelled.Cancel();
  EXPECT_TRUE(absl::IsCancelled(cancelled.Status()));
  EXPECT_TRUE(WaitForOpenStreams(*server, kBusy + 2));
  left->Reset();
  EXPECT_TRUE(WaitForOpenStreams(*server, kBusy + 1));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitForOpenStreams(*server, kBusy));
  BackgroundCall late(*server, TextRequest(kLongBytes), absl::Seconds(0.2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Status()));
  EXPECT_TRUE(WaitForOpenStreams(*server, kBusy));

  server.gate().Open();
  for (BackgroundCall& call : calls) EXPECT_TRUE(call.Status().ok());
  EXPECT_EQ(server.gate().begun, kBusy);
  for (const char* reason : {"internal", "queue_full", "invalid"}) {
    EXPECT_LE(RefusedRequests(*server, reason), 0) << reason;
  }
  server->ExpectIdle();
}

TEST(EncodingTest, CallsThatEndWhileTheirTextsAreEncodedLeaveNothing) {
  GatedServer server;
  auto calls = Occupy(server);
  for (BackgroundCall& call : calls) call.Cancel();
  for (BackgroundCall& call : calls) {
    EXPECT_TRUE(absl::IsCancelled(call.Status()));
  }
  server.gate().Open();
  server->ExpectIdle();
}

TEST(EncodingTest, AConnectionLostWhileItsTextIsEncodedLeavesNothing) {
  GatedServer server;
  HttpConnection lost(server->server().http_port());
  ASSERT_TRUE(
      lost.Send(PostText(kCompletionsPath, TextBody(kLongBytes).dump())));
  ASSERT_TRUE(WaitFor([&] { return server.gate().begun == 1; }));
  lost.Reset();
  ASSERT_TRUE(WaitFor([&] {
    return MetricValue(server->server().http_port(),
                       "recurve_http_requests_total{code=\"499\",endpoint="
                       "\"/v1/completions\"}") == 1;
  }));
  server.gate().Open();
  server->ExpectIdle();
}

TEST(EncodingTest, QuotasComeBackFromTextsThatWait) {
  const std::string keys = testing::TempDir() + "/encoding_test_keys";
  std::ofstream(keys) << KeyLine("acme", "key", "max_streams=1")
                      << KeyLine("other", "other");
  ServerOptions options = DemoOptions();
  options.api_keys_file = keys;
  GatedServer server(options);
  const auto client = [&](const std::string& key) {
    ClientOptions with_key;
    with_key.own_connection = true;
    with_key.api_key = key;
    return *RecurveClient::Create(server->address(), with_key);
  };
  const auto acme = client("key");
  const auto other = client("other");
  std::vector<std::future<GenerateOutcome>> busy;
  for (int i = 0; i < EncodeThreads::kThreads; ++i) {
    busy.push_back(std::async(std::launch::async, [&] {
      return Generate(*other, TextRequest(kLongBytes));
    }));
  }
  ASSERT_TRUE(
      WaitFor([&] { return server.gate().begun == EncodeThreads::kThreads; }));
  Canceller canceller;
  auto waits = std::async(std::launch::async, [&] {
    return Generate(*acme, TextRequest(kLongBytes),
                    {absl::InfiniteDuration(), &canceller});
  });
  // Also where the test ends early, and waits for them.
  const absl::Cleanup end_all = [&] {
    canceller.Cancel();
    server.gate().Open();
  };
  const auto streams = [&] {
    return MetricValue(server->metrics_port(),
                       "recurve_tenant_open_streams{tenant=\"acme\"}");
  };
  ASSERT_TRUE(WaitFor([&] { return streams() == 1; }));
  EXPECT_TRUE(
      absl::IsResourceExhausted(Generate(*acme, TextRequest(3)).status));
  canceller.Cancel();
  EXPECT_TRUE(absl::IsCancelled(waits.get().status));
  EXPECT_TRUE(WaitFor([&] { return streams() == 0; }));
  EXPECT_TRUE(Generate(*acme, TextRequest(3)).status.ok());
  // And over HTTP.
  const std::vector<std::string> key = {"Authorization: Bearer key"};
  HttpConnection lost(server->server().http_port());
  ASSERT_TRUE(
      lost.Send(PostText(kCompletionsPath, TextBody(kLongBytes).dump(), key)));
  ASSERT_TRUE(WaitFor([&] { return streams() == 1; }));
  EXPECT_EQ(Complete(*server, TextBody(kLongBytes), key).status, 429);
  lost.Reset();
  EXPECT_TRUE(WaitFor([&] { return streams() == 0; }));
  EXPECT_EQ(Complete(*server, TextBody(3), key).status, 200);
  server.gate().Open();
  for (auto& call : busy) EXPECT_TRUE(call.get().status.ok());
}

TEST(EncodingTest, WhatFindsTooMuchWaitingIsRefusedAsForLoad) {
  constexpr size_t kBytes = 4'100'000;
  constexpr int kFit = EncodeThreads::kMaxBytes / kBytes;
  GatedServer server;
  std::deque<BackgroundCall> calls;
  for (int i = 0; i < kFit + 1; ++i) {
    calls.emplace_back(*server, TextRequest(kBytes));
  }
  // One of them is: whichever came last.
  ASSERT_TRUE(
      WaitFor([&] { return RefusedRequests(*server, "queue_full") == 1; }));
  const HttpResult result = Complete(*server, TextBody(kBytes));
  ASSERT_EQ(result.status, 429) << result.body;
  EXPECT_EQ(result.headers.at("retry-after"), "1");
  EXPECT_EQ(RefusedRequests(*server, "queue_full"), 2);
  server.gate().Open();
  int refused = 0;
  for (BackgroundCall& call : calls) {
    const absl::Status status = call.Status();
    if (absl::IsResourceExhausted(status)) {
      ++refused;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("this server takes 67108864 at a time"));
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("prompt_text has 4100001 tokens; this server's"));
    }
  }
  EXPECT_EQ(refused, 1);
  server->ExpectIdle();
}

TEST(EncodingTest, ADrainRefusesWhatWaits) {
  GatedServer server;
  auto calls = Occupy(server);
  calls.emplace_back(*server, TextRequest(kLongBytes));
  auto result = std::async(std::launch::async, [&] {
    return Complete(*server, TextBody(kLongBytes));
  });
  const absl::Cleanup open = [&] { server.gate().Open(); };
  ASSERT_TRUE(WaitForOpenStreams(*server, EncodeThreads::kThreads + 2));
  server->server().RequestDrain();
  server.gate().Open();
  for (BackgroundCall& call : calls) {
    const absl::Status status = call.Status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("draining"));
  }
  EXPECT_EQ(result.get().status, 503);
  EXPECT_TRUE(server->server().Wait().ok());
  EXPECT_EQ(server.gate().begun, EncodeThreads::kThreads);
}

}  // namespace
}  // namespace recurve
