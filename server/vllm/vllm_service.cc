#include "server/vllm/vllm_service.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "server/grpc/unary.h"
#include "server/services/output_parts.h"
#include "server/vllm/vllm_generate_call.h"
#include "smg/grpc/common.pb.h"

namespace recurve {
namespace {

namespace vg = ::vllm::grpc::engine;
namespace sg = ::smg::grpc::common;

constexpr char kService[] = "/vllm.grpc.engine.VllmEngine/";

// Methods of the published service that this server does not have.
struct Missing {
  const char* method;
  const char* why;
};
constexpr Missing kMissing[] = {
    {"Embed", "this server generates; it has no embeddings"},
    {"FlushCache",
     "this server's prefix cache cannot be emptied; snapshots make room for "
     "newer ones"},
    {"StartProfile", "this server has no profiler"},
    {"StopProfile", "this server has no profiler"},
    {"SubscribeKvEvents",
     "this server publishes no KV events; route by the prompts sent "
     "(cache-aware policies of routers) and by GetLoads"}};

int32_t Narrow(int64_t value) {
  return static_cast<int32_t>(
      std::clamp<int64_t>(value, 0, std::numeric_limits<int32_t>::max()));
}

double PartOf(double part, double all) { return all > 0 ? part / all : 0; }

// Sends an archive, a chunk at a time.
class TokenizerCall : public RpcListener {
 public:
  TokenizerCall(std::shared_ptr<RpcStream> stream,
                std::shared_ptr<const ModelFiles::Archive> archive)
      : stream_(std::move(stream)), archive_(std::move(archive)) {}

  void OnMessage(std::string message) override {
    sg::GetTokenizerRequest request;
    if (!ParseMessage(message, &request)) {
      return stream_->Finish(absl::InvalidArgumentError(kMalformedMessage), {});
    }
    WriteNext();
  }
  void OnHalfClose() override {
    stream_->Finish(absl::InvalidArgumentError("the request is missing"), {});
  }
  void OnWritten() override {
    if (sent_ < archive_->zip.size()) return WriteNext();
    stream_->Finish(absl::OkStatus(), {});
  }
  void OnDone(const absl::Status&) override {}

 private:
  void WriteNext() {
    sg::GetTokenizerChunk chunk;
    chunk.set_data(archive_->zip.substr(sent_, kMaxPartBytes));
    sent_ += chunk.data().size();
    if (sent_ == archive_->zip.size()) chunk.set_sha256(archive_->sha256);
    stream_->Write(chunk.SerializeAsString());
  }

  const std::shared_ptr<RpcStream> stream_;
  const std::shared_ptr<const ModelFiles::Archive> archive_;
  size_t sent_ = 0;
};

}  // namespace

vg::HealthCheckResponse VllmService::HealthCheck() const {
  vg::HealthCheckResponse response;
  response.set_healthy(options_.serving());
  response.set_message(response.healthy() ? "serving" : "not serving");
  return response;
}

vg::GetModelInfoResponse VllmService::GetModelInfo() const {
  vg::GetModelInfoResponse info;
  const v1::ModelInfo model = options_.control->GetModelInfo();
  info.set_model_path(model.name());
  info.set_served_model_name(model.name());
  info.set_is_generation(true);
  info.set_max_context_length(model.max_model_len());
  info.set_vocab_size(model.vocab_size());
  info.set_model_type(options_.files.model_type);
  for (const std::string& name : options_.files.architectures) {
    info.add_architectures(name);
  }
  for (const uint32_t id : model.eos_token_ids()) {
    info.add_eos_token_ids(static_cast<int32_t>(id));
  }
  info.set_pad_token_id(options_.files.pad_token_id.value_or(-1));
  info.set_bos_token_id(model.has_bos_token_id()
                            ? static_cast<int32_t>(model.bos_token_id())
                            : -1);
  const uint32_t prompt = model.has_max_prompt_tokens()
                              ? model.max_prompt_tokens()
                              : model.max_model_len();
  info.set_max_req_input_len(Narrow(prompt));
  return info;
}

vg::GetServerInfoResponse VllmService::GetServerInfo(
    const Caller& caller) const {
  vg::GetServerInfoResponse info;
  const v1::ServerInfo server = options_.control->GetServerInfo();
  const v1::Load load = options_.control->GetLoad(caller);
  info.set_active_requests(load.num_requests_running() +
                           load.num_requests_waiting());
  info.set_is_paused(server.draining());
  info.set_last_receive_timestamp(requests_.last_seconds());
  info.set_uptime_seconds(server.uptime_seconds());
  info.set_server_type("recurve");
  info.set_data_parallel_size(1);
  info.set_kv_cache_dtype(server.kv_dtype());
  info.set_block_size(Narrow(server.page_tokens()));
  info.set_model_dtype(server.weight_dtype());
  info.set_max_num_seqs(Narrow(server.max_num_seqs()));
  return info;
}

absl::StatusOr<vg::GetLoadsResponse> VllmService::GetLoads(
    const Caller& caller, const vg::GetLoadsRequest& request) {
  if (request.dp_rank() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("dp_rank is ", request.dp_rank(),
                     "; expected 0: the server is one rank"));
  }
  const v1::ServerInfo server = options_.control->GetServerInfo();
  const v1::Load load = options_.control->GetLoad(caller);
  vg::GetLoadsResponse response;
  response.set_timestamp(
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone()));
  response.set_version(server.version());
  response.set_dp_rank_count(1);
  vg::SchedulerLoad& out = *response.add_loads();
  const int64_t page = server.page_tokens();
  out.set_num_running_reqs(Narrow(load.num_requests_running()));
  out.set_num_waiting_reqs(Narrow(load.num_requests_waiting()));
  out.set_num_total_reqs(Narrow(int64_t{load.num_requests_running()} +
                                load.num_requests_waiting()));
  out.set_num_used_tokens(Narrow(page * load.tpa_pages_used()));
  out.set_max_total_num_tokens(Narrow(page * load.tpa_pages_total()));
  out.set_max_running_requests(Narrow(server.max_num_seqs()));
  out.set_utilization(
      PartOf(load.num_requests_running(), server.max_num_seqs()));
  if (load.own()) {
    // What is used by others shows by quarters, and what they generate not at
    // all.
    out.set_token_usage(load.busy());
    return response;
  }
  out.set_token_usage(
      std::max(PartOf(load.state_slots_used(), load.state_slots_total()),
               PartOf(load.tpa_pages_used(), load.tpa_pages_total())));
  const EngineLoad engine = options_.environment->engine->load();
  out.set_gen_throughput(throughput_.Read(engine.generation_tokens_total,
                                          Throughput::Clock::now()));
  out.set_cache_hit_rate(
      PartOf(static_cast<double>(engine.cached_prompt_tokens_total),
             static_cast<double>(engine.prompt_tokens_total)));
  return response;
}

