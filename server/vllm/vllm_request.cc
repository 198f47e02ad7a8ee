#include "server/vllm/vllm_request.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

namespace vg = ::vllm::grpc::engine;

constexpr uint32_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxRequestIdBytes = 256;

template <typename Value>
absl::Status Refusal(absl::string_view field, const Value& value,
                     absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; expected ", expected));
}

absl::Status IsSet(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is set; expected none: this server ", why));
}

// Ids beyond int32 are outside any vocabulary. The engine checks the others;
// its type cannot hold these.
absl::StatusOr<std::vector<int32_t>> IdsOf(
    absl::string_view field,
    const google::protobuf::RepeatedField<uint32_t>& ids,
    const RequestContext& context) {
  std::vector<int32_t> out;
  out.reserve(ids.size());
  for (const uint32_t id : ids) {
    if (id > kMaxId) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, "[", out.size(), "] is ", id, "; the vocabulary has ids 0 to ",
          context.vocab_size - 1));
    }
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

// What only models that see, or servers that hand their memory on, have.
absl::Status CheckInputs(const vg::GenerateRequest& request) {
  constexpr char kText[] = "has text models only";
  constexpr char kHandOff[] =
      "hands states on by recurve.v1.State, not by KV transfer";
  if (request.has_mm_inputs()) return IsSet("mm_inputs", kText);
  if (request.extra_mm_inputs_size() > 0) {
    return IsSet("extra_mm_inputs", kText);
  }
  if (request.has_media_refs()) return IsSet("media_refs", kText);
  if (request.has_kv_transfer_params()) {
    return IsSet("kv_transfer_params", kHandOff);
  }
  if (request.has_kv_transfer_params_json()) {
    return IsSet("kv_transfer_params_json", kHandOff);
  }
  if (request.data_parallel_rank() != 0) {
    return Refusal("data_parallel_rank", request.data_parallel_rank(),
                   "0: the server is one rank");
  }
  if (request.request_id().size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id has ", request.request_id().size(),
                     " bytes; expected at most ", kMaxRequestIdBytes));
  }
  return absl::OkStatus();
}

absl::Status CheckConstraint(const vg::SamplingParams& in) {
  absl::string_view field;
  switch (in.constraint_case()) {
    case vg::SamplingParams::CONSTRAINT_NOT_SET:
      return absl::OkStatus();
    case vg::SamplingParams::kJsonObject:
      if (!in.json_object()) return absl::OkStatus();
      field = "json_object";
      break;
    case vg::SamplingParams::kJsonSchema:
      field = "json_schema";
      break;
    case vg::SamplingParams::kRegex:
      field = "regex";
      break;
    case vg::SamplingParams::kGrammar:
      field = "grammar";
      break;
    case vg::SamplingParams::kStructuralTag:
      field = "structural_tag";
      break;
    case vg::SamplingParams::kChoice:
      field = "choice";
      break;
  }
  return IsSet(absl::StrCat("sampling_params.", field),
               "does not constrain output to a grammar");
}

// What the engine does not do.
absl::Status CheckFeatures(const vg::SamplingParams& in) {
  RECURVE_RETURN_IF_ERROR(CheckConstraint(in));
  if (in.has_truncate_prompt_tokens()) {
    return Refusal("sampling_params.truncate_prompt_tokens",
                   in.truncate_prompt_tokens(), "it not to be set");
  }
  return absl::OkStatus();
}

// A number of log-probabilities. Checked here, because the engine's -1 is none,
// and that of the interface all of the vocabulary.
absl::Status CheckLogprobs(absl::string_view field, int32_t value) {
  if (value >= 0 && value <= kMaxLogprobs) return absl::OkStatus();
  return Refusal(field, value, absl::StrCat("0 to ", kMaxLogprobs));
}

absl::StatusOr<SamplingParams> SamplingOf(const vg::SamplingParams& in) {
  SamplingParams out;
  out.temperature = in.has_temperature() ? in.temperature() : 1.0f;
  // Plain fields of proto3: 0 is also "not set".
  if (in.top_p() != 0) out.top_p = in.top_p();
  if (in.repetition_penalty() != 0) {
    out.repetition_penalty = in.repetition_penalty();
  }
  out.top_k = static_cast<int32_t>(std::min(in.top_k(), kMaxId));
  out.min_p = in.min_p();
  out.frequency_penalty = in.frequency_penalty();
  out.presence_penalty = in.presence_penalty();
  out.logit_bias.assign(in.logit_bias().begin(), in.logit_bias().end());
  // A map has no order; the arithmetic needs one.
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  if (in.has_logprobs()) {
    RECURVE_RETURN_IF_ERROR(
        CheckLogprobs("sampling_params.logprobs", in.logprobs()));
    out.num_logprobs = in.logprobs();
  }
  return out;
}

}  // namespace

