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
  // Fails the test if the server does not start.
  explicit TestServer(ServerOptions options = DemoOptions());
  // Decorates the model's tokenizer with `change`.
  using ChangeTokenizer =
      std::function<std::unique_ptr<Tokenizer>(std::unique_ptr<Tokenizer>)>;
  TestServer(ServerOptions options, const ChangeTokenizer& change);

  Server& server() { return *server_; }
  FaultyRunner& runner() { return *runner_; }
  std::string address() const;
  // A port that serves metrics without a key.
  int metrics_port() const;
  // A client with a separate connection.
  std::unique_ptr<RecurveClient> Connect() const;
  std::shared_ptr<grpc::Channel> Channel() const;

  // Waits until all requests have ended and checks that all memory is free.
  void ExpectIdle();

 private:
  std::unique_ptr<Server> server_;
  FaultyRunner* runner_ = nullptr;
};

// Holds a server's steps after the first `steps`, until it is opened or
// destroyed, so that running requests cannot end before a test has checked
// them.
class StepHold {
 public:
  StepHold(TestServer& server, int64_t steps);
  ~StepHold() { Open(); }
  void Open();

 private:
  std::promise<void> promise_;
  bool open_ = false;
};

// Waits until the server of `client` has no streams, and all slots and pages
// are free.
void ExpectNothingLeft(RecurveClient& client);

// A tenant's line of an --api-keys-file.
std::string KeyLine(const std::string& name, const std::string& key,
                    const std::string& more = "");

// A metric's value on an HTTP port, with labels as written; -1 if it is
// missing.
double MetricValue(int http_port, const std::string& name);

// The number of requests that a server counts as refused for `reason`.
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

// The answer to a GET on loopback, including headers.
std::string HttpGet(int port, const std::string& path);

// Whether this build is slowed down by a sanitizer.
bool Sanitized();

// Waits for `condition`, up to `seconds` (times ten under a sanitizer).
bool WaitFor(const std::function<bool()>& condition, double seconds = 10);

}  // namespace recurve

#endif  // RECURVE_TESTS_E2E_SERVER_FIXTURE_H_
