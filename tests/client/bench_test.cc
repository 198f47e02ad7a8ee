#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "client/loadgen/bench_progress.h"
#include "client/loadgen/bench_report.h"
#include "client/loadgen/bench_runner.h"
#include "client/loadgen/bench_workload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

v1::ModelInfo Model() {
  v1::ModelInfo model;
  model.set_vocab_size(6);
  model.set_max_model_len(50);
  model.set_bos_token_id(2);
  model.add_eos_token_ids(4);
  return model;
}

TEST(WorkloadTest, DrawsWithinTheRangesAndTheVocabulary) {
  WorkloadConfig config;
  config.prompt_tokens = {3, 20};
  config.output_tokens = {1, 30};
  const Workload workload = Workload::Create(config, Model()).value();
  std::vector<int> prompt_lengths(21), output_lengths(31), ids(6);
  for (int i = 0; i < 2000; ++i) {
    const v1::GenerateRequest request = workload.Make(i).request;
    ++prompt_lengths.at(request.prompt_ids().ids_size());
    ++output_lengths.at(request.stopping().max_new_tokens());
    EXPECT_EQ(request.prompt_ids().ids(0), 2u);
    for (int k = 1; k < request.prompt_ids().ids_size(); ++k) {
      ++ids.at(request.prompt_ids().ids(k));
    }
    EXPECT_TRUE(request.stopping().ignore_eos());
    EXPECT_FALSE(request.has_sampling());
  }
  // Both ends occur, nothing else does, special tokens do not.
  EXPECT_GT(prompt_lengths[3], 0);
  EXPECT_GT(prompt_lengths[20], 0);
  EXPECT_EQ(std::count(prompt_lengths.begin(), prompt_lengths.begin() + 3, 0),
            3);
  EXPECT_GT(output_lengths[1], 0);
  EXPECT_GT(output_lengths[30], 0);
  EXPECT_EQ(output_lengths[0], 0);
  EXPECT_EQ(ids[2], 0);
  EXPECT_EQ(ids[4], 0);
  for (const int id : {0, 1, 3, 5}) EXPECT_GT(ids[id], 4000) << id;
}

TEST(WorkloadTest, DependsOnSeedAndIndexOnly) {
  WorkloadConfig config;
  config.prompt_tokens = {8, 8};
  config.output_tokens = {4, 8};
  config.temperature = 0.5f;
  const Workload one = Workload::Create(config, Model()).value();
  const Workload same = Workload::Create(config, Model()).value();
  config.seed = 1;
  const Workload other = Workload::Create(config, Model()).value();
  const auto bytes = [](const Workload& workload, int index) {
    return workload.Make(index).request.SerializeAsString();
  };
  one.Make(3);
  EXPECT_EQ(bytes(one, 7), bytes(same, 7));
  EXPECT_NE(bytes(one, 7), bytes(one, 8));
  EXPECT_NE(bytes(one, 7), bytes(other, 7));
  EXPECT_EQ(one.Make(7).request.sampling().temperature(), 0.5f);
  EXPECT_TRUE(one.Make(7).request.sampling().has_seed());
}

TEST(WorkloadTest, CancelsTheShareAskedFor) {
  WorkloadConfig config;
  config.prompt_tokens = {1, 1};
  config.output_tokens = {1, 30};
  for (const double fraction : {0.0, 0.1, 0.25, 1.0}) {
    config.cancel_fraction = fraction;
    const Workload workload = Workload::Create(config, Model()).value();
    int cancelled = 0;
    for (int i = 0; i < 1000; ++i) {
      const WorkItem item = workload.Make(i);
      cancelled += item.cancel_after_tokens > 0;
      const uint32_t length = item.request.stopping().max_new_tokens();
      EXPECT_LE(item.cancel_after_tokens, std::max(1u, length - 1));
    }
    EXPECT_EQ(cancelled, 1000 * fraction);
  }
}

TEST(WorkloadTest, RefusesWhatDoesNotFitTheModel) {
  WorkloadConfig config;
  config.prompt_tokens = {1, 30};
  config.output_tokens = {1, 21};
  const auto too_long = Workload::Create(config, Model());
  EXPECT_EQ(too_long.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(too_long.status().message()), HasSubstr("50"));
  config.output_tokens = {1, 20};
  EXPECT_TRUE(Workload::Create(config, Model()).ok());
  v1::ModelInfo model = Model();
  model.set_vocab_size(1);
  model.set_bos_token_id(0);
  EXPECT_FALSE(Workload::Create(config, model).ok());
  // Special ids beyond the vocabulary take nothing from it.
  model.set_bos_token_id(7);
  EXPECT_TRUE(Workload::Create(config, model).ok());
}

