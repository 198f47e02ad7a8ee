#include "server/server.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "engine/checkpoint/quote.h"
#include "engine/loading/host_memory.h"
#include "engine/tokenizer/utf8.h"
#include "prometheus/registry.h"
#include "server/chat/chat_template.h"
#include "server/grpc/grpc_server.h"
#include "server/grpc/health_service.h"
#include "server/grpc/reflection_service.h"
#include "server/heap_trimmer.h"
#include "server/http/http_server.h"
#include "server/openai/http_api.h"
#include "server/services/control_service.h"
#include "server/services/inference_service.h"
#include "server/services/state_service.h"
#include "server/telemetry/process_log.h"
#include "server/transport/listening_sockets.h"
#include "server/vllm/vllm_service.h"
#include "spdlog/spdlog.h"

namespace recurve {
namespace {

// Poll interval of the supervisor, for events it is not notified of.
constexpr std::chrono::milliseconds kPollInterval{50};
constexpr std::chrono::seconds kTrimInterval{10};
// How often the API key file is checked.
constexpr std::chrono::seconds kApiKeysInterval{2};
// Delay of the exit after a device failure, so that probes and clients see it.
constexpr std::chrono::seconds kFailureGrace{2};
// Time for calls without a sequence to finish when the server stops.
constexpr std::chrono::seconds kCallGrace{1};
// Calls of one connection in addition to those that the engine accepts: refused
// ones, and those of Control and health.
constexpr int64_t kMoreStreams = 64;
// Requests are small; larger ones are refused before they are read.
constexpr int64_t kMaxReceiveBytes = 4 << 20;
// The gRPC names of this server's services.
const char* const kServices[] = {"recurve.v1.Inference", "recurve.v1.Control",
                                 "recurve.v1.State",
                                 "vllm.grpc.engine.VllmEngine"};
constexpr char kHealthService[] = "grpc.health.v1.Health";

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" ||
         absl::StartsWith(host, "127.");
}

std::string ModelName(const ServerOptions& options) {
  if (!options.served_model_name.empty()) return options.served_model_name;
  // Made absolute, because "." and ".." are not names.
  std::error_code error;
  std::filesystem::path path =
      std::filesystem::absolute(options.model.path, error).lexically_normal();
  if (error) path = options.model.path;
  return (path.has_filename() ? path.filename() : path.parent_path().filename())
      .string();
}

// The name is in every answer, and JSON and protobuf strings must be UTF-8:
// otherwise no client could read an answer.
absl::Status CheckModelName(const ServerOptions& options) {
  if (IsValidUtf8(ModelName(options))) return absl::OkStatus();
  if (!options.served_model_name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--served-model-name is ",
                     Quote(options.served_model_name), "; expected UTF-8"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--model is ", Quote(options.model.path),
      "; expected a folder whose name is UTF-8, or --served-model-name"));
}

// On a server that requires neither key nor certificate, a client becomes known
// by its first well-formed call.
void TrustAll(RpcMethods* methods) {
  for (auto& [name, method] : *methods) {
    method = [inner = std::move(method)](const RpcHead& head,
                                         std::shared_ptr<RpcStream> stream) {
      stream->Trust();
      return inner(head, std::move(stream));
    };
  }
}

}  // namespace

Server::Server(const ServerOptions& options)
    : options_(options),
      strangers_(std::make_unique<StrangerBytes>(
          options.max_stranger_connection_bytes, options.max_stranger_bytes)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options, LoadedModel model) {
  RECURVE_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Create(options));
  RECURVE_RETURN_IF_ERROR(server->Serve(options.engine, std::move(model)));
  return server;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Create(
    const ServerOptions& options) {
  auto server = std::unique_ptr<Server>(new Server(options));
  RECURVE_RETURN_IF_ERROR(CheckModelName(options));
  // Before anything listens: an incomplete pair must not mean plaintext.
  RECURVE_RETURN_IF_ERROR(server->LoadTls());
  RECURVE_RETURN_IF_ERROR(server->LoadApiKeys());
  server->WarnOfStrangers();
  RECURVE_RETURN_IF_ERROR(server->CheckPorts());
  return server;
}

absl::Status Server::Serve(const EngineOptions& engine, LoadedModel model) {
  options_.engine = engine;
  tokenizer_ = std::move(model.tokenizer);
  capacity_ = model.capacity;
  fingerprint_ = model.fingerprint;
  RECURVE_RETURN_IF_ERROR(StartEngine(std::move(model.runner)));
  RECURVE_RETURN_IF_ERROR(StartStates());
  RECURVE_RETURN_IF_ERROR(StartHttp());
  RECURVE_RETURN_IF_ERROR(StartGrpc());
  {
    MutexLock lock(&mu_);
    // A client may have requested a drain as soon as a port was open.
    SetServing(!drain_requested_);
  }
  RECURVE_ASSIGN_OR_RETURN(
      supervisor_, StartThread("the supervisor", [this] { Supervise(); }));
  return absl::OkStatus();
}

