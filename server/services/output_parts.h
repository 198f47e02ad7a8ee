#ifndef RECURVE_SERVER_SERVICES_OUTPUT_PARTS_H_
#define RECURVE_SERVER_SERVICES_OUTPUT_PARTS_H_

#include <cstdint>
#include <deque>
#include <utility>

namespace recurve {

// No message is much longer than this, but for a single row of logits. The
// server sees that a client reads only when a whole message is out, so one that
// reads slowly must get through one in --stalled-client-timeout. And clients
// take no message above 4 MiB by default.
inline constexpr int64_t kMaxPartBytes = 64 << 10;

// Output of a stream that waits to be sent, cut into messages. Not thread-safe.
template <typename Message>
class OutputParts {
 public:
  bool empty() const { return parts_.empty(); }
  // What all of them hold.
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return bytes_; }

  // The message to put so much more into: the last, or a new one where that
  // would grow too long.
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
