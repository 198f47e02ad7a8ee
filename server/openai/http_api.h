#ifndef RECURVE_SERVER_OPENAI_HTTP_API_H_
#define RECURVE_SERVER_OPENAI_HTTP_API_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/http_reply.h"
#include "server/openai/chat_format.h"
#include "server/requests/request_call.h"

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace recurve {

class Metrics;
class StateService;

// The endpoints and their paths (docs/http.md). Thread-safe.
class HttpApi : public HttpHandler {
 public:
  struct Options {
    // Null: without all that needs the model.
    const CallEnvironment* environment = nullptr;
    std::string model_name;
    // Null: without /metrics.
    std::shared_ptr<prometheus::Collectable> metrics;
    std::function<bool()> serving;  // status of /health
    Metrics* counters = nullptr;    // counts answers; outlives this
    bool vllm_names = false;        // AddVllmNames
    ChatOptions chat = {};
    const StateService* states = nullptr;  // null: without /v1/states
    bool page = false;                     // whether the page is served
    // Whether only clients of this machine are meant, so that what a browser
    // sends for a page of another host is refused.
    bool guard_host = false;
  };
  explicit HttpApi(Options options);

  std::optional<HttpResponse> CheckHead(HttpRequest* head) override;
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  void OnAnswered(const std::string& path, int status, double seconds) override;

 private:
  // CheckHead without the client's request id.
  std::optional<HttpResponse> Refusal(HttpRequest* head);
  // What the paths of the page and of states take, "GET, HEAD" for example;
  // null for other paths, or without them.
  const char* MethodsOf(const HttpRequest& head) const;
  HttpResponse Get(const std::string& path) const;

  const Options options_;
  const int64_t started_;  // seconds since 1970
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_HTTP_API_H_