class BenchRunnerTest : public testing::Test {
 protected:
  BenchResult Run(const WorkloadConfig& config, const BenchOptions& options) {
    const Workload workload = Workload::Create(config, server_.model).value();
    BenchRunner runner({client_.get()}, &workload, options);
    return runner.Run(0, [](const BenchProgress&) {});
  }
  static WorkloadConfig Small() {
    WorkloadConfig config;
    config.prompt_tokens = {2, 5};
    config.output_tokens = {2, 6};
    return config;
  }

  FakeServer server_;
  std::unique_ptr<RecurveClient> client_ =
      RecurveClient::Create(server_.address()).value();
};

TEST_F(BenchRunnerTest, RunsAllRequestsClosedLoop) {
  server_.script = [this](const v1::GenerateRequest& request) {
    // The first ones wait for each other.
    const absl::Time end = absl::Now() + absl::Minutes(1);
    while (server_.peak_streams() < 4 && absl::Now() < end)
      absl::SleepFor(absl::Milliseconds(1));
    return FullScript(request, absl::Milliseconds(2));
  };
  BenchOptions options;
  options.concurrency = 4;
  options.num_requests = 30;
  const BenchResult result = Run(Small(), options);
  ASSERT_EQ(result.records.size(), 30u);
  EXPECT_EQ(server_.peak_streams(), 4);
  EXPECT_FALSE(result.stopped || result.gave_up);
  std::vector<bool> seen(30, false);
  for (const RequestRecord& record : result.records) {
    seen.at(record.index) = true;
    EXPECT_EQ(record.outcome, Outcome::kCompleted) << record.status;
    EXPECT_EQ(record.generation.token_ids.size(), record.max_new_tokens);
    EXPECT_EQ(record.latency.itl_ms.size(), record.max_new_tokens - 1);
    EXPECT_GE(record.latency.ttft_ms.value(), 1);
    EXPECT_LE(record.latency.ttft_ms.value(), record.latency.e2el_ms);
    EXPECT_LE(record.start_seconds + record.latency.e2el_ms / 1000,
              result.duration_seconds + 1e-6);
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 30);
}

TEST_F(BenchRunnerTest, ReportHasTheKeysAndCounts) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(1));
  };
  WorkloadConfig config = Small();
  config.prompt_tokens = {3, 3};
  config.output_tokens = {5, 5};
  BenchOptions options;
  options.num_requests = 8;
  const auto report = MakeReport(Run(config, options));
  EXPECT_EQ(report["completed"], 8);
  EXPECT_EQ(report["cancelled"], 0);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["total_input_tokens"], 24);
  EXPECT_EQ(report["total_output_tokens"], 40);
  EXPECT_TRUE(report["errors"].empty());
  EXPECT_EQ(report["max_output_tokens_per_s"].is_null(),
            report["duration"].get<double>() < 1);
  EXPECT_NEAR(report["output_throughput"].get<double>(),
              40 / report["duration"].get<double>(), 1e-9);
  EXPECT_NEAR(report["request_throughput"].get<double>(),
              8 / report["duration"].get<double>(), 1e-9);
  for (const char* statistic :
       {"mean", "median", "std", "p90", "p95", "p99", "p99.9"}) {
    for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
      const std::string key = std::string(statistic) + "_" + metric + "_ms";
      ASSERT_TRUE(report.contains(key)) << key;
      EXPECT_GE(report[key].get<double>(), 0) << key;
    }
  }
  EXPECT_GT(report["median_e2el_ms"].get<double>(), 0);
  const std::string table = FormatReport(report);
  EXPECT_THAT(table, HasSubstr("TTFT"));
  EXPECT_THAT(table, HasSubstr("p99.9"));
  EXPECT_THAT(table, HasSubstr("TPOT: (last tokens event"));
}

TEST_F(BenchRunnerTest, CancelsAsPlanned) {
  WorkloadConfig config = Small();
  config.output_tokens = {6, 6};
  config.cancel_fraction = 0.5;
  std::map<std::string, uint32_t> cancels;  // by request
  const Workload workload = Workload::Create(config, server_.model).value();
  for (int i = 0; i < 8; ++i) {
    const WorkItem item = workload.Make(i);
    cancels[item.request.SerializeAsString()] = item.cancel_after_tokens;
  }
  ASSERT_EQ(cancels.size(), 8u);
  server_.script = [&cancels](const v1::GenerateRequest& request) {
    FakeScript script = FullScript(request, absl::Milliseconds(20));
    // A request to be cancelled has time for it.
    const uint32_t tokens = cancels.at(request.SerializeAsString());
    if (tokens > 0) script.steps.at(1 + tokens).delay = absl::Minutes(1);
    return script;
  };
  BenchOptions options;
  options.concurrency = 8;
  options.num_requests = 8;
  const BenchResult result = Run(config, options);
  const auto report = MakeReport(result);
  EXPECT_EQ(report["completed"], 4);
  EXPECT_EQ(report["cancelled"], 4);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["total_output_tokens"], 24);
  EXPECT_GE(report["cancelled_output_tokens"].get<int>(), 4);
  EXPECT_LT(report["cancelled_output_tokens"].get<int>(), 24);
}

