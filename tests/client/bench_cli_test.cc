// What `recurve-client bench` says and returns when a run does not go as
// planned.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"
#include "tests/client/run_cli.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// A name for a file of this process that is gone at the end of the test.
class TemporaryPath {
 public:
  explicit TemporaryPath(const std::string& ending)
      : path_(testing::TempDir() + "/recurve_bench_cli_test." +
              std::to_string(getpid()) + ending) {}
  ~TemporaryPath() { std::remove(path_.c_str()); }
  const char* c_str() const { return path_.c_str(); }
  std::string Read() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file),
            std::istreambuf_iterator<char>()};
  }

 private:
  const std::string path_;
};

class BenchCliTest : public CliTest {
 protected:
  // After `good` calls each fails with `code`.
  void FailAfter(int good, grpc::StatusCode code) {
    server_.script = [this, good, code](const v1::GenerateRequest& request) {
      if (calls_.fetch_add(1) < good) return FullScript(request);
      return FakeScript{{}, grpc::Status(code, "as told")};
    };
  }
  // A sweep over rates, of 4, 8 and 16 requests, too few to show a backlog
  // where this machine is slow; the table goes to standard output.
  static Output Sweep(const std::string& json_path,
                      std::vector<const char*> more = {}) {
    std::vector<const char*> arguments = {"bench",
                                          "--sweep-rates",
                                          "20,40,80",
                                          "--duration",
                                          "0.2",
                                          "--prompt-tokens",
                                          "4",
                                          "--arrivals",
                                          "constant",
                                          "--output-tokens",
                                          "2",
                                          "--sweep-refine",
                                          "2",
                                          "--json",
                                          json_path.c_str()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunCli(arguments);
  }

  std::atomic<int> calls_{0};
};

TEST_F(BenchCliTest, AServerThatIsGoneIsNoSaturation) {
  // In the second step, of 8 requests.
  FailAfter(5, grpc::StatusCode::UNAVAILABLE);
  const TemporaryPath json(".json");
  const Output output = Sweep(json.c_str());
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.err, HasSubstr("UNAVAILABLE: 7 requests failed, the "
                                    "first with: as told"));
  EXPECT_THAT(output.out, Not(HasSubstr("Saturated at")));
  EXPECT_THAT(output.out,
              HasSubstr("Unknown whether saturated at 40 requests/s: 7 of 8 "
                        "requests failed, and not for load (UNAVAILABLE)."));
  const auto report = nlohmann::json::parse(json.Read());
  // No third step, and nothing was refined.
  ASSERT_EQ(report["steps"].size(), 2u);
  EXPECT_EQ(report["steps"][0]["saturated"], false);
  EXPECT_TRUE(report["steps"][0]["saturation_reason"].is_null());
  EXPECT_TRUE(report["steps"][1]["saturated"].is_null());
  EXPECT_EQ(report["max_sustained_rate"], 20);
}

TEST_F(BenchCliTest, ARefusingServerIsSaturatedAndSaysSo) {
  FailAfter(5, grpc::StatusCode::RESOURCE_EXHAUSTED);
  const TemporaryPath json(".json");
  const TemporaryPath lines(".jsonl");
  const Output output =
      Sweep(json.c_str(), {"--requests-jsonl", lines.c_str()});
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_THAT(output.err, HasSubstr("RESOURCE_EXHAUSTED: 7 requests failed, "
                                    "the first with: as told"));
  EXPECT_THAT(output.out, HasSubstr("Saturated at 40 requests/s: 88% of the "
                                    "requests failed."));
  const auto report = nlohmann::json::parse(json.Read());
  ASSERT_EQ(report["steps"].size(), 4u);  // two of them refined
  // Steps stand by their rates; requests are matched by first_index.
  std::map<uint64_t, uint64_t> sent;
  std::istringstream stream(lines.Read());
  for (std::string line; std::getline(stream, line);) {
    ++sent[nlohmann::json::parse(line)["index"].get<uint64_t>() >> 32];
  }
  double rate = 0;
  std::vector<uint64_t> first;
  for (const auto& step : report["steps"]) {
    EXPECT_GT(step["request_rate"], rate);
    rate = step["request_rate"];
    first.push_back(step["first_index"].get<uint64_t>() >> 32);
    EXPECT_EQ(sent[first.back()], step["num_prompts"]);
  }
  EXPECT_THAT(first, ElementsAre(0, 3, 2, 1));
}

// One of 20 is not yet more than 5%.
TEST_F(BenchCliTest, AFewRefusalsDoNotEndASweep) {
  server_.script = [this](const v1::GenerateRequest& request) {
    const int call = calls_.fetch_add(1);
    if (call != 3 && call < 40) return FullScript(request);
    return FakeScript{
        {}, grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "as told")};
  };
  const TemporaryPath json(".json");
  // With this seed less than 10 requests of a step are due in its second half,
  // too few to show a backlog where this machine is slow.
  const Output output =
      RunCli({"bench", "--sweep-rates", "100,200,400", "--seed", "12",
              "--num-requests", "20", "--sweep-refine", "2", "--prompt-tokens",
              "4", "--output-tokens", "2", "--json", json.c_str()});
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_THAT(output.err, HasSubstr("RESOURCE_EXHAUSTED: 1 requests failed"));
  const auto report = nlohmann::json::parse(json.Read());
  ASSERT_EQ(report["steps"].size(), 5u);  // two of them refined
  EXPECT_EQ(report["steps"][0]["failed"], 1);
  EXPECT_EQ(report["steps"][0]["saturated"], false);
  EXPECT_EQ(report["max_sustained_rate"], 200);
}

