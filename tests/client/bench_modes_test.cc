// Open loops, conversations, sweeps and verification against the fake server,
// and what is made of their results.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <thread>

#include "client/loadgen/bench_html.h"
#include "client/loadgen/bench_metrics.h"
#include "client/loadgen/bench_output.h"
#include "client/loadgen/bench_report.h"
#include "client/loadgen/bench_runner.h"
#include "client/loadgen/bench_series.h"
#include "client/loadgen/bench_step.h"
#include "client/loadgen/bench_verify.h"
#include "client/loadgen/bench_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class BenchModesTest : public testing::Test {
 protected:
  static WorkloadConfig Small() {
    WorkloadConfig config;
    config.prompt_tokens = {2, 5};
    config.output_tokens = {2, 6};
    return config;
  }
  BenchResult Run(const WorkloadConfig& config, const BenchOptions& options) {
    workload_ = std::make_unique<Workload>(
        Workload::Create(config, server_.model).value());
    BenchRunner runner({client_.get()}, workload_.get(), options);
    return runner.Run(0, [](const BenchProgress&) {});
  }
  static BenchOptions Open(double rate) {
    BenchOptions options;
    options.concurrency = 1000;
    options.arrivals.emplace();
    options.arrivals->rate = rate;
    return options;
  }

  FakeServer server_;
  std::unique_ptr<RecurveClient> client_ =
      RecurveClient::Create(server_.address()).value();
  std::unique_ptr<Workload> workload_;
};

TEST_F(BenchModesTest, OpenLoopDoesNotWaitForTheServer) {
  server_.script = [](const v1::GenerateRequest& request) {
    FakeScript script = FullScript(request);
    script.steps[1].delay = absl::Milliseconds(300);
    return script;
  };
  BenchOptions options = Open(200);
  options.arrivals->constant = true;
  options.num_requests = 20;
  const BenchResult result = Run(Small(), options);
  ASSERT_EQ(result.records.size(), 20u);
  // In a closed loop of one stream it would be 1.
  EXPECT_GT(server_.peak_streams(), 1);
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.outcome, Outcome::kCompleted) << record.status;
    EXPECT_GE(record.send_lag_ms, 0);
    EXPECT_NEAR(record.start_seconds - record.send_lag_ms / 1000,
                record.index / 200.0, 1e-6);
  }
}

TEST_F(BenchModesTest, ARateOfAlmostNothingSendsOne) {
  BenchOptions options = Open(1e-300);
  options.num_requests = 2;
  options.start_for = absl::Milliseconds(50);
  EXPECT_EQ(Run(Small(), options).records.size(), 1u);
  options.start_for = absl::InfiniteDuration();
  workload_ = std::make_unique<Workload>(
      Workload::Create(Small(), server_.model).value());
  BenchRunner runner({client_.get()}, workload_.get(), options);
  // The second is never due, and a stop ends the wait.
  const BenchResult result = runner.Run(0, [&](const BenchProgress& now) {
    if (now.ended == 1 && now.elapsed_seconds > 0.3) runner.Stop();
  });
  EXPECT_EQ(result.records.size(), 1u);
}

TEST_F(BenchModesTest, BoundOnStreamsMakesLag) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(10));
  };
  BenchOptions options = Open(10000);
  options.concurrency = 2;
  options.num_requests = 12;
  const BenchResult result = Run(Small(), options);
  EXPECT_EQ(result.records.size(), 12u);
  EXPECT_EQ(server_.peak_streams(), 2);
  // The last waits for five others before it, of two tokens at least.
  EXPECT_GE(result.records.back().send_lag_ms, 50);
}

TEST_F(BenchModesTest, OpenLoopEndsByTimeAndByTrace) {
  BenchOptions options = Open(100);
  options.start_for = absl::Milliseconds(100);
  options.arrivals->constant = true;
  EXPECT_EQ(Run(Small(), options).records.size(), 10u);
  WorkloadConfig config;
  config.trace = std::make_shared<const std::vector<TraceEntry>>(
      std::vector<TraceEntry>{{0, 4, 2}, {0.01, 9, 3}, {0.02, 1, 1}});
  BenchOptions replay = Open(1);
  replay.arrivals->trace = config.trace;
  const BenchResult result = Run(config, replay);
  ASSERT_EQ(result.records.size(), 3u);
  for (const RequestRecord& record : result.records) {
    const TraceEntry& entry = (*config.trace)[record.index];
    EXPECT_EQ(record.prompt_tokens, entry.prompt_tokens);
    EXPECT_EQ(record.generation.token_ids.size(), entry.output_tokens);
  }
}