FieldNames VllmFieldNames() {
  FieldNames names;
  names.append_ids = "tokenized.input_ids";
  names.append_text = "text";
  names.generate = "sampling_params.max_tokens";
  names.sampling = names.stopping = "sampling_params.";
  names.stop_strings = "stop";
  names.prompt_logprobs = "sampling_params.prompt_logprobs";
  return names;
}

absl::StatusOr<RequestInput> FromVllm(const vg::GenerateRequest& request,
                                      const RequestContext& context) {
  RECURVE_RETURN_IF_ERROR(CheckInputs(request));
  const vg::SamplingParams& in = request.sampling_params();
  RECURVE_RETURN_IF_ERROR(CheckFeatures(in));
  RequestInput input;
  RECURVE_ASSIGN_OR_RETURN(input.options.sampling, SamplingOf(in));
  StoppingParams& stopping = input.options.stopping;
  RECURVE_ASSIGN_OR_RETURN(
      stopping.stop_token_ids,
      IdsOf("sampling_params.stop_token_ids", in.stop_token_ids(), context));
  stopping.stop_strings.assign(in.stop().begin(), in.stop().end());
  stopping.ignore_eos = in.ignore_eos();
  stopping.min_tokens = in.min_tokens();
  // Text is made only to find these in.
  if (in.stop_size() > 0) {
    stopping.skip_special_tokens = in.skip_special_tokens();
  }
  if (in.has_seed()) {
    input.seed = static_cast<uint64_t>(int64_t{in.seed()});
  }
  if (in.has_max_tokens()) input.max_new_tokens = in.max_tokens();
  if (in.has_prompt_logprobs()) {
    RECURVE_RETURN_IF_ERROR(
        CheckLogprobs("sampling_params.prompt_logprobs", in.prompt_logprobs()));
    input.prompt_logprobs = in.prompt_logprobs();
  }
  switch (request.input_case()) {
    case vg::GenerateRequest::kTokenized: {
      RECURVE_ASSIGN_OR_RETURN(input.prompt,
                               IdsOf("tokenized.input_ids",
                                     request.tokenized().input_ids(), context));
      break;
    }
    case vg::GenerateRequest::kText:
      input.prompt = request.text();
      break;
    case vg::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return input;
}

absl::Status BoundWholeAnswer(const RequestInput& input, int samples,
                              RequestContext* context) {
  // One more for the chosen token.
  const int64_t logprobs = input.options.sampling.num_logprobs + 1;
  const int64_t most =
      kMaxWholeTokens / (samples * (1 + kLogprobTokens * logprobs));
  context->default_max_new_tokens =
      std::min(context->default_max_new_tokens, most);
  if (!input.max_new_tokens || *input.max_new_tokens <= most) {
    return absl::OkStatus();
  }
  return Refusal(
      "sampling_params.max_tokens", *input.max_new_tokens,
      absl::StrCat("at most ", most, " without stream for ", samples,
                   " continuations with ", logprobs, " logprobs a token"));
}

absl::Status BoundWholePrompt(const Command& command,
                              absl::string_view prompt_name) {
  if (command.prompt_logprobs < 0) return absl::OkStatus();
  const auto count = static_cast<int64_t>(command.append.size());
  const int64_t most =
      kMaxWholeTokens / (1 + kLogprobTokens * (command.prompt_logprobs + 1));
  if (count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      prompt_name, " has ", count, " tokens; without stream at most ", most,
      " are allowed with sampling_params.prompt_logprobs ",
      command.prompt_logprobs));
}

absl::StatusOr<int> SamplesOf(const vg::GenerateRequest& request) {
  const uint32_t n = request.sampling_params().n();
  if (n > kMaxSamples) {
    return Refusal("sampling_params.n", n, absl::StrCat("1 to ", kMaxSamples));
  }
  return static_cast<int>(std::max(n, uint32_t{1}));
}

}  // namespace recurve
