// Loads that share prefixes: what is sent, what the report says of the prefix
// cache, and how hits are verified.

#include "client/loadgen/bench_sharing.h"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/loadgen/bench_cache.h"
#include "client/loadgen/bench_plan.h"
#include "client/loadgen/bench_report.h"
#include "client/loadgen/bench_runner.h"
#include "client/loadgen/bench_tree.h"
#include "client/loadgen/bench_verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"
#include "tests/client/run_cli.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

using Ids = std::vector<uint32_t>;

Ids PromptOf(const v1::GenerateRequest& request) {
  return {request.prompt_ids().ids().begin(), request.prompt_ids().ids().end()};
}

bool BeginsWith(const Ids& prompt, const Ids& prefix) {
  return prompt.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), prompt.begin());
}

Ids First(const Ids& prompt, size_t count) {
  return {prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(count)};
}

v1::ModelInfo LargeModel() {
  v1::ModelInfo model;
  model.set_vocab_size(10000);
  model.set_max_model_len(100000);
  model.set_bos_token_id(2);
  return model;
}

TEST(RequestTreeTest, WithoutLevelsItIsALine) {
  const RequestTree line(3, 1, 0);
  EXPECT_EQ(line.size(), 3u);
  EXPECT_EQ(line.Parent(0), std::nullopt);
  EXPECT_EQ(line.Parent(2), 1u);
  EXPECT_THAT(line.Children(0), ElementsAre(1));
  EXPECT_THAT(line.Children(2), ElementsAre());
  EXPECT_FALSE(line.BeginsBranch(0) || line.BeginsBranch(1));
  EXPECT_EQ(RequestTree(1, 1, 0).size(), 1u);
  EXPECT_THAT(RequestTree(1, 1, 0).Children(0), ElementsAre());
}

TEST(RequestTreeTest, BranchesGoOnFromTheEndOfTheirParent) {
  const RequestTree tree(2, 3, 2);
  EXPECT_EQ(tree.size(), 26u);
  EXPECT_THAT(tree.Children(0), ElementsAre(1));
  EXPECT_THAT(tree.Children(1), ElementsAre(2, 4, 6));
  EXPECT_THAT(tree.Children(3), ElementsAre(8, 10, 12));
  EXPECT_THAT(tree.Children(7), ElementsAre(20, 22, 24));
  EXPECT_THAT(tree.Children(25), ElementsAre());
  EXPECT_TRUE(tree.BeginsBranch(20));
  EXPECT_FALSE(tree.BeginsBranch(21));
}

TEST(RequestTreeTest, ParentsAndChildrenAgree) {
  for (const uint32_t turns : {1u, 2u, 5u}) {
    for (const uint32_t branches : {1u, 2u, 4u}) {
      const RequestTree tree(turns, branches, 3);
      std::set<uint32_t> seen = {0};
      for (uint32_t i = 0; i < tree.size(); ++i) {
        for (const uint32_t child : tree.Children(i)) {
          EXPECT_EQ(tree.Parent(child), i);
          EXPECT_TRUE(seen.insert(child).second);
        }
      }
      EXPECT_EQ(seen.size(), tree.size());
      EXPECT_EQ(*seen.rbegin(), tree.size() - 1);
    }
  }
}

TEST(RequestTreeTest, CountsWithoutOverflow) {
  EXPECT_EQ(RequestTree::CountRequests(2, 3, 2), 26u);
  EXPECT_EQ(RequestTree::CountLeaves(3, 2), 9u);
  EXPECT_EQ(RequestTree::CountLeaves(1, UINT32_MAX), 1u);
  const uint64_t most = uint64_t{1} << 63;
  EXPECT_EQ(RequestTree::CountRequests(1000, 64, 16), most);
  EXPECT_EQ(RequestTree::CountRequests(UINT32_MAX, UINT32_MAX, UINT32_MAX),
            most);
  EXPECT_EQ(RequestTree::CountLeaves(UINT32_MAX, UINT32_MAX), most);
}

WorkloadConfig ThreeGroups() {
  WorkloadConfig config;
  config.prefix_groups = 3;
  config.prefix_tokens = {20, 40};
  config.prompt_tokens = {5, 9};
  config.output_tokens = {2, 4};
  return config;
}

