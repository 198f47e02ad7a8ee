#include "server/grpc/http2_session.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "nghttp2/nghttp2.h"

namespace recurve {
namespace {

// FrameGuard sets the effective limits; the library's own, which are per
// connection and ignore the work done, are a second line of defence.
constexpr uint64_t kResetBurst = 100'000;
constexpr uint64_t kResetsPerSecond = 10'000;
// SETTINGS and PING acknowledgements waiting to be sent.
constexpr size_t kMaxOutboundAcks = 200;
// Entries in a SETTINGS frame; clients send about six.
constexpr size_t kMaxSettings = 32;
// Bytes before the payload of a frame.
constexpr size_t kFrameHead = 9;

std::vector<nghttp2_nv> Fields(const RpcMetadata& headers) {
  std::vector<nghttp2_nv> fields;
  fields.reserve(headers.size());
  const auto bytes = [](const std::string& text) {
    // The library copies the bytes and never writes to them.
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  for (const auto& [name, value] : headers) {
    fields.push_back({bytes(name), bytes(value), name.size(), value.size(),
                      NGHTTP2_NV_FLAG_NONE});
  }
  return fields;
}

void AppendBigEndian(uint32_t value, int bytes, std::string* text) {
  for (int i = bytes - 1; i >= 0; --i) {
    text->push_back(static_cast<char>(value >> (8 * i)));
  }
}

uint32_t BigEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

std::string FrameHead(nghttp2_frame_type type, size_t length, int32_t stream) {
  std::string head;
  AppendBigEndian(static_cast<uint32_t>(length), 3, &head);
  head.push_back(static_cast<char>(type));
  head.push_back('\0');
  AppendBigEndian(static_cast<uint32_t>(stream), 4, &head);
  return head;
}

}  // namespace

// The library's callbacks. `user` is the Http2Session.
struct Http2Session::Callbacks {
  static Handler& Of(void* user) {
    return *static_cast<Http2Session*>(user)->handler_;
  }
  static int Go(bool on) { return on ? 0 : NGHTTP2_ERR_CALLBACK_FAILURE; }

