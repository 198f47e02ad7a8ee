#include "server/states/state_wire.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/states/wire_bytes.h"

namespace recurve {
namespace {

constexpr std::array<char, kStateAlignment> kZeros = {};

int64_t TotalBytes(int64_t head_bytes, int64_t num_blocks,
                   int64_t block_bytes) {
  return head_bytes +
         num_blocks * (kStateFrameBytes + StatePadded(block_bytes)) +
         kStateTrailerBytes;
}

std::string SerializedHead(const v1::StateHeader& header, int64_t header_bytes,
                           int64_t head_bytes) {
  std::string head;
  head.reserve(static_cast<size_t>(head_bytes));
  head.append(kStateMagic.data(), kStateMagic.size());
  AppendLittleEndian<uint32_t>(kStateVersion, &head);
  AppendLittleEndian<uint32_t>(static_cast<uint32_t>(header_bytes), &head);
  header.AppendToString(&head);
  head.resize(static_cast<size_t>(head_bytes - kStateHeadChecksumBytes));
  AppendLittleEndian<uint64_t>(StateChecksum(head), &head);
  return head;
}

// The first `size` bytes, which `bytes` then lacks, or all if it has fewer.
absl::string_view TakeFirst(int64_t size, absl::string_view* bytes) {
  const absl::string_view first =
      bytes->substr(0, static_cast<size_t>(std::max<int64_t>(size, 0)));
  bytes->remove_prefix(first.size());
  return first;
}

absl::Status Damaged(absl::string_view place, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat("the state is damaged: ", place, ": ", what));
}

absl::Status ChecksumDiffers(absl::string_view place, uint64_t stored,
                             uint64_t computed) {
  return Damaged(place, absl::StrFormat("its checksum is %016x, its bytes "
                                        "give %016x",
                                        stored, computed));
}

// DataLoss unless all `padding` bytes are zero; `offset` is of the first.
absl::Status CheckZeros(absl::string_view place, absl::string_view padding,
                        int64_t offset) {
  const size_t at = padding.find_first_not_of('\0');
  if (at == absl::string_view::npos) return absl::OkStatus();
  return Damaged(place,
                 absl::StrFormat("byte %d of it is 0x%02x, not zero",
                                 offset + static_cast<int64_t>(at),
                                 static_cast<unsigned char>(padding[at])));
}

}  // namespace

absl::StatusOr<StateWriter> StateWriter::Make(const v1::StateHeader& header,
                                              BlockSource source) {
  RECURVE_RETURN_IF_ERROR(CheckStateHeader(header));
  const auto header_bytes = static_cast<int64_t>(header.ByteSizeLong());
  if (header_bytes > kMaxStateHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state's header has ", header_bytes,
                     " bytes; at most ", kMaxStateHeaderBytes, " are allowed"));
  }
  return StateWriter(
      SerializedHead(header, header_bytes, StateHeadBytes(header_bytes)),
      header, std::move(source));
}

StateWriter::StateWriter(std::string head, const v1::StateHeader& header,
                         BlockSource source)
    : source_(std::move(source)),
      num_blocks_(static_cast<int64_t>(header.num_blocks())),
      block_bytes_(static_cast<int64_t>(header.fingerprint().block_bytes())),
      total_bytes_(TotalBytes(static_cast<int64_t>(head.size()), num_blocks_,
                              block_bytes_)),
      own_bytes_(std::move(head)),
      digest_(std::make_unique<StreamDigest>()) {}
StateWriter::~StateWriter() = default;
StateWriter::StateWriter(StateWriter&&) noexcept = default;
StateWriter& StateWriter::operator=(StateWriter&&) noexcept = default;

std::string StateWriter::Next(size_t max_bytes) {
  RECURVE_CHECK(max_bytes > 0);
  std::string piece;
  piece.reserve(
      std::min(max_bytes, static_cast<size_t>(total_bytes_ - given_bytes_)));
  while (piece.size() < max_bytes && !done()) {
    const absl::string_view rest = Current().substr(offset_);
    const absl::string_view first = rest.substr(0, max_bytes - piece.size());
    digest_->Update(first);
    piece.append(first.data(), first.size());
    offset_ += first.size();
    if (first.size() == rest.size()) StartNextPart();
  }
  given_bytes_ += static_cast<int64_t>(piece.size());
  return piece;
}

absl::string_view StateWriter::Current() const {
  if (part_ == Part::kPayload) return payload_;
  if (part_ != Part::kPadding) return own_bytes_;
  return absl::string_view(
      kZeros.data(),
      static_cast<size_t>(StatePadded(block_bytes_) - block_bytes_));
}

