// What a load test sends and when: lengths, arrivals, traces, conversations.

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/loadgen/bench_arrivals.h"
#include "client/loadgen/bench_goodput.h"
#include "client/loadgen/bench_lengths.h"
#include "client/loadgen/bench_plan.h"
#include "client/loadgen/bench_sweep.h"
#include "client/loadgen/bench_trace.h"
#include "client/loadgen/bench_workload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A file that is gone at the end of the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) {
    path_ = testing::TempDir() + "/recurve_bench_load_test." +
            std::to_string(getpid()) + "." + std::to_string(++number_);
    std::ofstream(path_) << content;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  static int number_;
  std::string path_;
};
int TemporaryFile::number_ = 0;

std::vector<double> DrawLengths(const std::string& text, int count) {
  const LengthDistribution lengths = LengthDistribution::Parse(text).value();
  std::vector<double> sample;
  for (int i = 0; i < count; ++i) {
    BenchDraws draws(7, i);
    sample.push_back(lengths.Draw(&draws));
    EXPECT_GE(sample.back(), lengths.min());
    EXPECT_LE(sample.back(), lengths.max());
  }
  std::sort(sample.begin(), sample.end());
  return sample;
}

double Mean(const std::vector<double>& sample) {
  return std::accumulate(sample.begin(), sample.end(), 0.0) / sample.size();
}

double Deviation(const std::vector<double>& sample) {
  const double mean = Mean(sample);
  double sum = 0;
  for (const double value : sample) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / sample.size());
}

TEST(LengthDistributionTest, HasTheMomentsItSays) {
  constexpr int kCount = 20000;
  const auto normal = DrawLengths("normal:200:30:1:1000", kCount);
  EXPECT_NEAR(Mean(normal), 200, 1);
  EXPECT_NEAR(Deviation(normal), 30, 1);
  const auto lognormal = DrawLengths("lognormal:100:0.5:1:100000", kCount);
  EXPECT_NEAR(lognormal[kCount / 2], 100, 2);
  EXPECT_NEAR(Mean(lognormal), 100 * std::exp(0.125), 2);
  // Weights 1, 1/2, 1/3, 1/4.
  const auto zipf = DrawLengths("zipf:1:10:13", kCount);
  EXPECT_NEAR(std::count(zipf.begin(), zipf.end(), 10), kCount * 12 / 25.0,
              300);
  EXPECT_NEAR(std::count(zipf.begin(), zipf.end(), 13), kCount * 3 / 25.0, 300);
  // Ends are kept, and both are reached.
  const auto clamped = DrawLengths("normal:10:100:5:15", 1000);
  EXPECT_EQ(clamped.front(), 5);
  EXPECT_EQ(clamped.back(), 15);
}

TEST(LengthDistributionTest, TakesLengthsFromAFile) {
  const TemporaryFile file("3\n\n 9 \n3\n3\r\n");
  const auto sample = DrawLengths("file:" + file.path(), 4000);
  EXPECT_NEAR(std::count(sample.begin(), sample.end(), 3), 3000, 150);
  EXPECT_EQ(sample.back(), 9);
  EXPECT_EQ(sample.front(), 3);
}

TEST(LengthDistributionTest, RefusesEverythingElse) {
  const TemporaryFile empty("\n");
  const TemporaryFile zero("4\n0\n");
  for (const std::string& text : std::vector<std::string>{
           "", "0", "2:1", "normal", "normal:1:1:1", "normal:0:1:1:2",
           "normal:nan:1:1:2", "lognormal:5:0:1:2", "zipf:1:2:1", "zipf:-1:1:2",
           "gauss:1:2:3:4", "zipf:1:1:4000000000", "file:" + empty.path(),
           "file:" + zero.path(), "file:/no/such"}) {
    EXPECT_FALSE(LengthDistribution::Parse(text).ok()) << text;
  }
  EXPECT_THAT(
      std::string(
          LengthDistribution::Parse("file:" + zero.path()).status().message()),
      HasSubstr("line 2: '0'"));
}