absl::Status Server::LoadTls() {
  RECURVE_ASSIGN_OR_RETURN(tls_, TlsFiles::Load(options_.transport, &metrics_));
  return absl::OkStatus();
}

absl::Status Server::LoadApiKeys() {
  if (options_.api_keys_file.empty()) return absl::OkStatus();
  RECURVE_ASSIGN_OR_RETURN(tenants_,
                           Tenants::Load(options_.api_keys_file, &metrics_));
  environment_.tenants = tenants_.get();
  return absl::OkStatus();
}

void Server::WarnOfStrangers() const {
  const std::string& host = options_.host;
  if (IsLoopback(host)) return;
  if (tenants_ != nullptr) {
    if (tls_ == nullptr) {
      spdlog::warn(
          "clients send their API keys in plaintext: --host is {} and there is "
          "no --tls-cert",
          host);
    }
  } else if (options_.transport.tls_client_ca.empty()) {
    spdlog::warn(
        "any client that reaches the server may generate{}: --host is {} and "
        "there is "
        "no --api-keys-file or --tls-client-ca",
        options_.admin ? ", abort the requests of others and drain it" : "",
        host);
  }
}

absl::Status Server::CheckPorts() const {
  for (const int port : {options_.metrics_port, options_.http_port}) {
    if (port < 0) continue;
    RECURVE_RETURN_IF_ERROR(
        ListeningSockets::Open("HTTP", options_.host, port).status());
  }
  return ListeningSockets::Open("gRPC", options_.host, options_.grpc_port)
      .status();
}

absl::Status Server::StartEngine(std::unique_ptr<ModelRunner> runner) {
  RECURVE_ASSIGN_OR_RETURN(engine_,
                           Engine::Create(options_.engine, std::move(runner),
                                          tokenizer_.get(), &metrics_));
  const CacheSpec& spec = engine_->cache_spec();
  metrics_.SetCapacity(spec.slot_bytes * spec.num_slots, spec.num_slots,
                       spec.num_pages);
  metrics_.SetBuild(RECURVE_VERSION, engine_->model().device);
  environment_.engine = engine_.get();
  RECURVE_ASSIGN_OR_RETURN(encode_threads_, EncodeThreads::Start());
  environment_.encode_threads = encode_threads_.get();
  environment_.context = {tokenizer_.get(), engine_->limits().max_model_len,
                          options_.default_max_new_tokens,
                          engine_->limits().vocab_size};
  environment_.max_buffered_tokens = options_.max_buffered_tokens;
  environment_.max_buffered_bytes = options_.max_buffered_bytes;
  environment_.decode_idle_timeout = options_.decode_idle_timeout;
  environment_.open_streams = &open_streams_;
  environment_.accepted_streams = &accepted_streams_;
  environment_.metrics = &metrics_;
  return absl::OkStatus();
}

absl::Status Server::StartChat() {
  chat_.default_max_tokens = options_.default_max_chat_tokens;
  const bool asked = !options_.chat_template.empty();
  const auto read =
      ReadChatTemplate(options_.model.path, options_.chat_template);
  if (asked) RECURVE_RETURN_IF_ERROR(read.status());
  if (!read.ok()) {
    chat_.problem = std::string(read.status().message());
  } else if (!read->has_value()) {
    return absl::OkStatus();  // no chat model
  } else if (tokenizer_ == nullptr) {
    chat_.problem = "the model has no tokenizer";
  } else if (options_.chat_python == "none") {
    chat_.problem = "the server runs with --chat-python none";
  } else {
    TemplateRenderer::Options renderer;
    renderer.python = options_.chat_python;
    if (absl::StrContains(renderer.python, "/")) {
      renderer.python = std::filesystem::absolute(renderer.python).string();
    }
    auto started = TemplateRenderer::Start(**read, renderer);
    if (started.ok()) {
      chat_renderer_ = *std::move(started);
      chat_.renderer = chat_renderer_.get();
      spdlog::info("chat: the template is {}", (*read)->file);
      return absl::OkStatus();
    }
    chat_.problem = std::string(started.status().message());
    if (asked && absl::IsInvalidArgument(started.status())) {
      return started.status();
    }
    if (absl::IsUnavailable(started.status())) {
      chat_.problem +=
          " (chat templates need Python with jinja2: see "
          "--chat-python)";
    }
  }
  spdlog::warn("no chat: {}", chat_.problem);
  return absl::OkStatus();
}