TEST_F(BenchModesTest, StopEndsAnOpenLoopThatWaits) {
  BenchOptions options = Open(0.001);  // the second request is due in minutes
  options.arrivals->constant = true;
  const Workload workload = Workload::Create(Small(), server_.model).value();
  BenchRunner runner({client_.get()}, &workload, options);
  std::thread other([&] {
    while (server_.requests().empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    runner.Stop();
  });
  const BenchResult result = runner.Run(0, [](const BenchProgress&) {});
  other.join();
  EXPECT_TRUE(result.stopped);
  EXPECT_LE(result.records.size(), 1u);
}

TEST_F(BenchModesTest, ConversationsRunTurnByTurn) {
  WorkloadConfig config = Small();
  config.turns = {1, 3};
  config.turn_tokens = {4, 4};
  BenchOptions options;
  options.concurrency = 3;
  options.num_requests = 10;
  options.think_time = absl::Milliseconds(2);
  const BenchResult result = Run(config, options);
  std::map<std::pair<uint64_t, uint32_t>, const RequestRecord*> turns;
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.outcome, Outcome::kCompleted) << record.status;
    turns[{record.index, record.turn}] = &record;
  }
  EXPECT_EQ(turns.size(), result.records.size());
  size_t expected = 0;
  for (uint64_t i = 0; i < 10; ++i) {
    expected += workload_->Turns(i);
    for (uint32_t turn = 1; turn < workload_->Turns(i); ++turn) {
      const RequestRecord* const before = turns.at({i, turn - 1});
      const RequestRecord* const now = turns.at({i, turn});
      EXPECT_EQ(
          now->prompt_tokens,
          before->prompt_tokens + before->generation.token_ids.size() + 4);
      // It was sent after the answer and the pause.
      EXPECT_GE(now->start_seconds,
                before->start_seconds + before->latency.e2el_ms / 1000 + 0.002);
    }
  }
  EXPECT_EQ(result.records.size(), expected);
  EXPECT_GT(expected, 10u);
  const auto verified =
      VerifyAlone(client_.get(), *workload_, result, 1000, {});
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->checked, expected);
  EXPECT_THAT(verified->mismatches, ElementsAre());
}

TEST_F(BenchModesTest, AFailedTurnEndsItsConversation) {
  std::atomic<int> calls{0};
  server_.script = [&](const v1::GenerateRequest& request) {
    if (calls.fetch_add(1) == 1) {
      return FakeScript{{}, grpc::Status(grpc::StatusCode::UNAVAILABLE, "no")};
    }
    return FullScript(request);
  };
  WorkloadConfig config = Small();
  config.turns = {3, 3};
  BenchOptions options;
  options.concurrency = 1;
  options.num_requests = 2;
  const BenchResult result = Run(config, options);
  ASSERT_EQ(result.records.size(), 5u);  // 1 + failure, then 3
  EXPECT_EQ(result.records[1].outcome, Outcome::kFailed);
  EXPECT_EQ(result.records[2].index, 1u);
}

TEST_F(BenchModesTest, VerifyFindsOtherTokens) {
  WorkloadConfig config = Small();
  config.output_tokens = {6, 6};
  config.cancel_fraction = 0.5;
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(5));
  };
  BenchOptions options;
  options.concurrency = 2;
  options.num_requests = 4;
  const BenchResult result = Run(config, options);
  const auto good = VerifyAlone(client_.get(), *workload_, result, 3, {});
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->checked, 3u);
  EXPECT_TRUE(good->mismatches.empty());
  // Alone, the first token is another one.
  BenchResult changed = result;
  for (RequestRecord& record : changed.records) {
    record.generation.token_ids[0] = 77;
  }
  const auto bad = VerifyAlone(client_.get(), *workload_, changed, 1000, {});
  ASSERT_TRUE(bad.ok()) << bad.status();
  ASSERT_EQ(bad->mismatches.size(), 4u);
  EXPECT_EQ(bad->mismatches[0],
            "request 0 turn 0: token 0 was 77 under load, but 10 alone");
  // A completed request must have all of its tokens.
  changed = result;
  for (RequestRecord& record : changed.records) {
    record.generation.token_ids.resize(1);
  }
  // A cancellation may have come too late for some.
  const auto is_completed = [](const RequestRecord& record) {
    return record.outcome == Outcome::kCompleted;
  };
  EXPECT_EQ(VerifyAlone(client_.get(), *workload_, changed, 1000, {})
                ->mismatches.size(),
            std::count_if(changed.records.begin(), changed.records.end(),
                          is_completed));
}

