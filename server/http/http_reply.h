#ifndef RECURVE_SERVER_HTTP_HTTP_REPLY_H_
#define RECURVE_SERVER_HTTP_HTTP_REPLY_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace recurve {

// What http_server.h and those who answer requests say to each other.

// What clients, and proxies before the server, call a request by; the answer
// repeats it.
inline constexpr char kRequestIdHeader[] = "x-request-id";
// Tells how long a proxy before the server waits for an answer.
inline constexpr char kExpectedTimeoutHeader[] =
    "x-envoy-expected-rq-timeout-ms";

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  // The values of these headers, one an occurrence.
  std::vector<std::string> authorization;
  std::vector<std::string> request_id;  // X-Request-Id
  // Milliseconds after which a proxy gives the request up, as Envoy says it.
  std::vector<std::string> expected_timeout;
  std::string content_type;
  std::string content_encoding;
  std::string body;
  // Set by HttpHandler::CheckHead: the client has shown that it may call; and
  // when expected_timeout is over, counted from the head.
  bool entitled = false;
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // Of a streamed answer: written whenever nothing was for a while, so that
  // nobody between here and the client takes the stream for dead. Its reader
  // passes over it. Empty: nothing is.
  std::string ping;
};

// Hears how an answer gets on. Called on the server's threads, one call at a
// time.
class HttpListener {
 public:
  virtual ~HttpListener() = default;
  // All that was written of a streamed answer is with the system's socket; not
  // called for pings.
  virtual void OnWritten() = 0;
  // A part of it is, or the client has taken some of what is: it reads.
  virtual void OnProgress() = 0;
  // Called once, and last. OK: the answer is sent. Cancelled: the client is
  // gone. ResourceExhausted: it was cut off since it reads nothing.
  virtual void OnDone(const absl::Status& status) = 0;
};

// The way to answer one request: Send, or SendMade, or Begin, Write as often as
// wanted, and Finish. After Send, SendMade, Finish or Drop, and after the
// listener's OnDone, nothing more has an effect. Thread-safe; nothing blocks.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // Only from within HttpHandler::Handle. The reply keeps the listener alive
  // until its OnDone.
  virtual void Listen(std::shared_ptr<HttpListener> listener) = 0;

  virtual void Send(HttpResponse response) = 0;
  // Send for an answer that takes long to make: `make` is called later, on a
  // thread of the server, or never if the client is gone by then.
  virtual void SendMade(std::function<HttpResponse()> make) = 0;
  // Status, headers and the first piece of a streamed answer.
  virtual void Begin(HttpResponse head) = 0;
  virtual void Write(std::string piece) = 0;
  virtual void Finish() = 0;
  // Calls `f` as the listener is called, unless its OnDone was before.
  virtual void Continue(std::function<void()> f) = 0;
  // Breaks the connection off: the client reads nothing, so it could not be
  // told.
  virtual void Drop() = 0;
};

// Answers requests. Called on the server's threads, many at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The head of a request is there, its body is not. An answer given here
  // refuses the request, and its body is not read.
  virtual std::optional<HttpResponse> CheckHead(HttpRequest* head) = 0;
  virtual void Handle(HttpRequest request,
                      std::shared_ptr<HttpReply> reply) = 0;
  // A request is over: its answer is with the system's socket, or its client
  // is gone (status 499). `path` is empty where the request's head never came;
  // `seconds` count from the head. Called once a request, those included that
  // were refused before Handle.
  virtual void OnAnswered(const std::string& path, int status,
                          double seconds) = 0;
};

// An answer that refuses, with an error object as OpenAI's API has it.
HttpResponse HttpError(int status, const std::string& message);

}  // namespace recurve

#endif  // RECURVE_SERVER_HTTP_HTTP_REPLY_H_