absl::Status Server::StartHttp() {
  const auto serving = [this] { return IsServing(); };
  const bool own_port = options_.metrics_port >= 0;
  const bool vllm_names = options_.metrics_alias == "vllm";
  if (own_port) {
    metrics_api_ = std::make_unique<HttpApi>(
        HttpApi::Options{nullptr, ModelName(options_), metrics_.registry(),
                         serving, &metrics_, vllm_names});
    RECURVE_ASSIGN_OR_RETURN(
        metrics_server_, StartHttpOn(options_.metrics_port, /*secure=*/false,
                                     metrics_api_.get()));
  }
  if (options_.http_port < 0) return absl::OkStatus();
  RECURVE_RETURN_IF_ERROR(StartChat());
  const bool local = IsLoopback(options_.host);
  const bool page = options_.ui == "on" || (options_.ui == "auto" && local);
  http_api_ = std::make_unique<HttpApi>(HttpApi::Options{
      &environment_, ModelName(options_),
      own_port ? nullptr : metrics_.registry(), serving, &metrics_, vllm_names,
      chat_, state_service_.get(), page,
      page && local && tenants_ == nullptr && tls_ == nullptr});
  RECURVE_ASSIGN_OR_RETURN(
      http_server_,
      StartHttpOn(options_.http_port, /*secure=*/true, http_api_.get()));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HttpServer>> Server::StartHttpOn(int port,
                                                                bool secure,
                                                                HttpApi* api) {
  HttpServerOptions http;
  http.host = options_.host;
  http.port = port;
  if (secure) {
    http.tls = tls_.get();
    // The metrics port is the operator's own: unknown clients on the other
    // ports must not block its probes.
    http.strangers = strangers_.get();
    http.on_displaced = [this] { metrics_.OnHttpDisplaced(); };
  }
  http.max_connections = options_.max_http_connections;
  http.max_body_bytes = static_cast<uint64_t>(kMaxReceiveBytes);
  http.idle_timeout = options_.http_idle_timeout;
  http.stream_ping = options_.http_stream_ping;
  http.stalled_client_timeout = options_.engine.stalled_client_timeout;
  return HttpServer::Start(http, api);
}

int Server::http_port() const {
  return http_server_ != nullptr ? http_server_->port() : -1;
}

int Server::metrics_port() const {
  return metrics_server_ != nullptr ? metrics_server_->port() : -1;
}

absl::Status Server::StartStates() {
  const v1::StateFingerprint fingerprint =
      FingerprintOf(*engine_, fingerprint_);
  if (!options_.state_dir.empty()) {
    RECURVE_ASSIGN_OR_RETURN(
        state_files_, StateFiles::Open({options_.state_dir, engine_.get(),
                                        fingerprint, tenants_.get()}));
  }
  state_service_ = std::make_unique<StateService>(StateService::Options{
      engine_.get(), tenants_.get(), fingerprint, state_files_.get()});
  return absl::OkStatus();
}

absl::Status Server::StartGrpc() {
  control_ = std::make_unique<ControlService>(ControlService::Options{
      engine_.get(), ModelName(options_), capacity_,
      options_.default_max_new_tokens, tenants_.get(), options_.admin,
      &open_streams_, [this] { return RequestDrain(); }});
  std::vector<std::string> services(std::begin(kServices), std::end(kServices));
  std::set<std::string> checked(services.begin(), services.end());
  checked.insert("");
  services.emplace_back(kHealthService);
  RpcMethods methods;
  AddInferenceMethods(environment_, &methods);
  control_->AddMethods(&methods);
  state_service_->AddMethods(&methods);
  vllm_service_ = std::make_unique<VllmService>(VllmService::Options{
      &environment_, control_.get(), [this] { return IsServing(); },
      options_.admin, ReadModelFiles(options_.model.path)});
  vllm_service_->AddMethods(&methods);
  if (options_.reflection) AddReflection(services, &methods);
  const bool asks_clients = !options_.transport.tls_client_ca.empty();

  GrpcServerOptions grpc;
  grpc.host = options_.host;
  grpc.port = options_.grpc_port;
  grpc.tls = tls_.get();
  grpc.metrics = &metrics_;
  grpc.strangers = strangers_.get();
  grpc.tls_clients_are_known = asks_clients;
  grpc.max_connections = options_.max_grpc_connections;
  // A gateway may send all calls that the server accepts over one connection,
  // and learns when that is full.
  grpc.max_streams = Admission::kMaxOpen * engine_->max_active() + kMoreStreams;
  grpc.max_message_bytes = kMaxReceiveBytes;
  grpc.max_received_bytes = options_.max_grpc_buffer_bytes;
  grpc.stalled_client_timeout = options_.engine.stalled_client_timeout;
  metrics_.SetMaxGrpcConnections(options_.max_grpc_connections);
  {
    MutexLock lock(&mu_);
    health_ = std::make_unique<HealthService>(std::move(checked));
    health_->AddMethods(&methods);
  }
  if (tenants_ == nullptr && !asks_clients) TrustAll(&methods);
  RECURVE_ASSIGN_OR_RETURN(grpc_server_,
                           GrpcServer::Start(grpc, std::move(methods)));
  grpc_port_ = grpc_server_->port();
  return absl::OkStatus();
}

bool Server::IsServing() {
  MutexLock lock(&mu_);
  return serving_;
}

void Server::SetServing(bool serving) {
  serving_ = serving;
  metrics_.SetServing(serving);
  if (health_ != nullptr) health_->SetServing(serving);
}

int64_t Server::RequestDrain() {
  {
    MutexLock lock(&mu_);
    drain_requested_ = true;
    SetServing(false);  // probes see it before clients are refused
  }
  if (http_server_ != nullptr) http_server_->Drain();
  changed_.NotifyAll();
  return engine_->Drain();
}

bool Server::StepHangs() const {
  return engine_->step_age_seconds() >
         std::chrono::duration<double>(options_.step_timeout).count();
}

absl::Status Server::SuperviseUntilDrained() {
  absl::Status failure;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  auto next_keys = std::chrono::steady_clock::now() + kApiKeysInterval;
  HeapTrimmer trimmer;
  auto next_trim = std::chrono::steady_clock::now() + kTrimInterval;
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    if (tls_ != nullptr) tls_->ReloadIfDue();
    if (tenants_ != nullptr && now >= next_keys) {
      tenants_->ReloadIfChanged();
      next_keys = now + kApiKeysInterval;
    }
    if (now >= next_trim) {
      trimmer.TrimIfWorthwhile();
      next_trim = now + kTrimInterval;
    }
    if (failure.ok() && !engine_->health().ok()) {
      failure = engine_->health();
      spdlog::error("the device failed: {}", std::string(failure.message()));
      deadline =
          std::min(deadline.value_or(now + kFailureGrace), now + kFailureGrace);
    }
    {
      MutexLock lock(&mu_);
      if (drain_requested_ && !deadline) {
        deadline = now + options_.shutdown_timeout;
      }
      const bool serving = !deadline && !StepHangs();
      if (serving != serving_) {
        if (StepHangs()) spdlog::error("a step hangs; not serving");
        SetServing(serving);
      }
    }
    if (deadline) {
      // Work waiting to be encoded learns of the drain in its turn; earlier
      // work may be with the engine now, so the engine is checked last.
      const bool empty = encode_threads_->idle() && engine_->load().open == 0 &&
                         accepted_streams_.load() == 0;
      if (now >= *deadline || (empty && failure.ok())) return failure;
    }
    MutexLock lock(&mu_);
    if (!drain_requested_ || deadline) changed_.WaitFor(&mu_, kPollInterval);
  }
}