void StateWriter::StartNextPart() {
  offset_ = 0;
  switch (part_) {
    case Part::kHead:
      return StartBlockOrTrailer();
    case Part::kFrame:
      part_ = Part::kPayload;
      return;
    case Part::kPayload:
      part_ = Part::kPadding;
      return;
    case Part::kPadding:
      ++block_;
      return StartBlockOrTrailer();
    case Part::kTrailer:
      part_ = Part::kEnd;
      RECURVE_CHECK(block_ == num_blocks_);
      return;
    case Part::kEnd:
      return;
  }
}

void StateWriter::StartBlockOrTrailer() {
  own_bytes_.clear();
  if (block_ < num_blocks_) {
    part_ = Part::kFrame;
    const absl::Span<const char> block = source_(block_);
    RECURVE_CHECK(static_cast<int64_t>(block.size()) == block_bytes_);
    payload_ = absl::string_view(block.data(), block.size());
    AppendLittleEndian<uint64_t>(static_cast<uint64_t>(block_), &own_bytes_);
    AppendLittleEndian<uint64_t>(StateChecksum(payload_), &own_bytes_);
    own_bytes_.resize(kStateFrameBytes);
  } else {
    part_ = Part::kTrailer;
    own_bytes_ = digest_->Value();
    own_bytes_.resize(kStateTrailerBytes);
  }
}

StateReader::StateReader(OnHeader on_header, int64_t max_header_bytes)
    : on_header_(std::move(on_header)),
      max_header_bytes_(std::min(max_header_bytes, kMaxStateHeaderBytes)),
      checksum_(std::make_unique<StreamChecksum>()),
      digest_(std::make_unique<StreamDigest>()) {
  static_assert(kStateFrameBytes == sizeof(frame_));
  static_assert(kStateTrailerBytes == sizeof(frame_));
}
StateReader::~StateReader() = default;

absl::Status StateReader::Resume(BlockSink sink) {
  sink_ = std::move(sink);
  paused_ = false;
  return Append(std::exchange(held_, std::string()));
}

absl::Status StateReader::Append(absl::string_view bytes) {
  while (status_.ok() && !bytes.empty()) {
    if (paused_) {
      held_.append(bytes.data(), bytes.size());
      break;
    }
    const size_t before = bytes.size();
    status_ = Take(&bytes);
    total_taken_ += static_cast<int64_t>(before - bytes.size());
  }
  return status_;
}

absl::Status StateReader::Finish() const {
  if (!status_.ok() || part_ == Part::kEnd) return status_;
  return absl::DataLossError(absl::StrCat(
      "the state ends too early: in ", Place(), ", after ", total_taken_,
      total_bytes_ < 0 ? "" : absl::StrCat(" of ", total_bytes_), " bytes"));
}

absl::Status StateReader::Take(absl::string_view* bytes) {
  switch (part_) {
    case Part::kHead:
      return TakeHead(bytes);
    case Part::kFrame:
      return TakeFrame(bytes);
    case Part::kPayload:
      return TakePayload(bytes);
    case Part::kPadding:
      return TakePadding(bytes);
    case Part::kTrailer:
      return TakeTrailer(bytes);
    case Part::kEnd:
      break;
  }
  return absl::DataLossError(absl::StrCat("bytes follow the state, which has ",
                                          total_bytes_, " bytes"));
}

std::string StateReader::Place() const {
  switch (part_) {
    case Part::kHead:
      return "its head";
    case Part::kFrame:
    case Part::kPayload:
    case Part::kPadding:
      return absl::StrCat("block ", block_, " of ", num_blocks_);
    case Part::kTrailer:
    case Part::kEnd:
      return "its trailer";
  }
  return "";
}

absl::Status StateReader::TakeHead(absl::string_view* bytes) {
  const int64_t end = head_bytes_ < 0 ? kStatePrefixBytes : head_bytes_;
  const absl::string_view first =
      TakeFirst(end - static_cast<int64_t>(head_.size()), bytes);
  head_.append(first.data(), first.size());
  if (static_cast<int64_t>(head_.size()) < end) return absl::OkStatus();
  return head_bytes_ < 0 ? CheckPrefix() : CheckHead();
}

absl::Status StateReader::CheckPrefix() {
  const absl::string_view head = head_;
  if (head.substr(0, kStateMagic.size()) != kStateMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat("this is not a state: it begins with \"",
                     absl::CHexEscape(head.substr(0, kStateMagic.size())),
                     "\", not with \"", kStateMagic, "\""));
  }
  const auto version = ReadLittleEndian<uint32_t>(head.substr(8));
  if (version != kStateVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the state is of version ", version,
        " of the format; this server reads version ", kStateVersion));
  }
  const int64_t header_bytes = ReadLittleEndian<uint32_t>(head.substr(12));
  if (header_bytes > max_header_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state's header has ", header_bytes,
                     " bytes; at most ", max_header_bytes_, " are allowed"));
  }
  head_bytes_ = StateHeadBytes(header_bytes);
  return absl::OkStatus();
}

