// `recurve-client bench` with loads that share prefixes, and `generate --n`,
// against a server with a prefix cache.

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/server_fixture.h"

namespace recurve {
namespace {

using nlohmann::json;

ServerOptions CachingOptions(int64_t cache_bytes) {
  ServerOptions options = DemoOptions();
  options.model.prefix_cache_bytes = cache_bytes;
  return options;
}

class BenchCacheE2eTest : public testing::Test {
 protected:
  struct Ran {
    int exit_code = 0;
    std::string out;
    std::string err;
  };

  static Ran RunClientOn(const TestServer& server,
                         std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "recurve-client");
    arguments.insert(arguments.end(), {"--server", server.address()});
    std::vector<const char*> pointers;
    for (const std::string& argument : arguments) {
      pointers.push_back(argument.c_str());
    }
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Ran ran;
    ran.exit_code =
        RunClient(static_cast<int>(pointers.size()), pointers.data());
    std::fflush(stdout);
    ran.out = testing::internal::GetCapturedStdout();
    ran.err = testing::internal::GetCapturedStderr();
    return ran;
  }

  // The report of a verified load; prompts are above 32 tokens, so that each
  // can have a snapshot.
  static json Bench(const TestServer& server, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench",         "--prompt-tokens",
                                          "40:60",         "--output-tokens",
                                          "2:6",           "--turn-tokens",
                                          "10:30",         "--verify",
                                          "--json",        "-",
                                          "--temperature", "0.8",
                                          "--num-requests"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ran ran = RunClientOn(server, arguments);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const json report = json::parse(ran.out, nullptr, false);
    EXPECT_EQ(report["failed"], 0);
    EXPECT_EQ(report["verified"], report["completed"]);
    EXPECT_EQ(report["verify_mismatches"], 0);
    EXPECT_EQ(report["verified_hits"], report["cache_hits"]);
    return report;
  }

  static uint64_t Sum(const json& reasons) {
    uint64_t sum = 0;
    for (const auto& entry : reasons.items()) {
      sum += entry.value().get<uint64_t>();
    }
    return sum;
  }
};

TEST_F(BenchCacheE2eTest, TurnsHitWhatTheTurnBeforeLeft) {
  TestServer server(CachingOptions(int64_t{64} << 20));
  const std::vector<std::string> load = {
      "4", "--concurrency", "2", "--workload", "conversations", "--turns", "3"};
  json report = Bench(server, load);
  EXPECT_EQ(report["completed"], 12);
  // Each turn but the first finds the prompt before it, less its last token.
  EXPECT_EQ(report["cache_hits"], 8);
  EXPECT_EQ(Sum(report["cache_misses"]), 4u);
  EXPECT_GT(report["cache_token_hit_rate"], 0.4);
  EXPECT_TRUE(report["median_ttft_hit_ms"].is_number());
  EXPECT_TRUE(report["median_ttft_miss_ms"].is_number());
  // A second run with the same seed finds nothing of the first.
  report = Bench(server, load);
  EXPECT_EQ(report["cache_hits"], 8);
}

TEST_F(BenchCacheE2eTest, PrefixesHitWithinTheirGroup) {
  TestServer server(CachingOptions(int64_t{64} << 20));
  // One at a time: a model with recurrent layers hits from the third prompt of
  // a group on, or from the second if the prefix is named.
  const std::vector<std::string> load = {
      "12", "--concurrency",   "1", "--workload",      "prefixes", "--turns",
      "1",  "--prefix-groups", "2", "--prefix-tokens", "100"};
  json report = Bench(server, load);
  EXPECT_EQ(report["cache_hits"], 8);
  EXPECT_EQ(report["cached_tokens"], 800);
  std::vector<std::string> named = load;
  named.push_back("--snapshot-prefix");
  report = Bench(server, named);
  EXPECT_EQ(report["cache_hits"], 10);
  EXPECT_EQ(report["cached_tokens"], 1000);
}

TEST_F(BenchCacheE2eTest, BranchesHitTheirParentsContext) {
  TestServer server(CachingOptions(int64_t{64} << 20));
  const json report =
      Bench(server, {"2", "--concurrency", "1", "--workload", "agents",
                     "--branches", "3", "--branch-levels", "1", "--turns", "2",
                     "--prefix-tokens", "100"});
  EXPECT_EQ(report["completed"], 2 * (1 + 3) * 2);
  // All but the first request of each tree.
  EXPECT_GE(report["cache_hits"], 14);
  EXPECT_GT(report["cache_token_hit_rate"], 0.7);
}

TEST_F(BenchCacheE2eTest, WithoutACacheAllMissAndAreVerified) {
  TestServer server(CachingOptions(0));
  const json report = Bench(server, {"3", "--turns", "2"});
  EXPECT_EQ(report["cache_hits"], 0);
  EXPECT_EQ(report["cache_misses"].dump(), R"({"disabled":6})");
}

TEST_F(BenchCacheE2eTest, TheFirstOfNIsTheOnlyOneOfOne) {
  TestServer server;
  const std::vector<std::string> one = {
      "generate", "--prompt", "def f(", "--max-new-tokens",
      "12",       "--seed",   "4",      "--temperature",
      "0.9",      "--json"};
  std::vector<std::string> three = one;
  three.insert(three.end(), {"--n", "3"});
  const json alone = json::parse(RunClientOn(server, one).out);
  const Ran ran = RunClientOn(server, three);
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  const json list = json::parse(ran.out);
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["token_ids"], alone["token_ids"]);
  EXPECT_EQ(list[0]["text"], alone["text"]);
  EXPECT_NE(list[1]["seed"], list[0]["seed"]);
  EXPECT_NE(list[1]["seed"], list[2]["seed"]);
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_EQ(list[k]["sample"], k);
    EXPECT_EQ(list[k]["token_ids"].size(), 12u);
  }
}

}  // namespace
}  // namespace recurve
