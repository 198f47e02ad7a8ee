#ifndef RECURVE_SERVER_STATES_WIRE_BYTES_H_
#define RECURVE_SERVER_STATES_WIRE_BYTES_H_

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/check.h"

namespace recurve {

// The constants, sizes, numbers and checksums of the format in state_wire.h,
// for what reads and writes it.

inline constexpr absl::string_view kStateMagic = "RCVSTATE";
inline constexpr uint32_t kStateVersion = 1;
inline constexpr int64_t kStateAlignment = 64;
// Magic, version and length of the header.
inline constexpr int64_t kStatePrefixBytes = 16;
inline constexpr int64_t kStateHeadChecksumBytes = 8;
inline constexpr int64_t kStateFrameBytes = 64;
inline constexpr int64_t kStateTrailerBytes = 64;

// `bytes` and the padding that follows.
constexpr int64_t StatePadded(int64_t bytes) {
  return (bytes + kStateAlignment - 1) / kStateAlignment * kStateAlignment;
}

// The size of the whole head, with a header of `header_bytes`.
constexpr int64_t StateHeadBytes(int64_t header_bytes) {
  return StatePadded(kStatePrefixBytes + header_bytes +
                     kStateHeadChecksumBytes);
}

// `Number` is unsigned.
template <typename Number>
void AppendLittleEndian(Number value, std::string* out) {
  for (size_t i = 0; i < sizeof(Number); ++i) {
    out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

template <typename Number>
Number ReadLittleEndian(absl::string_view bytes) {
  RECURVE_CHECK(bytes.size() >= sizeof(Number));
  Number value = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) {
    value |= static_cast<Number>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

inline uint64_t StateChecksum(absl::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

struct FreeXxh3 {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using Xxh3State = std::unique_ptr<XXH3_state_t, FreeXxh3>;

inline Xxh3State MakeXxh3State() {
  Xxh3State state(XXH3_createState());
  RECURVE_CHECK(state != nullptr);
  return state;
}

// The XXH3-64 of bytes that come in pieces.
class StreamChecksum {
 public:
  StreamChecksum() { Reset(); }
  void Reset() { XXH3_64bits_reset(state_.get()); }
  void Update(absl::string_view bytes) {
    XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
  }
  uint64_t Value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  Xxh3State state_ = MakeXxh3State();
};

// The XXH3-128 of bytes that come in pieces.
class StreamDigest {
 public:
  StreamDigest() { XXH3_128bits_reset(state_.get()); }
  void Update(absl::string_view bytes) {
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  // Its 16 bytes, little endian.
  std::string Value() const {
    const XXH128_hash_t digest = XXH3_128bits_digest(state_.get());
    std::string bytes;
    AppendLittleEndian<uint64_t>(digest.low64, &bytes);
    AppendLittleEndian<uint64_t>(digest.high64, &bytes);
    return bytes;
  }

 private:
  Xxh3State state_ = MakeXxh3State();
};

}  // namespace recurve

#endif  // RECURVE_SERVER_STATES_WIRE_BYTES_H_
