#include "server/openai.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "engine/checkpoint/json_parse.h"
#include "engine/checkpoint/quote.h"
#include "engine/request.h"
#include "engine/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

// Deep enough for every field there is.
constexpr int kMaxDepth = 8;

// What this API calls the fields of recurve.v1. The longest match counts.
constexpr std::pair<absl::string_view, absl::string_view> kFieldNames[] = {
    {"prompt_ids", "prompt"},
    {"prompt_text", "prompt"},
    {"stopping.max_new_tokens", "max_tokens"},
    {"stopping.stop_strings", "stop"},
    {"stopping.", ""},
    {"sampling.", ""},
};

// "stopping.stop_strings[2] has 300 bytes" becomes "stop[2] has 300 bytes".
std::string WithApiNames(absl::string_view message) {
  for (const auto& [ours, theirs] : kFieldNames) {
    if (absl::StartsWith(message, ours)) {
      return absl::StrCat(theirs, message.substr(ours.size()));
    }
  }
  return std::string(message);
}

// The field that a message begins with, as messages about fields do.
std::string FieldOf(absl::string_view message) {
  const size_t end = message.find_first_not_of(
      "abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
  return std::string(message.substr(0, end));
}

// Options that other servers know and this one does not have: they may be given
// with the value that asks for nothing.
struct Neutral {
  absl::string_view name;
  json value;
};
const std::vector<Neutral>& NeutralOptions() {
  static const auto& options = *new std::vector<Neutral>{
      {"n", 1},
      {"best_of", 1},
      {"echo", false},
      {"suffix", ""},
      {"use_beam_search", false},
      {"length_penalty", 1},
      {"early_stopping", false},
      {"min_tokens", 0},
      {"include_stop_str_in_output", false},
      {"skip_special_tokens", true},
      {"spaces_between_special_tokens", true},
      {"add_special_tokens", true},
      {"detokenize", true},
  };
  return options;
}

// Reads one JSON object member by member; keeps the first error.
class Reader {
 public:
  bool failed() const { return error_.has_value(); }
  std::optional<ApiError> TakeError() { return std::move(error_); }

  void Fail(absl::string_view field, absl::string_view problem) {
    if (error_) return;
    error_.emplace();
    error_->message = absl::StrCat(field, " ", problem);
    error_->param = std::string(field.substr(0, field.find_first_of("[.")));
  }
  void FailUnknown(const std::string& key) {
    if (error_) return;
    error_.emplace();
    error_->message = absl::StrCat(Quote(key), " is no option of this server");
    error_->param = key;
  }
  void Unexpected(absl::string_view field, const json& value,
                  absl::string_view expected) {
    Fail(field,
         absl::StrCat("is ", DescribeJson(value), "; expected ", expected));
  }

  bool Bool(absl::string_view field, const json& value) {
    if (value.is_boolean()) return value.get<bool>();
    Unexpected(field, value, "true or false");
    return false;
  }
  float Float(absl::string_view field, const json& value) {
    if (value.is_number()) return static_cast<float>(value.get<double>());
    Unexpected(field, value, "a number");
    return 0;
  }
  int64_t Int(absl::string_view field, const json& value, int64_t min,
              int64_t max) {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() &&
                        value.get<uint64_t>() > uint64_t{INT64_MAX});
    if (fits) {
      const int64_t number = value.get<int64_t>();
      if (number >= min && number <= max) return number;
    }
    Unexpected(field, value,
               absl::StrCat("an integer from ", min, " to ", max));
    return min;
  }
  std::string String(absl::string_view field, const json& value) {
    if (value.is_string()) return value.get_ref<const std::string&>();
    Unexpected(field, value, "a string");
    return "";
  }

 private:
  std::optional<ApiError> error_;
};

