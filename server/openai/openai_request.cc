// Parses the bodies of requests. Answers are in openai.cc.

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/checkpoint/quote.h"
#include "engine/serving/request.h"
#include "nlohmann/json.hpp"
#include "server/openai/field_reader.h"
#include "server/openai/openai.h"
#include "server/openai/request_options.h"

namespace recurve {
namespace {

using nlohmann::json;

constexpr uint32_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Options of other servers that this one lacks: accepted with a value that has
// no effect.
struct Neutral {
  absl::string_view name;
  std::vector<json> values;
};
const std::vector<Neutral>& NeutralOptions() {
  static const auto& options = *new std::vector<Neutral>{
      {"best_of", {1}},
      {"suffix", {""}},
      {"use_beam_search", {false}},
      {"length_penalty", {1}},
      {"early_stopping", {false}},
      {"spaces_between_special_tokens", {true}},
      {"add_special_tokens", {true}},
      {"detokenize", {true}},
      {"bad_words", {json::array()}},
      {"logits_processors", {json::array()}},
      {"response_format", {json({{"type", "text"}})}},
      {"service_tier", {"auto", "default"}},
      {"store", {false}},
  };
  return options;
}

bool IsIds(const json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

void ReadPrompt(const std::string& field, const json& value,
                FieldReader& reader, RequestInput* input) {
  if (value.is_string()) {
    input->prompt = value.get_ref<const std::string&>();
    return;
  }
  if (!IsIds(value)) {
    return reader.Unexpected(field, value, "a string or a list of token ids");
  }
  input->prompt = ReadIds(field, value, reader);
}

// One prompt or a list of them; `base` has the options of each.
void ReadPrompts(const json& value, const RequestInput& base,
                 FieldReader& reader, std::vector<RequestInput>* prompts) {
  if (!value.is_array() || IsIds(value)) {
    ReadPrompt("prompt", value, reader, &prompts->emplace_back(base));
    return;
  }
  if (value.empty() || value.size() > kMaxPrompts) {
    return reader.Fail(
        "prompt", absl::StrCat("has ", value.size(), " entries; expected 1 to ",
                               kMaxPrompts));
  }
  for (size_t i = 0; i < value.size() && !reader.failed(); ++i) {
    ReadPrompt(absl::StrCat("prompt[", i, "]"), value[i], reader,
               &prompts->emplace_back(base));
  }
}

void ReadLogitBias(const json& value, FieldReader& reader,
                   SamplingParams* sampling) {
  if (!value.is_object()) {
    return reader.Unexpected("logit_bias", value, "an object");
  }
  if (value.size() > kMaxLogitBias) {
    return reader.Fail("logit_bias",
                       absl::StrCat("has ", value.size(), " entries; at most ",
                                    kMaxLogitBias, " are allowed"));
  }
  for (const auto& [key, bias] : value.items()) {
    // In canonical form: " 65" or "065" would be a second name of 65.
    uint32_t id;
    if (!absl::SimpleAtoi(key, &id) || absl::StrCat(id) != key ||
        id > kMaxInt32) {
      return reader.Fail(
          "logit_bias",
          absl::StrCat("has the key ", Quote(key), "; expected ",
                       reader.TokenId(), ", without spaces or leading zeros"));
    }
    const float number = reader.Float(absl::StrCat("logit_bias[", id, "]"),
                                      bias, kLogitBiasRange);
    sampling->logit_bias.emplace_back(static_cast<int32_t>(id), number);
  }
}

void ReadStop(const json& value, FieldReader& reader,
              StoppingParams* stopping) {
  if (value.is_string()) {
    stopping->stop_strings = {value.get_ref<const std::string&>()};
    return;
  }
  if (!value.is_array() || value.size() > kMaxStopStrings) {
    return reader.Unexpected(
        "stop", value,
        absl::StrCat("a string or a list of at most ", kMaxStopStrings));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    stopping->stop_strings.push_back(
        reader.String(absl::StrCat("stop[", i, "]"), value[i]));
  }
}

void ReadStopTokenIds(const json& value, FieldReader& reader,
                      StoppingParams* stopping) {
  if (!value.is_array() || value.size() > kMaxStopTokenIds) {
    return reader.Unexpected(
        "stop_token_ids", value,
        absl::StrCat("a list of at most ", kMaxStopTokenIds, " token ids"));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    stopping->stop_token_ids.push_back(
        static_cast<int32_t>(reader.Int(absl::StrCat("stop_token_ids[", i, "]"),
                                        value[i], 0, reader.vocab_size() - 1)));
  }
}

// Both names of OpenAI and vLLM may be given, with one value.
void ReadCacheKey(const std::string& key, const json& value,
                  FieldReader& reader, std::string* cache_key) {
  const std::string read = reader.String(key, value);
  if (read.size() > kMaxCacheKeyBytes) {
    reader.Fail(key,
                absl::StrCat("has ", read.size(), " bytes; expected at most ",
                             kMaxCacheKeyBytes));
  }
  if (!cache_key->empty() && *cache_key != read) {
    reader.Fail(key, absl::StrCat("is ", DescribeJson(value), " and ",
                                  key == "cache_salt" ? "prompt_cache_key"
                                                      : "cache_salt",
                                  " is ", Quote(*cache_key),
                                  "; expected one value, as both are names of "
                                  "one option"));
  }
  *cache_key = read;
}

// As the header of this purpose, the id is copied to a header of the answer.
void ReadRequestId(const json& value, FieldReader& reader, std::string* id) {
  *id = reader.String("request_id", value);
  if (id->empty() || id->size() > kMaxRequestIdBytes ||
      !absl::c_all_of(*id, absl::ascii_isgraph)) {
    reader.Unexpected("request_id", value,
                      absl::StrCat("a string of 1 to ", kMaxRequestIdBytes,
                                   " visible ASCII characters, ! to ~"));
  }
}

void ReadStreamOptions(const json& value, FieldReader& reader,
                       CompletionRequest* request) {
  if (!value.is_object()) {
    return reader.Unexpected("stream_options", value, "an object");
  }
  for (const auto& [key, member] : value.items()) {
    if (member.is_null()) continue;
    const std::string field = "stream_options." + key;
    if (key == "include_usage") {
      request->include_usage = reader.Bool(field, member);
    } else if (key == "continuous_usage_stats") {
      request->continuous_usage = reader.Bool(field, member);
    } else if (key == "include_obfuscation") {
      if (reader.Bool(field, member)) {
        reader.Fail(field, "is true; this server has no such option");
      }
    } else {
      reader.Fail("stream_options",
                  absl::StrCat("has the unknown key ", Quote(key)));
    }
  }
}

}  // namespace

bool ReadOption(const std::string& key, const json& value, FieldReader& reader,
                CompletionRequest* request, RequestInput* base) {
  SamplingParams& sampling = base->options.sampling;
  StoppingParams& stopping = base->options.stopping;
  if (key == "max_tokens" || key == "max_completion_tokens") {
    const int64_t count =
        reader.Int(key, value, 0, std::numeric_limits<int32_t>::max());
    if (base->max_new_tokens && *base->max_new_tokens != count) {
      const char* const other =
          key == "max_tokens" ? "max_completion_tokens" : "max_tokens";
      reader.Fail(key, absl::StrCat("is ", count, " and ", other, " is ",
                                    *base->max_new_tokens,
                                    "; expected one value, as both are names "
                                    "of one option"));
    }
    base->max_new_tokens = count;
  } else if (key == "n") {
    request->samples = static_cast<int>(reader.Int(key, value, 1, kMaxSamples));
  } else if (key == "temperature") {
    sampling.temperature = reader.Float(key, value, kTemperatureRange);
  } else if (key == "top_p") {
    sampling.top_p = reader.Float(key, value, kTopPRange, kTopPExpected);
  } else if (key == "top_k") {  // -1: all, as 0
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(
        0, reader.Int(key, value, -1, std::numeric_limits<int32_t>::max())));
  } else if (key == "min_p") {
    sampling.min_p = reader.Float(key, value, kMinPRange);
  } else if (key == "presence_penalty") {
    sampling.presence_penalty = reader.Float(key, value, kPenaltyRange);
  } else if (key == "frequency_penalty") {
    sampling.frequency_penalty = reader.Float(key, value, kPenaltyRange);
  } else if (key == "repetition_penalty") {
    sampling.repetition_penalty =
        reader.Float(key, value, kRepetitionPenaltyRange);
  } else if (key == "seed") {
    if (value.is_number_unsigned()) {
      base->seed = value.get<uint64_t>();
    } else if (const auto number = WholeNumber(value)) {
      base->seed = static_cast<uint64_t>(*number);  // two's complement
    } else {
      reader.Unexpected(
          key, value,
          absl::StrCat("an integer from ", std::numeric_limits<int64_t>::min(),
                       " to ", std::numeric_limits<uint64_t>::max()));
    }
  } else if (key == "logit_bias") {
    ReadLogitBias(value, reader, &sampling);
  } else if (key == "stop") {
    ReadStop(value, reader, &stopping);
  } else if (key == "stop_token_ids") {
    ReadStopTokenIds(value, reader, &stopping);
  } else if (key == "ignore_eos") {
    stopping.ignore_eos = reader.Bool(key, value);
  } else if (key == "min_tokens") {
    stopping.min_tokens = reader.Int(key, value, 0, kMaxInt32);
  } else if (key == "include_stop_str_in_output") {
    stopping.include_stop_str_in_output = reader.Bool(key, value);
  } else if (key == "skip_special_tokens") {
    stopping.skip_special_tokens = reader.Bool(key, value);
  } else if (key == "logprobs") {
    sampling.num_logprobs =
        static_cast<int32_t>(reader.Int(key, value, 0, kMaxLogprobs));
  } else if (key == "priority") {  // in this API, lower values come first
    base->options.priority = static_cast<int32_t>(
        -reader.Int(key, value, -kMaxPriority, kMaxPriority));
  } else if (key == "stream") {
    request->stream = reader.Bool(key, value);
  } else if (key == "stream_options") {
    ReadStreamOptions(value, reader, request);
  } else if (key == "return_token_ids") {
    request->return_token_ids = reader.Bool(key, value);
  } else if (key == "return_tokens_as_token_ids") {
    request->tokens_as_ids = reader.Bool(key, value);
  } else if (key == "from_state") {
    base->from_state = reader.String(key, value);
  } else if (key == "keep_state") {
    request->keep_state = reader.Bool(key, value);
  } else if (key == "prompt_cache_key" || key == "cache_salt") {
    ReadCacheKey(key, value, reader, &base->options.cache_key);
  } else if (key == "request_id") {
    ReadRequestId(value, reader, &request->request_id);
  } else if (key == "user" || key == "safety_identifier") {
    reader.String(key, value);  // has no effect
  } else if (key == "metadata") {
    if (!value.is_object()) reader.Unexpected(key, value, "an object");
  } else {
    return false;
  }
  return true;
}

void ReadNeutral(const std::string& key, const json& value,
                 FieldReader& reader) {
  for (const Neutral& option : NeutralOptions()) {
    if (option.name != key) continue;
    if (absl::c_linear_search(option.values, value)) return;
    return reader.Fail(
        key, absl::StrCat("is ", DescribeJson(value), "; this server supports ",
                          absl::StrJoin(option.values, " or ",
                                        [](std::string* out, const json& one) {
                                          *out += one.dump();
                                        }),
                          " only"));
  }
  reader.FailUnknown(key);
}

void FinishOptions(const json& object, FieldReader& reader,
                   CompletionRequest* request, RequestInput* base) {
  // An object has no order; the arithmetic needs one.
  absl::c_sort(base->options.sampling.logit_bias);
  if (!request->stream && object.contains("stream_options") &&
      !object["stream_options"].empty()) {  // as null and {} are
    reader.Fail("stream_options", "is set, and stream is not true");
  }
  if (base->max_new_tokens == 0 && !request->echo &&
      !request->shows_prompt_logprobs) {
    reader.Fail("max_tokens", absl::StrCat("is 0; expected an integer from 1 "
                                           "to ",
                                           kMaxInt32));
  }
}

namespace {

// What `echo` and `prompt_logprobs` mean for the engine, once all members are
// read.
void FinishPromptOptions(const CompletionRequest& request, FieldReader& reader,
                         RequestInput* base) {
  base->may_generate_none = request.echo;
  if (request.shows_prompt_logprobs && request.stream) {
    // As in vLLM, whose form this is.
    return reader.Fail("prompt_logprobs",
                       absl::StrCat("is ", base->prompt_logprobs,
                                    ", and stream is true; expected no stream, "
                                    "or echo with logprobs"));
  }
  if (request.echo) {
    base->prompt_logprobs =
        std::max(base->prompt_logprobs, base->options.sampling.num_logprobs);
  }
}

}  // namespace

std::optional<ApiError> ParseCompletion(absl::string_view body,
                                        const std::string& model_name,
                                        const RequestLimits& limits,
                                        CompletionRequest* request) {
  const int64_t max_model_len = limits.max_model_len;
  FieldReader reader(limits.vocab_size);
  json object;
  if (auto error = ParseBody(body, "prompt", max_model_len,
                             "this server's max_model_len", &object)) {
    return error;
  }
  RequestInput base;
  base.options.sampling.temperature = 1;
  const json* prompt = nullptr;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;  // as if absent
    if (key == "prompt") {
      prompt = &value;
    } else if (key == "echo") {
      request->echo = reader.Bool(key, value);
    } else if (key == "prompt_logprobs") {
      base.prompt_logprobs =
          static_cast<int32_t>(reader.Int(key, value, 0, kMaxLogprobs));
      request->shows_prompt_logprobs = true;
    } else if (key == "model") {
      if (auto error = CheckModel(reader, value, model_name)) return error;
    } else if (!ReadOption(key, value, reader, request, &base)) {
      ReadNeutral(key, value, reader);
    }
    if (reader.failed()) return reader.TakeError();
  }
  FinishPromptOptions(*request, reader, &base);
  FinishOptions(object, reader, request, &base);
  if (!base.from_state.empty() &&
      (request->echo || request->shows_prompt_logprobs)) {
    reader.Fail(
        request->echo ? "echo" : "prompt_logprobs",
        "is set, and from_state is, too; what a state has is not shown");
  }
  if (prompt == nullptr && !base.from_state.empty()) {
    request->prompts = {base};  // goes on where the state ends
  } else if (prompt == nullptr) {
    reader.Fail("prompt", "is missing");
  } else {
    ReadPrompts(*prompt, base, reader, &request->prompts);
  }
  const auto choices =
      static_cast<int>(request->prompts.size()) * request->samples;
  if (request->samples > 1 && choices > kMaxChoices) {
    reader.Fail("n", absl::StrCat("is ", request->samples, " for ",
                                  request->prompts.size(), " prompts; at most ",
                                  kMaxChoices,
                                  " completions of a request are allowed"));
  }
  return reader.TakeError();
}

}  // namespace recurve
