#include "server/openai/state_paths.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/serving/state_store.h"
#include "nlohmann/json.hpp"
#include "server/openai/field_reader.h"
#include "server/openai/openai.h"

namespace recurve {
namespace {

using nlohmann::json;
using Caller = StateService::Caller;

// What is behind kStatesPath.
struct StatesTarget {
  enum Kind { kNothing, kAll, kOne, kTokens, kFork, kPin } kind = kNothing;
  std::string state;  // id or name
};

StatesTarget TargetOf(absl::string_view path) {
  if (!absl::ConsumePrefix(&path, kStatesPath)) return {};
  if (path.empty()) return {StatesTarget::kAll, ""};
  if (!absl::ConsumePrefix(&path, "/")) return {};
  const size_t slash = path.find('/');
  const std::string state(path.substr(0, slash));
  if (state.empty()) return {};
  if (slash == absl::string_view::npos) return {StatesTarget::kOne, state};
  const absl::string_view verb = path.substr(slash + 1);
  if (verb == "tokens") return {StatesTarget::kTokens, state};
  if (verb == "fork") return {StatesTarget::kFork, state};
  if (verb == "pin") return {StatesTarget::kPin, state};
  return {};
}

json OrNull(const std::string& text) {
  return text.empty() ? json() : json(text);
}

json StateJson(const v1::StateInfo& info) {
  return {{"object", "state"},
          {"id", info.id()},
          {"name", OrNull(info.name())},
          {"parent", OrNull(info.parent())},
          {"tokens", info.tokens()},
          {"computed_tokens", info.computed_tokens()},
          {"bytes", info.bytes()},
          {"seed", info.has_seed() ? json(info.seed()) : json()},
          {"pinned", info.pinned()},
          {"stored", info.stored()},
          {"ttl_seconds", info.ttl_seconds()},
          {"age_seconds", info.age_seconds()}};
}

template <typename States>
json ListJson(const States& states) {
  json data = json::array();
  for (const v1::StateInfo& state : states) data.push_back(StateJson(state));
  return {{"object", "list"}, {"data", std::move(data)}};
}

// Errors name options as the proto does, which has them in a message.
HttpResponse ErrorAnswer(const absl::Status& status) {
  const absl::string_view message =
      absl::StripPrefix(status.message(), "options.");
  return ErrorResponse(ErrorOf(absl::Status(
      status.code(),
      absl::StrReplaceAll(message, {{" and options.pinned", " and pinned"}}))));
}

HttpResponse JsonAnswer(const json& body) {
  HttpResponse response;
  response.body = ToText(body);
  return response;
}

HttpResponse JsonAnswer(const absl::StatusOr<json>& body) {
  return body.ok() ? JsonAnswer(*body) : ErrorAnswer(body.status());
}

std::optional<ApiError> ParseObject(const std::string& body, json* object) {
  return ParseBody(body, /*ids=*/"tokens", /*max_ids=*/0, "as it takes none",
                   object);
}

// A number of seconds, whose range the store checks.
double Seconds(const std::string& key, const json& value, FieldReader& reader) {
  if (value.is_number()) return value.get<double>();
  reader.Unexpected(key, value, "a number of seconds");
  return 0;
}

std::optional<ApiError> ReadFork(const std::string& body, int64_t vocab_size,
                                 v1::ForkRequest* request) {
  json object = json::object();
  if (!body.empty()) {
    if (auto error = ParseObject(body, &object)) return error;
  }
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  FieldReader reader(vocab_size);
  request->set_count(1);
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;  // as if absent
    if (key == "count") {
      request->set_count(
          static_cast<uint32_t>(reader.Int(key, value, 1, kMaxForks)));
    } else if (key == "at") {
      request->set_at(static_cast<uint64_t>(reader.Int(key, value, 1, kMax)));
    } else if (key == "seed") {
      if (value.is_number_unsigned()) {
        request->set_seed(value.get<uint64_t>());
      } else {
        reader.Unexpected(key, value, "an integer from 0 to 2^64 - 1");
      }
    } else if (key == "ttl_seconds") {
      request->mutable_options()->set_ttl_seconds(Seconds(key, value, reader));
    } else {
      reader.FailUnknown(key);
    }
    if (reader.failed()) return reader.TakeError();
  }
  return std::nullopt;
}

std::optional<ApiError> ReadPin(const std::string& body, int64_t vocab_size,
                                v1::PinStateRequest* request) {
  json object;
  if (auto error = ParseObject(body, &object)) return error;
  FieldReader reader(vocab_size);
  v1::StateOptions& options = *request->mutable_options();
  std::optional<bool> pinned;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null()) continue;
    if (key == "name") {
      options.set_name(reader.String(key, value));
    } else if (key == "ttl_seconds") {
      options.set_ttl_seconds(Seconds(key, value, reader));
    } else if (key == "pinned") {
      pinned = reader.Bool(key, value);
    } else {
      reader.FailUnknown(key);
    }
    if (reader.failed()) return reader.TakeError();
  }
  // The path says "pin", unless the body says how long.
  options.set_pinned(pinned.value_or(!options.has_ttl_seconds()));
  return std::nullopt;
}