TEST_F(BenchModesTest, EveryFigureIsDefined) {
  std::string names;
  for (const MetricDefinition& metric : MetricDefinitions()) {
    names += std::string(" ") + metric.name + ",";
  }
  BenchOptions options;
  options.num_requests = 4;
  ReportContext context;
  context.service_level.ttft_ms = 1e9;
  const auto report = MakeReport(Run(Small(), options), context);
  EXPECT_EQ(report["request_goodput"], report["request_throughput"]);
  EXPECT_EQ(report["good_fraction"], 1);
  EXPECT_EQ(report["request_rate"], "inf");
  EXPECT_TRUE(report["burstiness"].is_null());
  for (const auto& entry : report.items()) {
    std::string key = entry.key();
    if (key.size() > 3 && key.substr(key.size() - 3) == "_ms") {
      // STATISTIC_NAME_ms
      const size_t first = key.find('_');
      EXPECT_THAT(names, HasSubstr(" " + key.substr(0, first) + ","));
      key = key.substr(first + 1, key.size() - first - 4);
    }
    EXPECT_THAT(names, HasSubstr(" " + key + ",")) << key;
  }
  EXPECT_THAT(ExplainMetrics(), HasSubstr("ttft (ms)\n    time to first"));
  std::ifstream file(RECURVE_SOURCE_DIR "/docs/load-testing.md");
  const std::string guide((std::istreambuf_iterator<char>(file)),
                          std::istreambuf_iterator<char>());
  for (const MetricDefinition& metric : MetricDefinitions()) {
    EXPECT_THAT(guide, HasSubstr(metric.meaning));
  }
}

TEST_F(BenchModesTest, HtmlHoldsItsDataAndNothingFromElsewhere) {
  BenchStep step;
  step.options = Open(50);
  step.options.num_requests = 5;
  step.result = Run(Small(), step.options);
  step.result.records[0].outcome = Outcome::kFailed;
  BenchPlan plan;
  plan.options = step.options;
  step.report = MakeReport(step.result, ContextOf(plan, step.options));
  v1::ModelInfo model;
  model.set_name("</script><script>alert(1)</script>");
  const auto report =
      MakeBenchJson(BenchFlags(), plan, model, v1::ServerInfo(), {step});
  const std::string html = MakeHtmlReport(report, {step});
  EXPECT_THAT(html, Not(HasSubstr("@DATA@")));
  EXPECT_THAT(html, Not(HasSubstr("alert(1)</script>")));
  for (const char* outside : {"src=", "href=", "url(", "@import", "https:"}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  const std::string open = "id=\"data\">";
  const size_t begin = html.find(open) + open.size();
  const auto data = nlohmann::json::parse(
      html.substr(begin, html.find("</script>", begin) - begin));
  EXPECT_EQ(data["steps"].size(), 1u);
  EXPECT_EQ(data["steps"][0]["timeline"].size(), 5u);
  EXPECT_EQ(data["steps"][0]["ttft_curve"].size(), 201u);
  EXPECT_EQ(data["report"]["model"]["name"], model.name());
  EXPECT_EQ(data["report"]["config"]["arrivals"], "poisson");
}

TEST(SeriesTest, CountsTokensAndOpenRequests) {
  BenchResult result;
  RequestRecord record;
  record.outcome = Outcome::kCompleted;
  record.start_seconds = 0.5;
  record.latency.e2el_ms = 2000;
  record.latency.ttft_ms = 250;         // at 0.75 s, two tokens
  record.latency.itl_ms = {500, 1000};  // at 1.25 s and 2.25 s
  record.generation.token_ids = {1, 2, 3, 4};
  result.records = {record, record};
  result.records[1].outcome = Outcome::kFailed;  // open, but no tokens
  result.duration_seconds = 2.5;
  const TimeSeries series = MakeTimeSeries(result, 1);
  EXPECT_THAT(series.tokens_per_second, ElementsAre(2, 1, 1));
  EXPECT_THAT(series.open, ElementsAre(1, 2, 1));
  EXPECT_EQ(OpenSeconds(result), 4);
  EXPECT_EQ(PeakOpen(result), 2u);
  EXPECT_THAT(Quantiles({3, 1, 2}, 3), ElementsAre(1, 2, 3));
  EXPECT_TRUE(Quantiles({}, 3).empty());
  EXPECT_EQ(MakeTimeSeries(BenchResult(), 1).open.size(), 1u);
}

TEST(LiveViewTest, HasFourNarrowLines) {
  LiveView view("64");
  BenchProgress progress;
  std::vector<RequestRecord> records(1);
  records[0].outcome = Outcome::kCompleted;
  records[0].latency.ttft_ms = 12.5;
  progress.records = &records;
  for (int i = 1; i <= 50; ++i) {
    progress.elapsed_seconds = i;
    progress.output_tokens += 100 * i;
    progress.ended = i;
    EXPECT_EQ(view.Lines(progress).size(), 4u);
  }
  progress.elapsed_seconds = 51;
  progress.output_tokens += 700;
  const std::vector<std::string> lines = view.Lines(progress);
  EXPECT_EQ(lines[0], "  51.0 s   50/64 done   0 running   0 failed");
  EXPECT_THAT(lines[1], HasSubstr("now       700"));
  EXPECT_THAT(lines[2], HasSubstr("p50      12.5"));
  EXPECT_EQ(lines[3], "  ITL ms    -");
  for (const std::string& line : lines) {
    // Bytes that begin a character.
    EXPECT_LE(std::count_if(line.begin(), line.end(),
                            [](char c) { return (c & 0xc0) != 0x80; }),
              79);
  }
}

}  // namespace
}  // namespace recurve
