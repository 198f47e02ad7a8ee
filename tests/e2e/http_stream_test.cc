// When a streamed answer of the completions API begins, what its events hold,
// and what is sent while there is nothing to say.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/e2e/http_fixture.h"

namespace recurve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr char kPing[] = "\r\n: waiting\n\n\r\n";

// Reads until `text` has `what`; fails the test when the connection ends first.
void ReadUntil(HttpConnection& connection, const std::string& what,
               std::string* text) {
  while (!absl::StrContains(*text, what)) {
    const std::string more = connection.ReadSome();
    ASSERT_NE(more, "") << *text;
    *text += more;
  }
}

// One sequence at a time: the next waits.
ServerOptions OneAtATime() {
  ServerOptions options = DemoOptions();
  options.engine.max_num_seqs = 1;
  options.engine.max_queued_requests = 1;
  options.http_stream_ping = std::chrono::milliseconds(50);
  return options;
}

const json kLong = {{"prompt", "a"},
                    {"max_tokens", 8000},
                    {"ignore_eos", true},
                    {"stream", true}};
const json kShort = {
    {"prompt", "a"}, {"max_tokens", 2}, {"ignore_eos", true}, {"stream", true}};

// The chunks of a whole answer, in which they have no line ends of HTTP.
std::vector<std::string> ChunksOf(absl::string_view answer) {
  std::vector<std::string> chunks;
  std::vector<absl::string_view> lines = absl::StrSplit(
      answer.substr(answer.find("\r\n\r\n") + 4), "\r\n", absl::SkipEmpty());
  for (size_t i = 1; i < lines.size(); i += 2) {
    chunks.emplace_back(lines[i]);
  }
  return chunks;
}

// The data of events, as the clients of vLLM's benchmark read them: white
// space around each piece that arrives is lost, and with it the end of an event
// or comment. They find the end of the last event by its JSON.
std::vector<std::string> ReadStripped(const std::vector<std::string>& pieces) {
  std::vector<std::string> all;
  std::string rest;
  for (const std::string& piece : pieces) {
    absl::StrAppend(&rest, absl::StripAsciiWhitespace(piece));
    for (size_t end; (end = rest.find("\n\n")) != std::string::npos;) {
      all.push_back(rest.substr(0, end));
      rest.erase(0, end + 2);
    }
    const std::string data = rest.substr(std::min(rest.size(), size_t{6}));
    if (data == "[DONE]" || json::accept(data)) {
      all.push_back(std::exchange(rest, ""));
    }
  }
  std::vector<std::string> events;
  for (absl::string_view event : all) {
    if (absl::ConsumePrefix(&event, "data: ")) events.emplace_back(event);
  }
  return events;
}

// Has a sequence run that takes the one place, so that the next waits.
void Occupy(HttpConnection& first, std::string* text) {
  ASSERT_TRUE(first.Send(PostText(kCompletionsPath, kLong.dump())));
  ReadUntil(first, "data: ", text);
}

