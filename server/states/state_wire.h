#ifndef RECURVE_SERVER_STATES_STATE_WIRE_H_
#define RECURVE_SERVER_STATES_STATE_WIRE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "recurve/v1/state.pb.h"
#include "server/states/state_header.h"

namespace recurve {

// The bytes of an exported state: what State.Export sends, State.Import takes,
// and files of --state-dir hold. docs/state-format.md has it for tools.
//
//   head      magic "RCVSTATE", u32 version, u32 length of the header,
//             the serialized v1.StateHeader, zeros,
//             u64 XXH3-64 of all bytes of the head before it
//   blocks    num_blocks times:
//     frame     u64 index (from 0), u64 XXH3-64 of the payload, 48 zero bytes
//     payload   fingerprint.block_bytes bytes, zeros
//   trailer   u64 low half, u64 high half of the XXH3-128 of all bytes before
//             it, 48 zero bytes
//
// Numbers are little endian. Zeros fill the head and each payload up to a
// multiple of 64 bytes; a file can thus be mapped with its blocks aligned.
//
// Each bit is under a checksum or must be zero. These find damage; they do not
// prove who wrote a state.
//
// Thread-compatible, both classes.

class StreamChecksum;
class StreamDigest;

// Gives the bytes of a state piece by piece.
class StateWriter {
 public:
  // Gives the `block_bytes` bytes of a block, which stay until the next is
  // requested or the writer ends. Called once for each block, in order.
  using BlockSource = std::function<absl::Span<const char>(int64_t block)>;

  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // InvalidArgument if no reader would take the header.
  static absl::StatusOr<StateWriter> Make(const v1::StateHeader& header,
                                          BlockSource source);
  ~StateWriter();
  StateWriter(StateWriter&&) noexcept;
  StateWriter& operator=(StateWriter&&) noexcept;

  // The size of the whole state.
  int64_t total_bytes() const { return total_bytes_; }
  bool done() const { return part_ == Part::kEnd; }
  // The next `max_bytes` (above 0) bytes; fewer only at the end.
  std::string Next(size_t max_bytes = kPieceBytes);

 private:
  enum class Part { kHead, kFrame, kPayload, kPadding, kTrailer, kEnd };

  StateWriter(std::string head, const v1::StateHeader& header,
              BlockSource source);
  // The bytes of the current part.
  absl::string_view Current() const;
  void StartNextPart();
  void StartBlockOrTrailer();

  BlockSource source_;
  int64_t num_blocks_;
  int64_t block_bytes_;
  int64_t total_bytes_;

  Part part_ = Part::kHead;
  // The head, a frame or the trailer.
  std::string own_bytes_;
  absl::string_view payload_;
  int64_t block_ = 0;
  // In the current part.
  size_t offset_ = 0;
  int64_t given_bytes_ = 0;
  std::unique_ptr<StreamDigest> digest_;
};

// Takes the bytes of a state, in pieces of any size, from untrusted input. Its
// own memory is bounded by what has arrived of the head.
class StateReader {
 public:
  // Gives the `block_bytes` bytes where a block is to be written. They stay
  // until the next is requested or the reader ends. Called once for each block,
  // in order, and never for one at num_blocks or beyond.
  using BlockSink = std::function<absl::Span<char>(int64_t block)>;
  // Called once, when the head is complete, its checksum matches and it passes
  // CheckStateHeader. The owner compares the fingerprint, and takes memory. A
  // null sink: it comes later, by Resume.
  using OnHeader =
      std::function<absl::StatusOr<BlockSink>(v1::StateHeader header)>;

  explicit StateReader(OnHeader on_header,
                       int64_t max_header_bytes = kMaxStateHeaderBytes);
  ~StateReader();
  StateReader(const StateReader&) = delete;
  StateReader& operator=(const StateReader&) = delete;

  // DataLoss, with the place, if the bytes are damaged; InvalidArgument or
  // FailedPrecondition if they are not a state, or not one for this build. An
  // error of `on_header` is returned as it is. Once there is an error, this and
  // Finish return it always.
  absl::Status Append(absl::string_view bytes);

  // The sink, if `on_header` had none: what was appended since is kept until
  // then. Errors as Append.
  absl::Status Resume(BlockSink sink);

  // DataLoss unless all bytes have arrived. What the sink has been given is to
  // be used only if this is OK.
  absl::Status Finish() const;

 private:
  enum class Part { kHead, kFrame, kPayload, kPadding, kTrailer, kEnd };

  // Each takes a first part of the bytes, which are not empty, or goes on to
  // the next part.
  absl::Status Take(absl::string_view* bytes);
  absl::Status TakeHead(absl::string_view* bytes);
  absl::Status TakeFrame(absl::string_view* bytes);
  absl::Status TakePayload(absl::string_view* bytes);
  absl::Status TakePadding(absl::string_view* bytes);
  absl::Status TakeTrailer(absl::string_view* bytes);
  // Called when the first part of the head, and the whole of it, have arrived.
  absl::Status CheckPrefix();
  absl::Status CheckHead();
  void StartBlockOrTrailer();
  // The current part, as in "block 3 of 17".
  std::string Place() const;

  OnHeader on_header_;
  int64_t max_header_bytes_;
  BlockSink sink_;
  bool paused_ = false;  // until Resume
  std::string held_;     // meanwhile
  absl::Status status_;

  Part part_ = Part::kHead;
  std::string head_;
  // -1: not known yet.
  int64_t head_bytes_ = -1;
  int64_t total_bytes_ = -1;
  int64_t num_blocks_ = 0;
  int64_t block_bytes_ = 0;

  int64_t block_ = 0;
  std::array<char, 64> frame_;  // or the trailer
  absl::Span<char> payload_;
  // Taken of the frame, of the payload and its padding, or of the trailer.
  int64_t taken_ = 0;
  int64_t total_taken_ = 0;
  uint64_t block_checksum_ = 0;  // as in the frame
  std::unique_ptr<StreamChecksum> checksum_;
  std::unique_ptr<StreamDigest> digest_;
};

}  // namespace recurve

#endif  // RECURVE_SERVER_STATES_STATE_WIRE_H_
