#ifndef RECURVE_SERVER_STATES_STATE_WIRE_H_
#define RECURVE_SERVER_STATES_STATE_WIRE_H_

#include <xxhash.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "recurve/v1/state.pb.h"

namespace recurve {

// An exported state as bytes, on the wire and in files. Little endian; each
// part is followed by zeros up to a multiple of 64 bytes, so that the blocks of
// a file can be mapped:
//
//   head     8 bytes "RECURVES", u32 version, u32 bytes of the header, u64
//            XXH3-64 of these 16 bytes and the header; the header, a
//            v1::StateHeader
//   block i  64 bytes: u64 i, u64 XXH3-64 of the payload; then the payload, of
//            StateFingerprint.block_bytes
//   trailer  64 bytes: XXH3-128 of all before it, low half first, and u64 the
//            number of these bytes
//
// Every byte is checked: a flipped bit, a missing or an additional byte is
// refused. Checksums find damage, not malice: a header and its blocks are
// whatever the sender made them.

inline constexpr uint32_t kStateWireVersion = 1;
inline constexpr int64_t kMaxStateHeaderBytes = int64_t{64} << 20;

// FailedPrecondition naming the first field that differs, and both values.
absl::Status CheckFingerprint(const v1::StateFingerprint& theirs,
                              const v1::StateFingerprint& ours);

// The hash of a stream.
class StreamHash {
 public:
  StreamHash();
  void Add(absl::string_view bytes);
  XXH128_hash_t digest() const { return XXH3_128bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state_;
};

// Makes the bytes, piece by piece. Not thread-safe.
class StateWriter {
 public:
  // The payload of a block; valid until the next call.
  using Block = std::function<absl::Span<const char>(int64_t index)>;
  StateWriter(const v1::StateHeader& header, Block block);

  int64_t total_bytes() const { return total_bytes_; }
  bool done() const { return done_bytes_ == total_bytes_; }
  // The next bytes, at most `max` of them; empty when done.
  std::string Next(size_t max = size_t{1} << 20);

 private:
  // What the next part is, after the head and if blocks are left; else it is
  // the trailer.
  enum class Stage { kFrame, kPayload, kPadding };
  void BeginPart();

  const Block block_;
  const int64_t num_blocks_;
  const int64_t block_bytes_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
  Stage stage_ = Stage::kFrame;
  int64_t next_block_ = 0;
  std::string made_;                // a part that is no payload
  absl::Span<const char> payload_;  // of the block
  absl::string_view part_;          // what is left of the present part
  StreamHash hash_;
};

// Reads the bytes in pieces of any size. Errors: DataLoss for damage;
// FailedPrecondition for another format or version. Not thread-safe; not to be
// used after an error.
class StateReader {
 public:
  // Where a block's payload is to be written: exactly its bytes.
  using Sink = std::function<absl::Span<char>(int64_t index)>;

  // Stops at the end of the head until Start is called: what is given to it in
  // the meantime is kept.
  absl::Status Append(absl::string_view bytes);
  bool has_header() const { return has_header_; }
  // REQUIRES: has_header(). Its sizes agree; nothing else is checked.
  const v1::StateHeader& header() const { return header_; }
  // REQUIRES: has_header().
  absl::Status Start(Sink sink);
  // OK if all bytes have come.
  absl::Status Finish() const;

 private:
  enum class Part { kHead, kHeader, kFrame, kPayload, kTrailer, kEnd };

  absl::Status Read(absl::string_view bytes);
  // Completes `part_`, whose bytes are in buffer_, or in the payload.
  absl::Status EndPart();
  absl::Status EndHead();
  absl::Status EndHeader();
  absl::Status EndFrame();
  absl::Status EndPayload();
  absl::Status EndTrailer();
  void Expect(Part part, int64_t bytes);

  Part part_ = Part::kHead;
  int64_t left_ = 24;  // bytes of the part, and zeros after it
  std::string buffer_;
  bool has_header_ = false;
  v1::StateHeader header_;
  int64_t header_bytes_ = 0;
  uint64_t checksum_ = 0;  // of the header, or the payload
  std::string head_;       // what the checksum of the header covers
  std::string rest_;       // until Start
  Sink sink_;
  int64_t block_ = 0;
  absl::Span<char> payload_;
  int64_t filled_ = 0;  // of the payload
  int64_t bytes_ = 0;   // before the trailer
  StreamHash hash_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_STATES_STATE_WIRE_H_
