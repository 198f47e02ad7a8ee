#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
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
using testing::StartsWith;

TEST(CliUsageTest, BadUsageIsOneLine) {
  const std::vector<std::vector<const char*>> bad = {
      {},
      {"bogus"},
      {"generate"},
      {"generate", "--bogus"},
      {"generate", "--prompt"},
      {"generate", "--prompt", "a", "--seed", "-1"},
      {"generate", "--prompt", "a", "--seed", "18446744073709551616"},
      {"generate", "--prompt", "a", "--top-k", "4294967296"},
      {"generate", "--prompt", "a", "--max-new-tokens", "0x10"},
      {"generate", "--prompt", "a", "--priority", "2147483648"},
      {"generate", "--prompt", "a", "--server", "127.0.0.1:+1"},
      {"generate", "--prompt", "a", "--server", "127.0.0.1: 1"},
      {"generate", "--prompt", "a", "--temperature", "x"},
      {"generate", "--prompt", "a", "--temperature", ""},
      {"generate", "--prompt", "a", "--top-p", ""},
      {"generate", "--prompt", "a", "--timeout", ""},
      {"generate", "--prompt", "a", "--seed", ""},
      {"generate", "--prompt", "a", "--timeout", "0"},
      {"generate", "--prompt-ids", "1,b"},
      {"generate", "--prompt", "a", "--server", "nowhere"},
      {"bench", "--concurrency", "0"},
      {"bench", "--num-requests", "0"},
      {"bench", "--num-requests", "-1"},
      {"bench", "--num-requests", "99999999999999999999"},
      {"bench", "--turns", "2", "--think-time", "1e300"},
      {"bench", "--turns", "2", "--think-time", "-1"},
      {"bench", "--timeout", "inf"},
      {"bench", "--json", "/no/such/folder/file"},
      {"bench", "--html", "/"},
      {"bench", "--json", "/tmp/recurve-one", "--html", "/tmp/recurve-one"},
      {"bench", "--json", "/tmp/recurve-one", "--html", "/tmp/./recurve-one"},
      {"bench", "--prompt-tokens", "9:1"},
      {"bench", "--requests-jsonl", "-"},
      {"bench", "--server", "nowhere"},
      {"bench", "--rate", "1", "--concurrency", "2"},
      {"bench", "--rate", "0"},
      {"bench", "--rate", ""},
      {"bench", "--sweep-rates", ""},
      {"bench", "--sweep-concurrency", ""},
      {"bench", "--trace", ""},
      {"bench", "--json", ""},
      {"bench", "--html", ""},
      {"bench", "--goodput", ""},
      {"bench", "--requests-jsonl", ""},
      {"bench", "--concurrency", ""},
      {"bench", "--num-requests", ""},
      {"bench", "--arrivals", "sometimes"},
      {"bench", "--trace", "/no/such/file"},
      {"bench", "--verify=x"},
      {"abort"},
      {"health", "--server", "nowhere"},
      {"info", "--timeout", "nan"},
      {"info", "extra"},
  };
  for (const auto& arguments : bad) {
    const Output output = RunCli(arguments);
    const std::string shown = testing::PrintToString(arguments);
    EXPECT_EQ(output.exit_code, 2) << shown;
    EXPECT_EQ(output.out, "") << shown;
    EXPECT_THAT(output.err, StartsWith("recurve-client: ")) << shown;
    EXPECT_EQ(output.err.find('\n'), output.err.size() - 1) << shown;
  }
  EXPECT_THAT(RunCli({"bogus"}).err, HasSubstr("unknown command 'bogus'"));
}