void Server::Supervise() {
  const absl::Status failure = SuperviseUntilDrained();
  const int64_t left = engine_->load().open;
  if (left > 0) {
    spdlog::warn(
        "the shutdown timeout passed with {} requests running; ending them",
        left);
    engine_->CancelAll(absl::UnavailableError(
        "the server shuts down and --shutdown-timeout has passed"));
  }
  // gRPC waits for calls that wait for the step, also for one that starts to
  // hang only now; neither would end.
  while (engine_->load().open > 0 || engine_->step_age_seconds() > 0) {
    if (StepHangs()) {
      spdlog::critical("a step hangs; leaving without it");
      FlushProcessLog();
      std::_Exit(EXIT_FAILURE);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  // Clients that read can see how their calls ended; short calls (e.g. the one
  // that requested the drain) can finish.
  const auto end = std::chrono::steady_clock::now() + kCallGrace;
  while (open_streams_.load() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // Cancels the rest; the calls need the engine until then.
  grpc_server_->Stop(end);
  if (http_server_ != nullptr) http_server_->Stop();
  MutexLock lock(&mu_);
  outcome_ = failure;
  stopped_ = true;
  changed_.NotifyAll();
}

absl::Status Server::Wait() {
  MutexLock lock(&mu_);
  while (!stopped_) changed_.Wait(&mu_);
  return outcome_;
}

Server::~Server() {
  if (supervisor_.joinable()) {
    RequestDrain();
    supervisor_.join();
  }
  // Calls refer to the engine, so they end first; the engine's sinks keep the
  // call objects alive beyond that.
  if (grpc_server_ != nullptr) {
    grpc_server_->Stop(std::chrono::steady_clock::now());
  }
  for (HttpServer* http : {http_server_.get(), metrics_server_.get()}) {
    if (http != nullptr) http->Stop();
  }
  // A text of a closed connection may still be in progress.
  encode_threads_.reset();
  // Their states are the engine's.
  state_files_.reset();
  engine_.reset();
}

}  // namespace recurve
