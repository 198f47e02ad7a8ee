#include "tests/testing/http2_client.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "nghttp2/nghttp2.h"

namespace recurve {
namespace {

using http2::BigEndian;
using http2::Frame;

constexpr size_t kFrameHead = 9;
constexpr int64_t kFirstWindow = 65'535;

uint32_t Number(absl::string_view bytes, size_t at, size_t count) {
  uint32_t number = 0;
  for (size_t i = at; i < at + count && i < bytes.size(); ++i) {
    number = number << 8 | static_cast<uint8_t>(bytes[i]);
  }
  return number;
}

}  // namespace

int Http2Answer::status() const {
  const auto it = trailers.find("grpc-status");
  return it == trailers.end() ? -1 : std::atoi(it->second.c_str());
}

std::string Http2Answer::message() const {
  const auto it = trailers.find("grpc-message");
  return it == trailers.end() ? "" : it->second;
}

void Http2Client::Free::operator()(nghttp2_hd_inflater* inflater) const {
  nghttp2_hd_inflate_del(inflater);
}

Http2Client::Http2Client(int port, SSL_CTX* tls, int receive_buffer)
    : connection_(port, tls, receive_buffer) {
  nghttp2_hd_inflater* inflater = nullptr;
  nghttp2_hd_inflate_new(&inflater);
  inflater_.reset(inflater);
  Send(http2::Preface());
}

Http2Client::~Http2Client() = default;

bool Http2Client::Open(uint32_t stream, const std::string& path, int flags,
                       const std::string& more) {
  return Send(Frame(kHttp2Headers, kHttp2EndHeaders | flags, stream,
                    http2::CallHeaders(path) + more));
}

bool Http2Client::SendData(uint32_t stream, absl::string_view data, bool end,
                           size_t frame, int padding) {
  int64_t& window = windows_.emplace(stream, kFirstWindow).first->second;
  const int64_t more = padding < 0 ? 0 : padding + 1;
  do {
    const size_t size = std::min(frame, data.size());
    const int64_t needed = static_cast<int64_t>(size) + more;
    if (!ReadUntil([&] { return std::min(window, window_) >= needed; })) {
      return false;
    }
    window -= needed;
    window_ -= needed;
    std::string payload(data.substr(0, size));
    data.remove_prefix(size);
    const int flags = end && data.empty() ? kHttp2EndStream : 0;
    if (padding >= 0) {
      payload = std::string(1, static_cast<char>(padding)) + payload +
                std::string(static_cast<size_t>(padding), '\0');
    }
    if (!Send(Frame(kHttp2Data, flags | (padding < 0 ? 0 : kHttp2Padded),
                    stream, payload))) {
      return false;
    }
  } while (!data.empty());
  return true;
}

bool Http2Client::ReadFrame() {
  while (buffer_.size() < kFrameHead ||
         buffer_.size() < kFrameHead + Number(buffer_, 0, 3)) {
    const std::string some = connection_.ReadSome();
    if (some.empty()) {
      at_end_ = true;
      return false;
    }
    buffer_ += some;
  }
  const std::string head = buffer_.substr(0, kFrameHead);
  const std::string payload = buffer_.substr(kFrameHead, Number(head, 0, 3));
  buffer_.erase(0, kFrameHead + payload.size());
  OnFrame(static_cast<uint8_t>(head[3]), static_cast<uint8_t>(head[4]),
          Number(head, 5, 4), payload);
  return true;
}

void Http2Client::OnFrame(int type, int flags, uint32_t stream,
                          const std::string& payload) {
  Http2Answer& answer = answers_[stream];
  switch (type) {
    case kHttp2Data:
      answer.data += payload;
      if (grants_window_ && !payload.empty()) {
        const std::string bytes =
            BigEndian(static_cast<uint32_t>(payload.size()), 4);
        Send(Frame(kHttp2WindowUpdate, 0, 0, bytes) +
             Frame(kHttp2WindowUpdate, 0, stream, bytes));
      }
      break;
    case kHttp2Headers:
    case kHttp2Continuation: {
      block_ += payload;
      if (type == kHttp2Headers) block_flags_ = flags;
      if ((flags & kHttp2EndHeaders) == 0) return;
      auto fields = Inflate(std::exchange(block_, ""));
      flags = block_flags_;
      if (answer.head.empty()) answer.head = fields;
      if ((flags & kHttp2EndStream) != 0) answer.trailers = std::move(fields);
      break;
    }
    case kHttp2Reset:
      answer.reset = Number(payload, 0, 4);
      return;
    case kHttp2Settings:
      if ((flags & kHttp2Ack) == 0) Send(Frame(type, kHttp2Ack, 0, ""));
      return;
    case kHttp2Ping:
      if ((flags & kHttp2Ack) != 0) {
        ++ping_acks_;
        return;
      }
      ++pings_;
      if (answers_pings_) Send(Frame(type, kHttp2Ack, 0, payload));
      return;
    case kHttp2GoAway:
      go_away_ = GoAway{Number(payload, 0, 4), Number(payload, 4, 4),
                        payload.size() > 8 ? payload.substr(8) : std::string()};
      return;
    case kHttp2WindowUpdate:
      (stream == 0 ? window_
                   : windows_.emplace(stream, kFirstWindow).first->second) +=
          Number(payload, 0, 4);
      return;
    default:
      return;
  }
  if ((flags & kHttp2EndStream) != 0) answer.ended = true;
}

std::map<std::string, std::string> Http2Client::Inflate(
    const std::string& block) {
  std::map<std::string, std::string> fields;
  const auto* in = reinterpret_cast<const uint8_t*>(block.data());
  size_t left = block.size();
  while (true) {
    nghttp2_nv field;
    int flags = 0;
    const ssize_t used = nghttp2_hd_inflate_hd2(inflater_.get(), &field, &flags,
                                                in, left, /*in_final=*/1);
    if (used < 0) {
      fields["malformed"] = "head";
      return fields;
    }
    in += used;
    left -= static_cast<size_t>(used);
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
      fields[std::string(reinterpret_cast<char*>(field.name), field.namelen)] =
          std::string(reinterpret_cast<char*>(field.value), field.valuelen);
    }
    if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) break;
  }
  nghttp2_hd_inflate_end_headers(inflater_.get());
  return fields;
}

void Http2Client::GrantAll() {
  constexpr uint32_t kMost = 0x7fff'0000;
  grants_window_ = false;
  Send(Frame(kHttp2Settings, 0, 0, BigEndian(4, 2) + BigEndian(kMost, 4)) +
       Frame(kHttp2WindowUpdate, 0, 0, BigEndian(kMost - kFirstWindow, 4)));
}

bool Http2Client::Settle() {
  const int before = ping_acks_;
  return Send(Frame(kHttp2Ping, 0, 0, "12345678")) &&
         ReadUntil([&] { return ping_acks_ > before; });
}

bool Http2Client::ReadUntil(const std::function<bool()>& done) {
  while (!done()) {
    if (!ReadFrame()) return false;
  }
  return true;
}

const Http2Answer& Http2Client::Await(uint32_t stream) {
  const Http2Answer& answer = answers_[stream];
  ReadUntil([&] { return answer.ended || answer.reset.has_value(); });
  return answer;
}

bool Http2Client::AwaitGoAway() {
  return ReadUntil([&] { return go_away_.has_value(); });
}

void Http2Client::AwaitEnd() {
  while (ReadFrame()) {
  }
}

std::string GrpcMessage(absl::string_view message) {
  return std::string(1, '\0') +
         BigEndian(static_cast<uint32_t>(message.size()), 4) +
         std::string(message);
}

}  // namespace recurve