TEST(PrefixWorkloadTest, GroupsSharePrefixesAndNothingElse) {
  WorkloadConfig config = ThreeGroups();
  config.snapshot_prefix = true;
  config.cache_key = "key";
  const Workload workload = Workload::Create(config, LargeModel()).value();
  std::map<uint64_t, Ids> prefixes;  // by group
  std::set<Ids> tails;
  for (uint64_t i = 0; i < 30; ++i) {
    const v1::GenerateRequest request = workload.Make(i).request;
    const Ids prompt = PromptOf(request);
    ASSERT_EQ(request.snapshot_at_size(), 1);
    const uint32_t shared = request.snapshot_at(0);
    EXPECT_GE(shared, 20u);
    EXPECT_LE(shared, 40u);
    EXPECT_GE(prompt.size() - shared, 5u);
    EXPECT_LE(prompt.size() - shared, 9u);
    EXPECT_EQ(prompt[0], 2u);
    EXPECT_EQ(request.cache_key(), "key");
    const Ids prefix = First(prompt, shared);
    EXPECT_EQ(prefixes.try_emplace(i % 3, prefix).first->second, prefix) << i;
    tails.insert(Ids(prompt.begin() + shared, prompt.end()));
  }
  EXPECT_EQ(tails.size(), 30u);
  EXPECT_NE(First(prefixes[0], 20), First(prefixes[1], 20));
  EXPECT_NE(First(prefixes[1], 20), First(prefixes[2], 20));
  // Another run of the bench sends the same, another step of it does not.
  const Workload same = Workload::Create(config, LargeModel()).value();
  EXPECT_EQ(PromptOf(same.Make(4).request), PromptOf(workload.Make(4).request));
  const Ids step = PromptOf(workload.Make(kIndicesPerRun + 3).request);
  EXPECT_NE(First(step, 20), First(prefixes[0], 20));
  config.seed = 1;
  const Workload other = Workload::Create(config, LargeModel()).value();
  EXPECT_NE(First(PromptOf(other.Make(0).request), 20), First(prefixes[0], 20));
}

TEST(PrefixWorkloadTest, PrefixesCountAgainstTheModelsLength) {
  WorkloadConfig config = ThreeGroups();
  v1::ModelInfo model = LargeModel();
  model.set_max_model_len(53);  // 40 + 9 + 4
  EXPECT_TRUE(Workload::Create(config, model).ok());
  model.set_max_model_len(52);
  EXPECT_THAT(std::string(Workload::Create(config, model).status().message()),
              HasSubstr("--prefix-tokens, --prompt-tokens and --output-tokens: "
                        "up to 40 + 9 + 4 = 53 tokens, but the server's "
                        "max_model_len is 52"));
  // 5 more turns on the way to a leaf: 3 levels of 2 turns.
  config.turns = {2, 2};
  config.turn_tokens = {10, 10};
  config.branches = 2;
  config.branch_levels = 2;
  EXPECT_THAT(std::string(Workload::Create(config, model).status().message()),
              HasSubstr("40 + 9 + 4 + 5 more turns of 10 + 4 = 123"));
}

BenchFlags FlagsOf(const std::string& workload) {
  BenchFlags flags;
  flags.workload = workload;
  return flags;
}

TEST(BenchSharingTest, KindsHaveTheirDefaults) {
  const auto made = [](const BenchFlags& flags) {
    return MakeBenchPlan(flags).value().workload;
  };
  EXPECT_EQ(made(BenchFlags()).prefix_groups, 0u);
  EXPECT_EQ(made(FlagsOf("random")).turns.max(), 1u);
  EXPECT_EQ(made(FlagsOf("prefixes")).prefix_groups, 8u);
  EXPECT_EQ(made(FlagsOf("prefixes")).turns.max(), 1u);
  EXPECT_EQ(made(FlagsOf("conversations")).turns.max(), 4u);
  const WorkloadConfig agents = made(FlagsOf("agents"));
  EXPECT_EQ(agents.prefix_groups, 1u);
  EXPECT_EQ(agents.branches, 2u);
  EXPECT_EQ(agents.branch_levels, 2u);
  EXPECT_EQ(agents.turns.max(), 2u);
  BenchFlags turns;
  turns.turns = "3";
  EXPECT_EQ(WorkloadName(turns), "conversations");
  EXPECT_EQ(WorkloadName(BenchFlags()), "random");
}

