#include "server/openai/http_api.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/checkpoint/quote.h"
#include "nlohmann/json.hpp"
#include "prometheus/collectable.h"
#include "prometheus/text_serializer.h"
#include "server/openai/chat_format.h"
#include "server/openai/completion_call.h"
#include "server/openai/completion_format.h"
#include "server/openai/openai.h"
#include "server/openai/render_call.h"
#include "server/openai/state_paths.h"
#include "server/openai/tokenize_call.h"
#include "server/page/page.h"
#include "server/telemetry/metric_aliases.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/process_metrics.h"

namespace recurve {
namespace {

constexpr absl::string_view kModelPrefix = "/v1/models/";
constexpr char kCompletions[] = "/v1/completions";
constexpr char kChat[] = "/v1/chat/completions";
constexpr char kCompletionsRender[] = "/v1/completions/render";
constexpr char kChatRender[] = "/v1/chat/completions/render";
constexpr char kTokenize[] = "/tokenize";
constexpr char kDetokenize[] = "/detokenize";

// Paths of requests that have sequences.
bool Generates(absl::string_view path) {
  return path == kCompletions || path == kChat;
}
bool IsOfChat(absl::string_view path) {
  return path == kChat || path == kChatRender;
}
// Paths that take the JSON of a request.
bool TakesJson(absl::string_view path) {
  return Generates(path) || path == kCompletionsRender || path == kChatRender ||
         path == kTokenize || path == kDetokenize;
}
// Paths that need a key, if there are keys.
bool IsOfApi(absl::string_view path) {
  return absl::StartsWith(path, "/v1/") || TakesJson(path);
}

bool IsJson(absl::string_view content_type) {
  const absl::string_view type = content_type.substr(0, content_type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type),
                                "application/json");
}

// Clients encode the slash in a model's name as %2F. Invalid escapes are kept.
std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t byte = 0;
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::ascii_isxdigit(text[i + 1]) &&
        absl::ascii_isxdigit(text[i + 2]) &&
        absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

// The error in a client's request id; empty: none. The id is copied to a header
// of the answer, where a newline would begin another header.
std::string RequestIdProblem(const std::vector<std::string>& ids) {
  constexpr char kExpected[] =
      "; expected one of 1 to 128 visible ASCII characters, ! to ~";
  if (ids.empty()) return "";
  if (ids.size() > 1) {
    return absl::StrCat("there are ", ids.size(), " headers X-Request-Id",
                        kExpected);
  }
  const std::string& id = ids[0];
  if (id.empty() || id.size() > kMaxRequestIdBytes) {
    return absl::StrCat("X-Request-Id has ", id.size(), " bytes", kExpected);
  }
  if (!absl::c_all_of(id, [](char c) { return absl::ascii_isgraph(c); })) {
    return absl::StrCat("X-Request-Id is ", Quote(id), kExpected);
  }
  return "";
}

// Sets the deadline of `request`, if its head contains one. Returns the error
// in it, or nothing.
std::string TakeTimeout(HttpRequest* request) {
  constexpr int64_t kMaxMs = 86'400'000;
  const std::vector<std::string>& values = request->expected_timeout;
  if (values.empty()) return "";
  int64_t ms = 0;
  if (values.size() > 1 || values[0].size() > 10 ||
      !absl::c_all_of(values[0],
                      [](char c) { return absl::ascii_isdigit(c); }) ||
      !absl::SimpleAtoi(values[0], &ms) || ms > kMaxMs) {
    return absl::StrCat(kExpectedTimeoutHeader, " is ",
                        Quote(absl::StrJoin(values, ", ")),
                        "; expected one header with 0 to ", kMaxMs);
  }
  // In Envoy's header, 0 means no timeout.
  if (ms > 0) {
    request->deadline =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  }
  return "";
}

// What a page of another host, whose name was pointed at this machine, may not
// have from a server that asks for no key (docs/page.md).
HttpResponse StrangeHost(absl::string_view host) {
  return HttpError(
      403, absl::StrCat("Host is ", Quote(host),
                        "; expected localhost or an IP address, from a "
                        "browser: this server is for its own machine, and has "
                        "no API keys. --ui off turns this check off"));
}

// Whether `methods`, as in the header Allow, has `method`.
bool Allows(absl::string_view methods, absl::string_view method) {
  return absl::c_linear_search(absl::StrSplit(methods, ", "), method);
}

std::string NotFound(absl::string_view path) {
  return absl::StrCat(
      "there is nothing under ", Quote(path),
      "; expected /v1/chat/completions, /v1/completions, each also with "
      "/render, /v1/models, /v1/states, /tokenize, /detokenize, /health or "
      "/metrics, as far as this port has them");
}

// 404: a retry cannot succeed.
HttpResponse NoChat(const std::string& problem) {
  ApiError error;
  error.status = 404;
  error.message = absl::StrCat("this server has no chat: ", problem,
                               "; /v1/completions takes prompts");
  error.code = "chat_unavailable";
  return ErrorResponse(error);
}

}  // namespace

