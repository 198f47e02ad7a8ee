#ifndef RECURVE_SERVER_GRPC_MESSAGE_READER_H_
#define RECURVE_SERVER_GRPC_MESSAGE_READER_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Bytes before each message: one flag, and the length, big endian.
inline constexpr size_t kMessagePrefixBytes = 5;

// `message` with its prefix, as gRPC sends it in DATA frames.
std::string WithMessagePrefix(absl::string_view message);

// Splits the DATA of one call into messages. Memory grows with the bytes
// received, not with the length in a prefix. Not thread-safe.
class MessageReader {
 public:
  explicit MessageReader(size_t max_message_bytes)
      : max_message_bytes_(max_message_bytes) {}

  void Append(absl::string_view bytes) {
    buffer_.append(bytes.data(), bytes.size());
  }

  // Whether Take has a message. ResourceExhausted if the next one is too large;
  // Internal if it is marked as compressed, because this server accepts no
  // encoding.
  absl::Status Check(bool* complete) const;
  // REQUIRES: Check reported a complete message.
  std::string Take();
  void Clear() { std::string().swap(buffer_); }

  size_t buffered() const { return buffer_.size(); }
  // Length of the message that has begun, with its prefix; 0 before its prefix
  // is complete.
  size_t announced() const;

 private:
  const size_t max_message_bytes_;
  std::string buffer_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_GRPC_MESSAGE_READER_H_
