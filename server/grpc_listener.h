#ifndef RECURVE_SERVER_GRPC_LISTENER_H_
#define RECURVE_SERVER_GRPC_LISTENER_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/listening_sockets.h"

namespace grpc::experimental {
class ExternalConnectionAcceptor;
}  // namespace grpc::experimental

namespace recurve {

class Metrics;

struct GrpcListenerOptions {
  std::string host;
  int port = 0;  // 0: any free one
  // One more is closed.
  int64_t max_connections = 4096;
  // Hears how many there are and which were closed; outlives the listener.
  // Null: nobody does.
  Metrics* metrics = nullptr;
};

// Accepts the connections of a gRPC server. One of gRPC's own listening sockets
// is done for good when the process has no file descriptor left for a
// connection; this one goes on as soon as there is one again.
//
// Thread safety: Listen, Start and Stop are called from one thread at a time.
class GrpcListener {
 public:
  // Listens when it returns OK, as ListeningSockets says; connections wait
  // until Start. Unavailable, with the reason.
  static absl::StatusOr<std::unique_ptr<GrpcListener>> Listen(
      const GrpcListenerOptions& options);
  GrpcListener(const GrpcListener&) = delete;
  GrpcListener& operator=(const GrpcListener&) = delete;
  ~GrpcListener();  // stops

  int port() const { return sockets_.port(); }

  // From now on connections go to `acceptor`, whose server has started.
  // ResourceExhausted where the system gives no thread.
  absl::Status Start(
      std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  // Accepts no more when it returns. To be called before the gRPC server is
  // shut down, which would lose the descriptors of what still comes.
  void Stop();

 private:
  using Clock = std::chrono::steady_clock;
  // What tells one file of a process from all others, whatever its descriptor.
  using FileId = std::pair<dev_t, ino_t>;

  GrpcListener(const GrpcListenerOptions& options, ListeningSockets sockets,
               int stop_fd)
      : options_(options), sockets_(std::move(sockets)), stop_fd_(stop_fd) {}

  void Loop();
  // Takes of what waits at a listening socket. False: it has to wait, since the
  // system has no descriptor or memory for it.
  bool AcceptSome(int listening_fd);
  void Take(int listening_fd, int fd);
  // At the limit it waits for a moment whether one of those that count is gone.
  bool HasRoom();
  // Takes those that are gone out of connections_.
  void ForgetClosed();
  void TellCount();
  // How long, in milliseconds, poll may wait before they are looked at again;
  // -1: for ever.
  int WaitMs() const;
  void WarnOfFiles(int error);
  void WarnOfConnections();

  const GrpcListenerOptions options_;
  ListeningSockets sockets_;
  const int stop_fd_;  // an eventfd
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::thread thread_;

  // Of the thread. gRPC does not tell when it closes a connection: they count
  // until their descriptors are found to be closed, or to be of other files.
  std::unordered_map<int, FileId> connections_;
  Clock::time_point next_look_;   // at the limit
  Clock::time_point next_count_;  // for the metric
  Clock::time_point next_files_warning_;
  Clock::time_point next_connections_warning_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_LISTENER_H_