// Whatever the spelling.
TEST_F(BenchCliTest, WhatIsReadIsNotWrittenTo) {
  const TemporaryPath input(".txt");
  const TemporaryPath link(".link");
  ASSERT_EQ(symlink(input.c_str(), link.c_str()), 0);
  const std::string lengths = std::string("file:") + input.c_str();
  const std::string around =
      std::string(input.c_str()).insert(testing::TempDir().size(), "/./");
  for (const std::string& output :
       {std::string(input.c_str()), std::string(link.c_str()), around}) {
    std::ofstream(input.c_str()) << "3\n4\n";
    const Output ran =
        RunCli({"bench", "--num-requests", "1", "--prompt-tokens",
                lengths.c_str(), "--json", output.c_str()});
    EXPECT_EQ(ran.exit_code, 2) << output;
    EXPECT_THAT(ran.err, HasSubstr("is read by --prompt-tokens")) << output;
    EXPECT_EQ(input.Read(), "3\n4\n") << output;
  }
  std::ofstream(input.c_str())
      << R"({"timestamp": 0, "prompt_tokens": 3, "output_tokens": 2})"
      << "\n";
  const std::string trace = input.Read();
  const Output ran = RunCli(
      {"bench", "--trace", input.c_str(), "--requests-jsonl", input.c_str()});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("is read by --trace"));
  EXPECT_EQ(input.Read(), trace);
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(BenchCliTest, AnInterruptedStepIsNotSustained) {
  server_.script = [&](const v1::GenerateRequest& request) {
    const bool last = calls_.fetch_add(1) >= 5;
    return FullScript(request, last ? absl::Seconds(60) : absl::ZeroDuration());
  };
  std::thread other([&] {
    while (server_.requests().size() < 6) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(getpid(), SIGINT);
  });
  const TemporaryPath json(".json");
  const TemporaryPath html(".html");
  const Output output = Sweep(json.c_str(), {"--html", html.c_str()});
  other.join();
  EXPECT_EQ(output.exit_code, 130);
  const auto report = nlohmann::json::parse(json.Read());
  ASSERT_EQ(report["steps"].size(), 2u);
  const auto& step = report["steps"][1];
  EXPECT_EQ(step["stopped_early"], true);
  EXPECT_TRUE(step["saturated"].is_null());
  EXPECT_EQ(report["max_sustained_rate"], 20);
  EXPECT_GE(step["interrupted_requests"], 1);
  EXPECT_TRUE(report["steps"][0]["interrupted_after"].is_null());
  EXPECT_THAT(output.out, HasSubstr("\nInterrupted at 40 requests/s after "));
  EXPECT_THAT(html.Read(), HasSubstr("\"interruption\":\"Interrupted after "));
}

TEST_F(BenchCliTest, ARateIsALeastUnlessAStepSaturated) {
  const TemporaryPath json(".json");
  const Output whole = Sweep(json.c_str());
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.out,
              HasSubstr("\nHighest rate sustained: at least 80 requests/s (no "
                        "step saturated).\n"));
  calls_ = 0;
  FailAfter(5, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(Sweep(json.c_str()).out,
              HasSubstr("\nHighest rate sustained: 20 requests/s.\n"));
  calls_ = 0;
  FailAfter(0, grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(Sweep(json.c_str()).out,
              HasSubstr("\nHighest rate sustained: none.\n"));
}

TEST_F(BenchCliTest, AHangupIsAnInterruptThatLosesNothing) {
  signal(SIGHUP, SIG_DFL);  // a run before may have left it ignored
  server_.script = [&](const v1::GenerateRequest& request) {
    const bool last = calls_.fetch_add(1) >= 3;
    return FullScript(request, last ? absl::Seconds(60) : absl::ZeroDuration());
  };
  std::thread other([&] {
    while (server_.requests().size() < 5) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // As the kernel and the shell do when a terminal closes.
    kill(getpid(), SIGHUP);
    kill(getpid(), SIGHUP);
  });
  const TemporaryPath json(".json");
  const Output output =
      RunCli({"bench", "--concurrency", "2", "--prompt-tokens", "4",
              "--output-tokens", "2", "--json", json.c_str()});
  other.join();
  kill(getpid(), SIGHUP);  // after the run
  EXPECT_EQ(output.exit_code, 130);
  EXPECT_EQ(nlohmann::json::parse(json.Read())["completed"], 3);
  signal(SIGHUP, SIG_DFL);
}

}  // namespace
}  // namespace recurve
