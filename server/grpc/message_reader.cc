#include "server/grpc/message_reader.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace recurve {

std::string WithMessagePrefix(absl::string_view message) {
  std::string framed;
  framed.reserve(kMessagePrefixBytes + message.size());
  framed.push_back('\0');
  for (int shift = 24; shift >= 0; shift -= 8) {
    framed.push_back(static_cast<char>(message.size() >> shift & 0xff));
  }
  framed.append(message.data(), message.size());
  return framed;
}

size_t MessageReader::announced() const {
  if (buffer_.size() < kMessagePrefixBytes) return 0;
  size_t length = 0;
  for (size_t i = 1; i < kMessagePrefixBytes; ++i) {
    length = length << 8 | static_cast<uint8_t>(buffer_[i]);
  }
  return kMessagePrefixBytes + length;
}

absl::Status MessageReader::Check(bool* complete) const {
  *complete = false;
  if (!buffer_.empty() && buffer_[0] != '\0') {
    return absl::InternalError(
        "a message is marked as compressed and the call has no grpc-encoding; "
        "this server takes messages without compression");
  }
  const size_t whole = announced();
  if (whole == 0) return absl::OkStatus();
  if (whole - kMessagePrefixBytes > max_message_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message has ", whole - kMessagePrefixBytes,
                     " bytes; this server takes at most ", max_message_bytes_));
  }
  *complete = buffer_.size() >= whole;
  return absl::OkStatus();
}

std::string MessageReader::Take() {
  const size_t whole = announced();
  std::string message;
  if (buffer_.size() == whole) {
    buffer_.erase(0, kMessagePrefixBytes);
    message.swap(buffer_);
  } else {
    message = buffer_.substr(kMessagePrefixBytes, whole - kMessagePrefixBytes);
    buffer_.erase(0, whole);
  }
  return message;
}

}  // namespace recurve
