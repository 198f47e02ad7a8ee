#ifndef RECURVE_SERVER_SERVICES_STATE_CALLS_H_
#define RECURVE_SERVER_SERVICES_STATE_CALLS_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/serving/engine.h"
#include "recurve/v1/state.pb.h"
#include "server/grpc/rpc.h"
#include "server/services/state_transfer.h"

namespace recurve {

// One Export call: a request, then the bytes, each piece after the socket has
// taken the one before. One event at a time, as RpcListener has them.
class ExportCall : public RpcListener {
 public:
  using Open = std::function<absl::StatusOr<std::unique_ptr<StateExport>>(
      const v1::ExportStateRequest&)>;
  ExportCall(std::shared_ptr<RpcStream> stream, Open open)
      : stream_(std::move(stream)), open_(std::move(open)) {}

  void OnMessage(std::string message) override;
  void OnHalfClose() override;
  void OnWritten() override { WriteNext(); }
  void OnDone(const absl::Status&) override { export_.reset(); }

 private:
  void WriteNext();

  const std::shared_ptr<RpcStream> stream_;
  const Open open_;
  std::unique_ptr<StateExport> export_;
};

// One Import call: options, then bytes, until the client half-closes.
class ImportCall : public RpcListener,
                   public std::enable_shared_from_this<ImportCall> {
 public:
  // Gives the whole state its name.
  using Close = std::function<void(
      SequenceStatePtr, const v1::StateOptions&, const v1::StateHeader&,
      std::function<void(absl::StatusOr<v1::StateInfo>)>)>;
  ImportCall(std::shared_ptr<RpcStream> stream,
             std::unique_ptr<StateImport> import,
             std::function<absl::Status(const v1::StateOptions&)> check,
             Close close)
      : stream_(std::move(stream)),
        import_(std::move(import)),
        check_(std::move(check)),
        close_(std::move(close)) {}

  void OnMessage(std::string message) override;
  void OnHalfClose() override;
  void OnWritten() override {}
  void OnDone(const absl::Status&) override {}

 private:
  absl::Status Take(const v1::ImportStateRequest& request);
  void Read();

  const std::shared_ptr<RpcStream> stream_;
  const std::unique_ptr<StateImport> import_;
  const std::function<absl::Status(const v1::StateOptions&)> check_;
  const Close close_;
  bool begun_ = false;
  v1::StateOptions options_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_STATE_CALLS_H_
