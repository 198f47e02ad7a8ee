#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "client/lib/generation.h"
#include "client/lib/grpc_status.h"
#include "client/lib/recurve_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"

namespace recurve {
namespace {

using grpc::health::v1::HealthCheckResponse;
using testing::ElementsAre;
using testing::HasSubstr;

v1::GenerateRequest Request(uint32_t max_new_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt_ids()->add_ids(1);
  request.mutable_stopping()->set_max_new_tokens(max_new_tokens);
  return request;
}

class ClientTest : public testing::Test {
 protected:
  FakeServer server_;
  std::unique_ptr<RecurveClient> client_ =
      RecurveClient::Create(server_.address()).value();
};

TEST_F(ClientTest, StreamsEventsInOrder) {
  Generation generation;
  std::vector<int> kinds;
  const absl::Status status =
      client_->Generate(Request(3), [&](const v1::GenerateEvent& event) {
        kinds.push_back(event.event_case());
        EXPECT_TRUE(generation.Add(event).ok());
        return true;
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(kinds, ElementsAre(1, 2, 2, 2, 3));
  EXPECT_TRUE(generation.CheckFinished().ok());
  EXPECT_THAT(generation.token_ids, ElementsAre(10, 11, 12));
  EXPECT_EQ(generation.text, "<0><1><2>");
  EXPECT_EQ(generation.request_id, "request-1");
}

TEST_F(ClientTest, PassesTheStatusOn) {
  server_.script = [](const v1::GenerateRequest&) {
    return FakeScript{{{absl::ZeroDuration(), AdmittedEvent("a", 1)}},
                      grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                   "the queue is full")};
  };
  int events = 0;
  const absl::Status status =
      client_->Generate(Request(3), [&](const v1::GenerateEvent&) {
        ++events;
        return true;
      });
  EXPECT_EQ(status, absl::ResourceExhaustedError("the queue is full"));
  EXPECT_EQ(events, 1);
}

TEST_F(ClientTest, CallbackCancels) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(5));
  };
  int events = 0;
  const absl::Status status = client_->Generate(
      Request(10000), [&](const v1::GenerateEvent&) { return ++events < 3; });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(events, 3);
}

TEST_F(ClientTest, AnotherThreadCancels) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(5));
  };
  Canceller canceller;
  CallOptions options;
  options.canceller = &canceller;
  std::thread other;
  const absl::Status status = client_->Generate(
      Request(10000),
      [&](const v1::GenerateEvent& event) {
        if (event.has_admitted()) {
          other = std::thread([&] { canceller.Cancel(); });
        }
        return true;
      },
      options);
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  // What was cancelled stays so.
  EXPECT_EQ(client_->GetLoad(options).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, TimeoutIsADeadline) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(50));
  };
  CallOptions options;
  options.timeout = absl::Milliseconds(100);
  const absl::Status status = client_->Generate(
      Request(10000), [](const v1::GenerateEvent&) { return true; }, options);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, ManyStreamsWithoutBlocking) {
  constexpr int kStreams = 50;
  std::vector<Generation> generations(kStreams);
  std::vector<absl::Status> statuses(kStreams, absl::UnknownError("no end"));
  std::vector<std::unique_ptr<GenerateStream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    GenerateStream::Callbacks callbacks;
    callbacks.on_event = [&, i](const v1::GenerateEvent& event) {
      return generations[i].Add(event).ok();
    };
    callbacks.on_done = [&, i](const absl::Status& status) {
      statuses[i] = status;
    };
    streams.push_back(client_->StartGenerate(Request(1 + i), callbacks));
  }
  for (int i = 0; i < kStreams; ++i) {
    streams[i]->Wait();
    EXPECT_TRUE(statuses[i].ok()) << statuses[i];
    EXPECT_TRUE(generations[i].finished);
    EXPECT_EQ(generations[i].token_ids.size(), 1u + i);
  }
}

