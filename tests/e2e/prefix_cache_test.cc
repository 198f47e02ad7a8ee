// The prefix cache as clients see it, over gRPC and HTTP.

#include <string>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/http_fixture.h"
#include "tests/testing/http_client.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ServerOptions WithPrefixCache() {
  ServerOptions options = DemoOptions();
  options.model.prefix_cache_bytes = int64_t{64} << 20;
  return options;
}

std::string LongText(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) {
    absl::StrAppend(&text, "def f", i, "(x):\n    return x + ", i, "\n\n");
  }
  return text;
}

v1::GenerateRequest RequestOf(const std::string& prompt) {
  v1::GenerateRequest request;
  request.set_prompt_text(prompt);
  request.mutable_stopping()->set_max_new_tokens(20);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_sampling()->set_temperature(0.8f);
  request.mutable_sampling()->set_seed(3);
  request.set_logprobs(2);
  return request;
}

Generation OverGrpc(TestServer& server, const v1::GenerateRequest& request) {
  const auto outcome = Generate(*server.Connect(), request);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  return outcome.generation;
}

void ExpectSame(const Generation& got, const Generation& want) {
  EXPECT_EQ(got.token_ids, want.token_ids);
  EXPECT_EQ(got.text, want.text);
  ASSERT_EQ(got.logprobs.size(), want.logprobs.size());
  for (size_t i = 0; i < got.logprobs.size(); ++i) {
    EXPECT_EQ(got.logprobs[i].SerializeAsString(),
              want.logprobs[i].SerializeAsString())
        << i;
  }
}

TEST(PrefixCacheTest, ASecondSightingGivesTheSameAndSaysSo) {
  TestServer cold;
  TestServer server(WithPrefixCache());
  v1::GenerateRequest request = RequestOf(LongText(20));
  const Generation want = OverGrpc(cold, request);
  const v1::Usage& off = want.end.usage();
  EXPECT_EQ(off.cache().miss(), v1::CACHE_MISS_DISABLED);
  EXPECT_EQ(off.cache().written_tokens(), 0u);

  const Generation first = OverGrpc(server, request);
  ExpectSame(first, want);
  const v1::Usage& usage = first.end.usage();
  EXPECT_EQ(usage.cache().cached_tokens(), 0u);
  EXPECT_EQ(usage.cache().written_tokens(), usage.prompt_tokens() - 1);
  EXPECT_EQ(usage.cache().miss(), v1::CACHE_MISS_UNKNOWN);

  const Generation second = OverGrpc(server, request);
  ExpectSame(second, want);
  EXPECT_EQ(second.end.usage().cache().cached_tokens(), usage.prompt_tokens());
  EXPECT_EQ(second.end.usage().cache().miss(), v1::CACHE_MISS_NONE);
  EXPECT_EQ(second.end.usage().prompt_tokens(), usage.prompt_tokens());

  request.set_cache_key("other");
  const Generation other = OverGrpc(server, request);
  ExpectSame(other, want);
  EXPECT_EQ(other.end.usage().cache().cached_tokens(), 0u);
  EXPECT_EQ(other.end.usage().cache().miss(), v1::CACHE_MISS_UNKNOWN);
  server.ExpectIdle();
}

TEST(PrefixCacheTest, ANamedPlaceIsKept) {
  TestServer server(WithPrefixCache());
  v1::GenerateRequest request = RequestOf(LongText(20));
  request.add_snapshot_at(100);
  OverGrpc(server, request);
  // As long: short prompts have kernels, and snapshots, of their own.
  request = RequestOf(absl::StrCat(LongText(20).substr(0, 450), "# other\n"));
  const v1::Usage usage = OverGrpc(server, request).end.usage();
  EXPECT_EQ(usage.cache().cached_tokens(), 100u);

  request.add_snapshot_at(usage.prompt_tokens() + 1);
  EXPECT_EQ(
      Generate(*server.Connect(), request).status,
      absl::InvalidArgumentError(absl::StrCat(
          "snapshot_at[0] is ", usage.prompt_tokens() + 1,
          "; expected 1 to the prompt's ", usage.prompt_tokens(), " tokens")));
  EXPECT_THAT(
      HttpGet(server.metrics_port(), "/metrics"),
      AllOf(HasSubstr("prefix_cache_prompts_total{miss=\"unknown\"} 1\n"),
            HasSubstr("prefix_cache_prompts_total{miss=\"diverged\"} 1\n")));
  server.ExpectIdle();
}

// A Decode call of the demo model, by ids.
class DecodeStream {
 public:
  explicit DecodeStream(TestServer& server)
      : stub_(v1::Inference::NewStub(server.Channel())),
        stream_(stub_->Decode(&context_)) {}

