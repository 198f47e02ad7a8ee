#ifndef RECURVE_SERVER_GRPC_HTTP2_SESSION_H_
#define RECURVE_SERVER_GRPC_HTTP2_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "server/grpc/rpc.h"

typedef struct nghttp2_session nghttp2_session;  // libnghttp2's

namespace recurve {

// The server side of one HTTP/2 connection, by libnghttp2: frames, HPACK, flow
// control and stream states. It has no socket: Receive takes input, Produce
// returns output. Not thread-safe.
class Http2Session {
 public:
  // Receives events, from within Receive, and provides output, from within
  // Produce. Methods that return bool stop Receive by returning false. They may
  // call the session's methods below "Answers".
  class Handler {
   public:
    virtual ~Handler() = default;
    // The 9 header bytes of a frame; its payload may never arrive.
    virtual bool OnBeginFrame(uint8_t type, uint8_t flags, size_t length,
                              int32_t stream) = 0;
    // The client opens a stream. Its headers, in whole fields, are reported
    // before OnHeadDone.
    virtual bool OnBeginCall(int32_t stream) = 0;
    virtual bool OnHeader(int32_t stream, absl::string_view name,
                          absl::string_view value) = 0;
    virtual void OnHeadDone(int32_t stream, bool end_stream) = 0;
    virtual void OnData(int32_t stream, absl::string_view bytes) = 0;
    // After OnHeadDone, which may have reported the same.
    virtual void OnEndStream(int32_t stream) = 0;
    // The client reset a stream. OnStreamClosed follows if it was open.
    virtual bool OnReset(int32_t stream) = 0;
    // A frame violated the protocol; only its stream was reset.
    virtual bool OnInvalid() = 0;
    virtual void OnStreamClosed(int32_t stream) = 0;
    // Produce has output a HEADERS or DATA frame.
    virtual void OnSentFrame(int32_t stream, bool ends_stream) = 0;
    // Copies up to `max` bytes of the stream's output. No bytes and `*more`
    // true: more will follow, announced by Resume. `*more` false: these are the
    // last bytes, followed by SubmitTrailers, which was called before or is
    // called from here.
    virtual size_t Pack(int32_t stream, uint8_t* buffer, size_t max,
                        bool* more) = 0;
  };
  struct Settings {
    uint32_t max_streams;
    uint32_t max_head_bytes;
  };
  enum class Result {
    kOk,
    kStopped,    // by the handler
    kMalformed,  // input is not HTTP/2
    kFlooded,    // more control frames than the library accepts
  };

  // `handler` outlives the session.
  Http2Session(const Settings& settings, Handler* handler);
  ~Http2Session();
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  Result Receive(absl::string_view bytes);
  // Appends frames to `output` until it has `max` bytes or there are none.
  // False: out of memory.
  bool Produce(size_t max, std::string* output);
  // Whether Produce has output.
  bool wants_write() const;
  // Whether the connection is over once all output is sent, because of a
  // GOAWAY.
  bool done() const;
  // Whether the library has sent a GOAWAY because of a protocol violation.
  bool failed() const { return failed_; }
  int32_t last_stream() const;

  // --- Answers ---
  void SubmitHead(int32_t stream, const RpcMetadata& headers, bool with_body);
  void SubmitTrailers(int32_t stream, const RpcMetadata& trailers);
  void Resume(int32_t stream);
  void Reset(int32_t stream, uint32_t error);
  // Returns flow-control window. Closed or unopened streams get it back
  // automatically.
  void ConsumeConnection(size_t bytes);
  void ConsumeStream(int32_t stream, size_t bytes);
  // Sets how much the client may send before the server returns window; stream
  // 0: all streams together.
  void SetWindow(int32_t stream, int32_t bytes);
  void Ping();
  // Asks the client to open no more streams; current ones continue.
  void ShutDown(absl::string_view reason);
  // A GOAWAY frame as bytes, for a session that Receive stopped.
  static std::string GoAway(int32_t last_stream, uint32_t error,
                            absl::string_view reason);
  // An RST_STREAM frame as bytes, likewise.
  static std::string ResetFrame(int32_t stream, uint32_t error);

  // Whether the client may still send on the stream.
  bool is_remote_open(int32_t stream) const;
  // Bytes of data that it may send before the server returns window.
  int64_t ReceivableBytes(int32_t stream) const;

 private:
  struct Callbacks;
  struct Free {
    void operator()(nghttp2_session* session) const;
  };

  Result Feed(absl::string_view bytes);
  // Checks head_, which the library has accepted, for violations that it
  // ignores: it forgets closed streams, and ignores priorities.
  Result CheckFrame();
  // Whether the client knows that the stream is closed, or never opened it.
  bool is_over(int32_t stream) const;
  // Allows frames on the stream and on earlier ones that the client may have
  // sent before it learned of the reset.
  void Excuse(int32_t stream);

  Handler* const handler_;
  bool failed_ = false;
  size_t until_head_;        // bytes before the next frame's head
  std::string head_;         // its part received so far
  int32_t newest_ = -1;      // the client's last stream
  int32_t passed_over_ = 0;  // the last skipped id before it
  int32_t excused_ = 0;
  std::unique_ptr<nghttp2_session, Free> session_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_HTTP2_SESSION_H_
