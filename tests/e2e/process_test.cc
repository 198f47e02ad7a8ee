// The programs themselves: flags, output, signals, exit codes.

#include "tests/testing/process.h"

#include <signal.h>

#include <sstream>
#include <thread>

#include "nlohmann/json.hpp"
#include "tests/e2e/second_signal.h"
#include "tests/e2e/server_fixture.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const char kServer[] = RECURVE_BINARY_DIR "/bin/recurve-server";
const char kClient[] = RECURVE_BINARY_DIR "/bin/recurve-client";
const char kDemo[] = RECURVE_SOURCE_DIR "/deploy/models/demo";

std::vector<std::string> ServerCommand(std::vector<std::string> extra = {}) {
  std::vector<std::string> command = {
      kServer, "--model", kDemo, "--grpc-port", "0", "--http-port", "0"};
  command.insert(command.end(), extra.begin(), extra.end());
  return command;
}

// Log lines begin with the year of a timestamp.
std::vector<std::string> LinesOutsideTheLog(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("20", 0) != 0) lines.push_back(line);
  }
  return lines;
}

TEST(ProcessTest, ServesAndDrainsOnSigterm) {
  Process server(ServerCommand());
  const std::string address = server.GrpcAddress();
  ASSERT_THAT(address, StartsWith("127.0.0.1:")) << server.Err();
  const auto client = *RecurveClient::Create(address);
  Generation generation;
  bool signalled = false;
  const absl::Status status = client->Generate(
      GreedyRequest({256, 65}, 300), [&](const v1::GenerateEvent& event) {
        EXPECT_TRUE(generation.Add(event).ok());
        if (!std::exchange(signalled, true)) server.Signal(SIGTERM);
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(generation.token_ids.size(), 300);
  EXPECT_EQ(server.Wait(), 0) << server.Err();
}

TEST(ProcessTest, SecondSignalStopsAtOnce) {
  Process server(ServerCommand());
  ExpectSecondSignalStops(server);
}

// A folder has a name wherever one stands.
TEST(ProcessTest, AModelIsNamedByItsFolder) {
  std::vector<std::string> command = {"/bin/sh", "-c",
                                      "cd \"$0\" && exec \"$@\"",
                                      RECURVE_SOURCE_DIR "/deploy/models/demo"};
  for (const std::string& argument : ServerCommand()) {
    command.push_back(
        argument == RECURVE_SOURCE_DIR "/deploy/models/demo" ? "." : argument);
  }
  ASSERT_THAT(command, testing::Contains("."));
  Process server(command);
  const auto client = *RecurveClient::Create(server.GrpcAddress());
  const auto model = client->GetModelInfo();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name(), "demo");
}

TEST(ProcessTest, MalformedRequestsDoNotFillTheLog) {
  Process server(ServerCommand());
  const std::string address = server.GrpcAddress();
  // prompt_text that is not UTF-8.
  EXPECT_EQ(CallWithBytes(address, "/recurve.v1.Inference/Generate",
                          "\x12\x02\xff\xfe")
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  EXPECT_EQ(LinesOutsideTheLog(server.Err()).size(), 0) << server.Err();
}

TEST(ProcessTest, ClientPrintsOneJsonObject) {
  Process server(ServerCommand());
  const std::string address = server.GrpcAddress();
  Process client({kClient, "generate", "--server", address, "--prompt-ids",
                  "256,100,101,102", "--max-new-tokens", "12", "--ignore-eos",
                  "--seed", "7", "--json"});
  EXPECT_EQ(client.Wait(), 0) << client.Err();
  const auto json = nlohmann::json::parse(client.Out(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << client.Out();
  EXPECT_EQ(json["token_ids"].size(), 12);
  EXPECT_EQ(json["finish_reason"], "length");
  EXPECT_EQ(json["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
  EXPECT_TRUE(json.contains("timings"));

  Process health({kClient, "health", "--server", address});
  EXPECT_EQ(health.Wait(), 0);
  EXPECT_EQ(health.Out(), "SERVING\n");
  Process bad({kClient, "generate", "--server", address, "--prompt-ids", "999",
               "--max-new-tokens", "1"});
  EXPECT_EQ(bad.Wait(), 1);
  EXPECT_EQ(bad.Err(),
            "recurve-client: INVALID_ARGUMENT: prompt_ids[0] is 999; the "
            "vocabulary has ids 0 to 257\n");
  Process drain({kClient, "drain", "--server", address});
  EXPECT_EQ(drain.Wait(), 0) << drain.Err();
  EXPECT_EQ(server.Wait(), 0);
}

TEST(ProcessTest, BadUsageIsOneLineAndANonZeroExit) {
  struct Case {
    std::vector<std::string> extra;
    int code;
    const char* message;
  };
  const Case cases[] = {
      {{"--no-such-flag"}, 2, "--no-such-flag"},
      {{"--grpc-port", "70000"}, 2, "70000"},
      {{"--max-grpc-connections", "0"}, 2, "--max-grpc-connections: Value 0 "},
      {{"--max-grpc-connections", "1048577"}, 2, "not in range"},
      {{"--grpc-port", "45997", "--metrics-port", "45997"},
       2,
       "--metrics-port is 45997, as --grpc-port is; expected a port"},
      {{"--max-num-seqs", "0"}, 1, "--max-num-seqs is 0; expected 1 to 65536"},
      {{"--max-num-seqs", "9", "--max-num-batched-tokens", "8"},
       1,
       "--max-num-seqs is 9 and --max-num-batched-tokens 8; all"},
      {{"--max-model-len", "9000"},
       1,
       "--max-model-len is 9000; the model supports 1 to 8192"},
      {{"--max-model-len", "1000", "--kv-pages", "2"},
       1,
       "a cache of 2 pages holds 128 tokens"},
      {{"--device", "cuda"}, 1, "--device is cuda"},
      {{"--dtype", "int3"}, 1, "--dtype is int3"},
      {{"--kv-dtype", "bfloat16"}, 1, "--kv-dtype is bfloat16"},
      {{"--model", "/nonexistent"}, 1, "/nonexistent"},
      {{"--host", "192.0.2.1"}, 1, "192.0.2.1"},
      {{"--shutdown-timeout", "-1"}, 2, "--shutdown-timeout is -1;"},
      {{"--max-buffered-tokens", "9223372036854775808"},
       2,
       "'9223372036854775808' is not a whole number"},
      {{"--max-queued-requests", "1e3"}, 2, "'1e3' is not a whole number"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> command = {kServer, "--grpc-port", "0",
                                        "--http-port", "0"};
    if (c.extra[0] != "--model") {
      command.insert(command.end(), {"--model", kDemo});
    }
    if (c.extra[0] == "--grpc-port")
      command.erase(command.begin() + 1, command.begin() + 3);
    command.insert(command.end(), c.extra.begin(), c.extra.end());
    Process server(command);
    EXPECT_EQ(server.Wait(), c.code) << c.message;
    const std::vector<std::string> lines = LinesOutsideTheLog(server.Err());
    ASSERT_EQ(lines.size(), 1) << server.Err();
    EXPECT_THAT(lines[0], StartsWith("recurve-server: "));
    EXPECT_THAT(lines[0], HasSubstr(c.message));
    EXPECT_EQ(server.Out(), "");
  }
}

TEST(ProcessTest, APortInUseIsAnError) {
  Process first(ServerCommand());
  const std::string address = first.GrpcAddress();
  const std::string port = address.substr(address.find(':') + 1);
  Process second(
      {kServer, "--model", kDemo, "--grpc-port", port, "--http-port", "-1"});
  EXPECT_EQ(second.Wait(), 1);
  const std::vector<std::string> lines = LinesOutsideTheLog(second.Err());
  ASSERT_EQ(lines.size(), 1) << second.Err();
  EXPECT_THAT(lines[0], StartsWith("recurve-server: cannot listen for gRPC on "
                                   "127.0.0.1:" +
                                   port));
}

TEST(ProcessTest, FlagsComeFromTheEnvironmentAndTheCommandLineWins) {
  // A leading zero makes no octal number.
  Process server(ServerCommand({"--max-num-seqs", "05"}),
                 {"RECURVE_MAX_NUM_SEQS=3", "RECURVE_MAX_MODEL_LEN=0100",
                  "RECURVE_SERVED_MODEL_NAME=other"});
  const auto client = *RecurveClient::Create(server.GrpcAddress());
  EXPECT_EQ(client->GetServerInfo()->max_num_seqs(), 5);
  EXPECT_EQ(client->GetModelInfo()->max_model_len(), 100);
  EXPECT_EQ(client->GetModelInfo()->name(), "other");
  // Who set the variable is told; who set one that counts is not bothered.
  EXPECT_THAT(server.Err(),
              HasSubstr("RECURVE_MAX_NUM_SEQS=3 is ignored: --max-num-seqs is "
                        "05 on the command line"));
  EXPECT_THAT(server.Err(), Not(HasSubstr("RECURVE_MAX_MODEL_LEN")));
}

TEST(ProcessTest, ABadVariableIsNamed) {
  Process server(ServerCommand({}), {"RECURVE_MAX_NUM_SEQS=x"});
  EXPECT_EQ(server.Wait(), 2);
  EXPECT_THAT(server.Err(), HasSubstr("--max-num-seqs: 'x' is not a whole"));
  EXPECT_THAT(server.Err(), HasSubstr("(from RECURVE_MAX_NUM_SEQS)"));
  Process flag(ServerCommand({"--max-num-seqs", "y"}),
               {"RECURVE_MAX_NUM_SEQS=3"});
  EXPECT_EQ(flag.Wait(), 2);
  EXPECT_THAT(flag.Err(), Not(HasSubstr("RECURVE_MAX_NUM_SEQS")));
}

TEST(ProcessTest, AMisspeltVariableIsNamed) {
  Process server({kServer, "--model", "/nonexistent", "--grpc-port", "0",
                  "--http-port", "0"},
                 {"RECURVE_MAX_NUM_SEQ=4", "RECURVE_LOAD_SECONDS=6"});
  EXPECT_EQ(server.Wait(), 1);
  EXPECT_THAT(server.Err(),
              HasSubstr(" warning RECURVE_MAX_NUM_SEQ is ignored: no flag has "
                        "this variable; the closest that one has is "
                        "RECURVE_MAX_NUM_SEQS"));
  EXPECT_THAT(server.Err(), Not(HasSubstr("RECURVE_LOAD_SECONDS")));
}

TEST(ProcessTest, AFlagThatRepeatsItsVariableIsNoNews) {
  Process server(ServerCommand({"--max-num-seqs", "3", "--kv-pages=100"}),
                 {"RECURVE_MAX_NUM_SEQS=3", "RECURVE_KV_PAGES=200"});
  EXPECT_THAT(server.GrpcAddress(), StartsWith("127.0.0.1:"));
  EXPECT_THAT(server.Err(),
              HasSubstr("RECURVE_KV_PAGES=200 is ignored: --kv-pages is 100"));
  EXPECT_THAT(server.Err(), Not(HasSubstr("RECURVE_MAX_NUM_SEQS")));
}

TEST(ProcessTest, VersionAndHelp) {
  for (const char* program : {kServer, kClient}) {
    Process version({program, "--version"});
    EXPECT_EQ(version.Wait(), 0);
    EXPECT_THAT(version.Out(), HasSubstr(RECURVE_VERSION));
    Process help({program, "--help"});
    EXPECT_EQ(help.Wait(), 0);
    EXPECT_THAT(help.Out(), HasSubstr("--help"));
  }
}

}  // namespace
}  // namespace recurve
