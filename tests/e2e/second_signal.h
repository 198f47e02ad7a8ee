#ifndef RECURVE_TESTS_E2E_SECOND_SIGNAL_H_
#define RECURVE_TESTS_E2E_SECOND_SIGNAL_H_

#include <signal.h>

#include <utility>

#include "tests/e2e/server_fixture.h"
#include "tests/testing/process.h"

namespace recurve {

// Sends SIGTERM twice to a server with a running stream; expects it to end
// immediately.
inline void ExpectSecondSignalStops(Process& server) {
  const auto client = *RecurveClient::Create(server.GrpcAddress());
  bool signalled = false;
  const absl::Status status = client->Generate(
      GreedyRequest({256, 65}, 8000), [&](const v1::GenerateEvent& event) {
        if (!event.has_tokens() || std::exchange(signalled, true)) return true;
        server.Signal(SIGTERM);
        // Two pending signals merge into one. The client does not read, so the
        // request pauses and cannot finish.
        EXPECT_TRUE(WaitFor([&] {
          const auto health = client->CheckHealth("");
          return health.ok() &&
                 health->status() ==
                     grpc::health::v1::HealthCheckResponse::NOT_SERVING;
        })) << server.Err();
        server.Signal(SIGTERM);
        return true;
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(server.Wait(), 128 + SIGTERM);
}

}  // namespace recurve

#endif  // RECURVE_TESTS_E2E_SECOND_SIGNAL_H_
