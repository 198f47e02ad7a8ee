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
  };
  explicit HttpApi(Options options);

  std::optional<HttpResponse> CheckHead(HttpRequest* head) override;
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  void OnAnswered(const std::string& path, int status, double seconds) override;

 private:
  // CheckHead without the client's request id.
  std::optional<HttpResponse> Refusal(HttpRequest* head);
  HttpResponse Get(const std::string& path) const;

  const Options options_;
  const int64_t started_;  // seconds since 1970
};

}  // namespace recurve

#endif  // RECURVE_SERVER_OPENAI_HTTP_API_H_