absl::StatusOr<vg::AbortResponse> VllmService::Abort(
    const Caller& caller, const vg::AbortRequest& request) {
  if (caller == nullptr && !options_.admin) {
    return absl::PermissionDeniedError(
        "Abort is turned off (--admin is off, and the server has no API keys "
        "that tell clients apart)");
  }
  const uint32_t flow = caller == nullptr ? Flow().id : caller->flow().id;
  for (const std::string& id : request.request_ids()) {
    requests_.Abort(flow, id);
  }
  return vg::AbortResponse();
}

std::shared_ptr<RpcListener> VllmService::GetTokenizer(
    const RpcHead& head, std::shared_ptr<RpcStream> stream) const {
  absl::Status status = options_.control->Authenticate(head, *stream).status();
  if (status.ok()) status = options_.files.tokenizer.status();
  if (!status.ok()) {
    stream->Finish(std::move(status), {});
    return nullptr;
  }
  RpcStream& reading = *stream;
  auto call = std::make_shared<TokenizerCall>(std::move(stream),
                                              *options_.files.tokenizer);
  reading.Read(kRequestTimeout);
  return call;
}

void VllmService::AddMethods(RpcMethods* methods) {
  const auto tenant = [this](const RpcHead& head, RpcStream& stream) {
    return options_.control->Authenticate(head, stream);
  };
  const auto name = [](absl::string_view method) {
    return absl::StrCat(kService, method);
  };
  RpcMethods& m = *methods;
  m[name("Generate")] =
      [this](
          const RpcHead& head,
          std::shared_ptr<RpcStream> stream) -> std::shared_ptr<RpcListener> {
    auto call = std::make_shared<VllmGenerateCall>(
        *options_.environment, &requests_, head, std::move(stream));
    call->Begin();
    return call;
  };
  m[name("HealthCheck")] =
      UnaryMethod<vg::HealthCheckRequest, vg::HealthCheckResponse, Anybody>(
          [](const RpcHead&, RpcStream&) { return Anybody(); },
          [this](const Anybody&, const auto&) { return HealthCheck(); });
  m[name("Abort")] = UnaryMethod<vg::AbortRequest, vg::AbortResponse, Caller>(
      tenant, [this](const Caller& caller, const auto& request) {
        return Abort(caller, request);
      });
  m[name("GetModelInfo")] =
      UnaryMethod<vg::GetModelInfoRequest, vg::GetModelInfoResponse, Caller>(
          tenant,
          [this](const Caller&, const auto&) { return GetModelInfo(); });
  m[name("GetServerInfo")] =
      UnaryMethod<vg::GetServerInfoRequest, vg::GetServerInfoResponse, Caller>(
          tenant, [this](const Caller& caller, const auto&) {
            return GetServerInfo(caller);
          });
  m[name("GetLoads")] =
      UnaryMethod<vg::GetLoadsRequest, vg::GetLoadsResponse, Caller>(
          tenant, [this](const Caller& caller, const auto& request) {
            return GetLoads(caller, request);
          });
  m[name("GetTokenizer")] = [this](const RpcHead& head,
                                   std::shared_ptr<RpcStream> stream) {
    return GetTokenizer(head, std::move(stream));
  };
  for (const Missing& missing : kMissing) {
    m[name(missing.method)] = [why = missing.why](
                                  const RpcHead&,
                                  const std::shared_ptr<RpcStream>& stream)
        -> std::shared_ptr<RpcListener> {
      stream->Finish(absl::UnimplementedError(why), {});
      return nullptr;
    };
  }
}

}  // namespace recurve