  static int OnBeginFrame(nghttp2_session*, const nghttp2_frame_hd* frame,
                          void* user) {
    return Go(Of(user).OnBeginFrame(frame->type, frame->flags, frame->length,
                                    frame->stream_id));
  }
  static int OnBeginHeaders(nghttp2_session* session,
                            const nghttp2_frame* frame, void* user) {
    if (frame->hd.type != NGHTTP2_HEADERS ||
        frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
      return 0;
    }
    const int32_t stream = frame->hd.stream_id;
    auto* const self = static_cast<Http2Session*>(user);
    if (stream > self->newest_ + 2) self->passed_over_ = stream - 2;
    self->newest_ = stream;
    // Round-robin, whatever the client says. Otherwise the library sends
    // everything of the oldest stream first, and on a full connection the
    // others starve.
    const nghttp2_extpri in_turn = {NGHTTP2_EXTPRI_DEFAULT_URGENCY, /*inc=*/1};
    nghttp2_session_change_extpri_stream_priority(session, stream, &in_turn,
                                                  /*ignore_client_signal=*/1);
    return Go(Of(user).OnBeginCall(stream));
  }
  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame,
                      const uint8_t* name, size_t name_size,
                      const uint8_t* value, size_t value_size, uint8_t,
                      void* user) {
    const auto view = [](const uint8_t* data, size_t size) {
      return absl::string_view(reinterpret_cast<const char*>(data), size);
    };
    return Go(Of(user).OnHeader(frame->hd.stream_id, view(name, name_size),
                                view(value, value_size)));
  }
  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    Handler& handler = Of(user);
    const int32_t stream = frame->hd.stream_id;
    const bool end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    switch (frame->hd.type) {
      case NGHTTP2_HEADERS:
        if (frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
          handler.OnHeadDone(stream, end);
          return 0;
        }
        break;
      case NGHTTP2_DATA:
        break;
      case NGHTTP2_RST_STREAM:
        return Go(handler.OnReset(stream));
      default:
        return 0;
    }
    if (end) handler.OnEndStream(stream);
    return 0;
  }
  static int OnData(nghttp2_session*, uint8_t, int32_t stream,
                    const uint8_t* data, size_t size, void* user) {
    Of(user).OnData(
        stream, absl::string_view(reinterpret_cast<const char*>(data), size));
    return 0;
  }
  static int OnInvalid(nghttp2_session*, const nghttp2_frame* frame, int,
                       void* user) {
    static_cast<Http2Session*>(user)->Excuse(frame->hd.stream_id);
    return Go(Of(user).OnInvalid());
  }
  static int OnStreamClose(nghttp2_session*, int32_t stream, uint32_t,
                           void* user) {
    Of(user).OnStreamClosed(stream);
    return 0;
  }
  static int OnSent(nghttp2_session*, const nghttp2_frame* frame, void* user) {
    if (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) {
      Of(user).OnSentFrame(frame->hd.stream_id,
                           (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0);
    } else if (frame->hd.type == NGHTTP2_RST_STREAM) {
      static_cast<Http2Session*>(user)->Excuse(frame->hd.stream_id);
    } else if (frame->hd.type == NGHTTP2_GOAWAY &&
               frame->goaway.error_code != NGHTTP2_NO_ERROR) {
      static_cast<Http2Session*>(user)->failed_ = true;
    }
    return 0;
  }
  static ssize_t Pack(nghttp2_session*, int32_t stream, uint8_t* buffer,
                      size_t max, uint32_t* flags, nghttp2_data_source*,
                      void* user) {
    bool more = false;
    const size_t count = Of(user).Pack(stream, buffer, max, &more);
    if (count == 0 && more) return NGHTTP2_ERR_DEFERRED;
    if (!more) *flags = NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    return static_cast<ssize_t>(count);
  }
};

void Http2Session::Free::operator()(nghttp2_session* session) const {
  nghttp2_session_del(session);
}

Http2Session::Http2Session(const Settings& settings, Handler* handler)
    : handler_(handler), until_head_(NGHTTP2_CLIENT_MAGIC_LEN) {
  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_option* option = nullptr;
  // These fail only if memory runs out, like `new`.
  RECURVE_CHECK(nghttp2_session_callbacks_new(&callbacks) == 0 &&
                nghttp2_option_new(&option) == 0);
  nghttp2_session_callbacks_set_on_begin_frame_callback(
      callbacks, Callbacks::OnBeginFrame);
  nghttp2_session_callbacks_set_on_begin_headers_callback(
      callbacks, Callbacks::OnBeginHeaders);
  nghttp2_session_callbacks_set_on_header_callback(callbacks,
                                                   Callbacks::OnHeader);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks,
                                                       Callbacks::OnFrame);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks,
                                                            Callbacks::OnData);
  nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(
      callbacks, Callbacks::OnInvalid);
  nghttp2_session_callbacks_set_on_stream_close_callback(
      callbacks, Callbacks::OnStreamClose);
  nghttp2_session_callbacks_set_on_frame_send_callback(callbacks,
                                                       Callbacks::OnSent);
  nghttp2_option_set_no_auto_window_update(option, 1);
  nghttp2_option_set_no_closed_streams(option, 1);
  nghttp2_option_set_max_outbound_ack(option, kMaxOutboundAcks);
  nghttp2_option_set_max_settings(option, kMaxSettings);
  nghttp2_option_set_stream_reset_rate_limit(option, kResetBurst,
                                             kResetsPerSecond);
  nghttp2_session* session = nullptr;
  RECURVE_CHECK(
      nghttp2_session_server_new2(&session, callbacks, this, option) == 0);
  session_.reset(session);
  nghttp2_option_del(option);
  nghttp2_session_callbacks_del(callbacks);
  const nghttp2_settings_entry entries[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, settings.max_streams},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, settings.max_head_bytes},
      // Without priorities clients cannot make the server keep closed streams.
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  };
  RECURVE_CHECK(nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, entries,
                                        std::size(entries)) == 0);
}

Http2Session::~Http2Session() = default;

Http2Session::Result Http2Session::Receive(absl::string_view bytes) {
  while (!bytes.empty()) {
    // Up to the end of a frame's header, so that it is checked before its
    // payload.
    const size_t before = std::min(until_head_, bytes.size());
    const size_t of_head =
        std::min(kFrameHead - head_.size(), bytes.size() - before);
    if (const Result result = Feed(bytes.substr(0, before + of_head));
        result != Result::kOk) {
      return result;
    }
    head_.append(bytes.data() + before, of_head);
    until_head_ -= before;
    bytes.remove_prefix(before + of_head);
    if (head_.size() < kFrameHead) continue;
    if (const Result result = CheckFrame(); result != Result::kOk) {
      return result;
    }
    until_head_ = BigEndian(head_.substr(0, 3));
    head_.clear();
  }
  return Result::kOk;
}

Http2Session::Result Http2Session::CheckFrame() {
  const auto type = static_cast<uint8_t>(head_[3]);
  const auto stream =
      static_cast<int32_t>(BigEndian(head_.substr(5)) & INT32_MAX);
  if (type == NGHTTP2_PRIORITY && stream == 0) {
    nghttp2_session_terminate_session(session_.get(), NGHTTP2_PROTOCOL_ERROR);
  } else if (type == NGHTTP2_HEADERS && is_over(stream)) {
    nghttp2_session_terminate_session(
        session_.get(),
        stream > passed_over_ ? NGHTTP2_STREAM_CLOSED : NGHTTP2_PROTOCOL_ERROR);
  } else if (type == NGHTTP2_DATA && is_over(stream)) {
    Excuse(stream);  // one reset is enough
    Reset(stream, NGHTTP2_STREAM_CLOSED);
    if (!handler_->OnInvalid()) return Result::kStopped;
  }
  return Result::kOk;
}

