#ifndef RECURVE_TESTS_TESTING_TOY_SERVICE_H_
#define RECURVE_TESTS_TESTING_TOY_SERVICE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/rpc.h"

namespace recurve {

// Methods for tests of the gRPC transport, without an engine. Each is there
// twice: as /known/NAME, which takes the caller for known, and as
// /strange/NAME.
//
//   Echo   sends each message back; OK when the client closes its side
//   Fill   to "COUNT SIZE" COUNT messages of SIZE bytes, then OK
//   Hold   reads one message, then waits for FinishHeld
//   Accept as Hold, and the call counts as accepted
//   Refuse RESOURCE_EXHAUSTED before anything is read
//   Fail   INTERNAL, with as many bytes of text as its message says
class ToyService {
 public:
  // Of a message; see RpcStream::Read.
  explicit ToyService(std::chrono::milliseconds read_within = {});
  ~ToyService();

  // The service outlives the server that has these.
  RpcMethods Methods();

  // Calls whose objects are alive.
  int64_t alive() const;
  int64_t begun() const;
  // How many messages have come, and bytes of them.
  int64_t messages() const;
  int64_t message_bytes() const;
  // How many the socket has taken whole.
  int64_t written() const;
  // How the calls ended that are over, in their order.
  std::vector<absl::Status> ended() const;
  // Ends the calls of Hold and Accept that have begun.
  void FinishHeld(const absl::Status& status = absl::OkStatus());
  // Gives each of them this to write.
  void WriteHeld(const std::string& message);

 private:
  class Call;
  struct State;

  const std::shared_ptr<State> state_;
};

// A server with these methods on a free port of this machine.
class ToyServer {
 public:
  explicit ToyServer(GrpcServerOptions options = {},
                     std::chrono::milliseconds read_within = {});

  ToyService& service() { return service_; }
  GrpcServer& server() { return *server_; }
  int port() const { return server_->port(); }
  std::string address() const;

 private:
  ToyService service_;
  std::unique_ptr<GrpcServer> server_;
};

// What Fill sends as the message at `index`.
std::string ToyFill(int64_t index, int64_t size);

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_TOY_SERVICE_H_
