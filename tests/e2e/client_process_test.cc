// recurve-client as a program: signals, and a standard output that takes
// nothing.

#include <signal.h>

#include <fstream>
#include <iterator>

#include "nlohmann/json.hpp"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/process.h"

namespace recurve {
namespace {

using testing::HasSubstr;

const char kServer[] = RECURVE_BINARY_DIR "/bin/recurve-server";
const char kClient[] = RECURVE_BINARY_DIR "/bin/recurve-client";
const char kDemo[] = RECURVE_SOURCE_DIR "/deploy/models/demo";

class ClientProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    address_ = server_.GrpcAddress();
    ASSERT_FALSE(address_.empty()) << server_.Err();
    path_ = testing::TempDir() + "/recurve_client_process_test." +
            std::to_string(getpid()) + ".json";
  }
  void TearDown() override { std::remove(path_.c_str()); }

  // The client within a line of shell: CLIENT is the program and its server.
  std::vector<std::string> Shell(const std::string& line) const {
    return {"/bin/bash", "-c",
            "CLIENT() { \"" + std::string(kClient) + "\" \"$1\" --server " +
                address_ + " \"${@:2}\"; }; " + line};
  }
  nlohmann::json Report() const {
    std::ifstream file(path_);
    return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  Process server_{
      {kServer, "--model", kDemo, "--grpc-port", "0", "--http-port", "-1"}};
  std::string address_;
  std::string path_;
};

TEST_F(ClientProcessTest, ResultsOutliveTheReaderOfTheTable) {
  // The reader is gone at once.
  Process client(
      Shell("CLIENT bench --num-requests 4 --prompt-tokens 8 --output-tokens 4 "
            "--json " +
            path_ + " | true; echo ${PIPESTATUS[0]}"));
  EXPECT_EQ(client.Wait(), 0);
  EXPECT_EQ(client.Out(), "1\n");
  EXPECT_THAT(client.Err(), HasSubstr("standard output cannot be written"));
  EXPECT_EQ(Report()["completed"], 4);
}

TEST_F(ClientProcessTest, AFullStandardOutputIsAnError) {
  for (const char* command :
       {"info", "health", "bench --explain", "bench --num-requests 1",
        "bench --num-requests 1 --json -",
        "generate --prompt a --max-new-tokens 2 --json",
        "generate --prompt a --max-new-tokens 2", "generate --help"}) {
    Process client(Shell("CLIENT " + std::string(command) + " > /dev/full"));
    EXPECT_EQ(client.Wait(), 1) << command;
    EXPECT_THAT(client.Err(),
                HasSubstr("DATA_LOSS: standard output cannot be written\n"))
        << command;
  }
}

TEST_F(ClientProcessTest, AHangupWritesTheResults) {
  // One after the other, so that tokens of a sixth request mean that the client
  // has seen the end of five.
  Process client({kClient, "bench", "--server", address_, "--rate", "50",
                  "--max-concurrency", "1", "--duration", "600",
                  "--prompt-tokens", "8", "--output-tokens", "4", "--json",
                  path_});
  const auto admin = *RecurveClient::Create(address_);
  ASSERT_TRUE(WaitFor([&] {
    const auto load = admin->GetLoad();
    return load.ok() && load->generation_tokens_total() > 20;
  }));
  client.Signal(SIGHUP);
  EXPECT_EQ(client.Wait(), 130);
  EXPECT_GE(Report()["completed"], 5);
}

TEST_F(ClientProcessTest, AServerKilledInASweepIsAnError) {
  Process client({kClient, "bench", "--server", address_, "--sweep-rates",
                  "20,40", "--sweep-refine", "2", "--duration", "600",
                  "--max-errors", "20", "--prompt-tokens", "8",
                  "--output-tokens", "4", "--json", path_});
  const auto admin = *RecurveClient::Create(address_);
  ASSERT_TRUE(WaitFor([&] {
    const auto load = admin->GetLoad();
    return load.ok() && load->generation_tokens_total() > 20;
  }));
  server_.Signal(SIGKILL);
  EXPECT_EQ(client.Wait(), 1);
  EXPECT_THAT(client.Err(), HasSubstr("UNAVAILABLE: "));
  const nlohmann::json report = Report();
  ASSERT_EQ(report["steps"].size(), 1u);
  EXPECT_TRUE(report["steps"][0]["saturated"].is_null());
  EXPECT_TRUE(report["max_sustained_rate"].is_null());
}

}  // namespace
}  // namespace recurve
