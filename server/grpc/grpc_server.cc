#include "server/grpc/grpc_server.h"

// Boost 1.74's Asio uses std::exchange without including it.
#include <utility>
//
#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "server/grpc/connection.h"
#include "server/telemetry/metrics.h"
#include "server/transport/acceptor.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

using boost::asio::ip::tcp;
using Clock = std::chrono::steady_clock;

// They parse, encode short prompts and forward output; long prompts are
// encoded, and the model runs, on other threads.
constexpr int kThreads = 2;
// Any client can cause these log lines, so they are rate-limited.
constexpr std::chrono::seconds kRefusedInterval{60};
// At the limit, a new connection waits this long for another to close, because
// that one's client may have left first; and how many may wait.
constexpr std::chrono::milliseconds kRoomTime{20};
constexpr size_t kMaxWaiting = 64;
// The same if an idle connection of an unknown client was told to end.
constexpr std::chrono::milliseconds kDisplaceTime{1'000};
constexpr std::chrono::seconds kOffenceInterval{1};

}  // namespace

// The listening sockets, the threads, and the state shared by all connections.
class GrpcServer::Core : public GrpcConnections,
                         public std::enable_shared_from_this<Core> {
 public:
  using GrpcConnections::GrpcConnections;
  absl::StatusOr<int> Listen();
  void Stop(Clock::time_point deadline);
  int64_t connections();
  void Remove(GrpcConnection* connection) override;
  void OnDisplaced() override;
  void OnOffence(const std::string& peer, Offence offence) override;

 private:
  // A connection that arrived when there was no room.
  struct Waiting {
    Waiting(tcp::socket its_socket,
            std::shared_ptr<boost::asio::ssl::context> its_tls)
        : socket(std::move(its_socket)),
          tls(std::move(its_tls)),
          timer(socket.get_executor()) {}
    tcp::socket socket;
    std::shared_ptr<boost::asio::ssl::context> tls;
    boost::asio::steady_timer timer;
  };
  using WaitingPtr = std::shared_ptr<Waiting>;

  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return static_cast<int64_t>(open_.size()) + arriving_ <
           options().max_connections;
  }
  void OnSocket(tcp::socket socket,
                std::shared_ptr<boost::asio::ssl::context> tls);
  // Serves an admitted connection, which is counted in arriving_.
  void Serve(tcp::socket socket,
             std::shared_ptr<boost::asio::ssl::context> tls);
  void Refuse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<std::shared_ptr<GrpcConnection>> All();
  void TellCount() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::unique_ptr<Acceptor> acceptor_;

  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::unordered_map<GrpcConnection*, std::weak_ptr<GrpcConnection>> open_
      ABSL_GUARDED_BY(mu_);
  int64_t arriving_ ABSL_GUARDED_BY(mu_) = 0;  // admitted, not in open_ yet
  std::deque<WaitingPtr> waiting_ ABSL_GUARDED_BY(mu_);
  Clock::time_point next_refused_line_ ABSL_GUARDED_BY(mu_);
  Clock::time_point next_offence_line_ ABSL_GUARDED_BY(mu_);
  int64_t offences_not_logged_ ABSL_GUARDED_BY(mu_) = 0;
};

absl::StatusOr<int> GrpcServer::Core::Listen() {
  Acceptor::Options accept;
  accept.protocol = "gRPC";
  accept.host = options().host;
  accept.port = options().port;
  accept.threads = kThreads;
  accept.tls = options().tls;
  accept.tls_protocol = TlsFiles::Protocol::kHttp2;
  RECURVE_ASSIGN_OR_RETURN(acceptor_, Acceptor::Listen(accept));
  RECURVE_RETURN_IF_ERROR(
      acceptor_->Start([this](tcp::socket socket,
                              std::shared_ptr<boost::asio::ssl::context> tls) {
        OnSocket(std::move(socket), std::move(tls));
      }));
  return acceptor_->port();
}

void GrpcServer::Core::OnSocket(
    tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> tls) {
  WaitingPtr waiting;
  {
    MutexLock lock(&mu_);
    if (stopped_) return;
    if (HasRoom()) {
      ++arriving_;
    } else if (waiting_.size() >= kMaxWaiting) {
      return Refuse();
    } else {
      waiting = std::make_shared<Waiting>(std::move(socket), std::move(tls));
      waiting_.push_back(waiting);
    }
  }
  // NOLINTNEXTLINE(bugprone-use-after-move): moved only where it waits
  if (waiting == nullptr) return Serve(std::move(socket), std::move(tls));
  StrangerBytes* const strangers = options().strangers;
  const bool displaces =
      strangers != nullptr && strangers->EndOldest(StrangerBytes::Port::kGrpc);
  waiting->timer.expires_after(displaces ? kDisplaceTime : kRoomTime);
  waiting->timer.async_wait(
      [self = shared_from_this(), waiting](boost::system::error_code) {
        MutexLock lock(&self->mu_);
        const auto it =
            std::find(self->waiting_.begin(), self->waiting_.end(), waiting);
        if (it == self->waiting_.end()) return;  // it was admitted
        self->waiting_.erase(it);
        self->Refuse();
      });
}

