#include "server/states/state_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"

namespace recurve {
namespace {

constexpr absl::string_view kMagic = "RECURVES";
constexpr int64_t kAlignment = 64;
constexpr int64_t kHeadBytes = 24;
constexpr int64_t kFrameBytes = 64;
// So that no sum of sizes overflows.
constexpr uint64_t kMaxBlockBytes = uint64_t{1} << 36;
constexpr uint64_t kMaxBlocks = uint64_t{1} << 24;

int64_t Padded(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void Pad(std::string* out) {
  out->resize(Padded(static_cast<int64_t>(out->size())));
}

template <typename T>
void AppendNumber(T value, std::string* out) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out->push_back(static_cast<char>(value >> (8 * i)));
  }
}

template <typename T>
T Number(absl::string_view bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<unsigned char>(bytes[at + i]))
             << (8 * i);
  }
  return value;
}

uint64_t Checksum(absl::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

bool IsZero(absl::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](char c) { return c == '\0'; });
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the state is damaged: ", what));
}

absl::Status CheckSum(absl::string_view what, uint64_t said, uint64_t got) {
  if (said == got) return absl::OkStatus();
  return Damaged(absl::StrFormat(
      "%s has the checksum %016x, its bytes have %016x", what, said, got));
}

absl::Status CheckSizes(const v1::StateHeader& header) {
  const v1::StateFingerprint& of = header.fingerprint();
  const auto tokens = static_cast<uint64_t>(header.token_ids_size());
  if (header.token_kinds().size() != tokens) {
    return Damaged(absl::StrCat("it has ", tokens, " tokens and ",
                                header.token_kinds().size(), " kinds"));
  }
  if (header.computed_tokens() > tokens) {
    return Damaged(absl::StrCat("computed_tokens is ", header.computed_tokens(),
                                " of ", tokens, " tokens"));
  }
  if (of.block_bytes() > kMaxBlockBytes || header.num_blocks() > kMaxBlocks ||
      (header.num_blocks() > 0 && of.block_bytes() == 0)) {
    return Damaged(absl::StrCat("it has ", header.num_blocks(), " blocks of ",
                                of.block_bytes(), " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFingerprint(const v1::StateFingerprint& theirs,
                              const v1::StateFingerprint& ours) {
  const auto* const type = v1::StateFingerprint::descriptor();
  const auto* const reflection = v1::StateFingerprint::GetReflection();
  using Field = google::protobuf::FieldDescriptor;
  const auto text = [&](const v1::StateFingerprint& of, const Field* field) {
    switch (field->cpp_type()) {
      case Field::CPPTYPE_UINT32:
        return absl::StrCat(reflection->GetUInt32(of, field));
      case Field::CPPTYPE_UINT64:
        return absl::StrCat(reflection->GetUInt64(of, field));
      default:
        return absl::StrCat("\"", reflection->GetString(of, field), "\"");
    }
  };
  for (int i = 0; i < type->field_count(); ++i) {
    const Field* const field = type->field(i);
    const std::string a = text(theirs, field);
    const std::string b = text(ours, field);
    if (a == b) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the state's fingerprint.", std::string(field->name()),
                     " is ", a, "; this server's is ", b));
  }
  return absl::OkStatus();
}

StreamHash::StreamHash() : state_(XXH3_createState(), XXH3_freeState) {
  XXH3_128bits_reset(state_.get());
}

void StreamHash::Add(absl::string_view bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

// ----------------------------------------------------------------------------

StateWriter::StateWriter(const v1::StateHeader& header, Block block)
    : block_(std::move(block)),
      num_blocks_(static_cast<int64_t>(header.num_blocks())),
      block_bytes_(static_cast<int64_t>(header.fingerprint().block_bytes())) {
  const std::string text = header.SerializeAsString();
  made_ = std::string(kMagic);
  AppendNumber(kStateWireVersion, &made_);
  AppendNumber(static_cast<uint32_t>(text.size()), &made_);
  AppendNumber(Checksum(absl::StrCat(made_, text)), &made_);
  made_ += text;
  Pad(&made_);
  part_ = made_;
  total_bytes_ = static_cast<int64_t>(made_.size()) +
                 num_blocks_ * (kFrameBytes + Padded(block_bytes_)) +
                 kFrameBytes;
}

void StateWriter::BeginPart() {
  if (stage_ == Stage::kFrame && next_block_ == num_blocks_) {
    const XXH128_hash_t digest = hash_.digest();
    made_.clear();
    AppendNumber(digest.low64, &made_);
    AppendNumber(digest.high64, &made_);
    AppendNumber(static_cast<uint64_t>(done_bytes_), &made_);
    Pad(&made_);
    part_ = made_;
    return;
  }
  switch (stage_) {
    case Stage::kFrame:
      payload_ = block_(next_block_);
      made_.clear();
      AppendNumber(static_cast<uint64_t>(next_block_), &made_);
      AppendNumber(Checksum({payload_.data(), payload_.size()}), &made_);
      Pad(&made_);
      part_ = made_;
      stage_ = Stage::kPayload;
      return;
    case Stage::kPayload:
      part_ = {payload_.data(), payload_.size()};
      stage_ = Stage::kPadding;
      return;
    case Stage::kPadding:
      made_.assign(Padded(block_bytes_) - block_bytes_, '\0');
      part_ = made_;
      stage_ = Stage::kFrame;
      ++next_block_;
      return;
  }
}

std::string StateWriter::Next(size_t max) {
  std::string out;
  while (out.size() < max && !done()) {
    if (part_.empty()) {
      BeginPart();
      continue;
    }
    const absl::string_view piece = part_.substr(0, max - out.size());
    part_.remove_prefix(piece.size());
    hash_.Add(piece);
    out.append(piece.data(), piece.size());
    done_bytes_ += static_cast<int64_t>(piece.size());
  }
  return out;
}

// ----------------------------------------------------------------------------

void StateReader::Expect(Part part, int64_t bytes) {
  part_ = part;
  left_ = bytes;
  buffer_.clear();
}

absl::Status StateReader::Append(absl::string_view bytes) {
  if (has_header_ && sink_ == nullptr) {
    rest_.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  return Read(bytes);
}

absl::Status StateReader::Start(Sink sink) {
  sink_ = std::move(sink);
  return Read(std::exchange(rest_, ""));
}

absl::Status StateReader::Read(absl::string_view bytes) {
  while (!bytes.empty()) {
    if (part_ == Part::kEnd) return Damaged("bytes follow its end");
    const auto count = static_cast<int64_t>(
        std::min<uint64_t>(static_cast<uint64_t>(left_), bytes.size()));
    const absl::string_view piece = bytes.substr(0, count);
    bytes.remove_prefix(count);
    left_ -= count;
    if (part_ != Part::kTrailer) {
      hash_.Add(piece);
      bytes_ += count;
    }
    if (part_ == Part::kPayload) {
      const int64_t room = static_cast<int64_t>(payload_.size()) - filled_;
      const int64_t of_payload = std::min(room, count);
      std::memcpy(payload_.data() + filled_, piece.data(), of_payload);
      filled_ += of_payload;
      if (!IsZero(piece.substr(of_payload))) {
        return Damaged(
            absl::StrCat("the padding of block ", block_, " is not zero"));
      }
    } else {
      buffer_.append(piece.data(), piece.size());
    }
    if (left_ > 0) continue;
    RECURVE_RETURN_IF_ERROR(EndPart());
    if (has_header_ && sink_ == nullptr) {
      rest_ = std::string(bytes);
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::Status StateReader::EndPart() {
  switch (part_) {
    case Part::kHead:
      return EndHead();
    case Part::kHeader:
      return EndHeader();
    case Part::kFrame:
      return EndFrame();
    case Part::kPayload:
      return EndPayload();
    case Part::kTrailer:
      return EndTrailer();
    case Part::kEnd:
      break;
  }
  return absl::OkStatus();
}

absl::Status StateReader::EndHead() {
  if (absl::string_view(buffer_).substr(0, kMagic.size()) != kMagic) {
    return absl::FailedPreconditionError(
        "these bytes are no state: they do not begin with \"RECURVES\"");
  }
  const auto version = Number<uint32_t>(buffer_, 8);
  if (version != kStateWireVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state's format has version ", version,
                     "; this server reads ", kStateWireVersion));
  }
  const int64_t bytes = Number<uint32_t>(buffer_, 12);
  if (bytes > kMaxStateHeaderBytes) {
    return Damaged(absl::StrCat("its header has ", bytes, " bytes; at most ",
                                kMaxStateHeaderBytes, " are allowed"));
  }
  checksum_ = Number<uint64_t>(buffer_, 16);
  head_ = buffer_.substr(0, 16);
  const int64_t padded = Padded(kHeadBytes + bytes) - kHeadBytes;
  header_bytes_ = bytes;
  Expect(Part::kHeader, padded);
  return padded == 0 ? EndHeader() : absl::OkStatus();
}

absl::Status StateReader::EndHeader() {
  const absl::string_view all = buffer_;
  if (!IsZero(all.substr(header_bytes_))) {
    return Damaged("the padding of its header is not zero");
  }
  head_.append(buffer_, 0, header_bytes_);
  RECURVE_RETURN_IF_ERROR(CheckSum("its header", checksum_, Checksum(head_)));
  head_.clear();
  if (!header_.ParseFromArray(buffer_.data(),
                              static_cast<int>(header_bytes_))) {
    return Damaged("its header cannot be parsed");
  }
  RECURVE_RETURN_IF_ERROR(CheckSizes(header_));
  has_header_ = true;
  Expect(header_.num_blocks() > 0 ? Part::kFrame : Part::kTrailer, kFrameBytes);
  return absl::OkStatus();
}

absl::Status StateReader::EndFrame() {
  if (Number<uint64_t>(buffer_, 0) != static_cast<uint64_t>(block_)) {
    return Damaged(absl::StrCat("block ", Number<uint64_t>(buffer_, 0),
                                " comes where ", block_, " is expected"));
  }
  if (!IsZero(absl::string_view(buffer_).substr(16))) {
    return Damaged(absl::StrCat("the frame of block ", block_, " is not zero"));
  }
  checksum_ = Number<uint64_t>(buffer_, 8);
  const auto bytes = static_cast<int64_t>(header_.fingerprint().block_bytes());
  payload_ = sink_(block_);
  if (static_cast<int64_t>(payload_.size()) != bytes) {
    return absl::InternalError(absl::StrCat("block ", block_, " has ", bytes,
                                            " bytes; its memory has ",
                                            payload_.size()));
  }
  filled_ = 0;
  Expect(Part::kPayload, Padded(bytes));
  return absl::OkStatus();
}

absl::Status StateReader::EndPayload() {
  RECURVE_RETURN_IF_ERROR(
      CheckSum(absl::StrCat("block ", block_, " of ", header_.num_blocks()),
               checksum_, Checksum({payload_.data(), payload_.size()})));
  ++block_;
  const bool more = block_ < static_cast<int64_t>(header_.num_blocks());
  Expect(more ? Part::kFrame : Part::kTrailer, kFrameBytes);
  return absl::OkStatus();
}

absl::Status StateReader::EndTrailer() {
  const XXH128_hash_t digest = hash_.digest();
  if (Number<uint64_t>(buffer_, 0) != digest.low64 ||
      Number<uint64_t>(buffer_, 8) != digest.high64 ||
      Number<uint64_t>(buffer_, 16) != static_cast<uint64_t>(bytes_) ||
      !IsZero(absl::string_view(buffer_).substr(24))) {
    return Damaged("its trailer does not match what came before");
  }
  Expect(Part::kEnd, 1);
  return absl::OkStatus();
}

absl::Status StateReader::Finish() const {
  if (part_ == Part::kEnd) return absl::OkStatus();
  if (has_header_) {
    return Damaged(absl::StrCat("it ends after ", block_, " of ",
                                header_.num_blocks(), " blocks"));
  }
  return Damaged("it ends within its header");
}

}  // namespace recurve
