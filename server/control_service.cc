#include "server/control_service.h"

#include "base/status_macros.h"
#include "kv_cache/cache_spec.h"
#include "server/convert.h"
#include "server/grpc_status.h"

namespace recurve {
namespace {

grpc::ServerUnaryReactor* Finish(
    grpc::CallbackServerContext* context,
    const absl::Status& status = absl::OkStatus()) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

absl::Status ControlService::Authenticate(
    const grpc::CallbackServerContext& context) const {
  if (options_.tenants == nullptr) return absl::OkStatus();
  return options_.tenants->Authenticate(context.client_metadata()).status();
}

absl::Status ControlService::AuthorizeAdmin(
    const grpc::CallbackServerContext& context) const {
  if (!options_.admin) {
    return absl::PermissionDeniedError(
        "Abort and Drain are turned off (--admin is off)");
  }
  if (options_.tenants == nullptr) return absl::OkStatus();
  return options_.tenants->AuthorizeAdmin(context.client_metadata());
}

grpc::ServerUnaryReactor* ControlService::GetModelInfo(
    grpc::CallbackServerContext* context, const v1::GetModelInfoRequest*,
    v1::ModelInfo* response) {
  if (const absl::Status status = Authenticate(*context); !status.ok()) {
    return Finish(context, status);
  }
  const ModelInfo& model = options_.engine->model();
  response->set_name(options_.model_name);
  response->set_family(model.family);
  response->set_parameters(model.parameters);
  response->set_num_layers(static_cast<uint32_t>(model.num_layers));
  response->set_hidden_size(static_cast<uint32_t>(model.hidden_size));
  response->set_vocab_size(static_cast<uint32_t>(model.vocab_size));
  for (const std::string& mixer : model.mixers) response->add_mixers(mixer);
  response->set_max_model_len(
      static_cast<uint32_t>(options_.engine->limits().max_model_len));
  response->set_default_max_new_tokens(
      static_cast<uint32_t>(options_.default_max_new_tokens));
  response->set_tokenizer(model.tokenizer);
  if (model.bos_token_id) {
    response->set_bos_token_id(static_cast<uint32_t>(*model.bos_token_id));
  }
  for (int32_t id : model.eos_token_ids)
    response->add_eos_token_ids(static_cast<uint32_t>(id));
  response->set_weight_bytes(model.weight_bytes);
  response->set_cache_bytes_per_token(
      static_cast<uint64_t>(options_.capacity.cache_bytes_per_token));
  response->set_state_bytes_per_sequence(
      static_cast<uint64_t>(options_.capacity.state_bytes_per_sequence));
  const int64_t prompt = options_.engine->limits().max_prompt_tokens;
  if (prompt > 0) {
    response->set_max_prompt_tokens(static_cast<uint32_t>(prompt));
  }
  return Finish(context);
}

grpc::ServerUnaryReactor* ControlService::GetServerInfo(
    grpc::CallbackServerContext* context, const v1::GetServerInfoRequest*,
    v1::ServerInfo* response) {
  if (const absl::Status status = Authenticate(*context); !status.ok()) {
    return Finish(context, status);
  }
  const ModelInfo& model = options_.engine->model();
  const EngineOptions& engine = options_.engine->options();
  const std::chrono::duration<double> uptime =
      std::chrono::steady_clock::now() - started_;
  response->set_version(RECURVE_VERSION);
  response->set_device(model.device);
  response->set_weight_dtype(model.weight_dtype);
  response->set_state_dtype(model.state_dtype);
  response->set_kv_dtype(model.kv_dtype);
  response->set_max_num_seqs(static_cast<uint32_t>(engine.max_num_seqs));
  response->set_max_num_batched_tokens(
      static_cast<uint32_t>(engine.max_num_batched_tokens));
  response->set_max_queued_requests(
      static_cast<uint32_t>(engine.max_queued_requests));
  response->set_tpa_pages(
      static_cast<uint32_t>(options_.engine->cache_spec().num_pages));
  response->set_page_tokens(static_cast<uint32_t>(kPageTokens));
  response->set_uptime_seconds(uptime.count());
  response->set_draining(options_.engine->draining());
  return Finish(context);
}

grpc::ServerUnaryReactor* ControlService::GetLoad(
    grpc::CallbackServerContext* context, const v1::GetLoadRequest*,
    v1::Load* response) {
  if (const absl::Status status = Authenticate(*context); !status.ok()) {
    return Finish(context, status);
  }
  const EngineLoad load = options_.engine->load();
  response->set_num_requests_running(static_cast<uint32_t>(load.resident));
  response->set_num_requests_waiting(static_cast<uint32_t>(load.waiting));
  response->set_state_slots_used(static_cast<uint32_t>(load.slots_used));
  response->set_state_slots_total(static_cast<uint32_t>(load.slots_total));
  response->set_tpa_pages_used(static_cast<uint32_t>(load.pages_used));
  response->set_tpa_pages_total(static_cast<uint32_t>(load.pages_total));
  response->set_prompt_tokens_total(load.prompt_tokens_total);
  response->set_generation_tokens_total(load.generation_tokens_total);
  response->set_preemptions_total(load.preemptions_total);
  response->set_steps_total(load.steps_total);
  response->set_open_streams(
      static_cast<uint32_t>(options_.open_streams->load()));
  return Finish(context);
}

grpc::ServerUnaryReactor* ControlService::Abort(
    grpc::CallbackServerContext* context, const v1::AbortRequest* request,
    v1::AbortResponse*) {
  const auto abort = [&]() -> absl::Status {
    RECURVE_RETURN_IF_ERROR(AuthorizeAdmin(*context));
    RECURVE_ASSIGN_OR_RETURN(const uint64_t id,
                             ParseRequestId(request->request_id()));
    return options_.engine->Abort(id);
  };
  return Finish(context, abort());
}

grpc::ServerUnaryReactor* ControlService::Drain(
    grpc::CallbackServerContext* context, const v1::DrainRequest*,
    v1::DrainResponse* response) {
  if (const absl::Status status = AuthorizeAdmin(*context); !status.ok()) {
    return Finish(context, status);
  }
  response->set_remaining(static_cast<uint32_t>(options_.drain()));
  return Finish(context);
}

}  // namespace recurve