void GrpcServer::Core::Serve(tcp::socket socket,
                             std::shared_ptr<boost::asio::ssl::context> tls) {
  const auto connection = std::make_shared<GrpcConnection>(
      shared_from_this(), std::move(socket), std::move(tls));
  {
    MutexLock lock(&mu_);
    --arriving_;
    if (stopped_) return;
    open_.emplace(connection.get(), connection);
    TellCount();
  }
  connection->Start();
}

void GrpcServer::Core::Refuse() {
  if (options().metrics != nullptr) options().metrics->OnGrpcRefused();
  const Clock::time_point now = Clock::now();
  if (now < next_refused_line_) return;
  next_refused_line_ = now + kRefusedInterval;
  spdlog::warn(
      "gRPC connections are closed: there are {} already, as many as "
      "--max-grpc-connections allows",
      open_.size());
}

void GrpcServer::Core::Remove(GrpcConnection* connection) {
  WaitingPtr next;
  {
    MutexLock lock(&mu_);
    open_.erase(connection);
    TellCount();
    changed_.NotifyAll();
    if (stopped_ || waiting_.empty() || !HasRoom()) return;
    next = waiting_.front();
    waiting_.pop_front();
    ++arriving_;
  }
  // Its timer keeps it alive for a moment longer, without its socket.
  boost::asio::post(next->socket.get_executor(),
                    [self = shared_from_this(), next] {
                      self->Serve(std::move(next->socket), next->tls);
                    });
}

void GrpcServer::Core::TellCount() {
  if (options().metrics == nullptr) return;
  options().metrics->SetGrpcConnections(static_cast<int64_t>(open_.size()));
}

void GrpcServer::Core::OnDisplaced() {
  if (options().metrics == nullptr) return;
  options().metrics->OnGrpcConnectionEnded(kDisplacedName);
}

void GrpcServer::Core::OnOffence(const std::string& peer, Offence offence) {
  if (options().metrics != nullptr) {
    options().metrics->OnGrpcConnectionEnded(OffenceName(offence));
  }
  MutexLock lock(&mu_);
  const Clock::time_point now = Clock::now();
  if (now < next_offence_line_) {
    ++offences_not_logged_;
    return;
  }
  next_offence_line_ = now + kOffenceInterval;
  spdlog::warn(
      "ended the gRPC connection of {} ({}); {} more since the last "
      "such line",
      peer, OffenceName(offence), std::exchange(offences_not_logged_, 0));
}

int64_t GrpcServer::Core::connections() {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(open_.size());
}

std::vector<std::shared_ptr<GrpcConnection>> GrpcServer::Core::All() {
  std::vector<std::shared_ptr<GrpcConnection>> all;
  MutexLock lock(&mu_);
  for (const auto& [unused, weak] : open_) {
    if (auto connection = weak.lock()) all.push_back(std::move(connection));
  }
  return all;
}

void GrpcServer::Core::Stop(Clock::time_point deadline) {
  {
    MutexLock lock(&mu_);
    if (std::exchange(stopped_, true)) return;
  }
  if (acceptor_ == nullptr) return;
  acceptor_->StopAccepting();
  for (const auto& connection : All()) connection->PostShutdown();
  {
    MutexLock lock(&mu_);
    while (!open_.empty()) {
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) break;
      changed_.WaitFor(&mu_, left);
    }
  }
  for (const auto& connection : All()) connection->PostClose();
  acceptor_->Stop();
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const GrpcServerOptions& options, RpcMethods methods) {
  if (options.metrics != nullptr) {
    for (int i = 0; i < kNumOffences; ++i) {
      options.metrics->DeclareGrpcConnectionEnd(
          OffenceName(static_cast<Offence>(i)));
    }
    options.metrics->DeclareGrpcConnectionEnd(kDisplacedName);
  }
  auto server = std::unique_ptr<GrpcServer>(
      new GrpcServer(std::make_shared<Core>(options, std::move(methods))));
  RECURVE_ASSIGN_OR_RETURN(server->port_, server->core_->Listen());
  return server;
}

GrpcServer::~GrpcServer() { Stop(Clock::now()); }

int64_t GrpcServer::connections() const { return core_->connections(); }
void GrpcServer::Stop(Clock::time_point deadline) { core_->Stop(deadline); }

}  // namespace recurve
