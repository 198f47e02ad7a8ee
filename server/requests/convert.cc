#include "server/requests/convert.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr uint32_t kMaxFieldValue = std::numeric_limits<int32_t>::max();

// Ids beyond int32 are outside any vocabulary. The engine checks the others;
// its type cannot hold these.
absl::Status CheckId(absl::string_view field, uint32_t id,
                     const RequestContext& context) {
  if (id <= kMaxFieldValue) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", id, "; the vocabulary has ids 0 to ",
                   context.vocab_size - 1));
}

using IdField = google::protobuf::RepeatedField<uint32_t>;

absl::StatusOr<std::vector<int32_t>> Ids(absl::string_view field,
                                         const IdField& ids,
                                         const RequestContext& context) {
  std::vector<int32_t> out;
  out.reserve(ids.size());
  for (uint32_t id : ids) {
    if (id > kMaxFieldValue) {
      return CheckId(absl::StrCat(field, "[", out.size(), "]"), id, context);
    }
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

// Stops when the tokens of `text`, after `position` others, exceed the maximum
// length of a sequence.
absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view field,
                                            const std::string& text,
                                            int64_t position,
                                            const RequestContext& context) {
  if (context.tokenizer == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, " needs a tokenizer, and this model has none; send token ids"));
  }
  const bool add_bos = position == 0 && context.tokenizer->bos_id().has_value();
  absl::StatusOr<std::vector<int32_t>> ids = context.tokenizer->Encode(
      text, add_bos, std::max<int64_t>(0, context.max_model_len - position));
  if (!absl::IsOutOfRange(ids.status())) return ids;
  return absl::InvalidArgumentError(absl::StrCat(
      field, " ", ids.status().message(),
      position > 0 ? absl::StrCat(" after the sequence's ", position) : "",
      "; this server's max_model_len is ", context.max_model_len));
}

absl::StatusOr<SamplingParams> SamplingFromProto(
    const v1::SamplingParams& in, const RequestContext& context) {
  SamplingParams out;
  if (in.has_repetition_penalty())
    out.repetition_penalty = in.repetition_penalty();
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_frequency_penalty())
    out.frequency_penalty = in.frequency_penalty();
  if (in.has_temperature()) out.temperature = in.temperature();
  // A value beyond any vocabulary means all tokens.
  if (in.has_top_k()) {
    out.top_k = static_cast<int32_t>(std::min(in.top_k(), kMaxFieldValue));
  }
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_min_p()) out.min_p = in.min_p();
  for (const auto& [id, bias] : in.logit_bias()) {
    RECURVE_RETURN_IF_ERROR(CheckId("sampling.logit_bias key", id, context));
    out.logit_bias.emplace_back(static_cast<int32_t>(id), bias);
  }
  // A map has no order; the arithmetic needs one.
  std::sort(out.logit_bias.begin(), out.logit_bias.end());
  return out;
}

absl::StatusOr<StoppingParams> StoppingFromProto(
    const v1::StoppingParams& in, const RequestContext& context) {
  StoppingParams out;
  RECURVE_ASSIGN_OR_RETURN(
      out.stop_token_ids,
      Ids("stopping.stop_token_ids", in.stop_token_ids(), context));
  out.stop_strings.assign(in.stop_strings().begin(), in.stop_strings().end());
  out.ignore_eos = in.ignore_eos();
  out.min_tokens = in.min_tokens();
  out.include_stop_str_in_output = in.include_stop_str_in_output();
  if (in.has_skip_special_tokens())
    out.skip_special_tokens = in.skip_special_tokens();
  return out;
}

