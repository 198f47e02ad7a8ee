#include "server/openai/render_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

// With the names of vLLM's SamplingParams.
json SamplingJson(const GenerateInput& input,
                  const CompletionRequest& request) {
  const SamplingParams& sampling = input.options.sampling;
  const StoppingParams& stopping = input.options.stopping;
  const auto or_null = [](int32_t count) {
    return count < 0 ? json() : json(count);
  };
  json bias = nullptr;
  if (!sampling.logit_bias.empty()) {
    bias = json::object();
    for (const auto& [id, value] : sampling.logit_bias) {
      bias.emplace(absl::StrCat(id), value);
    }
  }
  return {{"n", request.samples},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"repetition_penalty", sampling.repetition_penalty},
          {"temperature", sampling.temperature},
          {"top_p", sampling.top_p},
          {"top_k", sampling.top_k},
          {"min_p", sampling.min_p},
          {"seed", sampling.seed},
          {"stop", stopping.stop_strings},
          {"stop_token_ids", stopping.stop_token_ids},
          {"ignore_eos", stopping.ignore_eos},
          {"max_tokens", input.command.generate},
          {"min_tokens", stopping.min_tokens},
          {"logprobs", or_null(sampling.num_logprobs)},
          {"prompt_logprobs", or_null(input.command.prompt_logprobs)},
          {"skip_special_tokens", stopping.skip_special_tokens},
          {"include_stop_str_in_output", stopping.include_stop_str_in_output},
          {"logit_bias", std::move(bias)}};
}

}  // namespace

json RenderedJson(const std::string& request_id, const GenerateInput& input,
                  const CompletionRequest& request,
                  const std::string& model_name) {
  json options = nullptr;
  if (request.include_usage || request.continuous_usage) {
    options = {{"include_usage", request.include_usage},
               {"continuous_usage_stats", request.continuous_usage}};
  }
  return {{"request_id", request_id},
          {"token_ids", input.command.append},
          {"features", nullptr},
          {"sampling_params", SamplingJson(input, request)},
          {"model", model_name},
          {"stream", request.stream},
          {"stream_options", std::move(options)},
          {"cache_salt", input.options.cache_key.empty()
                             ? json()
                             : json(input.options.cache_key)},
          // In this form lower comes first.
          {"priority", -input.options.priority},
          {"kv_transfer_params", nullptr}};
}

RenderCall::RenderCall(const CallEnvironment& environment,
                       const std::string& model_name,
                       std::unique_ptr<ApiFormat> format,
                       std::shared_ptr<HttpReply> reply)
    : RequestCall(environment),
      model_name_(model_name),
      format_(std::move(format)),
      reply_(std::move(reply)) {}

void RenderCall::Begin(const HttpRequest& request) {
  reply_->Listen(self());
  SetParts(1);
  request_id_ =
      absl::StrCat(format_->id_prefix(), request.request_id.empty()
                                             ? FormatRequestId(RandomSeed())
                                             : request.request_id[0]);
  if (auto error = Read(request)) return Refuse(*std::move(error));
  const int64_t bytes = format_->PrepareBytes(request_);
  if (bytes <= EncodeThreads::kShortBytes) return Finish(Render());
  // What waits for its turn counts as open.
  if (absl::Status status = OpenStreams(); !status.ok()) {
    return Refuse(ErrorOf(status));
  }
  Encode(bytes, [this](const absl::Status& status) {
    reply_->Continue([self = self(), answer = status.ok()
                                                  ? Render()
                                                  : Answer(ErrorOf(status))] {
      self->Finish(answer);
    });
  });
}

std::optional<ApiError> RenderCall::Read(const HttpRequest& request) {
  if (absl::Status status = Authenticate(request.authorization, "header");
      !status.ok()) {
    return ErrorOf(status);
  }
  if (auto error = format_->Parse(request.body, model_name_,
                                  environment_.engine->limits(), &request_)) {
    return error;
  }
  if (request_.prompts[0].from_state.empty()) return std::nullopt;
  ApiError error;
  error.param = "from_state";
  error.message =
      "from_state is set; a prompt that continues a state is not rendered";
  return error;
}

RenderCall::Answer RenderCall::Render() {
  RequestContext context = environment_.context;
  if (auto error = format_->Prepare(context, &request_)) return *error;
  context.default_max_new_tokens = format_->DefaultMaxTokens(context, request_);
  const RequestLimits& limits = environment_.engine->limits();
  json answer = json::array();
  const size_t count = request_.prompts.size();
  for (size_t i = 0; i < count; ++i) {
    const FieldNames names = format_->Names(i, count);
    const absl::StatusOr<GenerateInput> input =
        Complete(std::move(request_.prompts[i]), context, names);
    if (!input.ok()) return ErrorOf(input.status());
    // What the completion would be refused for.
    for (const absl::Status& status :
         {ValidateCommand(input->command, 0, limits, input->prompt_name, names),
          ValidateOptions(input->options, limits, names),
          ValidateMinTokens(input->options, input->command.generate, names)}) {
      if (!status.ok()) return ErrorOf(status);
    }
    answer.push_back(RenderedJson(
        count > 1 ? absl::StrCat(request_id_, "-", i) : request_id_, *input,
        request_, model_name_));
  }
  return ToText(format_->has_one_prompt() ? answer[0] : answer);
}

void RenderCall::Finish(Answer answer) {
  if (auto* const error = std::get_if<ApiError>(&answer)) {
    return Refuse(std::move(*error));
  }
  {
    MutexLock lock(&mu_);
    over_ = true;
    CloseTickets();
  }
  HttpResponse response;
  response.body = std::get<std::string>(std::move(answer));
  reply_->Send(std::move(response));
}

void RenderCall::Refuse(ApiError error) {
  const auto retry_after = Refused(error.cause);
  if (retry_after && *retry_after != kNeverRetry) {
    error.retry_after = retry_after;
  }
  {
    MutexLock lock(&mu_);
    over_ = true;
  }
  reply_->Send(ErrorResponse(error));
}

}  // namespace recurve
