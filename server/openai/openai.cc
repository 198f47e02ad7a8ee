#include "server/openai/openai.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace recurve {
namespace {

using nlohmann::json;

// The field at the start of an error message.
std::string FieldOf(absl::string_view message) {
  const size_t end = message.find_first_not_of(
      "abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
  return std::string(message.substr(0, end));
}

std::string TokenText(int32_t id, const CompletionRequest& request,
                      const Tokenizer* tokenizer) {
  return TokenText(id, request.tokens_as_ids ? nullptr : tokenizer);
}

int64_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<uint8_t>(c) & 0xc0) != 0x80;
  });
}

// JSON has no infinities; an impossible token has log probability -inf.
double Finite(float logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0;
}

json LogprobsJson(const v1::Tokens& tokens, const CompletionRequest& request,
                  const Tokenizer* tokenizer, TextOffsets* offsets_of) {
  json texts = json::array();
  json values = json::array();
  json tops = json::array();
  json offsets = json::array();
  for (int i = 0; i < tokens.ids_size(); ++i) {
    const auto id = static_cast<int32_t>(tokens.ids(i));
    const std::string text = TokenText(id, request, tokenizer);
    const v1::TokenLogprob& logprob = tokens.logprobs(i);
    json top = json::object();
    // The more likely of two tokens with the same text counts.
    for (const v1::TopLogprob& other : logprob.top()) {
      top.emplace(
          TokenText(static_cast<int32_t>(other.id()), request, tokenizer),
          Finite(other.logprob()));
    }
    top.emplace(text, Finite(logprob.logprob()));
    offsets.push_back(offsets_of->Next(id));
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

std::string TokenText(int32_t id, const Tokenizer* tokenizer) {
  const absl::string_view bytes =
      tokenizer != nullptr ? tokenizer->TokenBytes(id) : absl::string_view();
  if (bytes.empty()) return absl::StrCat("token_id:", id);
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) {
    absl::StrAppendFormat(&text, "\\x%02x", static_cast<uint8_t>(byte));
  }
  return text;
}

TextOffsets::TextOffsets(const Tokenizer* tokenizer,
                         absl::Span<const int32_t> prompt) {
  if (tokenizer == nullptr) return;
  decoder_.emplace(tokenizer, std::vector<std::string>());
  decoder_->SkipBefore(prompt);
}

int64_t TextOffsets::Next(int32_t id) {
  const int64_t offset = characters_;
  if (decoder_) characters_ += CountCharacters(decoder_->Append(id));
  return offset;
}

FieldNames CompletionFieldNames(size_t index, size_t count) {
  FieldNames names;
  names.append_ids = names.append_text =
      count > 1 ? absl::StrCat("prompt[", index, "]") : "prompt";
  names.generate = "max_tokens";
  if (count > 1) absl::StrAppend(&names.generate, " (prompt[", index, "])");
  names.sampling = "";
  names.stopping = "";
  names.stop_strings = "stop";
  names.cache_key = "prompt_cache_key";
  return names;
}

ApiError ErrorOf(const absl::Status& status) {
  ApiError error;
  error.message = std::string(status.message());
  error.cause = status;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      error.param = FieldOf(error.message);
      if ((error.param == "prompt" || error.param == "max_tokens") &&
          (absl::StrContains(error.message, " this server's max_model_len") ||
           absl::StrContains(error.message, " looks at a prompt as a whole"))) {
        error.code = "context_length_exceeded";
      }
      return error;
    case absl::StatusCode::kUnauthenticated:
      error.status = 401;
      error.code = "invalid_api_key";
      return error;
    case absl::StatusCode::kPermissionDenied:
      error.status = 403;
      error.code = "permission_denied";
      return error;
    case absl::StatusCode::kDeadlineExceeded:
      error.status = 504;
      error.type = "server_error";
      error.code = "deadline_exceeded";
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
    // Not standard, but the header that OpenAI's clients check first.
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
                const Tokenizer* tokenizer, TextOffsets* offsets) {
  json choice = {{"index", piece.index},
                 {"text", piece.tokens.text()},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr},
                 {"stop_reason", nullptr}};
  if (request.prompts[static_cast<size_t>(piece.index / request.samples)]
          .options.sampling.num_logprobs >= 0) {
    choice["logprobs"] =
        LogprobsJson(piece.tokens, request, tokenizer, offsets);
  }
  if (request.ShowsTokenIds(tokenizer)) {
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
  if (piece.seed) choice["seed"] = *piece.seed;
  return choice;
}

json UsageJson(int64_t prompt_tokens, int64_t completion_tokens,
               int64_t cached_tokens, bool approximate) {
  json details = {{"cached_tokens", cached_tokens}};
  if (approximate) details["approximate"] = true;
  return {{"prompt_tokens", prompt_tokens},
          {"prompt_tokens_details", std::move(details)},
          {"completion_tokens", completion_tokens},
          {"total_tokens", prompt_tokens + completion_tokens}};
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
  // All text should be UTF-8 already; if not, the call must not throw.
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace recurve