TEST(BenchSharingTest, AClosedLoopHasConnectionsForAllBranches) {
  BenchFlags flags = FlagsOf("agents");
  flags.concurrency = 100;
  EXPECT_EQ(MakeBenchPlan(flags)->connections, 4u);
  flags.concurrency = 2500;
  EXPECT_TRUE(MakeBenchPlan(flags).ok());
  flags.concurrency = 2501;
  EXPECT_THAT(std::string(MakeBenchPlan(flags).status().message()),
              HasSubstr("--concurrency: 2501 trees of 4 branches at a time are "
                        "10004 streams, above 10000"));
}

TEST(BenchSharingTest, RefusesFlagsOfOtherKinds) {
  using F = BenchFlags;
  const auto message = [](const char* workload,
                          const std::function<void(F*)>& set) {
    BenchFlags flags = FlagsOf(workload);
    set(&flags);
    return std::string(MakeBenchPlan(flags).status().message());
  };
  EXPECT_EQ(message("random", [](F* f) { f->turns = "3"; }),
            "--turns: 3 not together with --workload random");
  EXPECT_THAT(message("prefixes", [](F* f) { f->turn_tokens = "3"; }),
              StartsWith("--turn-tokens: needs --turns"));
  EXPECT_EQ(message("agents", [](F* f) { f->prefix_groups = 2; }),
            "--prefix-groups: needs --workload prefixes");
  for (const char* workload : {"", "random", "conversations"}) {
    EXPECT_EQ(
        message(workload, [](F* f) { f->prefix_tokens = "9"; }),
        "--prefix-tokens: needs --workload prefixes or --workload agents");
    EXPECT_THAT(message(workload, [](F* f) { f->snapshot_prefix = true; }),
                StartsWith("--snapshot-prefix: needs --workload"));
  }
  EXPECT_EQ(message("prefixes", [](F* f) { f->branches = 2; }),
            "--branches: needs --workload agents");
  EXPECT_EQ(message("prefixes", [](F* f) { f->branch_levels = 2; }),
            "--branch-levels: needs --workload agents");
  EXPECT_EQ(message("agents", [](F* f) { f->trace_path = "/x"; }),
            "--workload: agents not together with --trace, which has the "
            "lengths");
  EXPECT_THAT(message("prefixes", [](F* f) { f->prefix_tokens = "5:4"; }),
              StartsWith("--prefix-tokens: '5:4'"));
  EXPECT_EQ(message("agents", [](F* f) { f->turns = "50000"; }),
            "--turns: 50000 is above 1000");
  EXPECT_THAT(
      message("agents", [](F* f) { f->branches = 64, f->branch_levels = 3; }),
      HasSubstr("64 branches at each of 3 levels with 2 turns has more "
                "than 100000 requests"));
  EXPECT_THAT(
      message("random", [](F* f) { f->cache_key = std::string(257, 'x'); }),
      HasSubstr("--cache-key: 257 bytes are above 256"));
}