TEST(CliUsageTest, HelpAndVersion) {
  EXPECT_THAT(RunCli({"--version"}).out, StartsWith("recurve-client "));
  const Output help = RunCli({"bench", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("TTFT: "));
  EXPECT_THAT(RunCli({"--help"}).out, HasSubstr("generate"));
}

TEST_F(CliTest, GeneratesText) {
  const Output output =
      RunCli({"generate", "--prompt", "hi", "--max-new-tokens", "3"});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(output.out, "<0><1><2>\n");
  EXPECT_THAT(output.err, StartsWith("3 tokens (length)"));
  ASSERT_EQ(server_.requests().size(), 1u);
  EXPECT_EQ(server_.requests()[0].prompt_text(), "hi");
}

TEST_F(CliTest, PrintsIdsWithoutATokenizer) {
  server_.model.clear_tokenizer();
  const Output output =
      RunCli({"generate", "--prompt-ids", "5,6", "--max-new-tokens", "3"});
  EXPECT_EQ(output.out, "10,11,12\n");
  EXPECT_THAT(server_.requests()[0].prompt_ids().ids(), ElementsAre(5, 6));
}

TEST_F(CliTest, PassesEveryFlagOn) {
  const Output output = RunCli({"generate",
                                "--prompt",
                                "a",
                                "--json",
                                "--max-new-tokens",
                                "2",
                                "--temperature",
                                "0.5",
                                "--top-k",
                                "4",
                                "--top-p",
                                "0.75",
                                "--min-p",
                                "0.125",
                                "--seed",
                                "18446744073709551615",
                                "--repetition-penalty",
                                "1.5",
                                "--presence-penalty",
                                "-0.5",
                                "--frequency-penalty",
                                "0.25",
                                "--logit-bias",
                                "3:-1.5",
                                "--logit-bias",
                                "4:2",
                                "--stop",
                                "x",
                                "--stop",
                                "y",
                                "--stop-token-id",
                                "7",
                                "--stop-token-id",
                                "8",
                                "--ignore-eos",
                                "--min-tokens",
                                "5",
                                "--include-stop",
                                "--show-special-tokens",
                                "--logprobs",
                                "2",
                                "--prompt-logprobs",
                                "3",
                                "--priority",
                                "-3",
                                "--timeout",
                                "30"});
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const v1::GenerateRequest request = server_.requests().at(0);
  const v1::SamplingParams& sampling = request.sampling();
  EXPECT_EQ(sampling.temperature(), 0.5f);
  EXPECT_EQ(sampling.top_k(), 4u);
  EXPECT_EQ(sampling.top_p(), 0.75f);
  EXPECT_EQ(sampling.min_p(), 0.125f);
  EXPECT_EQ(sampling.seed(), 18446744073709551615u);
  EXPECT_EQ(sampling.repetition_penalty(), 1.5f);
  EXPECT_EQ(sampling.presence_penalty(), -0.5f);
  EXPECT_EQ(sampling.frequency_penalty(), 0.25f);
  EXPECT_EQ(sampling.logit_bias().at(3), -1.5f);
  EXPECT_EQ(sampling.logit_bias().at(4), 2.0f);
  EXPECT_THAT(request.stopping().stop_strings(), ElementsAre("x", "y"));
  EXPECT_THAT(request.stopping().stop_token_ids(), ElementsAre(7, 8));
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_EQ(request.stopping().min_tokens(), 5u);
  EXPECT_TRUE(request.stopping().include_stop_str_in_output());
  EXPECT_TRUE(request.stopping().has_skip_special_tokens());
  EXPECT_FALSE(request.stopping().skip_special_tokens());
  EXPECT_EQ(request.prompt_logprobs(), 3u);
  EXPECT_EQ(request.logprobs(), 2u);
  EXPECT_EQ(request.priority(), -3);
  EXPECT_EQ(nlohmann::json::parse(output.out)["seed"], 18446744073709551615u);
}

TEST_F(CliTest, JsonIsOneObject) {
  server_.script = [](const v1::GenerateRequest&) {
    v1::GenerateEvent tokens = TokensEvent(0, 2);
    for (int i = 0; i < 2; ++i) {
      v1::TokenLogprob* logprob = tokens.mutable_tokens()->add_logprobs();
      logprob->set_logprob(-0.5f);
      logprob->add_top()->set_id(9);
    }
    FakeScript script;
    v1::GenerateEvent end = FinishedEvent(v1::FINISH_REASON_STOP_STRING, 4, 2);
    end.mutable_finished()->set_stop_string("é");
    for (const v1::GenerateEvent& event :
         {AdmittedEvent("id-1", 77), tokens, end}) {
      script.steps.push_back({absl::ZeroDuration(), event});
    }
    return script;
  };
  const Output output =
      RunCli({"generate", "--prompt", "a", "--json", "--logprobs", "1"});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json["request_id"], "id-1");
  EXPECT_EQ(json["seed"], 77);
  EXPECT_EQ(json["token_ids"], nlohmann::json({10, 11}));
  EXPECT_EQ(json["text"], "<0><1>");
  EXPECT_EQ(json["finish_reason"], "stop_string");
  EXPECT_EQ(json["stop_string"], "é");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(json["usage"]["completion_tokens"], 2);
  EXPECT_EQ(json["usage"]["preemptions"], 0);
  EXPECT_EQ(json["timings"]["total_seconds"], 0.5);
  EXPECT_EQ(json["logprobs"].size(), 2u);
  EXPECT_EQ(json["logprobs"][1]["logprob"], -0.5);
  EXPECT_EQ(json["logprobs"][1]["top"][0]["id"], 9);
}