bool IsIds(const json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

void ReadPrompt(const std::string& field, const json& value, Reader& reader,
                v1::GenerateRequest* request) {
  if (value.is_string()) {
    request->set_prompt_text(value.get_ref<const std::string&>());
    return;
  }
  if (!IsIds(value)) {
    return reader.Unexpected(field, value, "a string or a list of token ids");
  }
  auto& ids = *request->mutable_prompt_ids()->mutable_ids();
  ids.Reserve(static_cast<int>(value.size()));
  for (size_t i = 0; i < value.size() && !reader.failed(); ++i) {
    // The field's name is made only for an error: a prompt may be long.
    const json& id = value[i];
    if (id.is_number_unsigned() && id.get<uint64_t>() <= UINT32_MAX) {
      ids.Add(id.get<uint32_t>());
    } else {
      reader.Unexpected(absl::StrCat(field, "[", i, "]"), id, "a token id");
    }
  }
}

// One prompt or a list of them; `base` has the options of each.
void ReadPrompts(const json& value, const v1::GenerateRequest& base,
                 Reader& reader, std::vector<v1::GenerateRequest>* prompts) {
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

void ReadLogitBias(const json& value, Reader& reader,
                   v1::SamplingParams* sampling) {
  if (!value.is_object()) {
    return reader.Unexpected("logit_bias", value, "an object");
  }
  if (value.size() > kMaxLogitBias) {
    return reader.Fail("logit_bias",
                       absl::StrCat("has ", value.size(), " entries; at most ",
                                    kMaxLogitBias, " are allowed"));
  }
  for (const auto& [key, bias] : value.items()) {
    uint32_t id;
    if (!absl::SimpleAtoi(key, &id)) {
      return reader.Fail("logit_bias", absl::StrCat("has the key ", Quote(key),
                                                    "; expected a token id"));
    }
    const float number =
        reader.Float(absl::StrCat("logit_bias[", id, "]"), bias);
    if (!sampling->mutable_logit_bias()->insert({id, number}).second) {
      return reader.Fail("logit_bias",
                         absl::StrCat("has the token id ", id, " twice"));
    }
  }
}

void ReadStop(const json& value, Reader& reader, v1::StoppingParams* stopping) {
  if (value.is_string()) {
    stopping->add_stop_strings(value.get_ref<const std::string&>());
    return;
  }
  if (!value.is_array() || value.size() > kMaxStopStrings) {
    return reader.Unexpected(
        "stop", value,
        absl::StrCat("a string or a list of at most ", kMaxStopStrings));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    stopping->add_stop_strings(
        reader.String(absl::StrCat("stop[", i, "]"), value[i]));
  }
}

void ReadStopTokenIds(const json& value, Reader& reader,
                      v1::StoppingParams* stopping) {
  if (!value.is_array() || value.size() > kMaxStopTokenIds) {
    return reader.Unexpected(
        "stop_token_ids", value,
        absl::StrCat("a list of at most ", kMaxStopTokenIds, " token ids"));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    stopping->add_stop_token_ids(static_cast<uint32_t>(reader.Int(
        absl::StrCat("stop_token_ids[", i, "]"), value[i], 0, UINT32_MAX)));
  }
}

void ReadStreamOptions(const json& value, Reader& reader,
                       CompletionRequest* request) {
  if (!value.is_object()) {
    return reader.Unexpected("stream_options", value, "an object");
  }
  for (const auto& [key, member] : value.items()) {
    if (member.is_null()) continue;
    const std::string field = "stream_options." + key;
    if (key == "include_usage") {
      request->include_usage = reader.Bool(field, member);
    } else if (key == "include_obfuscation" ||
               key == "continuous_usage_stats") {
      if (reader.Bool(field, member)) {
        reader.Fail(field, "is true; this server has no such option");
      }
    } else {
      reader.Fail("stream_options",
                  absl::StrCat("has the unknown key ", Quote(key)));
    }
  }
}

// The members that are the same for every prompt. False: not one of them.
bool ReadOption(const std::string& key, const json& value, Reader& reader,
                CompletionRequest* request, v1::GenerateRequest* base) {
  v1::SamplingParams& sampling = *base->mutable_sampling();
  v1::StoppingParams& stopping = *base->mutable_stopping();
  if (key == "max_tokens" || key == "max_completion_tokens") {
    const auto count = static_cast<uint32_t>(
        reader.Int(key, value, 1, std::numeric_limits<int32_t>::max()));
    if (stopping.has_max_new_tokens() && stopping.max_new_tokens() != count) {
      reader.Fail(key,
                  "differs: max_tokens and max_completion_tokens are two "
                  "names of one option");
    }
    stopping.set_max_new_tokens(count);
  } else if (key == "temperature") {
    sampling.set_temperature(reader.Float(key, value));
  } else if (key == "top_p") {
    sampling.set_top_p(reader.Float(key, value));
  } else if (key == "top_k") {  // -1: all, as 0
    sampling.set_top_k(static_cast<uint32_t>(std::max<int64_t>(
        0, reader.Int(key, value, -1, std::numeric_limits<int32_t>::max()))));
  } else if (key == "min_p") {
    sampling.set_min_p(reader.Float(key, value));
  } else if (key == "presence_penalty") {
    sampling.set_presence_penalty(reader.Float(key, value));
  } else if (key == "frequency_penalty") {
    sampling.set_frequency_penalty(reader.Float(key, value));
  } else if (key == "repetition_penalty") {
    sampling.set_repetition_penalty(reader.Float(key, value));
  } else if (key == "seed") {
    if (value.is_number_unsigned()) {
      sampling.set_seed(value.get<uint64_t>());
    } else if (value.is_number_integer()) {  // negative: its two's complement
      sampling.set_seed(static_cast<uint64_t>(value.get<int64_t>()));
    } else {
      reader.Unexpected(key, value, "an integer");
    }
  } else if (key == "logit_bias") {
    ReadLogitBias(value, reader, &sampling);
  } else if (key == "stop") {
    ReadStop(value, reader, &stopping);
  } else if (key == "stop_token_ids") {
    ReadStopTokenIds(value, reader, &stopping);
  } else if (key == "ignore_eos") {
    stopping.set_ignore_eos(reader.Bool(key, value));
  } else if (key == "logprobs") {
    base->set_logprobs(
        static_cast<uint32_t>(reader.Int(key, value, 0, kMaxLogprobs)));
  } else if (key == "priority") {  // there, lower comes first
    base->set_priority(static_cast<int32_t>(
        -reader.Int(key, value, -kMaxPriority, kMaxPriority)));
  } else if (key == "stream") {
    request->stream = reader.Bool(key, value);
  } else if (key == "stream_options") {
    ReadStreamOptions(value, reader, request);
  } else if (key == "return_token_ids") {
    request->return_token_ids = reader.Bool(key, value);
  } else if (key == "return_tokens_as_token_ids") {
    request->tokens_as_ids = reader.Bool(key, value);
  } else if (key == "user") {
    reader.String(key, value);  // asks for nothing
  } else {
    return false;
  }
  return true;
}

void ReadNeutral(const std::string& key, const json& value, Reader& reader) {
  for (const Neutral& option : NeutralOptions()) {
    if (option.name != key) continue;
    if (value == option.value) return;
    return reader.Fail(
        key, absl::StrCat("is ", DescribeJson(value), "; this server supports ",
                          option.value.dump(), " only"));
  }
  reader.FailUnknown(key);
}

std::string TokenText(int32_t id, const CompletionRequest& request,
                      const Tokenizer* tokenizer) {
  const absl::string_view bytes = tokenizer != nullptr && !request.tokens_as_ids
                                      ? tokenizer->TokenBytes(id)
                                      : absl::string_view();
  if (bytes.empty()) return absl::StrCat("token_id:", id);
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) {
    absl::StrAppendFormat(&text, "\\x%02x", static_cast<uint8_t>(byte));
  }
  return text;
}

int64_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<uint8_t>(c) & 0xc0) != 0x80;
  });
}

