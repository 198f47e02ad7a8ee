#include "server/openai/tokenize_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "server/openai/field_reader.h"

namespace recurve {

using nlohmann::json;

TokenizeCall::TokenizeCall(const CallEnvironment& environment,
                           const std::string& model_name,
                           std::shared_ptr<HttpReply> reply, bool back)
    : RequestCall(environment),
      model_name_(model_name),
      reply_(std::move(reply)),
      back_(back) {}

void TokenizeCall::Begin(const HttpRequest& request) {
  reply_->Listen(self());
  SetParts(1);
  if (auto error = Read(request)) return Refuse(*std::move(error));
  const auto bytes = static_cast<int64_t>(
      back_ ? tokens_.size() * sizeof(tokens_[0]) : prompt_.size());
  if (bytes <= EncodeThreads::kShortBytes) return Finish(Convert());
  // What waits for its turn counts as open.
  if (absl::Status status = OpenStreams(); !status.ok()) {
    return Refuse(ErrorOf(status));
  }
  Encode(bytes, [this](const absl::Status& status) {
    reply_->Continue(
        [self = self(), answer = status.ok()
                                     ? Convert()
                                     : absl::StatusOr<std::string>(status)] {
          self->Finish(answer);
        });
  });
}

std::optional<ApiError> TokenizeCall::Read(const HttpRequest& request) {
  if (absl::Status status = Authenticate(request.authorization, "header");
      !status.ok()) {
    return ErrorOf(status);
  }
  if (auto error = ReadBody(request.body)) return error;
  if (environment_.context.tokenizer != nullptr) return std::nullopt;
  ApiError error;
  error.param = back_ ? "tokens" : "prompt";
  error.message =
      absl::StrCat(error.param, " needs a tokenizer, and this model has none");
  return error;
}

std::optional<ApiError> TokenizeCall::ReadBody(const std::string& body) {
  json object;
  if (auto error = ParseBody(body, "tokens", kMaxTokenized,
                             "the most of a request", &object)) {
    return error;
  }
  FieldReader reader(environment_.engine->limits().vocab_size);
  bool found = false;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;  // as if absent
    if (key == "model") {
      if (auto error = CheckModel(reader, value, model_name_)) return error;
    } else if (!back_ && key == "prompt") {
      prompt_ = reader.String(key, value);
      found = true;
    } else if (!back_ && key == "add_special_tokens") {
      add_special_tokens_ = reader.Bool(key, value);
    } else if (!back_ && key == "return_token_strs") {
      return_token_strs_ = reader.Bool(key, value);
    } else if (back_ && key == "tokens") {
      if (!value.is_array()) {
        reader.Unexpected(key, value, "a list of token ids");
      } else {
        tokens_ = ReadIds(key, value, reader);
      }
      found = true;
    } else {
      reader.FailUnknown(key);
    }
    if (reader.failed()) return reader.TakeError();
  }
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (tokens_[i] >= reader.vocab_size()) {
      reader.Fail(
          absl::StrCat("tokens[", i, "]"),
          absl::StrCat("is ", tokens_[i], "; expected ", reader.TokenId()));
      break;
    }
  }
  if (!found) reader.Fail(back_ ? "tokens" : "prompt", "is missing");
  return reader.TakeError();
}

absl::StatusOr<std::string> TokenizeCall::Convert() const {
  return back_ ? Detokenize() : Tokenize();
}

absl::StatusOr<std::string> TokenizeCall::Tokenize() const {
  const Tokenizer& tokenizer = *environment_.context.tokenizer;
  const bool add_bos = add_special_tokens_ && tokenizer.bos_id().has_value();
  absl::StatusOr<std::vector<int32_t>> ids =
      tokenizer.Encode(prompt_, add_bos, kMaxTokenized);
  if (!ids.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt ", ids.status().message()));
  }
  json strings = nullptr;
  if (return_token_strs_) {
    strings = json::array();
    for (const int32_t id : *ids) strings.push_back(TokenText(id, &tokenizer));
  }
  return ToText({{"count", ids->size()},
                 {"max_model_len", environment_.context.max_model_len},
                 {"tokens", *std::move(ids)},
                 {"token_strs", std::move(strings)}});
}

std::string TokenizeCall::Detokenize() const {
  StreamDecoder decoder(environment_.context.tokenizer, {});
  std::string text;
  for (const int32_t id : tokens_) text += decoder.Append(id);
  text += decoder.Flush();
  return ToText({{"prompt", text}});
}

void TokenizeCall::Finish(absl::StatusOr<std::string> answer) {
  if (!answer.ok()) return Refuse(ErrorOf(answer.status()));
  {
    MutexLock lock(&mu_);
    over_ = true;
    CloseTickets();
  }
  HttpResponse response;
  response.body = *std::move(answer);
  reply_->Send(std::move(response));
}

void TokenizeCall::Refuse(ApiError error) {
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
