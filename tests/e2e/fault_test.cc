// What a process does whose device fails or hangs. RECURVE_TEST_DEVICE=cuda has
// a GPU fail.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <thread>

#include "tests/e2e/server_fixture.h"
#include "tests/testing/process.h"
#include "tests/testing/program_paths.h"

namespace recurve {
namespace {

using grpc::health::v1::HealthCheckResponse;
using testing::HasSubstr;

class FaultTest : public testing::Test {
 protected:
  ~FaultTest() override { std::remove(file_.c_str()); }

  // It serves until Break is called.
  std::unique_ptr<Process> StartServer(const std::string& fault) const {
    return std::make_unique<Process>(
        std::vector<std::string>{
            TestProgram("recurve-faulty-server"), "--model", DemoModelFolder(),
            "--device", TestDeviceFlag(), "--grpc-port", "0", "--http-port",
            "-1", "--num-threads", "2", "--max-num-seqs", "3", "--step-timeout",
            "1", "--shutdown-timeout", "0.5"},
        std::vector<std::string>{"RECURVE_TEST_FAULT=" + fault,
                                 "RECURVE_TEST_FAULT_FILE=" + file_});
  }
  // Waits until the server has `streams` streams, running or waiting.
  static bool HasStreams(const std::string& address, uint32_t streams) {
    const auto client = *RecurveClient::Create(address);
    return WaitFor([&] {
      const auto load = client->GetLoad();
      return load.ok() &&
             load->num_requests_running() + load->num_requests_waiting() ==
                 streams;
    });
  }
  void Break() const { std::ofstream(file_) << "now"; }
  void DeviceFails(const std::string& fault, const std::string& message) const;
  void AStepHangs(bool seen_before_the_drain) const;

 private:
  const std::string file_ =
      testing::TempDir() + "/recurve_fault_test." + std::to_string(getpid());
};

bool TurnsNotServing(const std::string& address) {
  ClientOptions options;
  options.own_connection = true;
  const auto client = *RecurveClient::Create(address, options);
  // The issue asks for five seconds.
  return WaitFor(
      [&] {
        const auto health = client->CheckHealth();
        return health.ok() &&
               health->status() == HealthCheckResponse::NOT_SERVING;
      },
      5);
}

void FaultTest::DeviceFails(const std::string& fault,
                            const std::string& message) const {
  const auto server = StartServer(fault);
  const std::string address = server->GrpcAddress();
  ASSERT_NE(address, "") << server->Err();
  // Running ones and waiting ones.
  std::vector<absl::Status> ends(5);
  std::vector<std::thread> streams;
  for (absl::Status& end : ends) {
    streams.emplace_back([&end, &address] {
      const auto client = *RecurveClient::Create(address);
      end = Generate(*client, GreedyRequest({256, 65}, 8000)).status;
    });
  }
  EXPECT_TRUE(HasStreams(address, ends.size())) << server->Err();
  Break();
  EXPECT_TRUE(TurnsNotServing(address)) << server->Err();
  for (std::thread& stream : streams) stream.join();
  for (const absl::Status& end : ends) {
    EXPECT_EQ(end.code(), absl::StatusCode::kInternal) << end;
    EXPECT_THAT(std::string(end.message()), HasSubstr(message));
  }
  EXPECT_EQ(server->Wait(), 1) << server->Err();
  EXPECT_THAT(server->Err(), HasSubstr(message));
}

void FaultTest::AStepHangs(bool seen_before_the_drain) const {
  const auto server = StartServer("hang");
  const std::string address = server->GrpcAddress();
  ASSERT_NE(address, "") << server->Err();
  std::thread stream([&address] {
    const auto client = *RecurveClient::Create(address);
    const auto outcome = Generate(*client, GreedyRequest({256, 65}, 8000));
    EXPECT_FALSE(outcome.status.ok());
  });
  EXPECT_TRUE(HasStreams(address, 1)) << server->Err();
  Break();
  if (seen_before_the_drain) {
    EXPECT_TRUE(TurnsNotServing(address)) << server->Err();
  }
  // What restarts containers then ends it; it does not wait for the step.
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(), 1) << server->Err();
  EXPECT_THAT(server->Err(), HasSubstr("a step hangs"));
  stream.join();
}

TEST_F(FaultTest, AnErrorOfTheDeviceEndsStreamsAndProcess) {
  DeviceFails("error", "a fault of the kind error");
}

TEST_F(FaultTest, AFaultOfTheGpuEndsStreamsAndProcess) {
  if (TestDeviceFlag() != "cuda") GTEST_SKIP() << "RECURVE_TEST_DEVICE is cpu";
  DeviceFails("illegal", "illegal memory access");
}

TEST_F(FaultTest, AStepThatHangsTurnsHealthDownAndFailsTheDrain) {
  AStepHangs(/*seen_before_the_drain=*/true);
}

// The step is younger than --step-timeout when --shutdown-timeout has passed.
TEST_F(FaultTest, AStepThatHangsOnlyAsTheDrainEndsDoesNotHoldTheProcess) {
  AStepHangs(/*seen_before_the_drain=*/false);
}

}  // namespace
}  // namespace recurve