TEST(BenchCacheTest, CountsHitsAndMissesByReason) {
  BenchResult result;
  const auto add = [&](uint32_t cached, v1::CacheMiss miss, double ttft_ms,
                       Outcome outcome = Outcome::kCompleted) {
    RequestRecord record;
    record.outcome = outcome;
    record.prompt_tokens = 100;
    record.generation.token_ids = {1};
    record.generation.finished = true;
    v1::CacheUse* use = record.generation.end.mutable_usage()->mutable_cache();
    use->set_cached_tokens(cached);
    use->set_written_tokens(99 - cached);
    use->set_miss(miss);
    record.latency.ttft_ms = ttft_ms;
    result.records.push_back(record);
  };
  add(0, v1::CACHE_MISS_UNKNOWN, 50);
  add(0, v1::CACHE_MISS_UNKNOWN, 60);
  add(0, v1::CACHE_MISS_EVICTED, 70);
  add(99, v1::CACHE_MISS_NONE, 4);
  add(64, v1::CACHE_MISS_DIVERGED, 6);
  add(64, v1::CACHE_MISS_DIVERGED, 1000, Outcome::kFailed);
  const auto report = MakeReport(result);
  EXPECT_EQ(report["cached_tokens"], 163);
  EXPECT_EQ(report["cache_written_tokens"], 3 * 99 + 35);
  EXPECT_EQ(report["cache_hits"], 2);
  EXPECT_EQ(report["cache_hit_rate"], 0.4);
  EXPECT_EQ(report["cache_token_hit_rate"], 0.326);
  EXPECT_EQ(report["cache_misses"].dump(), R"({"unknown":2,"evicted":1})");
  EXPECT_EQ(report["cache_partial_hits"].dump(), R"({"diverged":1})");
  EXPECT_EQ(report["median_ttft_hit_ms"], 5);
  EXPECT_EQ(report["median_ttft_miss_ms"], 60);
  const std::string table = FormatReport(report);
  EXPECT_THAT(table, HasSubstr("  % of completed requests          40.00\n"));
  EXPECT_THAT(table, HasSubstr("    evicted                            1\n"));
  EXPECT_THAT(table, HasSubstr("\n hit "));
  EXPECT_THAT(FormatRecord(result.records[4]),
              HasSubstr(R"("cached_tokens":64,"cache_written_tokens":35,)"
                        R"("cache_miss":"diverged")"));
  result.records[4].generation.finished = false;
  EXPECT_THAT(FormatRecord(result.records[4]),
              HasSubstr(R"("cached_tokens":null)"));
}

TEST(BenchCacheTest, ARunWithoutRequestsHasNoRates) {
  const auto report = MakeReport(BenchResult());
  EXPECT_TRUE(report["cache_hit_rate"].is_null());
  EXPECT_TRUE(report["cache_token_hit_rate"].is_null());
  EXPECT_TRUE(report["median_ttft_hit_ms"].is_null());
  EXPECT_EQ(report["cache_misses"].dump(), "{}");
  FormatReport(report);
}

TEST(BenchCacheTest, KeysDiffer) {
  const std::string key = UniqueCacheKey("run");
  EXPECT_THAT(key, StartsWith("bench-run-"));
  EXPECT_NE(key, UniqueCacheKey("run"));
}

// A server that says it had the first 4 tokens of each prompt that it has seen
// with the same key, and whose first token depends on the prompt.
class CachingServerTest : public testing::Test {
 protected:
  CachingServerTest() {
    server_.script = [this](const v1::GenerateRequest& request) {
      FakeScript script = FullScript(request);
      v1::CacheUse* use = script.steps.back()
                              .event.mutable_finished()
                              ->mutable_usage()
                              ->mutable_cache();
      MutexLock lock(&mu_);
      const bool seen = !seen_
                             .insert({ignore_key_ ? "" : request.cache_key(),
                                      First(PromptOf(request), 4)})
                             .second;
      use->set_cached_tokens(seen ? 4 : 0);
      use->set_miss(seen ? v1::CACHE_MISS_DIVERGED : v1::CACHE_MISS_UNKNOWN);
      const bool wrong = seen && wrong_hits_;
      script.steps[1].event.mutable_tokens()->set_ids(0, wrong ? 77 : 10);
      return script;
    };
  }

  BenchResult Run(const WorkloadConfig& config, uint32_t concurrency,
                  uint64_t conversations) {
    workload_ = std::make_unique<Workload>(
        Workload::Create(config, server_.model).value());
    BenchOptions options;
    options.concurrency = concurrency;
    options.num_requests = conversations;
    BenchRunner runner({client_.get()}, workload_.get(), options);
    return runner.Run(0, [](const BenchProgress&) {});
  }
  absl::StatusOr<VerifyResult> Verify(const BenchResult& result,
                                      uint64_t limit = 1000) {
    return VerifyAlone(client_.get(), *workload_, result, limit, {});
  }

  Mutex mu_;
  std::set<std::pair<std::string, Ids>> seen_ ABSL_GUARDED_BY(mu_);
  bool ignore_key_ = false;
  bool wrong_hits_ = false;
  FakeServer server_;
  std::unique_ptr<RecurveClient> client_ =
      RecurveClient::Create(server_.address()).value();
  std::unique_ptr<Workload> workload_;
};