TEST_F(ClientTest, DestroyingAStreamCancelsItAndWaits) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(2));
  };
  int done = 0;
  std::atomic<int> events{0};
  absl::Status end;
  {
    GenerateStream::Callbacks callbacks;
    callbacks.on_event = [&](const v1::GenerateEvent&) {
      events.fetch_add(1);
      return true;
    };
    callbacks.on_done = [&](const absl::Status& status) {
      ++done;
      end = status;
    };
    const auto stream = client_->StartGenerate(Request(100000), callbacks);
    while (events.load() < 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(done, 1);
  EXPECT_EQ(end.code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, StreamCallbackCancels) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(2));
  };
  absl::Status end;
  GenerateStream::Callbacks callbacks;
  callbacks.on_event = [](const v1::GenerateEvent& event) {
    return !event.has_tokens();
  };
  callbacks.on_done = [&](const absl::Status& status) { end = status; };
  client_->StartGenerate(Request(100000), callbacks)->Wait();
  EXPECT_EQ(end.code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, TakesMessagesAboveTheGrpcDefault) {
  server_.script = [](const v1::GenerateRequest&) {
    v1::GenerateEvent big = TokensEvent(0, 1);
    big.mutable_tokens()->set_text(std::string(8 << 20, 'x'));
    return FakeScript{{{absl::ZeroDuration(), big}}, grpc::Status::OK};
  };
  size_t bytes = 0;
  const absl::Status status =
      client_->Generate(Request(1), [&](const v1::GenerateEvent& event) {
        bytes = event.tokens().text().size();
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(bytes, size_t{8 << 20});
}

TEST_F(ClientTest, ControlCalls) {
  EXPECT_EQ(client_->GetModelInfo()->vocab_size(), 100u);
  EXPECT_EQ(client_->GetServerInfo()->version(), "fake");
  EXPECT_EQ(client_->GetLoad()->state_slots_total(), 8u);
  EXPECT_EQ(client_->Drain()->remaining(), 3u);
  EXPECT_TRUE(client_->Abort("r1").ok());
  EXPECT_THAT(server_.aborted(), ElementsAre("r1"));
  const absl::Status unknown = client_->Abort("unknown");
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("'unknown'"));
}

TEST_F(ClientTest, Health) {
  EXPECT_EQ(client_->CheckHealth()->status(), HealthCheckResponse::SERVING);
  server_.SetServing(false);
  EXPECT_EQ(client_->CheckHealth()->status(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(client_->CheckHealth("no.such.Service").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ClientCreateTest, ChecksTheAddress) {
  for (const char* server : {"host:1", "127.0.0.1:65535", "[::1]:50051"}) {
    EXPECT_TRUE(RecurveClient::Create(server).ok()) << server;
  }
  for (const char* server :
       {"", "host", "host:", ":1", "host:0", "host:65536", "::1:50051",
        "dns:///host:1", "a b:1", "[]:1", "host:x"}) {
    EXPECT_EQ(RecurveClient::Create(server).status().code(),
              absl::StatusCode::kInvalidArgument)
        << server;
  }
}

TEST(ClientCreateTest, NoServerIsUnavailable) {
  // Port 1 of the loopback has no listener.
  const auto client = RecurveClient::Create("127.0.0.1:1").value();
  CallOptions options;
  options.timeout = absl::Seconds(20);
  EXPECT_EQ(client->GetLoad(options).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(GrpcStatusTest, KeepsEveryCode) {
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status = FromGrpcStatus(
        grpc::Status(static_cast<grpc::StatusCode>(code), "message"));
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(status.message(), "message");
  }
}

TEST(GenerationTest, RefusesStreamsThatDoNotAddUp) {
  Generation gap;
  EXPECT_TRUE(gap.Add(TokensEvent(0, 2)).ok());
  EXPECT_EQ(gap.Add(TokensEvent(3, 1)).code(), absl::StatusCode::kDataLoss);

  Generation repeated;
  EXPECT_TRUE(repeated.Add(TokensEvent(0, 2)).ok());
  EXPECT_EQ(repeated.Add(TokensEvent(1, 1)).code(),
            absl::StatusCode::kDataLoss);

  Generation miscounted;
  EXPECT_TRUE(miscounted.Add(TokensEvent(0, 2)).ok());
  EXPECT_EQ(miscounted.CheckFinished().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(miscounted.Add(FinishedEvent(v1::FINISH_REASON_EOS, 1, 3)).code(),
            absl::StatusCode::kDataLoss);

  Generation after_end;
  EXPECT_TRUE(after_end.Add(FinishedEvent(v1::FINISH_REASON_EOS, 1, 0)).ok());
  EXPECT_TRUE(after_end.CheckFinished().ok());
  EXPECT_EQ(after_end.Add(TokensEvent(0, 1)).code(),
            absl::StatusCode::kDataLoss);
}

TEST(GenerationTest, FinishReasonNames) {
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_LENGTH), "length");
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_EOS), "eos");
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_STOP_TOKEN), "stop_token");
  EXPECT_EQ(FinishReasonName(v1::FINISH_REASON_STOP_STRING), "stop_string");
  EXPECT_EQ(FinishReasonName(static_cast<v1::FinishReason>(9)), "unknown(9)");
}

}  // namespace
}  // namespace recurve