// Gaps of the first arrivals.
std::vector<double> Gaps(const ArrivalConfig& config, int count) {
  ArrivalSchedule schedule(config);
  std::vector<double> gaps;
  double last = schedule.Next().value();
  EXPECT_EQ(last, 0);
  for (int i = 0; i < count; ++i) {
    const double next = schedule.Next().value();
    gaps.push_back(next - last);
    last = next;
  }
  return gaps;
}

TEST(ArrivalScheduleTest, GapsHaveTheirMeanAndSpread) {
  ArrivalConfig config;
  config.rate = 20;
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    config.burstiness = burstiness;
    const auto gaps = Gaps(config, 40000);
    EXPECT_NEAR(Mean(gaps), 0.05, 0.0015) << burstiness;
    EXPECT_NEAR(Deviation(gaps) / Mean(gaps), 1 / std::sqrt(burstiness), 0.04);
    EXPECT_GE(*std::min_element(gaps.begin(), gaps.end()), 0);
  }
  EXPECT_EQ(Gaps(config, 10), Gaps(config, 10));
  config.constant = true;
  for (const double gap : Gaps(config, 1000)) EXPECT_NEAR(gap, 0.05, 1e-12);
}

TEST(ArrivalScheduleTest, ReplaysATraceFaster) {
  ArrivalConfig config;
  config.trace = std::make_shared<const std::vector<TraceEntry>>(
      std::vector<TraceEntry>{{0, 1, 1}, {3, 1, 1}});
  config.trace_speed = 2;
  ArrivalSchedule schedule(config);
  EXPECT_EQ(schedule.Next(), 0);
  EXPECT_EQ(schedule.Next(), 1.5);
  EXPECT_FALSE(schedule.Next().has_value());
}

TEST(TraceTest, SortsAndBeginsAtZero) {
  const auto trace = ParseTrace(
      "{\"timestamp\": 12.5, \"prompt_tokens\": 3, \"output_tokens\": 4}\n"
      "\n"
      "{\"timestamp\": 10, \"prompt_tokens\": 1, \"output_tokens\": 2, "
      "\"user\": 7}");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].seconds, 0);
  EXPECT_EQ((*trace)[0].prompt_tokens, 1u);
  EXPECT_EQ((*trace)[1].seconds, 2.5);
  EXPECT_EQ((*trace)[1].output_tokens, 4u);
}

TEST(TraceTest, NamesLineAndKey) {
  const auto message = [](const std::string& line) {
    return std::string(ParseTrace("\n" + line).status().message());
  };
  EXPECT_THAT(message("nonsense"), HasSubstr("line 2 is not a JSON object"));
  EXPECT_THAT(message("[]"), HasSubstr("line 2 is not a JSON object"));
  EXPECT_THAT(message(R"({"prompt_tokens": 1, "output_tokens": 1})"),
              HasSubstr("'timestamp'"));
  EXPECT_THAT(
      message(R"({"timestamp": 0, "prompt_tokens": 0, "output_tokens": 1})"),
      HasSubstr("'prompt_tokens'"));
  EXPECT_THAT(
      message(
          R"({"timestamp": 0, "prompt_tokens": 1, "output_tokens": 4294967296})"),
      HasSubstr("'output_tokens'"));
  EXPECT_THAT(message(""), HasSubstr("has no requests"));
  // Not sent, as far away as that.
  EXPECT_THAT(
      message(R"({"timestamp": 1e308, "prompt_tokens": 1, "output_tokens": 1}
{"timestamp": 0, "prompt_tokens": 1, "output_tokens": 1})"),
      HasSubstr("has timestamps from 0 to 1e+308; expected at most 1e+09"));
}

