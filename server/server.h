#ifndef RECURVE_SERVER_SERVER_H_
#define RECURVE_SERVER_SERVER_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/loading/model_loader.h"
#include "engine/serving/engine.h"
#include "engine/serving/options.h"
#include "server/chat/template_renderer.h"
#include "server/openai/chat_format.h"
#include "server/requests/encode_threads.h"
#include "server/requests/request_call.h"
#include "server/telemetry/metrics.h"
#include "server/tenants/tenants.h"
#include "server/transport/stranger_bytes.h"
#include "server/transport/tls_files.h"
#include "server/transport/transport.h"

namespace recurve {

class ControlService;
class StateFiles;
class StateService;
class VllmService;
class GrpcServer;
class HealthService;
class HttpApi;
class HttpServer;

struct ServerOptions {
  ModelOptions model;
  EngineOptions engine;
  std::string served_model_name;  // empty: the name of the model's folder
  std::string host = "127.0.0.1";
  int grpc_port = 50051;  // 0: any free one
  // The completions API, and metrics unless they have a separate port; 0: any
  // free one, -1: none.
  int http_port = 9090;
  int metrics_port = -1;  // plaintext; 0: any free one, -1: on http_port
  // Whose names metrics have in addition to ours: none or vllm.
  std::string metrics_alias = "none";
  // A file in place of the checkpoint's chat template; empty: that.
  std::string chat_template;
  std::string chat_python = "python3";  // renders it; none: no chat
  // The tokens of a chat completion that names no number; 0: as many as the
  // model has room for.
  int64_t default_max_chat_tokens = 0;
  std::string ui = "auto";  // the page at /: auto (on on loopback), on, off
  int64_t max_http_connections = 4096;
  // The HttpServerOptions of the same names.
  std::chrono::milliseconds http_idle_timeout{620'000};
  std::chrono::milliseconds http_stream_ping{5'000};
  int64_t max_grpc_connections = 4096;  // further ones are closed
  // Total of messages that gRPC is receiving, over all connections.
  int64_t max_grpc_buffer_bytes = 256 << 20;
  // Memory limits for unknown clients (stranger_bytes.h), per connection and in
  // total, over gRPC and HTTP.
  int64_t max_stranger_connection_bytes = 1 << 20;
  int64_t max_stranger_bytes = 256 << 20;
  TransportOptions transport;
  bool admin = true;       // whether Control.Abort and Drain are served
  bool reflection = true;  // whether gRPC reflection is served
  std::string
      api_keys_file;      // for tenants; empty: anyone who can connect may call
  std::string state_dir;  // for pinned states; empty: they end with the server
  // --prefix-cache, which the flags turn into options of model and engine.
  std::string prefix_cache = "exact";
  int64_t default_max_new_tokens = 256;
  // A drain ends what is still running after this time.
  std::chrono::milliseconds shutdown_timeout{45'000};
  // A longer step counts as hung: health turns NOT_SERVING.
  std::chrono::milliseconds step_timeout{30'000};
  // A Decode call whose client sends no command for this long ends; 0: never.
  std::chrono::milliseconds decode_idle_timeout{600'000};
  int64_t max_buffered_tokens = 256;  // per stream; see CallEnvironment
  int64_t max_buffered_bytes = 1 << 20;
};

// A running server: engine, gRPC services, health, reflection, HTTP, metrics.
//
// Life: Create and Serve, or Start, RequestDrain (SIGTERM, Control.Drain, or a
// failed device), Wait. While draining, health is NOT_SERVING, new requests get
// UNAVAILABLE and accepted ones run to their end or to the shutdown timeout.
//
// Thread safety: all methods after Start may be called from any thread.
class Server {
 public:
  // Create and Serve.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, LoadedModel model);
  // Checks everything that does not need the model, which may take minutes to
  // load: the model's name, TLS files, API keys, ports.
  static absl::StatusOr<std::unique_ptr<Server>> Create(
      const ServerOptions& options);
  // Listens when it returns OK. `model` is the result of LoadModel (or a fake),
  // and `engine` the options that it filled in. To be called once, before all
  // below.
  absl::Status Serve(const EngineOptions& engine, LoadedModel model);
  ~Server();

  int grpc_port() const { return grpc_port_; }
  int http_port() const;     // -1 without HTTP
  int metrics_port() const;  // -1 without a separate port
  Engine& engine() { return *engine_; }

  // Starts the drain; returns immediately with the number of requests left.
  int64_t RequestDrain();
  // Blocks until drained and shut down. OK, or why the server failed.
  absl::Status Wait();

 private:
  explicit Server(const ServerOptions& options);
  absl::Status LoadTls();
  absl::Status LoadApiKeys();
  void WarnOfStrangers() const;
  absl::Status CheckPorts() const;
  absl::Status StartEngine(std::unique_ptr<ModelRunner> runner);
  absl::Status StartStates();
  absl::Status StartGrpc();
  // Not OK: a template that was asked for cannot be served.
  absl::Status StartChat();
  absl::Status StartHttp();
  absl::StatusOr<std::unique_ptr<HttpServer>> StartHttpOn(int port, bool secure,
                                                          HttpApi* api);
  // Supervisor thread: updates health from the engine, reads changed API keys
  // and TLS files, performs the drain, stops gRPC.
  void Supervise();
  // Returns when no work is left or time is up, with the device's failure if
  // that is the reason.
  absl::Status SuperviseUntilDrained();
  bool StepHangs() const;
  bool IsServing() ABSL_LOCKS_EXCLUDED(mu_);
  void SetServing(bool serving) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // These three are final once it listens.
  ServerOptions options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Capacity capacity_;
  Fingerprint fingerprint_;
  Metrics metrics_;
  std::unique_ptr<TlsFiles> tls_;     // null: plaintext
  std::unique_ptr<Tenants> tenants_;  // null without API keys
  std::atomic<int64_t> open_streams_{0};
  std::atomic<int64_t> accepted_streams_{0};
  CallEnvironment environment_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<EncodeThreads> encode_threads_;
  std::unique_ptr<StrangerBytes> strangers_;
  std::unique_ptr<ControlService> control_;
  std::unique_ptr<StateFiles> state_files_;
  std::unique_ptr<StateService> state_service_;
  std::unique_ptr<VllmService> vllm_service_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<GrpcServer> grpc_server_;
  std::unique_ptr<TemplateRenderer> chat_renderer_;
  ChatOptions chat_;
  std::unique_ptr<HttpApi> http_api_;
  std::unique_ptr<HttpApi> metrics_api_;
  std::unique_ptr<HttpServer> http_server_;
  std::unique_ptr<HttpServer> metrics_server_;
  int grpc_port_ = 0;

  Mutex mu_;
  CondVar changed_;
  bool drain_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status outcome_ ABSL_GUARDED_BY(mu_);
  bool serving_ ABSL_GUARDED_BY(mu_) = false;
  std::thread supervisor_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVER_H_