absl::Status StateReader::CheckHead() {
  const absl::string_view head = head_;
  const size_t checked = head.size() - kStateHeadChecksumBytes;
  const auto stored = ReadLittleEndian<uint64_t>(head.substr(checked));
  const uint64_t computed = StateChecksum(head.substr(0, checked));
  if (stored != computed) return ChecksumDiffers(Place(), stored, computed);
  const size_t header_bytes = ReadLittleEndian<uint32_t>(head.substr(12));
  const size_t header_end = kStatePrefixBytes + header_bytes;
  RECURVE_RETURN_IF_ERROR(
      CheckZeros(Place(), head.substr(header_end, checked - header_end),
                 static_cast<int64_t>(header_end)));
  RECURVE_ASSIGN_OR_RETURN(
      v1::StateHeader header,
      ParseStateHeader(head.substr(kStatePrefixBytes, header_bytes)));
  digest_->Update(head);
  head_ = std::string();  // gives its memory back
  num_blocks_ = static_cast<int64_t>(header.num_blocks());
  block_bytes_ = static_cast<int64_t>(header.fingerprint().block_bytes());
  total_bytes_ = TotalBytes(head_bytes_, num_blocks_, block_bytes_);
  RECURVE_ASSIGN_OR_RETURN(sink_, on_header_(std::move(header)));
  paused_ = sink_ == nullptr;
  StartBlockOrTrailer();
  return absl::OkStatus();
}

void StateReader::StartBlockOrTrailer() {
  taken_ = 0;
  part_ = block_ < num_blocks_ ? Part::kFrame : Part::kTrailer;
}

absl::Status StateReader::TakeFrame(absl::string_view* bytes) {
  const absl::string_view first = TakeFirst(kStateFrameBytes - taken_, bytes);
  digest_->Update(first);
  std::copy(first.begin(), first.end(), frame_.begin() + taken_);
  taken_ += static_cast<int64_t>(first.size());
  if (taken_ < kStateFrameBytes) return absl::OkStatus();

  const absl::string_view frame(frame_.data(), frame_.size());
  const auto index = ReadLittleEndian<uint64_t>(frame);
  if (index != static_cast<uint64_t>(block_)) {
    return Damaged(Place(), absl::StrCat("its frame has index ", index));
  }
  RECURVE_RETURN_IF_ERROR(
      CheckZeros(absl::StrCat("the frame of ", Place()), frame.substr(16), 16));
  block_checksum_ = ReadLittleEndian<uint64_t>(frame.substr(8));
  payload_ = sink_(block_);
  RECURVE_CHECK(static_cast<int64_t>(payload_.size()) == block_bytes_);
  checksum_->Reset();
  taken_ = 0;
  part_ = Part::kPayload;
  return absl::OkStatus();
}

absl::Status StateReader::TakePayload(absl::string_view* bytes) {
  const absl::string_view first = TakeFirst(block_bytes_ - taken_, bytes);
  digest_->Update(first);
  checksum_->Update(first);
  std::copy(first.begin(), first.end(), payload_.begin() + taken_);
  taken_ += static_cast<int64_t>(first.size());
  if (taken_ < block_bytes_) return absl::OkStatus();

  const uint64_t computed = checksum_->Value();
  if (computed != block_checksum_) {
    return ChecksumDiffers(Place(), block_checksum_, computed);
  }
  part_ = Part::kPadding;
  return absl::OkStatus();
}

// There may be none. `taken_` goes on from the payload.
absl::Status StateReader::TakePadding(absl::string_view* bytes) {
  const absl::string_view first =
      TakeFirst(StatePadded(block_bytes_) - taken_, bytes);
  digest_->Update(first);
  RECURVE_RETURN_IF_ERROR(CheckZeros(Place(), first, taken_));
  taken_ += static_cast<int64_t>(first.size());
  if (taken_ == StatePadded(block_bytes_)) {
    ++block_;
    StartBlockOrTrailer();
  }
  return absl::OkStatus();
}

absl::Status StateReader::TakeTrailer(absl::string_view* bytes) {
  const absl::string_view first = TakeFirst(kStateTrailerBytes - taken_, bytes);
  std::copy(first.begin(), first.end(), frame_.begin() + taken_);
  taken_ += static_cast<int64_t>(first.size());
  if (taken_ < kStateTrailerBytes) return absl::OkStatus();

  const absl::string_view trailer(frame_.data(), frame_.size());
  const std::string computed = digest_->Value();
  const absl::string_view stored = trailer.substr(0, computed.size());
  if (stored != computed) {
    return Damaged(Place(), absl::StrCat("its checksum is ",
                                         absl::BytesToHexString(stored),
                                         ", the bytes before it give ",
                                         absl::BytesToHexString(computed)));
  }
  const auto digest_bytes = static_cast<int64_t>(computed.size());
  RECURVE_RETURN_IF_ERROR(
      CheckZeros(Place(), trailer.substr(computed.size()), digest_bytes));
  part_ = Part::kEnd;
  return absl::OkStatus();
}

}  // namespace recurve
