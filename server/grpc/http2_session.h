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

// The server's side of one HTTP/2 connection, by libnghttp2: frames, HPACK,
// flow control and the state of streams. It has no socket: bytes go in by
// Receive and come out by Produce. Not thread-safe.
class Http2Session {
 public:
  // Hears what came, from within Receive, and gives what is to be sent, from
  // within Produce. Methods that return bool stop Receive when they return
  // false. They may call the session's methods below "Answers".
  class Handler {
   public:
    virtual ~Handler() = default;
    // The 9 bytes of a frame; its payload may never come.
    virtual bool OnBeginFrame(uint8_t type, uint8_t flags, size_t length,
                              int32_t stream) = 0;
    // The client opens a stream. Headers, of whole fields, come before
    // OnHeadDone.
    virtual bool OnBeginCall(int32_t stream) = 0;
    virtual bool OnHeader(int32_t stream, absl::string_view name,
                          absl::string_view value) = 0;
    virtual void OnHeadDone(int32_t stream, bool end_stream) = 0;
    virtual void OnData(int32_t stream, absl::string_view bytes) = 0;
    // After OnHeadDone, which may say the same.
    virtual void OnEndStream(int32_t stream) = 0;
    // The client reset a stream. OnStreamClosed follows if it was open.
    virtual bool OnReset(int32_t stream) = 0;
    // A frame was against the protocol and cost its stream alone.
    virtual bool OnInvalid() = 0;
    virtual void OnStreamClosed(int32_t stream) = 0;
    // A HEADERS or DATA frame is in what Produce gave.
    virtual void OnSentFrame(int32_t stream, bool ends_stream) = 0;
    // Copies up to `max` bytes of the stream's output. Nothing, with `*more`
    // true: there will be some, and Resume is called then. False: they are the
    // last that SubmitTrailers, called before or from here, follows.
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
    kMalformed,  // what came is not HTTP/2
    kFlooded,    // more control frames than the library takes
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
  // Whether Produce has something.
  bool wants_write() const;
  // Whether the connection is over once all output is sent: a GOAWAY said so.
  bool done() const;
  // Whether the library has sent a GOAWAY since what came was against the
  // protocol.
  bool failed() const { return failed_; }
  int32_t last_stream() const;

  // --- Answers ---
  void SubmitHead(int32_t stream, const RpcMetadata& headers, bool with_body);
  void SubmitTrailers(int32_t stream, const RpcMetadata& trailers);
  void Resume(int32_t stream);
  void Reset(int32_t stream, uint32_t error);
  // Gives flow-control window back. Bytes of streams that are closed, or were
  // never opened, have it back already.
  void ConsumeConnection(size_t bytes);
  void ConsumeStream(int32_t stream, size_t bytes);
  // What the client may send before the server gives window back; stream 0: all
  // streams together.
  void SetWindow(int32_t stream, int32_t bytes);
  void Ping();
  // The client is to open no stream from now on; those that it has go on.
  void ShutDown(absl::string_view reason);
  // A GOAWAY frame, as bytes: for a session that Receive stopped.
  static std::string GoAway(int32_t last_stream, uint32_t error,
                            absl::string_view reason);
  // The same of an RST_STREAM.
  static std::string ResetFrame(int32_t stream, uint32_t error);

  // Whether the client may still send on the stream.
  bool is_remote_open(int32_t stream) const;
  // How many bytes of data it may, before the server gives window back.
  int64_t ReceivableBytes(int32_t stream) const;

 private:
  struct Callbacks;
  struct Free {
    void operator()(nghttp2_session* session) const;
  };

  Result Feed(absl::string_view bytes);
  // Looks at head_, which the library has seen, for what the library lets pass:
  // it forgets streams that are closed, and takes no priorities.
  Result CheckFrame();
  // Whether the client knows that the stream is closed, or never opened it.
  bool is_over(int32_t stream) const;
  // Frames on the stream, and on those before it, may have been sent before the
  // client knew that it was reset.
  void Excuse(int32_t stream);

  Handler* const handler_;
  bool failed_ = false;
  size_t until_head_;        // bytes before the next frame's head
  std::string head_;         // what came of it
  int32_t newest_ = -1;      // of the client's streams
  int32_t passed_over_ = 0;  // the last before it that is not one
  int32_t excused_ = 0;
  std::unique_ptr<nghttp2_session, Free> session_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_HTTP2_SESSION_H_
