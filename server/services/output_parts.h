#ifndef RECURVE_SERVER_SERVICES_OUTPUT_PARTS_H_
#define RECURVE_SERVER_SERVICES_OUTPUT_PARTS_H_

#include <cstdint>
#include <deque>
#include <utility>

namespace recurve {

// Approximate maximum length of a message, except for a single row of logits.
// The server sees progress only when a whole message is sent, so a slow reader
// must be able to read one within --stalled-client-timeout. And clients accept
// no message above 4 MiB by default.
inline constexpr int64_t kMaxPartBytes = 64 << 10;

// Pending output of a stream, split into messages. Not thread-safe.
template <typename Message>
class OutputParts {
 public:
  bool empty() const { return parts_.empty(); }
  // Total of all messages.
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return bytes_; }

  // The message to extend by this much: the last, or a new one if that would
  // grow too long.
  Message& Grow(int64_t tokens, int64_t bytes) {
    if (parts_.empty() || (parts_.back().bytes > 0 &&
                           parts_.back().bytes + bytes > kMaxPartBytes)) {
      parts_.emplace_back();
    }
    Part& part = parts_.back();
    part.tokens += tokens;
    part.bytes += bytes;
    tokens_ += tokens;
    bytes_ += bytes;
    return part.message;
  }

  // REQUIRES: not empty.
  Message TakeFirst() {
    Part part = std::move(parts_.front());
    parts_.pop_front();
    tokens_ -= part.tokens;
    bytes_ -= part.bytes;
    return std::move(part.message);
  }

 private:
  struct Part {
    Message message;
    int64_t tokens = 0;
    int64_t bytes = 0;
  };

  std::deque<Part> parts_;
  int64_t tokens_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_SERVICES_OUTPUT_PARTS_H_