TEST_F(BenchRunnerTest, CountsErrorsByStatus) {
  std::atomic<int> calls{0};
  server_.script = [&](const v1::GenerateRequest& request) {
    const int call = calls.fetch_add(1);
    FakeScript script = FullScript(request);
    if (call % 3 == 1) {
      script = {{}, grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full")};
    } else if (call % 3 == 2) {
      script.steps.pop_back();  // OK, but no finished event
    }
    return script;
  };
  BenchOptions options;
  options.concurrency = 2;
  options.num_requests = 9;
  const BenchResult result = Run(Small(), options);
  const auto report = MakeReport(result);
  EXPECT_EQ(report["completed"], 3);
  EXPECT_EQ(report["failed"], 6);
  EXPECT_EQ(report["errors"]["RESOURCE_EXHAUSTED"], 3);
  EXPECT_EQ(report["errors"]["DATA_LOSS"], 3);
  const auto errors = CountErrors(result);
  EXPECT_EQ(errors.at(absl::StatusCode::kResourceExhausted).second, "full");
  EXPECT_THAT(FormatReport(report), HasSubstr("RESOURCE_EXHAUSTED"));
  // The three that the server refused; DATA_LOSS is not a refusal.
  EXPECT_GT(report["p99_reject_ms"].get<double>(), 0);
  EXPECT_THAT(FormatReport(report), HasSubstr("REJECT"));
}

TEST_F(BenchRunnerTest, ServerSideCancellationIsAFailure) {
  server_.script = [&](const v1::GenerateRequest&) {
    return FakeScript{{}, grpc::Status(grpc::StatusCode::CANCELLED, "aborted")};
  };
  BenchOptions options;
  options.num_requests = 2;
  EXPECT_EQ(MakeReport(Run(Small(), options))["failed"], 2);
}

TEST_F(BenchRunnerTest, GivesUpAfterTooManyFailures) {
  server_.script = [&](const v1::GenerateRequest&) {
    return FakeScript{{}, grpc::Status(grpc::StatusCode::UNAVAILABLE, "no")};
  };
  BenchOptions options;
  options.concurrency = 2;
  options.max_failures = 5;
  const BenchResult result = Run(Small(), options);
  EXPECT_TRUE(result.gave_up);
  EXPECT_GE(result.records.size(), 5u);
  EXPECT_LE(result.records.size(), 6u);
  const auto report = MakeReport(result);
  EXPECT_TRUE(report["mean_ttft_ms"].is_null());
  EXPECT_TRUE(report["stopped_early"].get<bool>());
  EXPECT_TRUE(report["interrupted_after"].is_null());
  EXPECT_EQ(report["interrupted_requests"], 0);
  EXPECT_EQ(FormatInterruption(report), "");
  FormatReport(report);  // prints absent values too
}

TEST_F(BenchRunnerTest, AStreamWaitsLongerEachTimeTheServerIsUnavailable) {
  std::atomic<int> calls{0};
  server_.script = [&](const v1::GenerateRequest& request) {
    const int call = calls.fetch_add(1);
    if (call == 3) return FullScript(request);
    return FakeScript{{}, grpc::Status(grpc::StatusCode::UNAVAILABLE, "no")};
  };
  BenchOptions options;
  options.concurrency = 1;
  options.num_requests = 6;
  const BenchResult result = Run(Small(), options);
  ASSERT_EQ(result.records.size(), 6u);
  // From the end of the one before to when it was due.
  const auto pause = [&](int i) {
    const RequestRecord& before = result.records[i - 1];
    return result.records[i].start_seconds - before.start_seconds -
           (before.latency.e2el_ms + result.records[i].send_lag_ms) / 1000;
  };
  EXPECT_NEAR(pause(1), 0.1, 1e-6);
  EXPECT_NEAR(pause(2), 0.2, 1e-6);
  EXPECT_NEAR(pause(3), 0.4, 1e-6);
  EXPECT_NEAR(pause(4), 0, 1e-6);  // after the one that succeeded
  EXPECT_NEAR(pause(5), 0.1, 1e-6);
  for (const RequestRecord& record : result.records) {
    EXPECT_GE(record.send_lag_ms, 0);
  }
}

TEST_F(BenchRunnerTest, NobodyWaitsForAPauseThatLeadsToNothing) {
  server_.script = [](const v1::GenerateRequest&) {
    return FakeScript{{}, grpc::Status(grpc::StatusCode::UNAVAILABLE, "no")};
  };
  const Workload workload = Workload::Create(Small(), server_.model).value();
  BenchOptions options;
  options.concurrency = 1;
  // Within the fifth pause, from 1.5 to 3.1 seconds.
  options.start_for = absl::Seconds(2);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_GE(Run(Small(), options).records.size(), 3u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3));
  // A stop ends a pause.
  options.start_for = absl::InfiniteDuration();
  BenchRunner runner({client_.get()}, &workload, options);
  double stopped = 0;
  const BenchResult result = runner.Run(0, [&](const BenchProgress& now) {
    if (now.ended < 5 || stopped > 0) return;
    stopped = now.elapsed_seconds;
    runner.Stop();
  });
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.records.size(), 5u);
  EXPECT_LT(result.stopped_seconds, stopped + 1);
}

