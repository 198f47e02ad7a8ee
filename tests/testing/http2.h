#ifndef RECURVE_TESTS_TESTING_HTTP2_H_
#define RECURVE_TESTS_TESTING_HTTP2_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

// Hand-written HTTP/2, for input that no client library would send.
namespace recurve::http2 {

// A number as `bytes` bytes, big-endian.
inline std::string BigEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) {
    text.push_back(static_cast<char>(value >> (8 * i)));
  }
  return text;
}

inline std::string Frame(int type, int flags, uint32_t stream,
                         const std::string& payload) {
  return absl::StrCat(BigEndian(static_cast<uint32_t>(payload.size()), 3),
                      std::string(1, static_cast<char>(type)),
                      std::string(1, static_cast<char>(flags)),
                      BigEndian(stream, 4), payload);
}

// The length of a literal in HPACK.
inline std::string HpackLength(size_t length) {
  constexpr size_t kPrefix = 127;
  if (length < kPrefix) return std::string(1, static_cast<char>(length));
  std::string text(1, static_cast<char>(kPrefix));
  for (length -= kPrefix; length >= 128; length /= 128) {
    text.push_back(static_cast<char>(128 + length % 128));
  }
  text.push_back(static_cast<char>(length));
  return text;
}

// A header without compression or indexing.
inline std::string Header(const std::string& name, const std::string& value) {
  return absl::StrCat(std::string(1, '\0'), HpackLength(name.size()), name,
                      HpackLength(value.size()), value);
}

inline std::string Preface() {
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, 0, "");
}

// The headers of a call without a key.
inline std::string CallHeaders(const std::string& path) {
  return Header(":method", "POST") + Header(":scheme", "http") +
         Header(":path", path) + Header(":authority", "x") +
         Header("te", "trailers") + Header("content-type", "application/grpc");
}

// A head longer than the server reads.
inline std::string EndlessHead(uint32_t stream) {
  const std::string part = Header("x", std::string(16'000, 'x'));
  std::string frames =
      Frame(/*HEADERS*/ 1, 0, stream, CallHeaders("/known/Echo"));
  for (int i = 0; i < 5; ++i) {
    frames += Frame(/*CONTINUATION*/ 9, 0, stream, part);
  }
  return frames;
}

// Opens a call of a method, "/recurve.v1.…/…", with the API key "right".
inline std::string OpenStream(
    uint32_t stream,
    const std::string& method = "/recurve.v1.Inference/Decode") {
  return Frame(1, /*END_HEADERS*/ 4, stream,
               CallHeaders(method) + Header("authorization", "Bearer right"));
}

}  // namespace recurve::http2

#endif  // RECURVE_TESTS_TESTING_HTTP2_H_
