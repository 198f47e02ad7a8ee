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

// Methods for tests of the gRPC transport, without an engine. Each exists
// twice: as /known/NAME, which makes the client known, and as /strange/NAME.
//
//   Echo   sends each message back; OK when the client closes its side
//   Fill   to "COUNT SIZE" COUNT messages of SIZE bytes, then OK
//   Hold   reads one message, then waits for FinishHeld
//   Accept as Hold, and the call counts as accepted
//   Refuse RESOURCE_EXHAUSTED before anything is read
//   Fail   INTERNAL, with as many bytes of text as its message says
class ToyService {
 public:
  // Timeout of a message; see RpcStream::Read.
  explicit ToyService(std::chrono::milliseconds read_within = {});
  ~ToyService();

  // The service outlives the server with these methods.
  RpcMethods Methods();

  // Call objects that are alive.
  int64_t alive() const;
  int64_t begun() const;
  // Messages received, and their bytes.
  int64_t messages() const;
  int64_t message_bytes() const;
  // Messages completely written to the socket.
  int64_t written() const;
  // The statuses of ended calls, in order.
  std::vector<absl::Status> ended() const;
  // Ends current calls of Hold and Accept.
  void FinishHeld(const absl::Status& status = absl::OkStatus());
  // Makes each of them write this.
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

// The message of Fill at `index`.
std::string ToyFill(int64_t index, int64_t size);

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_TOY_SERVICE_H_