  // The tokens that the command generated; `last` is its last response.
  std::vector<uint32_t> Run(const v1::DecodeRequest& request,
                            v1::DecodeResponse* last) {
    EXPECT_TRUE(stream_->Write(request));
    std::vector<uint32_t> ids;
    do {
      last->Clear();
      if (!stream_->Read(last)) {
        ADD_FAILURE() << "the call ended";
        break;
      }
      ids.insert(ids.end(), last->tokens().ids().begin(),
                 last->tokens().ids().end());
    } while (!last->done());
    return ids;
  }
  grpc::Status Refused(const v1::DecodeRequest& request) {
    EXPECT_TRUE(stream_->Write(request));
    v1::DecodeResponse response;
    EXPECT_FALSE(stream_->Read(&response));
    return stream_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<
      grpc::ClientReaderWriter<v1::DecodeRequest, v1::DecodeResponse>>
      stream_;
};

v1::DecodeRequest Appending(const std::string& text, uint32_t generate) {
  v1::DecodeRequest request;
  if (!text.empty()) request.set_append_text(text);
  request.set_generate(generate);
  return request;
}

TEST(DecodeRollbackTest, TheSameCommandsGiveTheSameTokens) {
  for (const bool cache : {false, true}) {
    SCOPED_TRACE(cache);
    TestServer server(cache ? WithPrefixCache() : DemoOptions());
    DecodeStream stream(server);
    v1::DecodeResponse last;
    v1::DecodeRequest first = Appending(LongText(4), 0);
    first.set_keep(true);
    first.mutable_sampling()->set_temperature(0.9f);
    first.mutable_sampling()->set_seed(5);
    first.mutable_stopping()->set_ignore_eos(true);
    stream.Run(first, &last);
    const uint64_t kept = last.sequence_tokens();
    const auto one = stream.Run(Appending("# one\n", 12), &last);
    EXPECT_EQ(one.size(), 12u);
    const uint64_t end = last.sequence_tokens();
    v1::DecodeRequest again = Appending("# two\n", 12);
    again.set_rollback_to(kept);
    EXPECT_NE(stream.Run(again, &last), one);
    again.set_append_text("# one\n");
    EXPECT_EQ(stream.Run(again, &last), one);
    EXPECT_EQ(last.sequence_tokens(), end);
    EXPECT_EQ(last.usage().completion_tokens(), 12u);
    again.set_rollback_to(kept + 1);
    const grpc::Status status = stream.Refused(again);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
    EXPECT_EQ(status.error_message(),
              absl::StrCat("rollback_to is ", kept + 1,
                           "; the nearest point kept is ", kept));
    server.ExpectIdle();
  }
}

// Turns of a conversation over both interfaces share what they have.
TEST(PrefixCacheTest, HttpReportsCachedTokens) {
  TestServer cold;
  TestServer server(WithPrefixCache());
  const std::string prompt = LongText(24);
  json body = {{"model", "demo"},
               {"prompt", prompt},
               {"max_tokens", 10},
               {"temperature", 0},
               {"ignore_eos", true}};
  const json first = ParseJson(Complete(server, body).body);
  EXPECT_EQ(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const std::string answer = first["choices"][0]["text"];
  body["prompt"] = absl::StrCat(prompt, answer, "\n# more\n");
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const std::vector<std::string> events =
      SseEvents(Complete(server, body).body);
  const json usage = ParseJson(events[events.size() - 2])["usage"];
  const int64_t cached = usage["prompt_tokens_details"]["cached_tokens"];
  EXPECT_GT(cached, 0);
  EXPECT_LT(cached, usage["prompt_tokens"].get<int64_t>());
  body["stream"] = false;
  body.erase("stream_options");
  EXPECT_EQ(ParseJson(Complete(server, body).body)["choices"],
            ParseJson(Complete(cold, body).body)["choices"]);
  // Several prompts: the sum.
  body["prompt"] = json::array({prompt, prompt});
  const json both = ParseJson(Complete(server, body).body);
  EXPECT_EQ(both["usage"]["prompt_tokens_details"]["cached_tokens"],
            both["usage"]["prompt_tokens"].get<int64_t>());
  server.ExpectIdle();
}

TEST(PrefixCacheTest, AKeyHasALimit) {
  TestServer server(WithPrefixCache());
  v1::GenerateRequest request = RequestOf("x");
  request.set_cache_key(std::string(257, 'k'));
  const auto outcome = Generate(*server.Connect(), request);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(outcome.status.message()),
              HasSubstr("cache_key has 257 bytes; expected at most 256"));
  const json body = {{"model", "demo"},
                     {"prompt", "x"},
                     {"prompt_cache_key", std::string(257, 'k')}};
  const HttpResult refused = Complete(server, body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(ParseJson(refused.body)["error"]["param"], "prompt_cache_key");
}

}  // namespace
}  // namespace recurve
