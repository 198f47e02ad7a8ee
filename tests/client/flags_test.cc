#include <cmath>
#include <string>

#include "client/cli/cmd_generate.h"
#include "client/loadgen/bench_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::HasSubstr;

TEST(MakeGenerateRequestTest, SetsOnlyWhatWasGiven) {
  GenerateFlags flags;
  flags.prompt = "hello";
  v1::GenerateRequest expected;
  expected.set_prompt_text("hello");
  EXPECT_EQ(MakeGenerateRequest(flags)->SerializeAsString(),
            expected.SerializeAsString());
}

TEST(MakeGenerateRequestTest, SetsZeros) {
  GenerateFlags flags;
  flags.prompt = "";
  flags.temperature = 0.0f;
  flags.top_k = 0;
  flags.seed = 0;
  flags.priority = 0;
  flags.logprobs = 0;
  flags.json = true;
  const v1::GenerateRequest request = MakeGenerateRequest(flags).value();
  EXPECT_EQ(request.prompt_case(), v1::GenerateRequest::kPromptText);
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_TRUE(request.sampling().has_top_k());
  EXPECT_TRUE(request.sampling().has_seed());
  EXPECT_FALSE(request.sampling().has_top_p());
  EXPECT_TRUE(request.has_priority());
  EXPECT_TRUE(request.has_logprobs());
  EXPECT_FALSE(request.has_stopping());
}

TEST(MakeGenerateRequestTest, NamesTheFlagAtFault) {
  const auto message = [](const GenerateFlags& flags) {
    return std::string(MakeGenerateRequest(flags).status().message());
  };
  GenerateFlags flags;
  EXPECT_THAT(message(flags), HasSubstr("exactly one of --prompt"));
  flags.prompt = "\xff";
  EXPECT_THAT(message(flags), HasSubstr("--prompt: "));
  flags.prompt = "a";
  flags.logit_bias = {"1:2", "1:3"};
  EXPECT_THAT(message(flags), HasSubstr("--logit-bias: token id 1"));
  flags.logit_bias.clear();
  flags.stop = {"\xff"};
  EXPECT_THAT(message(flags), HasSubstr("--stop"));
  flags.stop.clear();
  flags.logprobs = 1;
  EXPECT_THAT(message(flags), HasSubstr("--json"));
  flags.logprobs.reset();
  flags.prompt_file = "x";
  EXPECT_THAT(message(flags), HasSubstr("2 were given"));
  flags.prompt.reset();
  flags.prompt_file = "/no/such/file";
  EXPECT_THAT(message(flags), HasSubstr("--prompt-file: '/no/such/file'"));
}

TEST(MakeBenchPlanTest, DefaultsAndLimits) {
  BenchFlags flags;
  EXPECT_EQ(MakeBenchPlan(flags)->options.num_requests, 64u);
  EXPECT_EQ(MakeBenchPlan(flags)->connections, 1u);
  flags.concurrency = 101;
  EXPECT_EQ(MakeBenchPlan(flags)->connections, 2u);
  flags.duration_seconds = 3;
  EXPECT_GT(MakeBenchPlan(flags)->options.num_requests, uint64_t{1} << 60);
  EXPECT_EQ(MakeBenchPlan(flags)->options.start_for, absl::Seconds(3));
  flags.num_requests = 5;
  EXPECT_EQ(MakeBenchPlan(flags)->options.num_requests, 5u);
  flags.no_ignore_eos = true;
  EXPECT_FALSE(MakeBenchPlan(flags)->workload.ignore_eos);

  for (const double fraction : {-0.1, 1.1, std::nan("")}) {
    flags.cancel_fraction = fraction;
    EXPECT_FALSE(MakeBenchPlan(flags).ok()) << fraction;
  }
  flags.cancel_fraction = 1;
  flags.timeout_seconds = 0;
  EXPECT_THAT(std::string(MakeBenchPlan(flags).status().message()),
              HasSubstr("--timeout"));
}

}  // namespace
}  // namespace recurve
