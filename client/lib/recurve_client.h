#ifndef RECURVE_CLIENT_LIB_RECURVE_CLIENT_H_
#define RECURVE_CLIENT_LIB_RECURVE_CLIENT_H_

#include <grpcpp/client_context.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/lib/generate_stream.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "recurve/v1/control.grpc.pb.h"
#include "recurve/v1/inference.grpc.pb.h"
#include "recurve/v1/state.grpc.pb.h"

namespace recurve {

// Cancels a blocking call from another thread.
// Thread safety: all methods may be called from any thread.
class Canceller {
 public:
  // Ends the current call, and any later one, with CANCELLED.
  void Cancel();
  bool cancelled() const;

 private:
  friend class ClientCall;
  void Bind(grpc::ClientContext* context);
  void Unbind();

  mutable Mutex mu_;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

struct CallOptions {
  // Becomes the deadline of the call; infinite means none.
  absl::Duration timeout = absl::InfiniteDuration();
  // May be null. Serves one call at a time; must outlive it.
  Canceller* canceller = nullptr;
};

// Files are PEM, read by RecurveClient::Create.
struct TlsOptions {
  bool enabled = false;  // else plaintext
  std::string ca;        // CAs trusted to sign the server's certificate; empty:
                         // the system's
  std::string cert;      // this client's certificate, if the server asks for
                         // one
  std::string key;
};

struct ClientOptions {
  // Largest message accepted from the server, in bytes. Logits of a Decode call
  // are large: one row is 4 bytes for each token of the vocabulary.
  int max_receive_bytes = 64 << 20;
  // gRPC shares one connection among the clients of a server. True opens a
  // separate one for this client: a server may limit the streams of a
  // connection.
  bool own_connection = false;
  TlsOptions tls = {};
  // Sent with every call except health checks, for a server with API keys;
  // empty: none. Anyone who can read the connection can read the key: use TLS.
  std::string api_key = "";
};

// The services of one Recurve server.
//
// Errors of calls come from the server or from gRPC itself (UNAVAILABLE if
// there is no connection, DEADLINE_EXCEEDED, CANCELLED).
//
// Thread safety: all methods may be called from any thread. Streams must not
// outlive the client.
class RecurveClient {
 public:
  // `server` is HOST:PORT (an IPv6 address in brackets). Does not connect: the
  // first call does, through the proxy that gRPC's variables name, if any,
  // except for servers on this machine or in NO_PROXY (no_proxy.h).
  // InvalidArgument if `server` has another form, a file of `options` cannot be
  // read, or the API key is not printable ASCII. ResourceExhausted if the
  // system refuses the files and threads that gRPC needs.
  static absl::StatusOr<std::unique_ptr<RecurveClient>> Create(
      absl::string_view server, const ClientOptions& options = {});

  // Streams a continuation. Blocks until the call has ended; on_event gets
  // every event in order, on this thread. It returns false to cancel the call.
  absl::Status Generate(
      const v1::GenerateRequest& request,
      absl::FunctionRef<bool(const v1::GenerateEvent&)> on_event,
      const CallOptions& options = {});

  // As Generate, without blocking: see GenerateStream.
  std::unique_ptr<GenerateStream> StartGenerate(
      const v1::GenerateRequest& request, GenerateStream::Callbacks callbacks,
      absl::Duration timeout = absl::InfiniteDuration());

  absl::StatusOr<v1::ModelInfo> GetModelInfo(const CallOptions& options = {});
  absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& options = {});
  absl::StatusOr<v1::Load> GetLoad(const CallOptions& options = {});
  absl::Status Abort(absl::string_view request_id,
                     const CallOptions& options = {});
  absl::StatusOr<v1::DrainResponse> Drain(const CallOptions& options = {});

  // States: state.proto.
  // Has the server append and compute what `first` says, and keeps that as a
  // state.
  absl::StatusOr<v1::StateInfo> MakeState(const v1::DecodeRequest& first,
                                          const v1::StateOptions& keep,
                                          const CallOptions& options = {});
  absl::StatusOr<v1::ForkResponse> ForkState(const v1::ForkRequest& request,
                                             const CallOptions& options = {});
  absl::StatusOr<v1::StateInfo> GetState(absl::string_view state,
                                         const CallOptions& options = {});
  absl::StatusOr<v1::ListStatesResponse> ListStates(
      const CallOptions& options = {});
  absl::StatusOr<v1::StateInfo> PinState(const v1::PinStateRequest& request,
                                         const CallOptions& options = {});
  absl::Status ReleaseState(absl::string_view state,
                            const CallOptions& options = {});
  // Calls `on_data` with each piece; an error from it ends the call.
  absl::Status ExportState(
      absl::string_view state,
      absl::FunctionRef<absl::Status(absl::string_view)> on_data,
      const CallOptions& options = {});
  // `next` gives the next piece, below 4 MiB; an empty one ends.
  absl::StatusOr<v1::StateInfo> ImportState(
      const v1::StateOptions& keep,
      absl::FunctionRef<absl::StatusOr<std::string>()> next,
      const CallOptions& options = {});
  // Copies a state of this server to another, piece by piece.
  absl::StatusOr<v1::StateInfo> CopyState(absl::string_view state,
                                          const v1::StateOptions& keep,
                                          RecurveClient* to,
                                          const CallOptions& options = {});

  // grpc.health.v1 Check. An empty `service` means the whole server; NotFound
  // if the server does not know the service.
  absl::StatusOr<grpc::health::v1::HealthCheckResponse> CheckHealth(
      absl::string_view service = "", const CallOptions& options = {});

 private:
  RecurveClient(const std::shared_ptr<grpc::Channel>& channel,
                const std::string& api_key);

  const std::string authorization_;  // the header's value; empty: none
  const std::unique_ptr<v1::Inference::Stub> inference_;
  const std::unique_ptr<v1::Control::Stub> control_;
  const std::unique_ptr<v1::State::Stub> state_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

}  // namespace recurve

#endif  // RECURVE_CLIENT_LIB_RECURVE_CLIENT_H_
