#include "tests/testing/http_client.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace recurve {

HttpConnection::HttpConnection(int port, SSL_CTX* tls, int receive_buffer) {
  signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  timeval minute = {60, 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &minute, sizeof(minute));
  const int now = 1;  // what is sent goes at once
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &now, sizeof(now));
  if (receive_buffer > 0) SetReceiveBuffer(receive_buffer);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connected_ =
      connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  if (!connected_ || tls == nullptr) return;
  ssl_ = SSL_new(tls);
  SSL_set_fd(ssl_, fd_);
  connected_ = SSL_connect(ssl_) == 1;
}

HttpConnection::~HttpConnection() {
  if (ssl_ != nullptr) SSL_free(ssl_);
  if (fd_ >= 0) close(fd_);
}

int ConnectTo(const std::string& address, int port) {
  sockaddr_in v4 = {};
  sockaddr_in6 v6 = {};
  const bool is_v4 = inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1;
  v4.sin_family = AF_INET;
  v4.sin_port = htons(static_cast<uint16_t>(port));
  if (!is_v4) inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = v4.sin_port;
  const auto* to = is_v4 ? reinterpret_cast<sockaddr*>(&v4)
                         : reinterpret_cast<sockaddr*>(&v6);
  const int fd = socket(to->sa_family, SOCK_STREAM, 0);
  if (fd < 0) return -1;
  if (connect(fd, to, is_v4 ? sizeof(v4) : sizeof(v6)) == 0) return fd;
  close(fd);
  return -1;
}

bool HttpConnection::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n =
        ssl_ != nullptr
            ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
            : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::string HttpConnection::ReadSome(size_t at_most) {
  char buffer[16384];
  at_most = std::min(at_most, sizeof(buffer));
  const ssize_t n = ssl_ != nullptr
                        ? SSL_read(ssl_, buffer, static_cast<int>(at_most))
                        : recv(fd_, buffer, at_most, 0);
  return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
}

bool HttpConnection::Readable(std::chrono::milliseconds within) const {
  pollfd socket = {fd_, POLLIN, 0};
  return poll(&socket, 1, static_cast<int>(within.count())) == 1;
}

void HttpConnection::Interrupt() const { shutdown(fd_, SHUT_RDWR); }

void HttpConnection::Discard() {
  char buffer[16384];
  while (recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT) > 0) {
  }
}

bool HttpConnection::SawTlsEnd() const {
  return (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0;
}

void HttpConnection::HalfClose() { shutdown(fd_, SHUT_WR); }

void HttpConnection::Reset() {
  const linger now = {1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  close(fd_);
  fd_ = -1;
}

void HttpConnection::SetReceiveBuffer(int bytes) {
  setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

bool HttpConnection::More() {
  const std::string some = ReadSome();
  buffer_ += some;
  return !some.empty();
}

bool HttpConnection::Line(std::string* line) {
  size_t end;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!More()) return false;
  }
  *line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return true;
}

bool HttpConnection::Bytes(size_t count, std::string* out) {
  while (buffer_.size() < count) {
    if (!More()) return false;
  }
  out->append(buffer_, 0, count);
  buffer_.erase(0, count);
  return true;
}

HttpResult HttpConnection::Read() {
  HttpResult result;
  std::string line;
  do {
    result = HttpResult();
    if (!Line(&line) || line.size() < 12) return HttpResult();
    result.status = std::atoi(line.c_str() + 9);
    while (Line(&line) && !line.empty()) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) return HttpResult();
      result.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
          std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    }
  } while (result.status == 100);
  bool whole = true;
  if (result.headers["transfer-encoding"] == "chunked") {
    while ((whole = Line(&line))) {
      const size_t size = std::strtoul(line.c_str(), nullptr, 16);
      whole = Bytes(size, &result.body) && Line(&line);
      if (!whole || size == 0) break;
    }
  } else if (result.headers.count("content-length") > 0) {
    whole = Bytes(
        std::strtoul(result.headers["content-length"].c_str(), nullptr, 10),
        &result.body);
  } else {
    while (More()) {
    }
    result.body = std::exchange(buffer_, "");
  }
  if (!whole) result.status = 0;
  return result;
}

std::string HttpRequestText(const std::string& method, const std::string& path,
                            const std::string& body,
                            const std::vector<std::string>& headers) {
  std::string text =
      absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n");
  for (const std::string& header : headers) text += header + "\r\n";
  if (!body.empty()) {
    absl::StrAppend(&text, "Content-Length: ", body.size(), "\r\n");
  }
  return text + "\r\n" + body;
}

std::string PostText(const std::string& path, const std::string& body,
                     const std::vector<std::string>& headers) {
  std::vector<std::string> all = {"Content-Type: application/json"};
  all.insert(all.end(), headers.begin(), headers.end());
  return HttpRequestText("POST", path, body, all);
}

HttpResult Fetch(int port, const std::string& text) {
  HttpConnection connection(port);
  connection.Send(text);
  return connection.Read();
}

std::vector<std::string> SseEvents(const std::string& body) {
  std::vector<std::string> events;
  size_t begin = 0;
  size_t end;
  while ((end = body.find("\n\n", begin)) != std::string::npos) {
    const std::string event = body.substr(begin, end - begin);
    events.push_back(event.rfind("data: ", 0) == 0 ? event.substr(6)
                                                   : "not data: " + event);
    begin = end + 2;
  }
  if (begin != body.size()) events.push_back("cut: " + body.substr(begin));
  return events;
}

}  // namespace recurve