template <typename Request>
absl::StatusOr<SequenceOptions> OptionsOf(const Request& request,
                                          const RequestContext& context) {
  SequenceOptions options;
  RECURVE_ASSIGN_OR_RETURN(options.sampling,
                           SamplingFromProto(request.sampling(), context));
  if (request.has_logprobs()) {
    if (request.logprobs() > kMaxFieldValue) {
      return absl::InvalidArgumentError(
          absl::StrCat("logprobs is ", request.logprobs(), "; expected 0 to ",
                       kMaxLogprobs));
    }
    options.sampling.num_logprobs = static_cast<int32_t>(request.logprobs());
  }
  RECURVE_ASSIGN_OR_RETURN(options.stopping,
                           StoppingFromProto(request.stopping(), context));
  if (request.has_priority()) options.priority = request.priority();
  options.cache_key = request.cache_key();
  options.snapshot_at.assign(request.snapshot_at().begin(),
                             request.snapshot_at().end());
  return options;
}

}  // namespace

// Asks the system only once: a call may take longer than the rest of a refused
// request.
uint64_t RandomSeed() {
  static const uint64_t key = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  static std::atomic<uint64_t> next{0};
  const auto words = Philox4x32(key, next.fetch_add(1), 0);
  return (uint64_t{words[0]} << 32) | words[1];
}

absl::StatusOr<RequestInput> FromProto(const v1::GenerateRequest& request,
                                       const RequestContext& context) {
  RequestInput input;
  RECURVE_ASSIGN_OR_RETURN(input.options, OptionsOf(request, context));
  input.from_state = request.from_state();
  if (request.sampling().has_seed()) input.seed = request.sampling().seed();
  if (request.stopping().has_max_new_tokens()) {
    input.max_new_tokens = request.stopping().max_new_tokens();
  }
  if (request.has_prompt_logprobs()) {
    input.prompt_logprobs = static_cast<int32_t>(
        std::min(request.prompt_logprobs(), kMaxFieldValue));
  }
  if (request.has_prompt_ids()) {
    RECURVE_ASSIGN_OR_RETURN(
        input.prompt, Ids("prompt_ids", request.prompt_ids().ids(), context));
  } else if (request.has_prompt_text()) {
    input.prompt = request.prompt_text();
  }
  return input;
}

absl::StatusOr<GenerateInput> Complete(RequestInput input,
                                       const RequestContext& context,
                                       const FieldNames& names) {
  GenerateInput complete;
  complete.options = std::move(input.options);
  complete.options.sampling.seed = input.seed ? *input.seed : RandomSeed();
  complete.prompt_name = names.append_ids;
  const int64_t position = input.from == nullptr ? 0 : input.from->num_tokens();
  complete.from = std::move(input.from);
  if (auto* const ids = std::get_if<std::vector<int32_t>>(&input.prompt)) {
    complete.command.append = std::move(*ids);
  } else if (const auto* const text = std::get_if<std::string>(&input.prompt)) {
    complete.prompt_name = names.append_text;
    RECURVE_ASSIGN_OR_RETURN(
        complete.command.append,
        Encode(names.append_text, *text, position, context));
  } else if (position == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt is not set; expected ", names.append_ids, " or ",
                     names.append_text));
  }
  if (complete.command.append.empty() && position == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        complete.prompt_name, " is empty; at least one token is needed"));
  }
  complete.command.prompt_logprobs = input.prompt_logprobs;
  if (input.max_new_tokens) {
    complete.command.generate = *input.max_new_tokens;
    if (complete.command.generate == 0 && input.prompt_logprobs < 0 &&
        !input.may_generate_none) {
      return absl::InvalidArgumentError(
          absl::StrCat(names.generate, " is 0; expected at least 1, or ",
                       names.prompt_logprobs, " with it"));
    }
  } else {
    const int64_t room = context.max_model_len - position -
                         static_cast<int64_t>(complete.command.append.size());
    // At least one, so that the refusal of a prompt without room contains
    // numbers.
    complete.command.generate =
        std::max<int64_t>(1, std::min(context.default_max_new_tokens, room));
  }
  return complete;
}

GenerateInput SampleOf(const GenerateInput& input, int index) {
  GenerateInput sample = input;
  if (index == 0) return sample;
  sample.options.sampling.seed =
      DeriveSeed(input.options.sampling.seed, static_cast<uint64_t>(index));
  // The prompt's are those of the first.
  sample.command.prompt_logprobs = -1;
  // A state is there for all of them.
  sample.sample = input.from == nullptr;
  return sample;
}