HttpApi::HttpApi(Options options)
    : options_(std::move(options)),
      started_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

std::optional<HttpResponse> HttpApi::CheckHead(HttpRequest* head) {
  std::optional<HttpResponse> refusal = Refusal(head);
  if (refusal && Generates(head->path) && !head->request_id.empty() &&
      RequestIdProblem(head->request_id).empty()) {
    refusal->headers.emplace_back(kRequestIdHeader, head->request_id[0]);
  }
  return refusal;
}

std::optional<HttpResponse> HttpApi::Refusal(HttpRequest* request) {
  const HttpRequest& head = *request;
  const char* const methods = MethodsOf(head);
  if (options_.guard_host && (head.has_origin || methods != nullptr) &&
      !IsLocalHost(head.host)) {
    return StrangeHost(head.host);
  }
  const bool models =
      head.path == "/v1/models" || absl::StartsWith(head.path, kModelPrefix);
  bool takes_json = TakesJson(head.path);
  if (options_.environment != nullptr && IsOfApi(head.path) &&
      options_.environment->tenants != nullptr) {
    const auto tenant = options_.environment->tenants->Authenticate(
        head.authorization, "header");
    if (!tenant.ok()) {
      if (takes_json) {
        options_.environment->metrics->OnRefused(
            RefusalReason::kUnauthenticated);
      }
      return ErrorResponse(ErrorOf(tenant.status()));
    }
  }
  // On this port, every client of the API would see the usage of all tenants.
  if (head.path == "/metrics" && options_.metrics != nullptr &&
      options_.environment != nullptr &&
      options_.environment->tenants != nullptr) {
    const auto tenant = options_.environment->tenants->Authenticate(
        head.authorization, "header");
    if (!tenant.ok()) return ErrorResponse(ErrorOf(tenant.status()));
    if (absl::Status status = (*tenant)->CheckAdmin("/metrics needs one");
        !status.ok()) {
      return ErrorResponse(ErrorOf(status));
    }
  }
  // With API keys, a path that needs none proves nothing.
  request->entitled = options_.environment != nullptr &&
                      (options_.environment->tenants == nullptr ||
                       IsOfApi(head.path) || head.path == "/metrics");
  const bool known =
      head.path == "/health" ||
      (head.path == "/metrics" && options_.metrics != nullptr) ||
      methods != nullptr ||
      (options_.environment != nullptr && (models || takes_json));
  if (!known) {
    return HttpError(404, NotFound(head.path));
  }
  if (methods != nullptr && !Allows(methods, head.method)) {
    HttpResponse response =
        HttpError(405, absl::StrCat("this path takes ", methods));
    response.headers.emplace_back("Allow", methods);
    return response;
  }
  if (methods != nullptr && head.method != "POST") return std::nullopt;
  takes_json |= methods != nullptr;
  const bool get = head.method == "GET" || head.method == "HEAD";
  if (takes_json ? head.method != "POST" : !get) {
    HttpResponse response = HttpError(
        405, takes_json ? "this path takes POST" : "this path takes GET");
    response.headers.emplace_back("Allow", takes_json ? "POST" : "GET, HEAD");
    return response;
  }
  // Also blocks requests that a web page may send without a preflight.
  if (takes_json && !IsJson(head.content_type)) {
    return HttpError(
        415, absl::StrCat("Content-Type is ",
                          head.content_type.empty() ? "missing"
                                                    : Quote(head.content_type),
                          "; expected application/json"));
  }
  const std::string& encoding = head.content_encoding;
  if (takes_json && !encoding.empty() &&
      !absl::EqualsIgnoreCase(encoding, "identity")) {
    return HttpError(
        415, absl::StrCat("Content-Encoding is '", encoding.substr(0, 100),
                          "'; expected a body as it is, without one"));
  }
  if (IsOfChat(head.path) && options_.chat.renderer == nullptr) {
    options_.environment->metrics->OnRefused(RefusalReason::kInvalid);
    return NoChat(options_.chat.problem);
  }
  if (!Generates(head.path)) return std::nullopt;
  std::string problem = RequestIdProblem(head.request_id);
  if (problem.empty()) problem = TakeTimeout(request);
  if (!problem.empty()) {
    options_.environment->metrics->OnRefused(RefusalReason::kInvalid);
    return HttpError(400, problem);
  }
  return std::nullopt;
}