TEST(GoodputTest, ParsesAndJudges) {
  const ServiceLevel level = ParseServiceLevel({"ttft:200", "tpot:50"}).value();
  RequestLatency latency;
  latency.ttft_ms = 200;
  EXPECT_TRUE(KeepsServiceLevel(latency, level));  // one token: no TPOT
  latency.tpot_ms = 50.5;
  EXPECT_FALSE(KeepsServiceLevel(latency, level));
  latency.tpot_ms = 50;
  latency.e2el_ms = 1e9;
  EXPECT_TRUE(KeepsServiceLevel(latency, level));
  latency.ttft_ms = 201;
  EXPECT_FALSE(KeepsServiceLevel(latency, level));
  EXPECT_FALSE(ServiceLevel().any());
  for (const char* bad : {"", "ttft", "ttft:", "ttft:0", "ttft:x", "itl:5"}) {
    EXPECT_FALSE(ParseServiceLevel({bad}).ok()) << bad;
  }
  EXPECT_FALSE(ParseServiceLevel({"ttft:1", "ttft:2"}).ok());
}

TEST(SweepTest, ParsesListsAndDoublings) {
  EXPECT_THAT(ParseRates("0.5,2,3").value(), ElementsAre(0.5, 2, 3));
  EXPECT_THAT(ParseRates("1:9").value(), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(ParseRates("0.1:0.8").value(), ElementsAre(0.1, 0.2, 0.4, 0.8));
  EXPECT_THAT(ParseConcurrencies("1:4").value(), ElementsAre(1, 2, 4));
  for (const char* bad : {"", "0", "2,1", "1,1", "1:", "4:1", "1:2:3", "x",
                          "inf", "1e-300:1e300"}) {
    EXPECT_FALSE(ParseRates(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseConcurrencies("1.5").ok());
  EXPECT_FALSE(ParseConcurrencies("20000").ok());
}

// `rate` requests a second for 20 seconds; the server ends `capacity` a second.
BenchResult Queue(double rate, double capacity) {
  BenchResult result;
  double free = 0;
  for (int i = 0; i < rate * 20; ++i) {
    RequestRecord record;
    record.start_seconds = i / rate;
    free = std::max(free, record.start_seconds) + 1 / capacity;
    record.latency.e2el_ms = 1000 * (free - record.start_seconds);
    record.outcome = Outcome::kCompleted;
    result.records.push_back(record);
  }
  return result;
}

TEST(SweepTest, TellsAServerThatFallsBehind) {
  EXPECT_EQ(Judge(Queue(10, 11)).saturated, false);
  EXPECT_EQ(Judge(Queue(10, 100)).saturated, false);
  EXPECT_EQ(Judge(Queue(10, 5)).saturated, true);
  EXPECT_THAT(Judge(Queue(10, 5)).reason,
              HasSubstr("100 requests arrived and 50 ended"));
  EXPECT_EQ(Judge(Queue(40, 30)).saturated, true);
  // Two requests say nothing.
  EXPECT_EQ(Judge(Queue(0.1, 0.01)).saturated, false);
  EXPECT_EQ(Judge({}).saturated, false);
}

// The first `count` of 200 requests fail.
BenchResult Failing(int count, const absl::Status& status) {
  BenchResult result = Queue(10, 100);
  for (int i = 0; i < count; ++i) {
    result.records[i].outcome = Outcome::kFailed;
    result.records[i].status = status;
  }
  return result;
}

TEST(SweepTest, OnlyFailuresForLoadAreSaturation) {
  for (const absl::Status& status : {absl::ResourceExhaustedError("full"),
                                     absl::DeadlineExceededError("late")}) {
    EXPECT_EQ(Judge(Failing(10, status)).saturated, false);
    const Verdict verdict = Judge(Failing(11, status));
    EXPECT_EQ(verdict.saturated, true) << status;
    EXPECT_EQ(verdict.reason, "6% of the requests failed");
  }
  for (const absl::Status& status :
       {absl::UnavailableError("gone"), absl::InternalError("fault"),
        absl::DataLossError("gap"), absl::CancelledError("aborted"),
        absl::InvalidArgumentError("no")}) {
    EXPECT_FALSE(Judge(Failing(1, status)).saturated.has_value()) << status;
  }
  BenchResult crash = Failing(150, absl::ResourceExhaustedError("full"));
  crash.records[60].status = absl::UnavailableError("gone");
  const Verdict verdict = Judge(crash);
  EXPECT_FALSE(verdict.saturated.has_value());
  EXPECT_EQ(verdict.reason,
            "1 of 200 requests failed, and not for load (UNAVAILABLE)");
}

TEST(SweepTest, AStepCutShortSaysNothing) {
  BenchResult stopped = Queue(10, 100);
  stopped.stopped = true;
  EXPECT_FALSE(Judge(stopped).saturated.has_value());
  EXPECT_EQ(Judge(stopped).reason, "the step was interrupted");
  stopped = Queue(10, 5);
  stopped.stopped = true;
  EXPECT_FALSE(Judge(stopped).saturated.has_value());
  // What made it give up may tell.
  BenchResult gave_up = Failing(11, absl::ResourceExhaustedError("full"));
  gave_up.gave_up = true;
  EXPECT_EQ(Judge(gave_up).saturated, true);
  gave_up = Failing(10, absl::ResourceExhaustedError("full"));
  gave_up.gave_up = true;
  EXPECT_FALSE(Judge(gave_up).saturated.has_value());
}

TEST(SweepTest, FindsTheSustainedRate) {
  EXPECT_FALSE(MaxSustainedRate({}).has_value());
  EXPECT_EQ(MaxSustainedRate({{1, false}, {2, false}}), 2);
  // A rate above a saturated one does not count, whatever it looked like.
  EXPECT_EQ(MaxSustainedRate({{1, false}, {2, true}, {4, false}}), 1);
  EXPECT_FALSE(MaxSustainedRate({{1, true}}).has_value());
  EXPECT_FALSE(RateBetween({{1, false}}).has_value());
  EXPECT_DOUBLE_EQ(RateBetween({{4, false}, {8, true}}).value(), 5.66);
  EXPECT_NEAR(RateBetween({{5, false}, {5.0001, true}}).value(), 5.00005, 1e-6);
}

WorkloadConfig ThreeTurns() {
  WorkloadConfig config;
  config.prompt_tokens = {5, 5};
  config.output_tokens = {3, 4};
  config.turn_tokens = {7, 7};
  config.turns = {3, 3};
  return config;
}

TEST(ConversationTest, GoesOnFromTheOutput) {
  v1::ModelInfo model;
  model.set_vocab_size(50);
  model.set_max_model_len(100);
  model.set_bos_token_id(2);
  WorkloadConfig config = ThreeTurns();
  config.cancel_fraction = 1;
  const Workload workload = Workload::Create(config, model).value();
  EXPECT_EQ(workload.Turns(0), 3u);
  const WorkItem first = workload.Make(4);
  EXPECT_EQ(first.request.prompt_ids().ids_size(), 5);
  EXPECT_EQ(first.cancel_after_tokens, 0u);  // only the last turn's is
  std::vector<uint32_t> history(first.request.prompt_ids().ids().begin(),
                                first.request.prompt_ids().ids().end());
  history.insert(history.end(), {40, 41, 42});
  const WorkItem second = workload.MakeTurn(4, 1, history);
  const auto& ids = second.request.prompt_ids().ids();
  ASSERT_EQ(ids.size(), 15);
  EXPECT_TRUE(std::equal(history.begin(), history.end(), ids.begin()));
  EXPECT_NE(ids[8], 2u);  // no second beginning of sequence
  EXPECT_GT(workload.MakeTurn(4, 2, history).cancel_after_tokens, 0u);
  // 5 + 4 + 2 * (7 + 4) = 31 tokens at the end.
  model.set_max_model_len(31);
  EXPECT_TRUE(Workload::Create(config, model).ok());
  model.set_max_model_len(30);
  EXPECT_THAT(std::string(Workload::Create(config, model).status().message()),
              HasSubstr("5 + 4 + 2 more turns of 7 + 4 = 31"));
}

// For a model that processes prompts as a whole; later turns resend everything.
TEST(ConversationTest, PromptsMayBeBoundedByThemselves) {
  v1::ModelInfo model;
  model.set_vocab_size(50);
  model.set_max_model_len(100);
  model.set_max_prompt_tokens(27);
  WorkloadConfig config = ThreeTurns();
  EXPECT_TRUE(Workload::Create(config, model).ok());
  model.set_max_prompt_tokens(26);
  EXPECT_THAT(
      std::string(Workload::Create(config, model).status().message()),
      HasSubstr("and --output-tokens: prompts of up to 27 tokens, but"));
  config.turns = {1, 1};
  config.trace = std::make_shared<const std::vector<TraceEntry>>(
      std::vector<TraceEntry>{{0, 4, 40}, {1, 28, 3}});
  EXPECT_THAT(std::string(Workload::Create(config, model).status().message()),
              HasSubstr("--trace: prompts of up to 28 tokens, but"));
}

TEST(ConversationTest, TraceGivesTheLengths) {
  v1::ModelInfo model;
  model.set_vocab_size(50);
  model.set_max_model_len(11);
  WorkloadConfig config;
  config.trace = std::make_shared<const std::vector<TraceEntry>>(
      std::vector<TraceEntry>{{0, 4, 2}, {1, 9, 3}});
  EXPECT_THAT(std::string(Workload::Create(config, model).status().message()),
              HasSubstr("--trace: up to 9 + 3 = 12"));
  model.set_max_model_len(12);
  const Workload workload = Workload::Create(config, model).value();
  EXPECT_EQ(workload.Make(1).request.prompt_ids().ids_size(), 9);
  EXPECT_EQ(workload.Make(1).request.stopping().max_new_tokens(), 3u);
  EXPECT_EQ(workload.Make(2).request.prompt_ids().ids_size(), 4);
}

TEST(BenchPlanTest, ModesAndDefaults) {
  BenchFlags flags;
  flags.rate = 5;
  BenchPlan plan = MakeBenchPlan(flags).value();
  EXPECT_EQ(plan.options.arrivals->burstiness, 1);
  EXPECT_EQ(plan.options.concurrency, 10000u);
  EXPECT_FALSE(plan.max_concurrency.has_value());
  EXPECT_EQ(plan.options.num_requests, 64u);
  flags.max_concurrency = 250;
  flags.arrivals = "bursty";
  flags.verify = "all";
  flags.goodput = {"e2el:5"};
  plan = MakeBenchPlan(flags).value();
  EXPECT_EQ(plan.connections, 3u);
  EXPECT_EQ(plan.options.arrivals->burstiness, 0.25);
  EXPECT_GT(plan.verify, uint64_t{1} << 60);
  EXPECT_EQ(plan.service_level.e2el_ms, 5);
  BenchFlags sweep;
  sweep.sweep_concurrency = "1:300";
  plan = MakeBenchPlan(sweep).value();
  EXPECT_EQ(plan.connections, 3u);
  EXPECT_EQ(plan.options.start_for, absl::Seconds(20));
  EXPECT_FALSE(plan.options.arrivals.has_value());
  const TemporaryFile file(
      R"({"timestamp": 0, "prompt_tokens": 1, "output_tokens": 1})");
  BenchFlags trace;
  trace.trace_path = file.path();
  trace.trace_speed = 3;
  plan = MakeBenchPlan(trace).value();
  EXPECT_EQ(plan.options.num_requests, 1u);
  EXPECT_EQ(plan.options.arrivals->trace_speed, 3);
  trace.output_tokens = "5";
  EXPECT_THAT(std::string(MakeBenchPlan(trace).status().message()),
              HasSubstr("--trace"));
}

TEST(BenchPlanTest, ThinkTimeIsFromZeroOn) {
  BenchFlags flags;
  flags.turns = "2";
  for (const double seconds : {0.0, 0.5}) {
    flags.think_time_seconds = seconds;
    const auto plan = MakeBenchPlan(flags);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->options.think_time, absl::Seconds(seconds));
  }
  for (const double seconds : {-0.5, std::nan(""), 2e9}) {
    flags.think_time_seconds = seconds;
    EXPECT_THAT(std::string(MakeBenchPlan(flags).status().message()),
                HasSubstr(absl::StrCat("--think-time: ", seconds,
                                       " is not a number of "
                                       "seconds from 0 to 1e+09")));
  }
}

TEST(BenchPlanTest, RefusesWhatDoesNotGoTogether) {
  const auto message = [](const std::function<void(BenchFlags*)>& set) {
    BenchFlags flags;
    set(&flags);
    return std::string(MakeBenchPlan(flags).status().message());
  };
  using F = BenchFlags;
  EXPECT_THAT(message([](F* f) { f->concurrency = 2, f->rate = 1; }),
              HasSubstr("--concurrency: not together with --rate"));
  EXPECT_THAT(message([](F* f) { f->sweep_rates = "1", f->rate = 1; }),
              HasSubstr("--rate: not together with --sweep-rates"));
  EXPECT_THAT(message([](F* f) { f->rate = 0; }), HasSubstr("--rate: 0"));
  EXPECT_THAT(message([](F* f) { f->arrivals = "constant"; }),
              HasSubstr("--arrivals: needs --rate"));
  EXPECT_THAT(message([](F* f) { f->burstiness = 2; }),
              HasSubstr("--burstiness: needs --rate"));
  EXPECT_THAT(message([](F* f) {
                f->rate = 1, f->burstiness = 2, f->arrivals = "constant";
              }),
              HasSubstr("not together with --arrivals constant"));
  EXPECT_THAT(message([](F* f) { f->rate = 1, f->burstiness = 0; }),
              HasSubstr("--burstiness: 0 is not in 0.01 to 1000"));
  EXPECT_THAT(message([](F* f) { f->max_concurrency = 2; }),
              HasSubstr("--max-concurrency: needs --rate"));
  EXPECT_THAT(message([](F* f) { f->trace_speed = 2; }),
              HasSubstr("--trace-speed: needs --trace"));
  EXPECT_THAT(message([](F* f) { f->trace_path = "/no/such/file"; }),
              HasSubstr("--trace: '/no/such/file'"));
  EXPECT_THAT(message([](F* f) { f->sweep_refine = 2; }),
              HasSubstr("--sweep-refine: needs --sweep-rates"));
  EXPECT_THAT(message([](F* f) { f->turn_tokens = "2"; }),
              HasSubstr("--turn-tokens: needs --turns"));
  EXPECT_THAT(message([](F* f) { f->think_time_seconds = 2; }),
              HasSubstr("--think-time: needs --turns"));
  EXPECT_THAT(message([](F* f) { f->turns = "1:1001"; }),
              HasSubstr("--turns: 1001 is above 1000"));
  EXPECT_THAT(message([](F* f) { f->verify = "0"; }),
              HasSubstr("--verify: '0'"));
  EXPECT_THAT(message([](F* f) { f->goodput = {"ttft:-1"}; }),
              HasSubstr("--goodput: 'ttft:-1'"));
  EXPECT_THAT(message([](F* f) { f->html_path = "-"; }), HasSubstr("--html"));
  EXPECT_THAT(message([](F* f) { f->prompt_tokens = "zipf"; }),
              HasSubstr("--prompt-tokens: 'zipf'"));
}

}  // namespace
}  // namespace recurve