TEST_F(CachingServerTest, HitsAreComparedWithColdRuns) {
  const BenchResult result = Run(ThreeGroups(), 1, 12);
  EXPECT_EQ(MakeReport(result)["cache_hits"], 9);
  const auto verified = Verify(result);
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->checked, 12u);
  EXPECT_EQ(verified->hits, 9u);
  EXPECT_THAT(verified->mismatches, ElementsAre());
  // Each cold run had a key of its own.
  std::set<std::string> keys;
  for (const v1::GenerateRequest& request : server_.requests()) {
    keys.insert(request.cache_key());
  }
  EXPECT_EQ(keys.size(), 13u);
  // Hits are first.
  const auto few = Verify(result, 4);
  EXPECT_EQ(few->checked, 4u);
  EXPECT_EQ(few->hits, 4u);
}

TEST_F(CachingServerTest, HitsWithOtherTokensAreFound) {
  wrong_hits_ = true;
  const auto verified = Verify(Run(ThreeGroups(), 1, 12));
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->mismatches.size(), 9u);
  EXPECT_EQ(verified->mismatches[0],
            "request 3 turn 0: token 0 was 77 under load, but 10 alone");
}

TEST_F(CachingServerTest, AColdRunThatHitsIsAnError) {
  ignore_key_ = true;
  const auto verified = Verify(Run(ThreeGroups(), 1, 4));
  EXPECT_EQ(verified.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(verified.status().message()),
              HasSubstr("--verify: request 3 turn 0 alone: the server took 4 "
                        "tokens of the prompt from its prefix cache"));
}

WorkloadConfig Trees() {
  WorkloadConfig config;
  config.prefix_groups = 1;
  config.prefix_tokens = {8, 8};
  config.prompt_tokens = {3, 3};
  config.turn_tokens = {2, 4};
  config.output_tokens = {2, 3};
  config.turns = {1, 2};
  config.branches = 3;
  config.branch_levels = 2;
  config.snapshot_prefix = true;
  return config;
}

TEST_F(CachingServerTest, AgentsBranchFromTheirParentsContext) {
  const BenchResult result = Run(Trees(), 2, 5);
  std::map<std::pair<uint64_t, uint32_t>, const RequestRecord*> records;
  for (const RequestRecord& record : result.records) {
    EXPECT_EQ(record.outcome, Outcome::kCompleted) << record.status;
    EXPECT_TRUE(
        records.try_emplace({record.index, record.turn}, &record).second);
  }
  std::set<Ids> sent;
  for (const v1::GenerateRequest& request : server_.requests()) {
    sent.insert(PromptOf(request));
  }
  Ids root;
  size_t total = 0;
  for (uint64_t tree_index = 0; tree_index < 5; ++tree_index) {
    const RequestTree tree = workload_->Tree(tree_index);
    total += tree.size();
    std::map<uint32_t, Ids> prompts;
    for (uint32_t i = 0; i < tree.size(); ++i) {
      const RequestRecord& record = *records.at({tree_index, i});
      Ids history;
      if (const auto parent = tree.Parent(i); parent.has_value()) {
        const RequestRecord& before = *records.at({tree_index, *parent});
        history = prompts.at(*parent);
        history.insert(history.end(), before.generation.token_ids.begin(),
                       before.generation.token_ids.end());
        EXPECT_GE(record.start_seconds,
                  before.start_seconds + before.latency.e2el_ms / 1000);
      }
      const auto request = workload_->MakeTurn(tree_index, i, history).request;
      prompts[i] = PromptOf(request);
      EXPECT_TRUE(sent.count(prompts[i])) << tree_index << " " << i;
      EXPECT_TRUE(BeginsWith(prompts[i], history));
      EXPECT_EQ(record.prompt_tokens, prompts[i].size());
      if (i == 0) {
        EXPECT_EQ(request.snapshot_at(0), 8u);
        if (root.empty()) root = First(prompts[0], 8);
        EXPECT_TRUE(BeginsWith(prompts[0], root));
      } else if (tree.BeginsBranch(i)) {
        EXPECT_EQ(request.snapshot_at(0), history.size());
      } else {
        EXPECT_EQ(request.snapshot_at_size(), 0);
      }
    }
  }
  EXPECT_EQ(result.records.size(), total);
  EXPECT_EQ(sent.size(), total);
  const auto verified = Verify(result);
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->checked, total);
  EXPECT_THAT(verified->mismatches, ElementsAre());
}