// A proxy before the server would give up an answer of which nothing comes.
TEST(HttpStreamTest, BeginsInTheQueueAndIsPingedThere) {
  TestServer server(OneAtATime());
  const int port = server.server().http_port();
  StepHold hold(server, 20);
  HttpConnection first(port);
  std::string text;
  Occupy(first, &text);
  HttpConnection waiting(port);
  ASSERT_TRUE(waiting.Send(PostText(kCompletionsPath, kShort.dump())));
  std::string queued;
  ReadUntil(waiting, absl::StrCat("\r\n\r\nb", kPing, "b", kPing), &queued);
  EXPECT_THAT(queued, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(queued, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_THAT(queued, HasSubstr("Cache-Control: no-cache, no-transform\r\n"));
  EXPECT_THAT(queued, HasSubstr("X-Accel-Buffering: no\r\n"));
  EXPECT_THAT(queued, Not(HasSubstr("data:")));
  // One that runs and has nothing to send is pinged as well.
  ReadUntil(first, kPing, &text);
  // What is refused at once has a status.
  const HttpResult full = Complete(server, kShort);
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.headers.at("content-type"), "application/json");
  EXPECT_EQ(full.headers.count("x-accel-buffering"), 0);
  first.Reset();
  hold.Open();
  ReadUntil(waiting, "\r\n0\r\n\r\n", &queued);
  EXPECT_THAT(queued, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(queued, HasSubstr("data: [DONE]"));
  const std::vector<std::string> chunks = ChunksOf(queued);
  // No event is lost for readers that glue pings to what follows.
  std::vector<std::string> sent = SseEvents(absl::StrJoin(chunks, ""));
  std::erase_if(sent, [](const std::string& event) {
    return absl::StartsWith(event, "not data: ");
  });
  ASSERT_GE(sent.size(), 2);
  EXPECT_EQ(ReadStripped(chunks), sent);
  json bad = kShort;
  bad["temperature"] = -1;
  EXPECT_EQ(Complete(server, bad).status, 400);
  server.ExpectIdle();
}

TEST(HttpStreamTest, WhatFailsInTheQueueEndsWithAnEvent) {
  TestServer server(OneAtATime());
  const int port = server.server().http_port();
  StepHold hold(server, 20);
  HttpConnection first(port);
  std::string text;
  Occupy(first, &text);
  HttpConnection waiting(port);
  ASSERT_TRUE(waiting.Send(PostText(kCompletionsPath, kShort.dump(),
                                    {"x-envoy-expected-rq-timeout-ms: 300"})));
  std::string queued;
  ReadUntil(waiting, "\r\n\r\n", &queued);
  EXPECT_THAT(queued, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  hold.Open();
  ReadUntil(waiting, "\r\n0\r\n\r\n", &queued);
  EXPECT_THAT(queued, HasSubstr("data: {\"error\":{\"code\":"
                                "\"deadline_exceeded\""));
  EXPECT_THAT(queued, Not(HasSubstr("[DONE]")));
  first.Reset();
  server.ExpectIdle();
}

TEST(HttpStreamTest, NoPingsWhereThereAreNone) {
  ServerOptions options = OneAtATime();
  options.http_stream_ping = std::chrono::milliseconds(0);
  TestServer server(options);
  StepHold hold(server, 1);
  HttpConnection connection(server.server().http_port());
  ASSERT_TRUE(connection.Send(PostText(kCompletionsPath, kShort.dump())));
  std::string text;
  ReadUntil(connection, "\r\n\r\n", &text);
  {  // Another server sends several in the meantime.
    TestServer other(OneAtATime());
    StepHold hold_other(other, 1);
    HttpConnection pinged(other.server().http_port());
    ASSERT_TRUE(pinged.Send(PostText(kCompletionsPath, kShort.dump())));
    std::string pings;
    ReadUntil(pinged, absl::StrCat(kPing, "b", kPing, "b", kPing), &pings);
    hold_other.Open();
  }
  hold.Open();
  ReadUntil(connection, "\r\n0\r\n\r\n", &text);
  EXPECT_THAT(text, Not(HasSubstr(": waiting")));
  EXPECT_THAT(text, HasSubstr("data: [DONE]"));
}

TEST(HttpStreamTest, ContinuousUsageIsInEveryEvent) {
  TestServer server;
  json body = {{"prompt", "ab"},
               {"max_tokens", 5},
               {"ignore_eos", true},
               {"stream", true},
               {"stream_options", {{"continuous_usage_stats", true}}}};
  for (const bool last : {false, true}) {
    body["stream_options"]["include_usage"] = last;
    const std::vector<std::string> events =
        SseEvents(Complete(server, body).body);
    ASSERT_GE(events.size(), last ? 3 : 2);  // one may have all tokens
    int before = 0;
    std::string text;
    for (size_t i = 0; i + 1 < events.size(); ++i) {
      const json event = ParseJson(events[i]);
      const json& usage = event["usage"];
      EXPECT_EQ(usage["prompt_tokens"], 3);
      const int tokens = usage["completion_tokens"].get<int>();
      EXPECT_GE(tokens, std::max(before, 1));
      EXPECT_EQ(usage["total_tokens"], 3 + tokens);
      before = tokens;
      if (event["choices"].empty()) continue;
      text += event["choices"][0]["text"].get<std::string>();
      // A byte is a character here: usage is of what has been sent.
      EXPECT_LE(text.size(), static_cast<size_t>(tokens));
    }
    EXPECT_EQ(before, 5);
    EXPECT_EQ(ParseJson(events[events.size() - 2])["choices"].empty(), last);
  }
  // For all prompts together, as in the last event.
  body["prompt"] = json::array({"ab", "c"});
  const std::vector<std::string> events =
      SseEvents(Complete(server, body).body);
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(ParseJson(events[i])["usage"]["prompt_tokens"], 5);
  }
  EXPECT_EQ(ParseJson(events[events.size() - 2])["usage"],
            json({{"prompt_tokens", 5},
                  {"prompt_tokens_details", {{"cached_tokens", 0}}},
                  {"completion_tokens", 10},
                  {"total_tokens", 15}}));
  server.ExpectIdle();
}

// Here the text is "aaa...", whose first 9 characters may begin the stop
// string at any time.
TEST(HttpStreamTest, NoEventIsWithoutContent) {
  constexpr int kTokens = 40;
  ServerOptions options = DemoOptions();
  options.max_buffered_tokens = 1;  // held-back text does not pause a stream
                                    // for good
  TestServer server(options);
  const json plain = {{"prompt", "a"},
                      {"max_tokens", kTokens},
                      {"temperature", 0},
                      {"ignore_eos", true},
                      {"logit_bias", {{"97", 100}}},
                      {"stop", "aaaaaaaaab"},
                      {"stream", true}};
  const auto events_of = [&](const json& more) {
    json body = plain;
    body.update(more);
    std::vector<json> events;
    std::string text;
    for (const std::string& event : SseEvents(Complete(server, body).body)) {
      if (event == "[DONE]") continue;
      events.push_back(ParseJson(event));
      text += events.back()["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(text, std::string(kTokens, 'a')) << more;
    return events;
  };
  for (const json& event : events_of(json::object())) {
    const json& choice = event["choices"][0];
    EXPECT_TRUE(choice["text"] != "" || !choice["finish_reason"].is_null())
        << event;
  }
  int ids = 0;
  bool without_text = false;
  for (const json& event : events_of({{"return_token_ids", true}})) {
    ids += static_cast<int>(event["choices"][0]["token_ids"].size());
    without_text |= event["choices"][0]["text"] == "";
  }
  EXPECT_EQ(ids, kTokens);
  EXPECT_TRUE(without_text);  // those have something to say
  size_t logprobs = 0;
  for (const json& event : events_of({{"logprobs", 0}})) {
    logprobs += event["choices"][0]["logprobs"]["tokens"].size();
  }
  EXPECT_EQ(logprobs, kTokens);
  server.ExpectIdle();
}

}  // namespace
}  // namespace recurve
