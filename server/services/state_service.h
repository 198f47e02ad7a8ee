#ifndef RECURVE_SERVER_SERVICES_STATE_SERVICE_H_
#define RECURVE_SERVER_SERVICES_STATE_SERVICE_H_

#include <memory>

#include "engine/serving/engine.h"
#include "recurve/v1/state.pb.h"
#include "server/grpc/rpc.h"
#include "server/grpc/unary.h"
#include "server/services/state_files.h"
#include "server/services/state_transfer.h"
#include "server/tenants/tenants.h"

namespace recurve {

// recurve.v1.State: what tenants do with the states of their sequences.
// Thread-safe.
class StateService {
 public:
  struct Options {
    Engine* engine;
    Tenants* tenants = nullptr;  // null: anyone who can connect may call
    v1::StateFingerprint fingerprint;
    StateFiles* files = nullptr;  // null: nothing is kept on disk
  };
  explicit StateService(Options options) : options_(std::move(options)) {}

  // The service outlives the server with these methods.
  void AddMethods(RpcMethods* methods) const;

  // --- What every interface does alike; errors as in state.proto ---

  using Caller = std::shared_ptr<Tenant>;  // null on a server without keys

  // Unauthenticated without a known key. `entry` is what errors call a header.
  absl::StatusOr<Caller> CallerOf(absl::Span<const std::string> authorization,
                                  absl::string_view entry) const;
  absl::StatusOr<v1::ForkResponse> Fork(const Caller& caller,
                                        const v1::ForkRequest& request) const;
  absl::StatusOr<v1::StateInfo> Get(const Caller& caller,
                                    const std::string& state) const;
  // The tokens of a state; no use of it.
  absl::StatusOr<std::vector<int32_t>> TokensOf(const Caller& caller,
                                                const std::string& state) const;
  v1::ListStatesResponse List(const Caller& caller) const;
  // `done` is called on this thread or another.
  void Pin(const Caller& caller, const v1::PinStateRequest& request,
           const UnaryDone<v1::StateInfo>& done) const;
  absl::Status Release(const Caller& caller,
                       const v1::ReleaseStateRequest& request) const;

 private:
  absl::StatusOr<Caller> Authenticate(const RpcHead& head,
                                      RpcStream& stream) const;
  void Snapshot(const Caller& caller, const v1::SnapshotRequest& request,
                const UnaryDone<v1::StateInfo>& done) const;
  // Answers with a state that was made or changed: on disk if it is pinned. If
  // it cannot be written, it is as `before` again, or, new, released.
  void Answer(const Caller& caller, const absl::StatusOr<StateInfo>& info,
              const std::optional<StateInfo>& before,
              const UnaryDone<v1::StateInfo>& done) const;
  std::shared_ptr<RpcListener> Export(const Caller& caller,
                                      std::shared_ptr<RpcStream> stream) const;
  std::shared_ptr<RpcListener> Import(const Caller& caller,
                                      std::shared_ptr<RpcStream> stream) const;

  const Options options_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_STATE_SERVICE_H_