TEST_F(CachingServerTest, AClosedLoopOfAgentsBoundsTheTrees) {
  WorkloadConfig config = Trees();
  config.turns = {1, 1};
  const BenchResult result = Run(config, 1, 4);
  ASSERT_EQ(result.records.size(), 4 * 13u);
  // One tree after the other.
  for (size_t i = 0; i < result.records.size(); ++i) {
    EXPECT_EQ(result.records[i].index, i / 13) << i;
  }
  EXPECT_LE(server_.peak_streams(), 9);
}

TEST_F(CachingServerTest, AFailedBranchEndsAloneAndTheTreeGoesOn) {
  int calls = 0;
  server_.script = [&](const v1::GenerateRequest& request) {
    MutexLock lock(&mu_);
    if (++calls == 2) {
      return FakeScript{{}, grpc::Status(grpc::StatusCode::INTERNAL, "no")};
    }
    return FullScript(request);
  };
  WorkloadConfig config = Trees();
  config.turns = {1, 1};
  const BenchResult result = Run(config, 1, 2);
  // The first tree lacks what goes on from one of its three branches.
  EXPECT_EQ(result.records.size(), 13u - 3 + 13);
  EXPECT_EQ(MakeReport(result)["failed"], 1);
}

using BenchSharingCliTest = CliTest;

TEST_F(BenchSharingCliTest, ReportsConfigurationAndAKeyOfItsOwn) {
  std::string keys[2];
  for (std::string& key : keys) {
    const Output output =
        RunCli({"bench", "--workload", "agents", "--num-requests", "2",
                "--prompt-tokens", "4", "--prefix-tokens", "8",
                "--output-tokens", "2", "--verify", "--json", "-"});
    EXPECT_EQ(output.exit_code, 0) << output.err;
    const auto report = nlohmann::json::parse(output.out);
    EXPECT_EQ(report["completed"], 2 * 14);
    EXPECT_EQ(report["verified"], 2 * 14);
    EXPECT_EQ(report["verified_hits"], 0);
    EXPECT_EQ(report["cache_misses"]["unspecified"], 2 * 14);
    const auto& config = report["config"];
    EXPECT_EQ(config["workload"], "agents");
    EXPECT_EQ(config["branches"], 2);
    EXPECT_EQ(config["branch_levels"], 2);
    EXPECT_EQ(config["prefix_groups"], 1);
    EXPECT_EQ(config["prefix_tokens_distribution"], "8");
    key = config["cache_key"];
    EXPECT_EQ(server_.requests().front().cache_key(), keys[0]);
  }
  EXPECT_NE(keys[0], keys[1]);
  const Output own =
      RunCli({"bench", "--num-requests", "1", "--prompt-tokens", "4",
              "--output-tokens", "2", "--cache-key", "mine", "--json", "-"});
  EXPECT_EQ(nlohmann::json::parse(own.out)["config"]["cache_key"], "mine");
  EXPECT_EQ(server_.requests().back().cache_key(), "mine");
}

TEST_F(BenchSharingCliTest, RefusesUnknownKindsAndNumbersOutOfRange) {
  const std::vector<std::vector<const char*>> bad = {
      {"--workload", "agent"},
      {"--workload", "agents", "--branches", "1"},
      {"--workload", "agents", "--branches", "65"},
      {"--workload", "agents", "--branch-levels", "0"},
      {"--workload", "agents", "--branch-levels", "17"},
      {"--workload", "prefixes", "--prefix-groups", "0"},
      {"--workload", "prefixes", "--prefix-groups", "1000001"},
      {"--workload", "prefixes", "--prefix-tokens", ""}};
  for (std::vector<const char*> arguments : bad) {
    const std::string flag = arguments[arguments.size() - 2];
    const std::string value = arguments.back();
    arguments.insert(arguments.begin(), "bench");
    const Output output = RunCli(arguments);
    EXPECT_EQ(output.exit_code, 2) << flag << value;
    EXPECT_THAT(output.err, HasSubstr(flag + ": "));
    EXPECT_THAT(output.err, HasSubstr(value));
  }
  EXPECT_TRUE(server_.requests().empty());
}

}  // namespace
}  // namespace recurve
