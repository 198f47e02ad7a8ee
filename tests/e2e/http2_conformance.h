#ifndef RECURVE_TESTS_E2E_HTTP2_CONFORMANCE_H_
#define RECURVE_TESTS_E2E_HTTP2_CONFORMANCE_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "tests/testing/http2.h"

// The cases of h2spec, a conformance suite for HTTP/2 servers, for a port that
// serves gRPC. They keep its section numbers, which are those of RFC 7540 and
// RFC 7541. Comments mark cases where RFC 9113, which has replaced RFC 7540,
// requires less.
namespace recurve::http2 {

// Frame types.
inline constexpr int kData = 0;
inline constexpr int kHeaders = 1;
inline constexpr int kPriority = 2;
inline constexpr int kReset = 3;
inline constexpr int kSettings = 4;
inline constexpr int kPushPromise = 5;
inline constexpr int kPing = 6;
inline constexpr int kGoAway = 7;
inline constexpr int kWindowUpdate = 8;
inline constexpr int kContinuation = 9;
inline constexpr int kUnknownType = 0x16;
// Frame flags.
inline constexpr int kAck = 1;
inline constexpr int kEndStream = 1;
inline constexpr int kEndHeaders = 4;
inline constexpr int kPadded = 8;
inline constexpr int kWithPriority = 0x20;
// Error codes.
inline constexpr uint32_t kNoError = 0;
inline constexpr uint32_t kProtocolError = 1;
inline constexpr uint32_t kFlowControlError = 3;
inline constexpr uint32_t kStreamClosed = 5;
inline constexpr uint32_t kFrameSizeError = 6;
inline constexpr uint32_t kRefusedStream = 7;
inline constexpr uint32_t kCancel = 8;
inline constexpr uint32_t kCompressionError = 9;
// Settings.
inline constexpr int kHeaderTableSize = 1;
inline constexpr int kEnablePush = 2;
inline constexpr int kMaxConcurrentStreams = 3;
inline constexpr int kInitialWindowSize = 4;
inline constexpr int kMaxFrameSize = 5;
inline constexpr int kMaxHeaderListSize = 6;

// The result that a case waits for. The case fails on a contradicting frame, or
// if no more frames arrive.
struct Wait {
  enum class For {
    kServerSettings,   // the very next frame is SETTINGS without ACK
    kSettingsAck,      // SETTINGS with ACK
    kPong,             // the next PING has ACK and `text`
    kPongOrEnd,        // as kPong, or the connection is closed
    kHead,             // HEADERS on `stream`
    kData,             // the next DATA on `stream` has `size` bytes
    kServed,           // a call that succeeds, to its end
    kAnswered,         // a stream's end, with the HTTP status `text`
    kReset,            // RST_STREAM on `stream` with one of `codes`
    kGoAway,           // GOAWAY with one of `codes`
    kStreamError,      // either, or the connection is closed
    kConnectionError,  // GOAWAY with one of `codes`, or the connection is
                       // closed
    kEnd,              // the connection is closed
  };
  For what;
  uint32_t stream = 1;
  std::vector<uint32_t> codes = {};
  std::string text = {};
  size_t size = 0;
};

inline Wait ServerSettings() { return {Wait::For::kServerSettings}; }
inline Wait SettingsAck() { return {Wait::For::kSettingsAck}; }
inline Wait Head(uint32_t stream = 1) { return {Wait::For::kHead, stream}; }
inline Wait Served(uint32_t stream = 1) { return {Wait::For::kServed, stream}; }
inline Wait Answered(const std::string& status) {
  return {Wait::For::kAnswered, 1, {}, status};
}
inline Wait DataOf(size_t size) { return {Wait::For::kData, 1, {}, "", size}; }
inline Wait ResetWith(uint32_t code) { return {Wait::For::kReset, 1, {code}}; }
inline Wait GoAwayWith(uint32_t code) {
  return {Wait::For::kGoAway, 0, {code}};
}
inline Wait StreamError(const std::vector<uint32_t>& codes,
                        uint32_t stream = 1) {
  return {Wait::For::kStreamError, stream, codes};
}
inline Wait ConnectionError(const std::vector<uint32_t>& codes) {
  return {Wait::For::kConnectionError, 0, codes};
}
// The payload of Ping().
inline constexpr char kPayload[] = "payload.";
inline Wait Pong() { return {Wait::For::kPong, 0, {}, kPayload}; }
inline Wait PongOrEnd() { return {Wait::For::kPongOrEnd, 0, {}, kPayload}; }
inline Wait End() { return {Wait::For::kEnd}; }

struct Step {
  std::string send;
  Wait wait;
};

struct Case {
  std::string section;
  std::string name;  // in a test's name, after the section
  std::vector<Step> steps;
  // False: `steps` begin with the connection preface.
  bool after_preface = true;
};
inline void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

std::vector<Case> GenericCases();
std::vector<Case> FramingCases();  // http2, sections 3 to 5
std::vector<Case> FrameCases();    // section 6
std::vector<Case> MessageCases();  // sections 7 and 8
std::vector<Case> HpackCases();

// --- Bytes to send ---

inline constexpr char kMagic[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// A literal including its zero bytes.
template <size_t kSize>
std::string Bytes(const char (&literal)[kSize]) {
  return std::string(literal, kSize - 1);
}

// An empty gRPC message.
inline std::string EmptyMessage() { return std::string(5, '\0'); }

inline std::string PseudoHeaders(
    const std::string& method = "POST",
    const std::string& path = "/grpc.health.v1.Health/Check") {
  return Header(":method", method) + Header(":scheme", "http") +
         Header(":path", path) + Header(":authority", "x");
}
inline std::string GrpcHeaders() {
  return Header("te", "trailers") + Header("content-type", "application/grpc");
}
// The head of a call that needs no key and no model. `more` are additional
// headers.
inline std::string CallHead(const std::string& more = "") {
  return PseudoHeaders() + GrpcHeaders() + more;
}

inline std::string HeadersFrame(const std::string& block,
                                int flags = kEndHeaders, uint32_t stream = 1) {
  return Frame(kHeaders, flags, stream, block);
}
// Opens the call, without its message.
inline std::string Open(uint32_t stream = 1, const std::string& more = "") {
  return HeadersFrame(CallHead(more), kEndHeaders, stream);
}
inline std::string DataFrame(const std::string& bytes, int flags = 0,
                             uint32_t stream = 1) {
  return Frame(kData, flags, stream, bytes);
}
inline std::string Message(uint32_t stream = 1) {
  return DataFrame(EmptyMessage(), kEndStream, stream);
}
// The complete call.
inline std::string Call(uint32_t stream = 1, const std::string& more = "") {
  return Open(stream, more) + Message(stream);
}
inline std::string Continuation(const std::string& block,
                                int flags = kEndHeaders, uint32_t stream = 1) {
  return Frame(kContinuation, flags, stream, block);
}
// The priority fields of a frame: `weight` is one less than the weight it
// encodes.
inline std::string PriorityOf(uint32_t depends_on, int weight = 255,
                              bool exclusive = false) {
  return BigEndian(depends_on | (exclusive ? 1U << 31 : 0), 4) +
         static_cast<char>(weight);
}
inline std::string Priority(uint32_t stream = 1,
                            const std::string& fields = PriorityOf(0)) {
  return Frame(kPriority, 0, stream, fields);
}
inline std::string Reset(uint32_t code = kCancel, uint32_t stream = 1) {
  return Frame(kReset, 0, stream, BigEndian(code, 4));
}
inline std::string Setting(int id, uint32_t value) {
  return BigEndian(static_cast<uint32_t>(id), 2) + BigEndian(value, 4);
}
inline std::string Settings(const std::string& settings) {
  return Frame(kSettings, 0, 0, settings);
}
inline std::string Ping(int flags = 0, uint32_t stream = 0,
                        const std::string& payload = kPayload) {
  return Frame(kPing, flags, stream, payload);
}
inline std::string WindowUpdate(uint32_t stream, uint32_t increment) {
  return Frame(kWindowUpdate, 0, stream, BigEndian(increment, 4));
}
inline std::string GoAwayFrame(uint32_t code, uint32_t stream = 0) {
  return Frame(kGoAway, 0, stream, BigEndian(0, 4) + BigEndian(code, 4));
}

}  // namespace recurve::http2

#endif  // RECURVE_TESTS_E2E_HTTP2_CONFORMANCE_H_
