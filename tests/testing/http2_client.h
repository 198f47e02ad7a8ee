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

// A server's output on one stream.
struct Http2Answer {
  std::map<std::string, std::string> head;      // HTTP headers
  std::map<std::string, std::string> trailers;  // also for a trailers-only
                                                // answer
  std::string data;
  bool ended = false;  // by the flag END_STREAM
  std::optional<uint32_t> reset;

  // grpc-status; -1: none.
  int status() const;
  std::string message() const;
};

// An HTTP/2 client that sends any given bytes, well-formed or not, and parses
// the answers. By default it acknowledges SETTINGS and PING and returns the
// window that the server has used. Reads time out after a minute.
class Http2Client {
 public:
  explicit Http2Client(int port, SSL_CTX* tls = nullptr,
                       int receive_buffer = 0);
  ~Http2Client();
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  void set_answers_pings(bool answers) { answers_pings_ = answers; }
  void set_grants_window(bool grants) { grants_window_ = grants; }

  // False if the server has closed the connection.
  bool Send(absl::string_view bytes) { return connection_.Send(bytes); }
  // Opens a call; its message follows. `more` are encoded headers.
  bool Open(uint32_t stream, const std::string& path, int flags = 0,
            const std::string& more = "");
  // Sends `data` in frames of up to `frame` bytes, each with `padding` bytes of
  // padding, as the server's windows permit; reads while they do not.
  bool SendData(uint32_t stream, absl::string_view data, bool end,
                size_t frame = 16384, int padding = -1);

  // Opens the server's windows to the maximum.
  void GrantAll();

  // Pings the server and reads until it has answered everything sent so far.
  bool Settle();
  // Reads one frame; false at the end of the connection.
  bool ReadFrame();
  // Reads until `done` or the end of the connection; returns `done`.
  bool ReadUntil(const std::function<bool()>& done);
  // Reads until the stream is over, or the connection.
  const Http2Answer& Await(uint32_t stream);
  // Reads until the server sends GOAWAY; false: it sends none.
  bool AwaitGoAway();
  // Reads to the end of the connection.
  void AwaitEnd();

  const Http2Answer& answer(uint32_t stream) { return answers_[stream]; }
  bool at_end() const { return at_end_; }
  int pings() const { return pings_; }  // sent by the server
  int ping_answers() const {
    return ping_acks_;
  }  // answers to the client's
     // pings
  struct GoAway {
    uint32_t last_stream;
    uint32_t error;
    std::string reason;
  };
  const std::optional<GoAway>& go_away() const { return go_away_; }
  // The connection, for access below HTTP/2. Bytes read but not parsed yet are
  // lost.
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
  int64_t window_ = 65'535;              // send window of the connection
  std::map<uint32_t, int64_t> windows_;  // send windows of the streams
  std::map<uint32_t, Http2Answer> answers_;
};

// A message with gRPC's prefix.
std::string GrpcMessage(absl::string_view message);

}  // namespace recurve

#endif  // RECURVE_TESTS_TESTING_HTTP2_CLIENT_H_
