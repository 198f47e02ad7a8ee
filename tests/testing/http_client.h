#ifndef RECURVE_TESTS_TESTING_HTTP_CLIENT_H_
#define RECURVE_TESTS_TESTING_HTTP_CLIENT_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;

namespace recurve {

struct HttpResult {
  int status = 0;  // 0: the connection ended before the answer did
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// One low-level connection to a port of this machine. Reads time out after a
// minute.
class HttpConnection {
 public:
  // `receive_buffer`: size of the system's buffer; 0: the default.
  explicit HttpConnection(int port, SSL_CTX* tls = nullptr,
                          int receive_buffer = 0);
  ~HttpConnection();

  bool connected() const { return connected_; }
  // False if the peer has closed the connection.
  bool Send(absl::string_view bytes);
  // Reads one answer, chunked or not.
  HttpResult Read();
  // Reads available bytes, or waits for some; empty at the end.
  std::string ReadSome(size_t at_most = 16384);
  // Whether ReadSome would return within that time. Not over TLS.
  bool Readable(std::chrono::milliseconds within) const;
  // Discards available bytes, without waiting. Not over TLS.
  void Discard();
  // Whether the peer has ended its output over TLS.
  bool SawTlsEnd() const;
  void HalfClose();  // no more will be sent
  void Reset();      // resets the connection
  void SetReceiveBuffer(int bytes);
  // Interrupts waits of another thread in this object.
  void Interrupt() const;

 private:
  bool More();  // reads into buffer_
  bool Line(std::string* line);
  bool Bytes(size_t count, std::string* out);

  int fd_ = -1;
  SSL* ssl_ = nullptr;
  bool connected_ = false;
  std::string buffer_;
};

// Connects to an address of this machine, of IPv4 or IPv6: returns a
// descriptor, which the caller closes; -1 if the connection is refused.
int ConnectTo(const std::string& address, int port);

// The bytes of a request; `headers` are whole lines without line ends.
std::string HttpRequestText(const std::string& method, const std::string& path,
                            const std::string& body = "",
                            const std::vector<std::string>& headers = {});
// A POST of JSON.
std::string PostText(const std::string& path, const std::string& body,
                     const std::vector<std::string>& headers = {});

// One request on a new connection.
HttpResult Fetch(int port, const std::string& text);

// The data of each server-sent event.
std::vector<std::string> SseEvents(const std::string& body);

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_HTTP_CLIENT_H_