json TokensJson(const std::vector<int32_t>& ids, const Tokenizer* tokenizer) {
  json strings = json::array();
  for (const int32_t id : ids) strings.push_back(TokenText(id, tokenizer));
  return {{"tokens", ids}, {"token_strs", std::move(strings)}};
}

// What needs no body.
absl::StatusOr<json> Plain(const StateService& states, const Caller& caller,
                           const StatesTarget& target, bool is_delete) {
  if (target.kind == StatesTarget::kAll) {
    const v1::ListStatesResponse listing = states.List(caller);
    json list = ListJson(listing.states());
    list["bytes"] = listing.bytes();
    list["max_bytes"] = listing.max_bytes();
    return list;
  }
  RECURVE_ASSIGN_OR_RETURN(const v1::StateInfo info,
                           states.Get(caller, target.state));
  if (!is_delete) return StateJson(info);
  v1::ReleaseStateRequest request;
  request.set_state(info.id());
  RECURVE_RETURN_IF_ERROR(states.Release(caller, request));
  return json{{"object", "state"}, {"id", info.id()}, {"deleted", true}};
}

}  // namespace

bool IsStatesPath(absl::string_view path) {
  return absl::ConsumePrefix(&path, kStatesPath) &&
         (path.empty() || path[0] == '/');
}

const char* StatesMethods(absl::string_view path) {
  switch (TargetOf(path).kind) {
    case StatesTarget::kNothing:
      return nullptr;
    case StatesTarget::kOne:
      return "GET, HEAD, DELETE";
    case StatesTarget::kFork:
    case StatesTarget::kPin:
      return "POST";
    case StatesTarget::kAll:
    case StatesTarget::kTokens:
      break;
  }
  return "GET, HEAD";
}

void HandleStates(const StateService& states, const Tokenizer* tokenizer,
                  int64_t vocab_size, const HttpRequest& request,
                  const std::shared_ptr<HttpReply>& reply) {
  const StatesTarget target = TargetOf(request.path);
  const absl::StatusOr<Caller> caller =
      states.CallerOf(request.authorization, "header");
  if (!caller.ok()) {
    return reply->Send(ErrorAnswer(caller.status()));
  }
  if (target.kind == StatesTarget::kTokens) {
    absl::StatusOr<std::vector<int32_t>> ids =
        states.TokensOf(*caller, target.state);
    if (!ids.ok()) return reply->Send(ErrorAnswer(ids.status()));
    return reply->SendMade([ids = *std::move(ids), tokenizer] {
      return JsonAnswer(TokensJson(ids, tokenizer));
    });
  }
  if (target.kind == StatesTarget::kFork) {
    v1::ForkRequest fork;
    fork.set_state(target.state);
    if (auto error = ReadFork(request.body, vocab_size, &fork)) {
      return reply->Send(ErrorResponse(*error));
    }
    const absl::StatusOr<v1::ForkResponse> made = states.Fork(*caller, fork);
    if (!made.ok()) return reply->Send(ErrorAnswer(made.status()));
    return reply->Send(JsonAnswer(ListJson(made->states())));
  }
  if (target.kind == StatesTarget::kPin) {
    v1::PinStateRequest pin;
    pin.set_state(target.state);
    if (auto error = ReadPin(request.body, vocab_size, &pin)) {
      return reply->Send(ErrorResponse(*error));
    }
    return states.Pin(*caller, pin,
                      [reply](absl::StatusOr<v1::StateInfo> info) {
                        reply->Send(info.ok() ? JsonAnswer(StateJson(*info))
                                              : ErrorAnswer(info.status()));
                      });
  }
  reply->Send(
      JsonAnswer(Plain(states, *caller, target, request.method == "DELETE")));
}

}  // namespace recurve