TEST_F(BenchRunnerTest, DurationEndsTheRun) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(5));
  };
  BenchOptions options;
  options.concurrency = 2;
  options.start_for = absl::Milliseconds(200);
  const BenchResult result = Run(Small(), options);
  EXPECT_GE(result.records.size(), 2u);
  for (const RequestRecord& record : result.records) {
    // Sent a little later than it was due, on a busy machine.
    EXPECT_LT(record.start_seconds - record.send_lag_ms / 1000, 0.2);
    EXPECT_EQ(record.outcome, Outcome::kCompleted);
  }
}

TEST_F(BenchRunnerTest, RequestTimeoutIsAFailure) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Seconds(5));
  };
  BenchOptions options;
  options.num_requests = 2;
  options.request_timeout = absl::Milliseconds(100);
  EXPECT_EQ(MakeReport(Run(Small(), options))["errors"]["DEADLINE_EXCEEDED"],
            2);
}

TEST_F(BenchRunnerTest, StopCancelsWhatIsRunning) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Seconds(5));
  };
  const Workload workload = Workload::Create(Small(), server_.model).value();
  BenchOptions options;
  options.concurrency = 3;
  BenchRunner runner({client_.get()}, &workload, options);
  std::thread other([&] {
    while (server_.peak_streams() < 3) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    runner.Stop();
  });
  const BenchResult result = runner.Run(0, [](const BenchProgress&) {});
  other.join();
  EXPECT_TRUE(result.stopped);
  EXPECT_TRUE(result.records.empty());
  EXPECT_LT(result.duration_seconds, 5);
  EXPECT_EQ(result.interrupted, 3u);
  EXPECT_GT(result.stopped_seconds, 0);
  EXPECT_LE(result.stopped_seconds, result.duration_seconds);
  auto report = MakeReport(result);
  EXPECT_EQ(report["interrupted_requests"], 3);
  report["interrupted_after"] = 2.04;
  EXPECT_THAT(FormatReport(report),
              StartsWith("Interrupted after 2.0 s; 3 requests under way are in "
                         "no figure.\n\nCompleted requests"));
  report["interrupted_requests"] = 1;
  EXPECT_EQ(
      FormatInterruption(report, " at 2 streams"),
      "Interrupted at 2 streams after 2.0 s; 1 request under way is in no "
      "figure.");
}

TEST_F(BenchRunnerTest, RecordIsOneLineOfJson) {
  BenchOptions options;
  options.num_requests = 1;
  const BenchResult result = Run(Small(), options);
  const std::string line = FormatRecord(result.records.at(0));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["outcome"], "completed");
  EXPECT_EQ(json["status"], "OK");
  EXPECT_EQ(json["request_id"], "request-1");
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["token_ids"].size(), json["output_tokens"].get<size_t>());
}

TEST(ProgressTest, FormatsAndLimitsItsRate) {
  BenchProgress progress;
  progress.elapsed_seconds = 2;
  progress.ended = 40;
  progress.running = 16;
  progress.failed = 1;
  progress.output_tokens = 500;
  EXPECT_EQ(FormatProgress(progress, "64"),
            "2.0 s: 40/64 done, 16 running, 250 tokens/s, 1 errors");
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ProgressLine line(file, /*is_terminal=*/false, "64");
  for (int tick = 1; tick <= 11; ++tick) {
    progress.elapsed_seconds = tick;
    line.Update(progress);
  }
  line.Finish();
  std::rewind(file);
  int newlines = 0;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) {
    newlines += c == '\n';
  }
  std::fclose(file);
  EXPECT_EQ(newlines, 2);  // at 5 s and 10 s
}

}  // namespace
}  // namespace recurve