FieldNames DecodeFieldNames() {
  FieldNames names;
  names.append_ids = "append_ids";
  names.append_text = "append_text";
  names.generate = "generate";
  return names;
}

absl::StatusOr<SequenceOptions> OptionsFromProto(
    const v1::DecodeRequest& request, const RequestContext& context) {
  if (request.stopping().has_max_new_tokens()) {
    return absl::InvalidArgumentError(
        "stopping.max_new_tokens has no place in Decode; set generate in each "
        "command");
  }
  return OptionsOf(request, context);
}

absl::Status CheckNoOptions(const v1::DecodeRequest& request) {
  const char* field = request.has_sampling()           ? "sampling"
                      : request.has_stopping()         ? "stopping"
                      : request.has_priority()         ? "priority"
                      : !request.cache_key().empty()   ? "cache_key"
                      : request.snapshot_at_size() > 0 ? "snapshot_at"
                      : request.has_logprobs()         ? "logprobs"
                      : !request.from_state().empty()  ? "from_state"
                                                       : nullptr;
  if (field == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field,
      " is set in a later command; only the first command of a call sets it"));
}

std::optional<int64_t> RollbackOf(const v1::DecodeRequest& request) {
  if (!request.has_rollback_to()) return std::nullopt;
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min<uint64_t>(request.rollback_to(), kMax));
}

absl::StatusOr<Command> CommandFromProto(const v1::DecodeRequest& request,
                                         int64_t position,
                                         const RequestContext& context) {
  Command command;
  switch (request.append_case()) {
    case v1::DecodeRequest::kAppendIds: {
      RECURVE_ASSIGN_OR_RETURN(
          command.append,
          Ids("append_ids", request.append_ids().ids(), context));
      break;
    }
    case v1::DecodeRequest::kAppendText: {
      RECURVE_ASSIGN_OR_RETURN(
          command.append,
          Encode("append_text", request.append_text(), position, context));
      break;
    }
    case v1::DecodeRequest::APPEND_NOT_SET:
      break;
  }
  command.generate = request.generate();
  command.keep = request.keep();
  command.rollback_to = RollbackOf(request);
  if (command.append.empty() && (position == 0 || command.generate == 0)) {
    return absl::InvalidArgumentError(
        position == 0 ? "append is empty; the first command must append at "
                        "least one token"
                      : "the command appends nothing and generates nothing");
  }
  switch (request.logits()) {
    case v1::LOGITS_MODE_NONE:
      command.logits = LogitsMode::kNone;
      return command;
    case v1::LOGITS_MODE_NEXT:
      command.logits = LogitsMode::kNext;
      return command;
    case v1::LOGITS_MODE_ALL:
      command.logits = LogitsMode::kAll;
      return command;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("logits is ", static_cast<int>(request.logits()),
                       "; expected 0 (NONE), 1 (NEXT) or 2 (ALL)"));
  }
}

namespace {

// Sizes of fields in a message, tags and lengths included; an id has up to 5
// bytes, a float 4.
constexpr int64_t kTokenBytes = 5;
constexpr int64_t kLogprobBytes = 9;
constexpr int64_t kTopBytes = 13;

void AddLogprob(float value, const std::vector<std::pair<int32_t, float>>& top,
                v1::TokenLogprob* logprob) {
  logprob->set_logprob(value);
  for (const auto& [id, other] : top) {
    v1::TopLogprob* const one = logprob->add_top();
    one->set_id(static_cast<uint32_t>(id));
    one->set_logprob(other);
  }
}

}  // namespace

void AppendText(int64_t index, absl::string_view text, v1::Tokens* tokens) {
  if (text.empty()) return;
  if (tokens->ids_size() == 0) tokens->set_index(static_cast<uint32_t>(index));
  tokens->mutable_text()->append(text.data(), text.size());
}

