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

// The interface between http_server.h and request handlers.

// An id that clients and proxies give a request; the answer repeats it.
inline constexpr char kRequestIdHeader[] = "x-request-id";
// How long a proxy in front of the server waits for an answer.
inline constexpr char kExpectedTimeoutHeader[] =
    "x-envoy-expected-rq-timeout-ms";

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  // The values of these headers, one per occurrence.
  std::vector<std::string> authorization;
  std::vector<std::string> request_id;  // X-Request-Id
  // Milliseconds after which a proxy gives up, in Envoy's header.
  std::vector<std::string> expected_timeout;
  std::string content_type;
  std::string content_encoding;
  std::string host;         // the header Host; empty: none
  bool has_origin = false;  // it has an Origin: a page in a browser sent it
  std::string body;
  // Set by HttpHandler::CheckHead: whether the client is authorised; and the
  // time when expected_timeout expires, from the head on.
  bool entitled = false;
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  // For a streamed answer: written after a period without output, so that no
  // proxy or client treats the stream as dead, and once more in front of the
  // output that ends the period. Readers ignore it. Empty: none.
  std::string ping;
};

// Receives the progress of an answer. Called on the server's threads, one call
// at a time.
class HttpListener {
 public:
  virtual ~HttpListener() = default;
  // All written output of a streamed answer is in the system's socket; not
  // called for pings.
  virtual void OnWritten() = 0;
  // A part of it is, or the client has read some of it.
  virtual void OnProgress() = 0;
  // Called once, and last. OK: the answer is sent. Cancelled: the client has
  // disconnected. ResourceExhausted: it was disconnected because it does not
  // read.
  virtual void OnDone(const absl::Status& status) = 0;
};

// Answers one request: Send, or SendMade, or Begin, any number of Writes, and
// Finish. After Send, SendMade, Finish or Drop, and after the listener's
// OnDone, further calls have no effect. Thread-safe; never blocks.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // Only from within HttpHandler::Handle. The reply keeps the listener alive
  // until its OnDone.
  virtual void Listen(std::shared_ptr<HttpListener> listener) = 0;

  virtual void Send(HttpResponse response) = 0;
  // Send for an answer that takes long to build: `make` is called later, on a
  // thread of the server, or never if the client is gone by then.
  virtual void SendMade(std::function<HttpResponse()> make) = 0;
  // Status, headers and the first part of a streamed answer.
  virtual void Begin(HttpResponse head) = 0;
  virtual void Write(std::string piece) = 0;
  virtual void Finish() = 0;
  // Calls `f` in the listener's context, unless its OnDone was called before.
  virtual void Continue(std::function<void()> f) = 0;
  // Closes the connection without an answer, because the client does not read.
  virtual void Drop() = 0;
};

// Answers requests. Called on several of the server's threads concurrently.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The head of a request has arrived, its body has not. An answer returned
  // here refuses the request, and its body is not read.
  virtual std::optional<HttpResponse> CheckHead(HttpRequest* head) = 0;
  virtual void Handle(HttpRequest request,
                      std::shared_ptr<HttpReply> reply) = 0;
  // A request is over: its answer is in the system's socket, or its client is
  // gone (status 499). `path` is empty if the request's head never arrived;
  // `seconds` count from the head. Called once per request, including those
  // refused before Handle.
  virtual void OnAnswered(const std::string& path, int status,
                          double seconds) = 0;
};

// An error answer, with an error object in the format of OpenAI's API.
HttpResponse HttpError(int status, const std::string& message);

}  // namespace recurve

#endif  // RECURVE_SERVER_HTTP_HTTP_REPLY_H_