// JSON has no infinities; a token that cannot come has logarithm -inf.
double Finite(float logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0;
}

json LogprobsJson(const v1::Tokens& tokens, const CompletionRequest& request,
                  const Tokenizer* tokenizer, int64_t* text_offset) {
  json texts = json::array();
  json values = json::array();
  json tops = json::array();
  json offsets = json::array();
  for (int i = 0; i < tokens.ids_size(); ++i) {
    const auto id = static_cast<int32_t>(tokens.ids(i));
    const std::string text = TokenText(id, request, tokenizer);
    const v1::TokenLogprob& logprob = tokens.logprobs(i);
    json top = json::object();
    // Where two tokens have one text, the likelier counts.
    for (const v1::TopLogprob& other : logprob.top()) {
      top.emplace(
          TokenText(static_cast<int32_t>(other.id()), request, tokenizer),
          Finite(other.logprob()));
    }
    top.emplace(text, Finite(logprob.logprob()));
    offsets.push_back(*text_offset);
    *text_offset += CountCharacters(text);
    texts.push_back(text);
    values.push_back(Finite(logprob.logprob()));
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace

std::optional<ApiError> ParseCompletion(absl::string_view body,
                                        const std::string& model_name,
                                        CompletionRequest* request) {
  auto parsed = ParseJson(body, "the body", kMaxDepth);
  if (!parsed.ok()) {
    ApiError error;
    error.message = std::string(parsed.status().message());
    return error;
  }
  if (!parsed->is_object()) {
    ApiError error;
    error.message = absl::StrCat("the body is ", DescribeJson(*parsed),
                                 "; expected an object");
    return error;
  }
  Reader reader;
  v1::GenerateRequest base;
  base.mutable_sampling()->set_temperature(1);
  const json* prompt = nullptr;
  for (const auto& [key, value] : parsed->items()) {
    if (value.is_null()) continue;  // as if it were not there
    if (key == "prompt") {
      prompt = &value;
    } else if (key == "model") {
      const std::string name = reader.String(key, value);
      if (!reader.failed() && name != model_name) {
        ApiError error;
        error.status = 404;
        error.message =
            absl::StrCat("the model ", Quote(name),
                         " is not here; this server has ", Quote(model_name));
        error.param = "model";
        error.code = "model_not_found";
        return error;
      }
    } else if (!ReadOption(key, value, reader, request, &base)) {
      ReadNeutral(key, value, reader);
    }
    if (reader.failed()) return reader.TakeError();
  }
  if (!request->stream && parsed->contains("stream_options") &&
      !(*parsed)["stream_options"].is_null()) {
    reader.Fail("stream_options", "is set, and stream is not true");
  } else if (prompt == nullptr) {
    reader.Fail("prompt", "is missing");
  } else {
    ReadPrompts(*prompt, base, reader, &request->prompts);
  }
  return reader.TakeError();
}

ApiError ErrorOf(const absl::Status& status) {
  ApiError error;
  error.message = WithApiNames(status.message());
  error.cause = status.code();
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      if (absl::StartsWith(error.message, "the sequence would reach")) {
        error.param = "max_tokens";
        error.code = "context_length_exceeded";
      } else {
        error.param = FieldOf(error.message);
      }
      return error;
    case absl::StatusCode::kUnauthenticated:
      error.status = 401;
      error.code = "invalid_api_key";
      return error;
    case absl::StatusCode::kResourceExhausted:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "rate_limit_exceeded";
      error.retry_after = std::chrono::milliseconds(1000);
      return error;
    case absl::StatusCode::kUnavailable:
      error.status = 503;
      error.type = "server_error";
      error.code = "unavailable";
      error.retry_after = std::chrono::milliseconds(1000);
      return error;
    case absl::StatusCode::kCancelled:
      error.status = 499;
      error.type = "server_error";
      error.code = "cancelled";
      return error;
    default:
      error.status = 500;
      error.type = "server_error";
      error.code = "internal";
      return error;
  }
}

json ErrorJson(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? json() : json(text);
  };
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = ToText(ErrorJson(error));
  if (error.retry_after) {
    const int64_t ms = error.retry_after->count();
    response.headers.emplace_back("Retry-After",
                                  absl::StrCat((ms + 999) / 1000));
    // Not standard, but what OpenAI's clients look at first.
    response.headers.emplace_back("retry-after-ms", absl::StrCat(ms));
  }
  if (error.status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return response;
}

HttpResponse HttpError(int status, const std::string& message) {
  ApiError error;
  error.status = status;
  error.message = message;
  if (status >= 500) error.type = "server_error";
  return ErrorResponse(error);
}

json ChoiceJson(const ChoicePiece& piece, const CompletionRequest& request,
                const Tokenizer* tokenizer, int64_t* text_offset) {
  json choice = {{"index", piece.index},
                 {"text", piece.tokens.text()},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr},
                 {"stop_reason", nullptr}};
  if (request.prompts[static_cast<size_t>(piece.index)].has_logprobs()) {
    choice["logprobs"] =
        LogprobsJson(piece.tokens, request, tokenizer, text_offset);
  }
  if (request.return_token_ids || tokenizer == nullptr) {
    json ids = json::array();
    for (const uint32_t id : piece.tokens.ids()) ids.push_back(id);
    choice["token_ids"] = std::move(ids);
  }
  if (!piece.finished) return choice;
  const v1::FinishReason reason = piece.finished->reason();
  choice["finish_reason"] =
      reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
  if (reason == v1::FINISH_REASON_STOP_TOKEN) {
    choice["stop_reason"] = piece.last_token;
  } else if (reason == v1::FINISH_REASON_STOP_STRING) {
    choice["stop_reason"] = piece.finished->stop_string();
  }
  return choice;
}

json UsageJson(int64_t prompt_tokens, int64_t completion_tokens) {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens}};
}

json CompletionJson(const std::string& id, int64_t created,
                    const std::string& model_name) {
  return {{"id", id},
          {"object", "text_completion"},
          {"created", created},
          {"model", model_name}};
}

json ModelsJson(const std::string& model_name, int64_t created,
                int64_t max_model_len) {
  return {{"object", "list"},
          {"data", json::array({{{"id", model_name},
                                 {"object", "model"},
                                 {"created", created},
                                 {"owned_by", "recurve"},
                                 {"max_model_len", max_model_len}}})}};
}

std::string ToText(const json& value) {
  // All text is UTF-8 already; should it not be, the call must not throw.
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace recurve
