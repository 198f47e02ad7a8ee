#include "tools/recurve_model/cli.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"
#include "tests/engine/tiny_checkpoint.h"

namespace recurve {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

struct Output {
  int exit_code = 0;
  std::string out;
  std::string err;
};

Output RunTool(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"recurve-model"};
  for (const std::string& argument : arguments)
    argv.push_back(argument.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Output output;
  output.exit_code = RunModelTool(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  output.out = testing::internal::GetCapturedStdout();
  output.err = testing::internal::GetCapturedStderr();
  return output;
}

void ExpectOneErrorLine(const Output& output, int exit_code) {
  EXPECT_EQ(output.exit_code, exit_code);
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.err, StartsWith("recurve-model: "));
  EXPECT_EQ(output.err.find('\n'), output.err.size() - 1);
}

class ModelCliTest : public testing::Test {
 protected:
  ModelCliTest() : dir_(folder_.path() + "/model") {
    TinyCheckpoint::Hybrid().Write(dir_);
  }

  TempFolder folder_;
  std::string dir_;
};

TEST_F(ModelCliTest, InfoPrintsThePlan) {
  for (const char* device : {"cpu", "gpu", "older-gpu"}) {
    const Output output = RunTool({"info", dir_, "--plan", device});
    EXPECT_EQ(output.exit_code, 0) << output.err;
    EXPECT_THAT(output.out, HasSubstr("tpa mixed[")) << device;
    EXPECT_THAT(output.out, HasSubstr("head residual[16] x [260, 16]"));
  }
  EXPECT_EQ(RunTool({"info", dir_, "--plan", "tpu"}).exit_code, 2);
  EXPECT_EQ(RunTool({"info", dir_, "--plan", "cpu", "--json"}).exit_code, 2);
}

TEST_F(ModelCliTest, BadUsageIsOneLine) {
  const std::vector<std::vector<std::string>> bad = {
      {},
      {"bogus"},
      {"info"},
      {"info", dir_, "extra"},
      {"info", dir_, "--bogus"},
      {"info", dir_, "--memory", "1GiB"},
      {"info", dir_, "--length", "5"},
      {"info", dir_, "--memory", "much", "--length", "5"},
      {"info", dir_, "--memory", "", "--length", "5"},
      {"info", dir_, "--memory", "1GiB", "--length", "0"},
      {"info", dir_, "--memory", "1GiB", "--length", "-5"},
      {"info", dir_, "--memory", "1GiB", "--length", "99999999999999999999"},
      {"check"},
      {"random"},
      {"random", "t6-xl"},
      {"random", "t6-xl", dir_, "--dtype", "int8"},
      {"random", "t6-xl", dir_, "--seed", "-1"},
      {"random", "t6-xl", dir_, "--seed", "18446744073709551616"},
      {"random", "t6-xl", dir_, "--layers", "x"},
      {"random", "t6-xl", dir_, "--layers", ""},
      {"random", "t6-xl", folder_.path() + "/new", "--layers", "0"},
      {"random", "t7-xl", folder_.path() + "/new"},
      {"random", "t6-xl", dir_, "--shard-bytes", "0"},
  };
  for (const auto& arguments : bad) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    ExpectOneErrorLine(RunTool(arguments), 2);
  }
  EXPECT_THAT(RunTool({"info", dir_, "--memory", "1GiB", "--length",
                       "99999999999999999999"})
                  .err,
              HasSubstr("--length: '99999999999999999999' is too large; "
                        "expected at most 9223372036854775807"));
  EXPECT_THAT(RunTool({"bogus"}).err, HasSubstr("unknown command 'bogus'"));
}

TEST_F(ModelCliTest, FailuresAreOneLine) {
  const std::vector<std::vector<std::string>> failing = {
      {"info", dir_ + "/nowhere"},
      {"info", dir_, "--memory", "1KiB", "--length", "5"},
      {"info", dir_, "--memory", "1GiB", "--length", "257"},
      {"check", dir_ + "/nowhere"},
      {"random", "t6-xl", dir_},
  };
  for (const auto& arguments : failing) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    ExpectOneErrorLine(RunTool(arguments), 1);
  }
}

TEST_F(ModelCliTest, HelpAndVersion) {
  EXPECT_THAT(RunTool({"--version"}).out, StartsWith("recurve-model "));
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"info", "--help"},
                                             {"check", "--help"},
                                             {"random", "--help"}}) {
    const Output output = RunTool(arguments);
    EXPECT_EQ(output.exit_code, 0);
    EXPECT_THAT(output.out, HasSubstr("recurve-model"));
    EXPECT_EQ(output.err, "");
  }
}

TEST_F(ModelCliTest, Info) {
  const Output text = RunTool({"info", dir_});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, HasSubstr("1 x tpa, 1 x linear"));
  const Output json =
      RunTool({"info", dir_, "--json", "--memory", "1GiB", "--length", "200"});
  EXPECT_EQ(json.exit_code, 0);
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["family"], "recurve");
  EXPECT_EQ(parsed["capacity"]["memory_bytes"], 1 << 30);
  EXPECT_EQ(parsed["capacity"]["cpu"]["pages_per_sequence"], 4);
  EXPECT_EQ(parsed["capacity"]["gpu"]["pages_per_sequence"], 4);
}

TEST_F(ModelCliTest, Check) {
  const Output good = RunTool({"check", dir_});
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_THAT(good.out, EndsWith("\nOK\n"));
  TinyCheckpoint broken = TinyCheckpoint::Hybrid();
  broken.tensors["lm_head.weight"].shape = {16, 260};
  broken.Write(dir_);
  const Output bad = RunTool({"check", dir_});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("lm_head.weight"));
}

TEST_F(ModelCliTest, RandomLists) {
  const Output output = RunTool({"random", "--list"});
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_THAT(output.out, HasSubstr("t6-xl"));
  EXPECT_THAT(output.out, HasSubstr("1555814400"));
}

}  // namespace
}  // namespace recurve
