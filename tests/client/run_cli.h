#ifndef RECURVE_TESTS_CLIENT_RUN_CLI_H_
#define RECURVE_TESTS_CLIENT_RUN_CLI_H_

// Runs recurve-client in this process.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"

namespace recurve {

struct Output {
  int exit_code = 0;
  std::string out;
  std::string err;
};

inline Output RunCli(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "recurve-client");
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Output output;
  output.exit_code =
      RunClient(static_cast<int>(arguments.size()), arguments.data());
  std::fflush(stdout);
  output.out = testing::internal::GetCapturedStdout();
  output.err = testing::internal::GetCapturedStderr();
  return output;
}

// With a server in RECURVE_SERVER.
class CliTest : public testing::Test {
 protected:
  CliTest() { setenv("RECURVE_SERVER", server_.address().c_str(), 1); }
  ~CliTest() override { unsetenv("RECURVE_SERVER"); }

  FakeServer server_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_CLIENT_RUN_CLI_H_
