#ifndef RECURVE_TESTS_TESTING_HTTP2_CLIENT_H_
#define RECURVE_TESTS_TESTING_HTTP2_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/testing/http2.h"
#include "tests/testing/http_client.h"

typedef struct nghttp2_hd_inflater nghttp2_hd_inflater;  // libnghttp2's

namespace recurve {

enum Http2FrameType {
  kHttp2Data = 0,
  kHttp2Headers = 1,
  kHttp2Reset = 3,
  kHttp2Settings = 4,
  kHttp2Ping = 6,
  kHttp2GoAway = 7,
  kHttp2WindowUpdate = 8,
  kHttp2Continuation = 9,
};
inline constexpr int kHttp2EndStream = 1;
inline constexpr int kHttp2Ack = 1;
inline constexpr int kHttp2EndHeaders = 4;
inline constexpr int kHttp2Padded = 8;

// What a server has said on one stream.
struct Http2Answer {
  std::map<std::string, std::string> head;      // HTTP headers
  std::map<std::string, std::string> trailers;  // also those of an answer that
                                                // is nothing else
  std::string data;
  bool ended = false;  // by the flag END_STREAM
  std::optional<uint32_t> reset;

  // grpc-status; -1: none.
  int status() const;
  std::string message() const;
};

// A client of HTTP/2 that sends what it is told, well-formed or not, and takes
// apart what comes. It acknowledges SETTINGS and PING and grants the server as
// much window as it has used, unless it is told not to. Reads end after a
// minute.
class Http2Client {
 public:
  explicit Http2Client(int port, SSL_CTX* tls = nullptr,
                       int receive_buffer = 0);
  ~Http2Client();
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  void set_answers_pings(bool answers) { answers_pings_ = answers; }
  void set_grants_window(bool grants) { grants_window_ = grants; }

  // False when the server has closed.
  bool Send(absl::string_view bytes) { return connection_.Send(bytes); }
  // Opens a call; its message follows. `more` are encoded headers.
  bool Open(uint32_t stream, const std::string& path, int flags = 0,
            const std::string& more = "");
  // `data` in frames of up to `frame` bytes, each with `padding` bytes of it,
  // as the server's windows permit; reads while they do not.
  bool SendData(uint32_t stream, absl::string_view data, bool end,
                size_t frame = 16384, int padding = -1);

  // Lets the server send as much as it likes, as far as the socket takes it.
  void GrantAll();

  // Asks the server and reads until it has answered all that was sent so far.
  bool Settle();
  // Reads one frame; false at the end of the connection.
  bool ReadFrame();
  // Reads until `done` or the end of the connection; returns `done`.
  bool ReadUntil(const std::function<bool()>& done);
  // Reads until the stream is over, or the connection.
  const Http2Answer& Await(uint32_t stream);
  // Reads until the server says GOAWAY; false: it says nothing.
  bool AwaitGoAway();
  // Reads to the end of the connection.
  void AwaitEnd();

  const Http2Answer& answer(uint32_t stream) { return answers_[stream]; }
  bool at_end() const { return at_end_; }
  int pings() const { return pings_; }             // of the server
  int ping_answers() const { return ping_acks_; }  // to those of the client
  struct GoAway {
    uint32_t last_stream;
    uint32_t error;
    std::string reason;
  };
  const std::optional<GoAway>& go_away() const { return go_away_; }
  // The connection, for reads of bytes and other things below HTTP/2. What was
  // read and not looked at yet is lost.
  HttpConnection& connection() { return connection_; }

 private:
  struct Free {
    void operator()(nghttp2_hd_inflater* inflater) const;
  };
  std::map<std::string, std::string> Inflate(const std::string& block);
  void OnFrame(int type, int flags, uint32_t stream,
               const std::string& payload);

  HttpConnection connection_;
  std::unique_ptr<nghttp2_hd_inflater, Free> inflater_;
  bool answers_pings_ = true;
  bool grants_window_ = true;
  bool at_end_ = false;
  std::string buffer_;
  std::string block_;  // of headers, to be continued
  int block_flags_ = 0;
  int pings_ = 0;
  int ping_acks_ = 0;
  std::optional<GoAway> go_away_;
  int64_t window_ = 65'535;              // of the connection, to send
  std::map<uint32_t, int64_t> windows_;  // of the streams
  std::map<uint32_t, Http2Answer> answers_;
};

// A message with the prefix of gRPC.
std::string GrpcMessage(absl::string_view message);

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_HTTP2_CLIENT_H_
