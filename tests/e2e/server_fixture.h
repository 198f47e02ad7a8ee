#ifndef RECURVE_TESTS_E2E_SERVER_FIXTURE_H_
#define RECURVE_TESTS_E2E_SERVER_FIXTURE_H_

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/lib/generation.h"
#include "client/lib/recurve_client.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "recurve/v1/inference.grpc.pb.h"
#include "server/server.h"
#include "tests/testing/faulty_runner.h"

namespace recurve {

// A server on the demo model, on a free port, in this process, and clients that
// reach it over a real channel.

// Options that suit tests: the demo model, free ports, poisoned memory.
ServerOptions DemoOptions();

class TestServer {
 public:
  // Fails the test when the server does not start.
  explicit TestServer(ServerOptions options = DemoOptions());
  // With the tokenizer that `change` makes of the model's.
  using ChangeTokenizer =
      std::function<std::unique_ptr<Tokenizer>(std::unique_ptr<Tokenizer>)>;
  TestServer(ServerOptions options, const ChangeTokenizer& change);

  Server& server() { return *server_; }
  FaultyRunner& runner() { return *runner_; }
  std::string address() const;
  // Where its metrics are to be had without a key.
  int metrics_port() const;
  // A client with a connection of its own.
  std::unique_ptr<RecurveClient> Connect() const;
  std::shared_ptr<grpc::Channel> Channel() const;

  // Waits until nothing is open and checks that all memory is back.
  void ExpectIdle();

 private:
  std::unique_ptr<Server> server_;
  FaultyRunner* runner_ = nullptr;
};

// Holds a server's steps behind the first `steps`, until it is opened or gone:
// what runs then cannot end before a test has looked at it.
class StepHold {
 public:
  StepHold(TestServer& server, int64_t steps);
  ~StepHold() { Open(); }
  void Open();

 private:
  std::promise<void> promise_;
  bool open_ = false;
};

// Waits for every stream of the server of `client` to be gone, and for every
// slot and page to be back.
void ExpectNothingLeft(RecurveClient& client);

// A tenant's line of an --api-keys-file.
std::string KeyLine(const std::string& name, const std::string& key,
                    const std::string& more = "");

// A value of a metric on an HTTP port, labels as they are written; -1 if it is
// not there.
double MetricValue(int http_port, const std::string& name);

// How many requests a server counts as refused for `reason`.
double RefusedRequests(TestServer& server, const std::string& reason);

struct GenerateOutcome {
  absl::Status status;
  Generation generation;
};
GenerateOutcome Generate(RecurveClient& client,
                         const v1::GenerateRequest& request,
                         const CallOptions& options = {});

// Sends raw bytes as the first message of a method, "/recurve.v1.…/…"; returns
// the final status.
grpc::Status CallWithBytes(const std::string& address,
                           const std::string& method, const std::string& bytes);

// A request for `max_new_tokens` greedy tokens, end-of-sequence ignored.
v1::GenerateRequest GreedyRequest(const std::vector<uint32_t>& prompt,
                                  uint32_t max_new_tokens);

// `count` ids of bytes after BOS, fixed by the seed.
std::vector<uint32_t> RandomPrompt(uint64_t seed, int64_t count);

// What GET answers on loopback, headers and all.
std::string HttpGet(int port, const std::string& path);

// Whether this build is slowed down by a sanitizer.
bool Sanitized();

// Waits for `condition`, up to `seconds` (times ten under a sanitizer).
bool WaitFor(const std::function<bool()>& condition, double seconds = 10);

}  // namespace recurve

#endif  // RECURVE_TESTS_E2E_SERVER_FIXTURE_H_
