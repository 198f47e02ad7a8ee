// `recurve-client generate --n`.

#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"
#include "tests/client/run_cli.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::Not;

// Continuation k has k + 1 tokens; their events take turns.
FakeScript SamplesScript(const v1::GenerateRequest& request) {
  FakeScript script;
  const auto add = [&](v1::GenerateEvent event, uint32_t sample) {
    event.set_sample(sample);
    script.steps.push_back({absl::ZeroDuration(), std::move(event)});
  };
  for (uint32_t k = 0; k < request.n(); ++k) {
    add(AdmittedEvent("request-" + std::to_string(k), 100 + k), k);
  }
  for (uint32_t i = 0; i < request.n(); ++i) {
    for (uint32_t k = i; k < request.n(); ++k) add(TokensEvent(i, 1), k);
  }
  for (uint32_t k = 0; k < request.n(); ++k) {
    add(FinishedEvent(v1::FINISH_REASON_LENGTH, 1, k + 1), k);
  }
  return script;
}

class GenerateSamplesTest : public CliTest {
 protected:
  GenerateSamplesTest() { server_.script = SamplesScript; }
};

TEST_F(GenerateSamplesTest, PrintsEachUnderItsNumber) {
  const Output output = RunCli({"generate", "--prompt", "a", "--n", "3"});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(output.out, "[0]\n<0>\n[1]\n<0><1>\n[2]\n<0><1><2>\n");
  EXPECT_THAT(output.err, HasSubstr("[0] 1 tokens (length)"));
  EXPECT_THAT(output.err, HasSubstr("[2] 3 tokens (length)"));
  EXPECT_THAT(output.err, HasSubstr("seed 102, request request-2"));
  EXPECT_EQ(server_.requests().back().n(), 3u);
  EXPECT_EQ(RunCli({"generate", "--prompt", "a", "--n", "1"}).out,
            "[0]\n<0>\n");
}

TEST_F(GenerateSamplesTest, PrintsIdsWithoutATokenizer) {
  server_.model.clear_tokenizer();
  const Output output = RunCli({"generate", "--prompt-ids", "1", "--n", "2"});
  EXPECT_EQ(output.out, "[0]\n10\n[1]\n10,11\n");
}

TEST_F(GenerateSamplesTest, JsonIsAList) {
  for (const char* n : {"1", "2"}) {
    const Output output =
        RunCli({"generate", "--prompt", "a", "--n", n, "--json"});
    const auto list = nlohmann::json::parse(output.out);
    ASSERT_EQ(list.size(), static_cast<size_t>(std::stoi(n)));
    for (size_t k = 0; k < list.size(); ++k) {
      EXPECT_EQ(list[k]["sample"], k);
      EXPECT_EQ(list[k]["token_ids"].size(), k + 1);
      EXPECT_EQ(list[k]["seed"], 100 + k);
      EXPECT_EQ(list[k]["finish_reason"], "length");
    }
  }
  server_.script = [](const v1::GenerateRequest& request) {
    EXPECT_FALSE(request.has_n());
    return FullScript(request);
  };
  const Output one =
      RunCli({"generate", "--prompt", "a", "--max-new-tokens", "2", "--json"});
  EXPECT_TRUE(nlohmann::json::parse(one.out).is_object());
}

TEST_F(GenerateSamplesTest, OneToSixteen) {
  EXPECT_EQ(RunCli({"generate", "--prompt", "a", "--n", "16"}).exit_code, 0);
  for (const char* n : {"0", "17", "4294967295"}) {
    const Output output = RunCli({"generate", "--prompt", "a", "--n", n});
    EXPECT_EQ(output.exit_code, 2);
    EXPECT_EQ(output.err, std::string("recurve-client: --n: ") + n +
                              " is not in 1 to 16\n");
  }
  EXPECT_EQ(server_.requests().size(), 1u);
}

TEST_F(GenerateSamplesTest, AContinuationTooManyOrUnfinishedIsAnError) {
  server_.script = [](v1::GenerateRequest request) {
    request.set_n(3);
    return SamplesScript(request);
  };
  const Output many = RunCli({"generate", "--prompt", "a", "--n", "2"});
  EXPECT_EQ(many.exit_code, 1);
  EXPECT_THAT(many.err, HasSubstr("DATA_LOSS: an event of continuation 2, of 2 "
                                  "from 0"));
  server_.script = [](const v1::GenerateRequest& request) {
    FakeScript script = SamplesScript(request);
    script.steps.pop_back();
    return script;
  };
  const Output cut = RunCli({"generate", "--prompt", "a", "--n", "2"});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("without a finished event"));
  // What came is printed.
  EXPECT_EQ(cut.out, "[0]\n<0>\n[1]\n<0><1>\n");
  EXPECT_THAT(cut.err, Not(HasSubstr("[0] 1 tokens")));
}

}  // namespace
}  // namespace recurve