TEST_F(CliTest, CallErrorsAreOneLine) {
  server_.script = [](const v1::GenerateRequest&) {
    return FakeScript{{},
                      grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                   "top_p: 2 is above 1\nreally")};
  };
  for (const char* form : {"--json", "--ignore-eos"}) {
    const Output output = RunCli({"generate", "--prompt", "a", form});
    EXPECT_EQ(output.exit_code, 1);
    EXPECT_EQ(output.out, "");
    EXPECT_EQ(output.err,
              "recurve-client: INVALID_ARGUMENT: top_p: 2 is above 1 really\n");
  }
}

TEST_F(CliTest, InterruptCancelsTheCall) {
  server_.script = [](const v1::GenerateRequest& request) {
    return FullScript(request, absl::Milliseconds(20));
  };
  std::thread other([&] {
    while (server_.requests().empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    kill(getpid(), SIGINT);
  });
  const Output output =
      RunCli({"generate", "--prompt", "a", "--max-new-tokens", "10000"});
  other.join();
  EXPECT_EQ(output.exit_code, 130);
  EXPECT_THAT(output.err, HasSubstr("recurve-client: CANCELLED: "));
  while (server_.cancelled() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_F(CliTest, Health) {
  Output output = RunCli({"health"});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(output.out, "SERVING\n");
  server_.SetServing(false);
  output = RunCli({"health"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_EQ(output.out, "NOT_SERVING\n");
  output = RunCli({"health", "--service", "no.such"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.err, HasSubstr("NOT_FOUND"));
}

TEST_F(CliTest, Info) {
  const Output table = RunCli({"info"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("vocab_size"));
  const auto json = nlohmann::json::parse(RunCli({"info", "--json"}).out);
  EXPECT_EQ(json["model"]["vocab_size"], 100);
  EXPECT_EQ(json["model"]["bos_token_id"], 98);
  EXPECT_EQ(json["model"]["eos_token_ids"], nlohmann::json({99}));
  EXPECT_EQ(json["model"]["parameters"], 0);
  EXPECT_EQ(json["server"]["draining"], false);
  EXPECT_EQ(json["load"]["steps_total"], uint64_t{1} << 53);
  server_.model.clear_bos_token_id();
  EXPECT_FALSE(
      nlohmann::json::parse(RunCli({"info", "--json"}).out)["model"].contains(
          "bos_token_id"));
}

TEST_F(CliTest, AbortAndDrain) {
  EXPECT_EQ(RunCli({"abort", "--request-id", "r9"}).exit_code, 0);
  EXPECT_THAT(server_.aborted(), ElementsAre("r9"));
  const Output unknown = RunCli({"abort", "--request-id", "unknown"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, StartsWith("recurve-client: NOT_FOUND: "));
  EXPECT_THAT(RunCli({"drain"}).out, HasSubstr("3 requests remain"));
}

TEST_F(CliTest, BenchWritesTableAndFiles) {
  // The process id: several runs of this test may share the folder.
  const std::string stem =
      testing::TempDir() + "/recurve_cli_test." + std::to_string(getpid());
  const std::string json_path = stem + ".json";
  const std::string lines_path = stem + ".jsonl";
  const Output output = RunCli(
      {"bench", "--num-requests", "10", "--concurrency", "3", "--connections",
       "2", "--prompt-tokens", "4", "--output-tokens", "2:5", "--warmup", "2",
       "--json", json_path.c_str(), "--requests-jsonl", lines_path.c_str()});
  EXPECT_EQ(output.exit_code, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("Completed requests"));
  EXPECT_EQ(server_.requests().size(), 12u);
  std::ifstream json_file(json_path);
  const auto report = nlohmann::json::parse(json_file);
  EXPECT_EQ(report["completed"], 10);
  EXPECT_EQ(report["total_input_tokens"], 40);
  EXPECT_EQ(report["config"]["concurrency"], 3);
  EXPECT_EQ(report["config"]["output_tokens"], nlohmann::json({2, 5}));
  EXPECT_EQ(report["config"]["num_requests"], 10);
  EXPECT_EQ(report["model"]["name"], "fake");
  EXPECT_EQ(report["server"]["device"], "cpu");
  std::ifstream lines_file(lines_path);
  std::string line;
  int lines = 0;
  while (std::getline(lines_file, line)) {
    EXPECT_EQ(nlohmann::json::parse(line)["outcome"], "completed");
    ++lines;
  }
  EXPECT_EQ(lines, 10);
  std::remove(json_path.c_str());
  std::remove(lines_path.c_str());
}

TEST_F(CliTest, BenchSweepsVerifiesAndExplains) {
  const std::string html_path = testing::TempDir() + "/recurve_cli_test." +
                                std::to_string(getpid()) + ".html";
  const Output sweep =
      RunCli({"bench", "--sweep-rates", "50,100", "--duration", "0.1",
              "--prompt-tokens", "4", "--output-tokens", "2", "--arrivals",
              "constant", "--verify=3", "--goodput", "ttft:60000", "tpot:60000",
              "--json", "-", "--html", html_path.c_str()});
  EXPECT_EQ(sweep.exit_code, 0) << sweep.err;
  const auto report = nlohmann::json::parse(sweep.out);
  EXPECT_EQ(report["sweep"], "rate");
  ASSERT_EQ(report["steps"].size(), 2u);
  EXPECT_EQ(report["steps"][0]["completed"], 5);
  EXPECT_EQ(report["steps"][1]["request_rate"], 100);
  EXPECT_EQ(report["steps"][1]["verified"], 3);
  EXPECT_EQ(report["steps"][1]["good_fraction"], 1);
  EXPECT_EQ(report["max_sustained_rate"], 100);
  std::ifstream html(html_path);
  EXPECT_TRUE(html.good());
  std::remove(html_path.c_str());
  const Output table =
      RunCli({"bench", "--sweep-concurrency", "1:2", "--num-requests", "3",
              "--prompt-tokens", "4", "--output-tokens", "2"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("\n2 streams               3      0"));
  EXPECT_THAT(RunCli({"bench", "--explain"}).out, HasSubstr("request_goodput"));
}

TEST_F(CliTest, BenchWritesWhatItCan) {
  const std::string html_path = testing::TempDir() + "/recurve_cli_test." +
                                std::to_string(getpid()) + ".html";
  // There is no room for the first file.
  const Output output = RunCli({"bench", "--num-requests", "1", "--json",
                                "/dev/full", "--html", html_path.c_str()});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.err, HasSubstr("'/dev/full' cannot be written"));
  EXPECT_TRUE(std::ifstream(html_path).good());
  std::remove(html_path.c_str());
  // Nothing is left of a bench that was none.
  EXPECT_EQ(
      RunCli({"bench", "--prompt-tokens", "2000", "--html", html_path.c_str()})
          .exit_code,
      1);
  EXPECT_FALSE(std::ifstream(html_path).good());
}

TEST_F(CliTest, BenchFailsWhenTokensDependOnTheLoad) {
  std::atomic<int> calls{0};
  server_.script = [&](const v1::GenerateRequest& request) {
    FakeScript script = FullScript(request);
    script.steps[1].event.mutable_tokens()->set_ids(0, calls.fetch_add(1));
    return script;
  };
  const Output output = RunCli({"bench", "--num-requests", "3", "--verify"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.err, HasSubstr("DATA_LOSS: 3 of 3 verified requests"));
  EXPECT_THAT(output.out, HasSubstr("Verified requests"));
}

TEST_F(CliTest, BenchFailsWithTheFirstMessage) {
  server_.script = [](const v1::GenerateRequest&) {
    return FakeScript{{},
                      grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                   "the queue is full")};
  };
  const Output output = RunCli({"bench", "--num-requests", "3", "--json", "-"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_EQ(nlohmann::json::parse(output.out)["failed"], 3);
  EXPECT_THAT(output.err, Not(HasSubstr("--max-errors")));
  EXPECT_THAT(RunCli({"bench", "--concurrency", "1", "--max-errors", "2"}).err,
              HasSubstr("recurve-client: 1 stream: nothing more was sent after "
                        "2 failed requests (--max-errors)\n"));
  EXPECT_THAT(output.err,
              HasSubstr("recurve-client: RESOURCE_EXHAUSTED: 3 requests "
                        "failed, the first with: the queue is full\n"));
}

TEST_F(CliTest, BenchRefusesWhatCannotFit) {
  const Output output = RunCli({"bench", "--prompt-tokens", "2000"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_THAT(output.err, HasSubstr("max_model_len is 1000"));
  EXPECT_TRUE(server_.requests().empty());
}

}  // namespace
}  // namespace recurve
