#include "client/lib/recurve_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/open_files.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "client/lib/client_call.h"
#include "client/lib/grpc_status.h"
#include "client/lib/no_proxy.h"

namespace recurve {

void Canceller::Cancel() {
  MutexLock lock(&mu_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

bool Canceller::cancelled() const {
  MutexLock lock(&mu_);
  return cancelled_;
}

void Canceller::Bind(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  context_ = context;
  if (cancelled_) context_->TryCancel();
}

void Canceller::Unbind() {
  MutexLock lock(&mu_);
  context_ = nullptr;
}

namespace {

absl::Status CheckServer(absl::string_view server) {
  const size_t colon = server.rfind(':');
  // SimpleAtoi alone would also take signs and blanks.
  const absl::string_view digits =
      colon == absl::string_view::npos ? "" : server.substr(colon + 1);
  uint32_t port = 0;
  if (digits.find_first_not_of("0123456789") == absl::string_view::npos &&
      absl::SimpleAtoi(digits, &port) && port >= 1 && port <= 65535) {
    const absl::string_view host = server.substr(0, colon);
    const bool bracketed =
        host.size() > 2 && host.front() == '[' && host.back() == ']';
    const bool plain =
        !host.empty() && host.find_first_of(":[]/ ") == absl::string_view::npos;
    if (bracketed || plain) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("server: '", server,
                   "' is not HOST:PORT with a port of 1 to 65535 (an IPv6 "
                   "address goes in brackets)"));
}

// Does not quote the key: it is a secret.
absl::Status CheckApiKey(absl::string_view key) {
  for (const char c : key) {
    if (c <= ' ' || c > '~') {
      return absl::InvalidArgumentError(
          "the API key has characters that are not printable ASCII, or spaces");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadPem(const char* what, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file || text.find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", path, " is not a PEM file that can be read"));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const TlsOptions& tls) {
  if (!tls.enabled) {
    if (!tls.ca.empty() || !tls.cert.empty() || !tls.key.empty()) {
      return absl::InvalidArgumentError("TLS files are given without TLS");
    }
    return grpc::InsecureChannelCredentials();
  }
  if (tls.cert.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError(
        "a client's TLS certificate and key go together");
  }
  grpc::SslCredentialsOptions options;
  RECURVE_ASSIGN_OR_RETURN(options.pem_root_certs,
                           ReadPem("TLS authority", tls.ca));
  RECURVE_ASSIGN_OR_RETURN(options.pem_cert_chain,
                           ReadPem("TLS certificate", tls.cert));
  RECURVE_ASSIGN_OR_RETURN(options.pem_private_key,
                           ReadPem("TLS key", tls.key));
  return grpc::SslCredentials(options);
}

// gRPC, which starts once, ends the process if it gets no file for its event
// queue; if it gets no threads, its calls wait for ever, even with a deadline.
absl::Status CheckGrpcCanStart() {
  // Its event queues take 4 or 5, a connection one; a connection tried again
  // takes one before the other's is given back.
  constexpr int kFiles = 8;
  // A pool with one thread per core, within these bounds, and a few more.
  const int threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 2, 32) +
      6;
  static std::atomic<bool> started = false;
  if (started) return absl::OkStatus();
  RECURVE_RETURN_IF_ERROR(CheckFiles("the client", kFiles));
  RECURVE_RETURN_IF_ERROR(CheckThreads("the client", threads));
  started = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecurveClient>> RecurveClient::Create(
    absl::string_view server, const ClientOptions& options) {
  RECURVE_RETURN_IF_ERROR(CheckServer(server));
  RECURVE_RETURN_IF_ERROR(CheckApiKey(options.api_key));
  RECURVE_RETURN_IF_ERROR(CheckGrpcCanStart());
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(options.max_receive_bytes);
  if (options.own_connection) {
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  }
  // As in the Python client. By default gRPC retries a server that was away for
  // a while only every two minutes.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  SetProxyUse(server, &arguments);
  RECURVE_ASSIGN_OR_RETURN(const auto credentials, Credentials(options.tls));
  // The explicit scheme stops gRPC from parsing the host as another scheme.
  return std::unique_ptr<RecurveClient>(new RecurveClient(
      grpc::CreateCustomChannel(absl::StrCat("dns:///", server), credentials,
                                arguments),
      options.api_key));
}

RecurveClient::RecurveClient(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& api_key)
    : authorization_(api_key.empty() ? "" : absl::StrCat("Bearer ", api_key)),
      inference_(v1::Inference::NewStub(channel)),
      control_(v1::Control::NewStub(channel)),
      state_(v1::State::NewStub(channel)),
      health_(grpc::health::v1::Health::NewStub(channel)) {}

absl::Status RecurveClient::Generate(
    const v1::GenerateRequest& request,
    absl::FunctionRef<bool(const v1::GenerateEvent&)> on_event,
    const CallOptions& options) {
  ClientCall call(options, authorization_);
  const auto reader = inference_->Generate(call.context(), request);
  v1::GenerateEvent event;
  bool wanted = true;
  while (reader->Read(&event)) {
    // After a cancellation, remaining events are read and dropped: gRPC
    // requires the stream to be read to its end.
    if (wanted && !on_event(event)) {
      wanted = false;
      call.context()->TryCancel();
    }
  }
  absl::Status status = FromGrpcStatus(reader->Finish());
  // The server may have finished before it saw the cancellation.
  if (!wanted && status.ok()) {
    return absl::CancelledError("cancelled by the caller");
  }
  return status;
}

std::unique_ptr<GenerateStream> RecurveClient::StartGenerate(
    const v1::GenerateRequest& request, GenerateStream::Callbacks callbacks,
    absl::Duration timeout) {
  return std::make_unique<GenerateStream>(
      inference_.get(), request, std::move(callbacks), timeout, authorization_);
}

absl::StatusOr<v1::ModelInfo> RecurveClient::GetModelInfo(
    const CallOptions& options) {
  return Unary(control_.get(), &v1::Control::Stub::GetModelInfo,
               v1::GetModelInfoRequest(), options, authorization_);
}

absl::StatusOr<v1::ServerInfo> RecurveClient::GetServerInfo(
    const CallOptions& options) {
  return Unary(control_.get(), &v1::Control::Stub::GetServerInfo,
               v1::GetServerInfoRequest(), options, authorization_);
}

absl::StatusOr<v1::Load> RecurveClient::GetLoad(const CallOptions& options) {
  return Unary(control_.get(), &v1::Control::Stub::GetLoad,
               v1::GetLoadRequest(), options, authorization_);
}

absl::Status RecurveClient::Abort(absl::string_view request_id,
                                  const CallOptions& options) {
  v1::AbortRequest request;
  request.set_request_id(std::string(request_id));
  return Unary(control_.get(), &v1::Control::Stub::Abort, request, options,
               authorization_)
      .status();
}

absl::StatusOr<v1::DrainResponse> RecurveClient::Drain(
    const CallOptions& options) {
  return Unary(control_.get(), &v1::Control::Stub::Drain, v1::DrainRequest(),
               options, authorization_);
}

absl::StatusOr<grpc::health::v1::HealthCheckResponse>
RecurveClient::CheckHealth(absl::string_view service,
                           const CallOptions& options) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(std::string(service));
  return Unary(health_.get(), &grpc::health::v1::Health::Stub::Check, request,
               options, /*authorization=*/"");
}

}  // namespace recurve
