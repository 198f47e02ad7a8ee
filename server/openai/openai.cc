#include "server/openai/openai.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
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

// The lists of `logprobs`, token by token.
class LogprobLists {
 public:
  LogprobLists(const CompletionRequest& request, const Tokenizer* tokenizer,
               TextOffsets* offsets)
      : request_(request), tokenizer_(tokenizer), text_offsets_(offsets) {}

  // A token that nothing predicts.
  void AddFirst(int32_t id) {
    AddToken(id);
    values_.push_back(nullptr);
    tops_.push_back(nullptr);
  }
  // `top` has (token id, log-probability) of the likeliest.
  template <typename Top>
  void Add(int32_t id, float logprob, const Top& top) {
    json best = json::object();
    // The more likely of two tokens with the same text counts.
    for (const auto& [other, value] : top) {
      best.emplace(TokenText(other, request_, tokenizer_), Finite(value));
    }
    best.emplace(AddToken(id), Finite(logprob));
    values_.push_back(Finite(logprob));
    tops_.push_back(std::move(best));
  }
  json Take() {
    return {{"tokens", std::move(texts_)},
            {"token_logprobs", std::move(values_)},
            {"top_logprobs", std::move(tops_)},
            {"text_offset", std::move(offsets_)}};
  }

 private:
  std::string AddToken(int32_t id) {
    std::string text = TokenText(id, request_, tokenizer_);
    offsets_.push_back(text_offsets_->Next(id));
    texts_.push_back(text);
    return text;
  }

  const CompletionRequest& request_;
  const Tokenizer* const tokenizer_;
  TextOffsets* const text_offsets_;
  json texts_ = json::array();
  json values_ = json::array();
  json tops_ = json::array();
  json offsets_ = json::array();
};

json LogprobsJson(const ChoicePiece& piece, int32_t count,
                  const CompletionRequest& request, const Tokenizer* tokenizer,
                  TextOffsets* offsets) {
  LogprobLists lists(request, tokenizer, offsets);
  if (piece.echo) lists.AddFirst(piece.echo->first_token);
  if (request.echo) {
    for (const StepEvent::PromptLogprob& token : piece.prompt) {
      // The field `prompt_logprobs` may ask for more.
      const size_t most =
          std::min(token.top.size(), static_cast<size_t>(count));
      lists.Add(token.token, token.logprob,
                absl::MakeConstSpan(token.top).first(most));
    }
  }
  std::vector<std::pair<int32_t, float>> top;
  for (int i = 0; i < piece.tokens.ids_size(); ++i) {
    const v1::TokenLogprob& logprob = piece.tokens.logprobs(i);
    top.clear();
    for (const v1::TopLogprob& other : logprob.top()) {
      top.emplace_back(static_cast<int32_t>(other.id()), other.logprob());
    }
    lists.Add(static_cast<int32_t>(piece.tokens.ids(i)), logprob.logprob(),
              top);
  }
  return lists.Take();
}

// The field `prompt_logprobs`: null for the first token; then, for each token,
// an object of the token itself and the likeliest ones, by id.
json PromptLogprobsJson(const std::vector<StepEvent::PromptLogprob>& prompt,
                        const CompletionRequest& request,
                        const Tokenizer* tokenizer) {
  const auto entry = [&](int32_t id, float logprob, int64_t rank) {
    return json{{"logprob", Finite(logprob)},
                {"rank", rank},
                {"decoded_token", TokenText(id, request, tokenizer)}};
  };
  json list = json::array({nullptr});
  for (const StepEvent::PromptLogprob& token : prompt) {
    json tokens = json::object();
    tokens.emplace(absl::StrCat(token.token),
                   entry(token.token, token.logprob, token.rank));
    int64_t rank = 0;
    for (const auto& [id, logprob] : token.top) {
      tokens.emplace(absl::StrCat(id), entry(id, logprob, ++rank));
    }
    list.push_back(std::move(tokens));
  }
  return list;
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
                         absl::Span<const int32_t> prompt,
                         bool special_tokens) {
  if (tokenizer == nullptr) return;
  decoder_.emplace(tokenizer, StreamDecoder::Options(
                                  {}, /*includes_stop=*/false, special_tokens));
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
    case absl::StatusCode::kOutOfRange:
      error.param = FieldOf(error.message);
      return error;
    case absl::StatusCode::kNotFound:
      error.status = 404;
      error.code = "not_found";
      return error;
    case absl::StatusCode::kFailedPrecondition:
      error.status = 409;
      error.code = "failed_precondition";
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

void AddKept(const ChoicePiece& piece, json* choice) {
  if (!piece.kept) return;
  (*choice)["state"] = nullptr;
  if (piece.kept->ok()) {
    (*choice)["state"] = {{"id", (*piece.kept)->id},
                          {"tokens", (*piece.kept)->tokens}};
  } else {
    (*choice)["state_error"] = piece.kept->status().message();
  }
}

json ChoiceJson(const ChoicePiece& piece, const CompletionRequest& request,
                const Tokenizer* tokenizer, TextOffsets* offsets) {
  json choice = {{"index", piece.index},
                 {"text", piece.tokens.text()},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr},
                 {"stop_reason", nullptr}};
  if (piece.echo) choice["text"] = piece.echo->text + piece.tokens.text();
  const int32_t num_logprobs =
      request.prompts[static_cast<size_t>(piece.index / request.samples)]
          .options.sampling.num_logprobs;
  if (num_logprobs >= 0) {
    choice["logprobs"] =
        LogprobsJson(piece, num_logprobs, request, tokenizer, offsets);
  }
  if (request.shows_prompt_logprobs) {
    choice["prompt_logprobs"] =
        PromptLogprobsJson(piece.prompt, request, tokenizer);
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
  AddKept(piece, &choice);
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
                                 // Two of vLLM's; its benchmark reads "root".
                                 {"root", model_name},
                                 {"parent", nullptr},
                                 {"max_model_len", max_model_len}}})}};
}

std::string ToText(const json& value) {
  // All text should be UTF-8 already; if not, the call must not throw.
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace recurve