HttpResponse HttpApi::Get(const std::string& path) const {
  HttpResponse response;
  if (path == "/health") {
    const bool serving = options_.serving();
    response.status = serving ? 200 : 503;
    const nlohmann::json body = {
        {"status", serving ? "SERVING" : "NOT_SERVING"}};
    response.body = ToText(body);
    return response;
  }
  if (path == "/metrics") {
    response.content_type = "text/plain; version=0.0.4";
    std::vector<prometheus::MetricFamily> families =
        options_.metrics->Collect();
    for (prometheus::MetricFamily& family : CollectProcessMetrics()) {
      families.push_back(std::move(family));
    }
    if (options_.vllm_names) AddVllmNames(options_.model_name, &families);
    response.body = prometheus::TextSerializer().Serialize(families);
    return response;
  }
  const nlohmann::json models =
      ModelsJson(options_.model_name, started_,
                 options_.environment->context.max_model_len);
  absl::string_view name = path;
  if (!absl::ConsumePrefix(&name, kModelPrefix)) {
    response.body = ToText(models);
  } else if (name == options_.model_name ||
             PercentDecoded(name) == options_.model_name) {
    response.body = ToText(models["data"][0]);
  } else {
    ApiError error;
    error.status = 404;
    error.message = absl::StrCat("the model ", Quote(PercentDecoded(name)),
                                 " is not here; this server has ",
                                 Quote(options_.model_name));
    error.param = "model";
    error.code = "model_not_found";
    return ErrorResponse(error);
  }
  return response;
}

const char* HttpApi::MethodsOf(const HttpRequest& head) const {
  if (options_.page && IsPagePath(head.path)) return "GET, HEAD";
  return options_.states != nullptr ? StatesMethods(head.path) : nullptr;
}

void HttpApi::OnAnswered(const std::string& path, int status, double seconds) {
  if (options_.counters == nullptr) return;
  // A label has few values, whatever paths clients request.
  const char* endpoint = "other";
  for (const char* known :
       {kChat, kChatRender, kCompletions, kCompletionsRender, kTokenize,
        kDetokenize, "/v1/models", "/health", "/metrics"}) {
    if (path == known) endpoint = known;
  }
  if (absl::StartsWith(path, kModelPrefix)) endpoint = "/v1/models";
  if (IsStatesPath(path)) endpoint = kStatesPath;
  options_.counters->OnHttpAnswered(endpoint, status, seconds);
}

void HttpApi::Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  if (options_.page && IsPagePath(request.path)) {
    return reply->Send(PageAnswer(request.path));
  }
  if (options_.states != nullptr && IsStatesPath(request.path)) {
    const RequestContext& context = options_.environment->context;
    return HandleStates(*options_.states, context.tokenizer, context.vocab_size,
                        request, reply);
  }
  if (!TakesJson(request.path)) return reply->Send(Get(request.path));
  std::unique_ptr<ApiFormat> format;
  if (IsOfChat(request.path)) {
    format = std::make_unique<ChatFormat>(options_.chat);
  } else {
    format = std::make_unique<CompletionFormat>();
  }
  if (request.path == kCompletionsRender || request.path == kChatRender) {
    return std::make_shared<RenderCall>(*options_.environment,
                                        options_.model_name, std::move(format),
                                        std::move(reply))
        ->Begin(request);
  }
  if (!Generates(request.path)) {
    return std::make_shared<TokenizeCall>(*options_.environment,
                                          options_.model_name, std::move(reply),
                                          /*back=*/request.path == kDetokenize)
        ->Begin(request);
  }
  std::make_shared<CompletionCall>(*options_.environment, options_.model_name,
                                   std::move(format), std::move(reply))
      ->Begin(request);
}

}  // namespace recurve
