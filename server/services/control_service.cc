#include "server/services/control_service.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "kv_cache/cache_spec.h"
#include "server/grpc/unary.h"
#include "server/requests/convert.h"

namespace recurve {
namespace {

// The used part of the scarcer resource, rounded down to 0, 0.25, 0.5, 0.75 or
// 1, so that it does not reveal the requests of others.
float Busy(const EngineLoad& load) {
  const auto part = [](int64_t used, int64_t total) {
    return total > 0 ? static_cast<double>(used) / static_cast<double>(total)
                     : 0.0;
  };
  const double most = std::max(part(load.slots_used, load.slots_total),
                               part(load.pages_used, load.pages_total));
  return static_cast<float>(std::floor(std::clamp(most, 0.0, 1.0) * 4) / 4);
}

}  // namespace

absl::StatusOr<ControlService::Caller> ControlService::Authenticate(
    const RpcHead& head, RpcStream& stream) const {
  if (options_.tenants == nullptr) return nullptr;
  RECURVE_ASSIGN_OR_RETURN(
      Caller caller,
      options_.tenants->Authenticate(head.authorization, "metadata entry"));
  stream.Trust();
  return caller;
}

absl::StatusOr<ControlService::Caller> ControlService::AuthorizeAdmin(
    const RpcHead& head, RpcStream& stream) const {
  if (!options_.admin) {
    return absl::PermissionDeniedError(
        "Abort and Drain are turned off (--admin is off)");
  }
  RECURVE_ASSIGN_OR_RETURN(Caller caller, Authenticate(head, stream));
  if (caller != nullptr) {
    RECURVE_RETURN_IF_ERROR(caller->CheckAdmin("Abort and Drain need one"));
  }
  return caller;
}

v1::ModelInfo ControlService::GetModelInfo() const {
  v1::ModelInfo info;
  const ModelInfo& model = options_.engine->model();
  info.set_name(options_.model_name);
  info.set_family(model.family);
  info.set_parameters(model.parameters);
  info.set_num_layers(static_cast<uint32_t>(model.num_layers));
  info.set_hidden_size(static_cast<uint32_t>(model.hidden_size));
  info.set_vocab_size(static_cast<uint32_t>(model.vocab_size));
  for (const std::string& mixer : model.mixers) info.add_mixers(mixer);
  info.set_max_model_len(
      static_cast<uint32_t>(options_.engine->limits().max_model_len));
  info.set_default_max_new_tokens(
      static_cast<uint32_t>(options_.default_max_new_tokens));
  info.set_tokenizer(model.tokenizer);
  if (model.bos_token_id) {
    info.set_bos_token_id(static_cast<uint32_t>(*model.bos_token_id));
  }
  for (int32_t id : model.eos_token_ids)
    info.add_eos_token_ids(static_cast<uint32_t>(id));
  info.set_weight_bytes(model.weight_bytes);
  info.set_cache_bytes_per_token(
      static_cast<uint64_t>(options_.capacity.cache_bytes_per_token));
  info.set_state_bytes_per_sequence(
      static_cast<uint64_t>(options_.capacity.state_bytes_per_sequence));
  const int64_t prompt = options_.engine->limits().max_prompt_tokens;
  if (prompt > 0) {
    info.set_max_prompt_tokens(static_cast<uint32_t>(prompt));
  }
  return info;
}

v1::ServerInfo ControlService::GetServerInfo() const {
  v1::ServerInfo info;
  const ModelInfo& model = options_.engine->model();
  const EngineOptions& engine = options_.engine->options();
  const std::chrono::duration<double> uptime =
      std::chrono::steady_clock::now() - started_;
  info.set_version(RECURVE_VERSION);
  info.set_device(model.device);
  info.set_weight_dtype(model.weight_dtype);
  info.set_state_dtype(model.state_dtype);
  info.set_kv_dtype(model.kv_dtype);
  info.set_max_num_seqs(static_cast<uint32_t>(engine.max_num_seqs));
  info.set_max_num_batched_tokens(
      static_cast<uint32_t>(engine.max_num_batched_tokens));
  info.set_max_queued_requests(
      static_cast<uint32_t>(engine.max_queued_requests));
  info.set_tpa_pages(
      static_cast<uint32_t>(options_.engine->cache_spec().num_pages));
  info.set_page_tokens(static_cast<uint32_t>(kPageTokens));
  info.set_uptime_seconds(uptime.count());
  info.set_draining(options_.engine->draining());
  return info;
}

v1::Load ControlService::GetLoad(const Caller& caller) const {
  if (caller != nullptr && !caller->admin()) return OwnLoad(*caller);
  v1::Load info;
  const EngineLoad load = options_.engine->load();
  info.set_num_requests_running(static_cast<uint32_t>(load.resident));
  info.set_num_requests_waiting(static_cast<uint32_t>(load.waiting));
  info.set_state_slots_used(static_cast<uint32_t>(load.slots_used));
  info.set_state_slots_total(static_cast<uint32_t>(load.slots_total));
  info.set_tpa_pages_used(static_cast<uint32_t>(load.pages_used));
  info.set_tpa_pages_total(static_cast<uint32_t>(load.pages_total));
  info.set_prompt_tokens_total(load.prompt_tokens_total);
  info.set_generation_tokens_total(load.generation_tokens_total);
  info.set_preemptions_total(load.preemptions_total);
  info.set_steps_total(load.steps_total);
  info.set_open_streams(static_cast<uint32_t>(options_.open_streams->load()));
  info.set_busy(Busy(load));
  return info;
}

v1::Load ControlService::OwnLoad(Tenant& tenant) const {
  v1::Load info;
  const EngineLoad load = options_.engine->load();
  const Engine::FlowLoad own = options_.engine->load_of(tenant.flow().id);
  const Tenant::Usage usage = tenant.usage();
  info.set_num_requests_running(static_cast<uint32_t>(own.running));
  info.set_num_requests_waiting(static_cast<uint32_t>(own.waiting));
  info.set_state_slots_used(static_cast<uint32_t>(own.running));
  info.set_state_slots_total(static_cast<uint32_t>(load.slots_total));
  info.set_tpa_pages_used(static_cast<uint32_t>(usage.pages));
  info.set_tpa_pages_total(static_cast<uint32_t>(load.pages_total));
  info.set_prompt_tokens_total(static_cast<uint64_t>(usage.prompt_tokens));
  info.set_generation_tokens_total(
      static_cast<uint64_t>(usage.generated_tokens));
  info.set_open_streams(static_cast<uint32_t>(usage.streams));
  info.set_busy(Busy(load));
  info.set_own(true);
  return info;
}

absl::Status ControlService::Abort(const v1::AbortRequest& request) const {
  RECURVE_ASSIGN_OR_RETURN(const uint64_t id,
                           ParseRequestId(request.request_id()));
  return options_.engine->Abort(id);
}

void ControlService::AddMethods(RpcMethods* methods) const {
  const auto tenant = [this](const RpcHead& head, RpcStream& stream) {
    return Authenticate(head, stream);
  };
  const auto admin = [this](const RpcHead& head, RpcStream& stream) {
    return AuthorizeAdmin(head, stream);
  };
  RpcMethods& m = *methods;
  m["/recurve.v1.Control/GetModelInfo"] =
      UnaryMethod<v1::GetModelInfoRequest, v1::ModelInfo, Caller>(
          tenant,
          [this](const Caller&, const auto&) { return GetModelInfo(); });
  m["/recurve.v1.Control/GetServerInfo"] =
      UnaryMethod<v1::GetServerInfoRequest, v1::ServerInfo, Caller>(
          tenant,
          [this](const Caller&, const auto&) { return GetServerInfo(); });
  m["/recurve.v1.Control/GetLoad"] =
      UnaryMethod<v1::GetLoadRequest, v1::Load, Caller>(
          tenant, [this](const Caller& caller, const auto&) {
            return GetLoad(caller);
          });
  m["/recurve.v1.Control/Abort"] =
      UnaryMethod<v1::AbortRequest, v1::AbortResponse, Caller>(
          admin,
          [this](const Caller&, const v1::AbortRequest& request)
              -> absl::StatusOr<v1::AbortResponse> {
            RECURVE_RETURN_IF_ERROR(Abort(request));
            return v1::AbortResponse();
          });
  m["/recurve.v1.Control/Drain"] =
      UnaryMethod<v1::DrainRequest, v1::DrainResponse, Caller>(
          admin, [this](const Caller&, const v1::DrainRequest&) {
            v1::DrainResponse response;
            response.set_remaining(static_cast<uint32_t>(options_.drain()));
            return response;
          });
}

}  // namespace recurve
