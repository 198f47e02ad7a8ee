// A server whose log is no longer read: a full pipe.

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/second_signal.h"
#include "tests/e2e/server_fixture.h"
#include "tests/testing/process.h"

namespace recurve {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class HungLogTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
    pipe_ = open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ASSERT_GE(pipe_, 0);
    ASSERT_GT(fcntl(pipe_, F_SETPIPE_SZ, 4096), 0);
    while (write(pipe_, "x", 1) == 1) ++filled_;
  }
  void TearDown() override {
    close(pipe_);
    std::filesystem::remove(path_);
  }

  // With the pipe for its log.
  std::vector<std::string> Command() const {
    const std::string run = "exec \"$0\" \"$@\" 2>" + path_;
    const std::string server = RECURVE_BINARY_DIR "/bin/recurve-server";
    const std::string model = RECURVE_SOURCE_DIR "/deploy/models/demo";
    return {"/bin/sh", "-c",          run, server,        "--model",
            model,     "--grpc-port", "0", "--http-port", "0"};
  }

  // What the server wrote, once its log is read again.
  std::string ReadLog() {
    std::string text;
    char buffer[4096];
    while (true) {
      const ssize_t count = read(pipe_, buffer, sizeof buffer);
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

  int64_t filled_ = 0;

 private:
  const std::string path_ =
      testing::TempDir() + "hung_log_" + std::to_string(getpid());
  int pipe_ = -1;
};

TEST_F(HungLogTest, TheServerServesAndDrains) {
  Process server(Command());
  const std::string address = server.GrpcAddress();
  ASSERT_THAT(address, StartsWith("127.0.0.1:"));
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
  EXPECT_EQ(server.Wait(), 0);
}

TEST_F(HungLogTest, ASecondSignalStopsAtOnce) {
  Process server(Command());
  ExpectSecondSignalStops(server);
}

TEST_F(HungLogTest, AnErrorOfTheStartEndsTheProcess) {
  std::vector<std::string> command = Command();
  command.insert(command.end(), {"--api-keys-file", "/nonexistent"});
  Process server(command);
  EXPECT_EQ(server.Wait(), 1);
}

TEST_F(HungLogTest, NothingIsLostThatFitsUntilItIsReadAgain) {
  Process server(Command());
  ASSERT_THAT(server.GrpcAddress(), StartsWith("127.0.0.1:"));
  std::string log;
  EXPECT_TRUE(WaitFor([&] {
    log += ReadLog();
    return log.find("loaded ") != std::string::npos;
  })) << log;
  EXPECT_THAT(log, StartsWith(std::string(static_cast<size_t>(filled_), 'x')));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
  log += ReadLog();
  EXPECT_THAT(log, HasSubstr(" info drained; bye\n"));
}

}  // namespace
}  // namespace recurve