bool Http2Session::is_over(int32_t stream) const {
  return stream % 2 == 1 && stream > excused_ && stream <= last_stream() &&
         nghttp2_session_get_stream_remote_close(session_.get(), stream) == -1;
}

void Http2Session::Excuse(int32_t stream) {
  excused_ = std::max(excused_, stream);
}

Http2Session::Result Http2Session::Feed(absl::string_view bytes) {
  const ssize_t taken = nghttp2_session_mem_recv(
      session_.get(), reinterpret_cast<const uint8_t*>(bytes.data()),
      bytes.size());
  if (taken >= 0) return Result::kOk;
  switch (taken) {
    case NGHTTP2_ERR_CALLBACK_FAILURE:
      return Result::kStopped;
    case NGHTTP2_ERR_FLOODED:
      return Result::kFlooded;
    default:
      return Result::kMalformed;
  }
}

bool Http2Session::Produce(size_t max, std::string* output) {
  while (output->size() < max) {
    const uint8_t* data = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_.get(), &data);
    if (size < 0) return false;
    if (size == 0) return true;
    output->append(reinterpret_cast<const char*>(data),
                   static_cast<size_t>(size));
  }
  return true;
}

bool Http2Session::wants_write() const {
  return nghttp2_session_want_write(session_.get()) != 0;
}

bool Http2Session::done() const {
  return nghttp2_session_want_read(session_.get()) == 0;
}

int32_t Http2Session::last_stream() const {
  return nghttp2_session_get_last_proc_stream_id(session_.get());
}

void Http2Session::SubmitHead(int32_t stream, const RpcMetadata& headers,
                              bool with_body) {
  const std::vector<nghttp2_nv> fields = Fields(headers);
  const nghttp2_data_provider body = {{.ptr = nullptr}, Callbacks::Pack};
  nghttp2_submit_response(session_.get(), stream, fields.data(), fields.size(),
                          with_body ? &body : nullptr);
}

void Http2Session::SubmitTrailers(int32_t stream, const RpcMetadata& trailers) {
  const std::vector<nghttp2_nv> fields = Fields(trailers);
  nghttp2_submit_trailer(session_.get(), stream, fields.data(), fields.size());
}

void Http2Session::Resume(int32_t stream) {
  nghttp2_session_resume_data(session_.get(), stream);
}

void Http2Session::Reset(int32_t stream, uint32_t error) {
  nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, stream, error);
}

void Http2Session::ConsumeConnection(size_t bytes) {
  nghttp2_session_consume_connection(session_.get(), bytes);
}

void Http2Session::ConsumeStream(int32_t stream, size_t bytes) {
  nghttp2_session_consume_stream(session_.get(), stream, bytes);
}

void Http2Session::SetWindow(int32_t stream, int32_t bytes) {
  nghttp2_session_set_local_window_size(session_.get(), NGHTTP2_FLAG_NONE,
                                        stream, bytes);
}

void Http2Session::Ping() {
  nghttp2_submit_ping(session_.get(), NGHTTP2_FLAG_NONE, nullptr);
}

void Http2Session::ShutDown(absl::string_view reason) {
  nghttp2_submit_goaway(
      session_.get(), NGHTTP2_FLAG_NONE, last_stream(), NGHTTP2_NO_ERROR,
      reinterpret_cast<const uint8_t*>(reason.data()), reason.size());
}

std::string Http2Session::GoAway(int32_t last_stream, uint32_t error,
                                 absl::string_view reason) {
  std::string frame = FrameHead(NGHTTP2_GOAWAY, 8 + reason.size(), 0);
  AppendBigEndian(static_cast<uint32_t>(last_stream), 4, &frame);
  AppendBigEndian(error, 4, &frame);
  frame.append(reason.data(), reason.size());
  return frame;
}

std::string Http2Session::ResetFrame(int32_t stream, uint32_t error) {
  std::string frame = FrameHead(NGHTTP2_RST_STREAM, 4, stream);
  AppendBigEndian(error, 4, &frame);
  return frame;
}

bool Http2Session::is_remote_open(int32_t stream) const {
  return nghttp2_session_get_stream_remote_close(session_.get(), stream) == 0;
}

int64_t Http2Session::ReceivableBytes(int32_t stream) const {
  if (!is_remote_open(stream)) return 0;
  return std::max(
      0, nghttp2_session_get_stream_local_window_size(session_.get(), stream));
}

}  // namespace recurve