void AppendStep(const StepEvent& event, bool with_logprobs,
                v1::Tokens* tokens) {
  if (!event.has_token) return AppendText(event.index, event.text, tokens);
  if (tokens->ids_size() == 0) {
    tokens->set_index(static_cast<uint32_t>(event.index));
  }
  tokens->add_ids(static_cast<uint32_t>(event.token));
  tokens->mutable_text()->append(event.text);
  if (with_logprobs) {
    AddLogprob(event.logprob, event.top_logprobs, tokens->add_logprobs());
  }
}

void AppendPrompt(const StepEvent& event, v1::PromptLogprobs* prompt) {
  for (const StepEvent::PromptLogprob& token : event.prompt_logprobs) {
    if (prompt->ids_size() == 0) {
      prompt->set_index(static_cast<uint32_t>(token.position));
    }
    prompt->add_ids(static_cast<uint32_t>(token.token));
    AddLogprob(token.logprob, token.top, prompt->add_logprobs());
  }
}

int64_t PromptBytes(const StepEvent& event) {
  int64_t bytes = 0;
  for (const StepEvent::PromptLogprob& token : event.prompt_logprobs) {
    bytes += kTokenBytes + kLogprobBytes +
             kTopBytes * static_cast<int64_t>(token.top.size());
  }
  return bytes;
}

int64_t StepBytes(const StepEvent& event, bool with_logprobs) {
  int64_t bytes = static_cast<int64_t>(event.text.size());
  if (!event.has_token) return bytes;
  bytes += kTokenBytes;
  if (!with_logprobs) return bytes;
  return bytes + kLogprobBytes +
         kTopBytes * static_cast<int64_t>(event.top_logprobs.size());
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kStopString:
      return v1::FINISH_REASON_STOP_STRING;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

namespace {

v1::CacheMiss ToProto(CacheMiss miss) {
  switch (miss) {
    case CacheMiss::kNone:
      return v1::CACHE_MISS_NONE;
    case CacheMiss::kUnknown:
      return v1::CACHE_MISS_UNKNOWN;
    case CacheMiss::kDiverged:
      return v1::CACHE_MISS_DIVERGED;
    case CacheMiss::kEvicted:
      return v1::CACHE_MISS_EVICTED;
    case CacheMiss::kShort:
      return v1::CACHE_MISS_SHORT;
    case CacheMiss::kDisabled:
      return v1::CACHE_MISS_DISABLED;
  }
  return v1::CACHE_MISS_UNSPECIFIED;
}

}  // namespace

v1::Usage UsageToProto(const CommandResult& result) {
  v1::Usage usage;
  usage.set_prompt_tokens(static_cast<uint32_t>(result.prompt_tokens));
  usage.set_completion_tokens(static_cast<uint32_t>(result.completion_tokens));
  usage.set_preemptions(static_cast<uint32_t>(result.preemptions));
  v1::CacheUse& cache = *usage.mutable_cache();
  cache.set_cached_tokens(static_cast<uint32_t>(result.cache.cached_tokens));
  cache.set_written_tokens(static_cast<uint32_t>(result.cache.written_tokens));
  cache.set_miss(ToProto(result.cache.miss));
  cache.set_diverged_at(static_cast<uint32_t>(result.cache.diverged_at));
  cache.set_approximate(result.cache.approximate);
  return usage;
}

std::string FormatRequestId(uint64_t id) {
  return absl::StrFormat("%016x", id);
}

absl::StatusOr<uint64_t> ParseRequestId(const std::string& text) {
  uint64_t id = 0;
  bool valid = text.size() == 16;
  for (char c : text) {
    const bool digit = c >= '0' && c <= '9';
    const bool letter = c >= 'a' && c <= 'f';
    valid = valid && (digit || letter);
    id = (id << 4) | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request_id has ", text.size(),
        " characters or others than 0-9a-f; expected 16 of these"));
  }
  return id;
}

}  // namespace recurve
