// Input: a byte of modes, a byte that seeds the sizes of pieces, and the bytes
// of an exported state. By default these go to the reader as they are. In mode
// 1 the checksum of the head is corrected; in mode 2 all that follows the
// header is made to match it, too, from the bytes there are: its sizes,
// checksums, indexes and padding. Mode 4 takes the bytes as a serialized
// header.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "server/states/state_wire.h"
#include "server/states/wire_bytes.h"
#if __has_include(<google/protobuf/stubs/logging.h>)
#include <google/protobuf/stubs/logging.h>
#endif

namespace recurve {
namespace {

#if __has_include(<google/protobuf/stubs/logging.h>)
// Protobuf before 22 writes a line for each string that is not UTF-8.
const google::protobuf::LogSilencer silencer;
#endif

// What the owner has room for.
constexpr uint64_t kRoom = 1 << 16;

struct Outcome {
  absl::Status status;
  v1::StateHeader header;
  std::vector<std::string> blocks;
};

// Sizes from `seed`; 0: all bytes at once.
Outcome Read(absl::string_view bytes, uint8_t seed) {
  Outcome outcome;
  int64_t num_sunk = 0;
  StateReader reader(
      [&](v1::StateHeader header) -> absl::StatusOr<StateReader::BlockSink> {
        RECURVE_CHECK(CheckStateHeader(header).ok());
        outcome.header = std::move(header);
        const uint64_t num_blocks = outcome.header.num_blocks();
        const uint64_t size = outcome.header.fingerprint().block_bytes();
        if (num_blocks > kRoom || num_blocks * size > kRoom) {
          return absl::ResourceExhaustedError("no room");
        }
        outcome.blocks.resize(num_blocks);
        return [&](int64_t i) {
          RECURVE_CHECK(i == num_sunk++);
          std::string& block = outcome.blocks.at(static_cast<size_t>(i));
          block.resize(outcome.header.fingerprint().block_bytes());
          return absl::MakeSpan(block.data(), block.size());
        };
      });
  uint32_t random = seed;
  while (!bytes.empty()) {
    random = random * 1664525 + 1013904223;
    const size_t size = seed == 0 ? bytes.size() : 1 + (random >> 16) % seed;
    if (!reader.Append(bytes.substr(0, size)).ok()) break;
    bytes.remove_prefix(std::min(size, bytes.size()));
  }
  outcome.status = reader.Finish();
  if (outcome.status.ok()) {
    RECURVE_CHECK(num_sunk == static_cast<int64_t>(outcome.blocks.size()));
  }
  return outcome;
}

// What was accepted can be written, and is then accepted again.
void Repeat(const Outcome& accepted) {
  auto writer = StateWriter::Make(accepted.header, [&](int64_t i) {
    return absl::MakeConstSpan(accepted.blocks.at(static_cast<size_t>(i)));
  });
  RECURVE_CHECK(writer.ok());
  std::string bytes;
  while (!writer->done()) bytes += writer->Next(100);
  const Outcome again = Read(bytes, 0);
  RECURVE_CHECK(again.status.ok());
  RECURVE_CHECK(again.blocks == accepted.blocks);
  RECURVE_CHECK(again.header.SerializeAsString() ==
                accepted.header.SerializeAsString());
}

// The head with a length that fits and the right checksum. Empty: too short.
std::string CorrectedHead(absl::string_view bytes) {
  if (bytes.size() < kStatePrefixBytes) return "";
  const uint64_t room = bytes.size() - kStatePrefixBytes;
  const uint64_t header_bytes =
      std::min<uint64_t>(ReadLittleEndian<uint32_t>(bytes.substr(12)), room);
  std::string head(bytes.substr(0, 12));
  AppendLittleEndian<uint32_t>(static_cast<uint32_t>(header_bytes), &head);
  head += std::string(bytes.substr(kStatePrefixBytes, header_bytes));
  head.resize(StateHeadBytes(static_cast<int64_t>(header_bytes)) -
              kStateHeadChecksumBytes);
  AppendLittleEndian<uint64_t>(StateChecksum(head), &head);
  return head;
}

// The head, blocks of the header's sizes from `rest`, and a trailer.
std::string Completed(const std::string& head, absl::string_view rest) {
  const auto header_bytes = ReadLittleEndian<uint32_t>(head.substr(12));
  const auto header = ParseStateHeader(
      absl::string_view(head).substr(kStatePrefixBytes, header_bytes));
  if (!header.ok()) return head;
  const uint64_t num_blocks = header->num_blocks();
  const uint64_t size = header->fingerprint().block_bytes();
  if (num_blocks > kRoom || num_blocks * size > kRoom) return head;
  std::string bytes = head;
  for (uint64_t i = 0; i < num_blocks; ++i) {
    std::string block(rest.substr(0, size));
    rest.remove_prefix(block.size());
    block.resize(size);
    AppendLittleEndian<uint64_t>(i, &bytes);
    AppendLittleEndian<uint64_t>(StateChecksum(block), &bytes);
    bytes.resize(bytes.size() + 48);
    block.resize(static_cast<size_t>(StatePadded(static_cast<int64_t>(size))));
    bytes += block;
  }
  StreamDigest digest;
  digest.Update(bytes);
  bytes += digest.Value();
  bytes.resize(bytes.size() + 48);
  return bytes;
}

std::string Prepare(uint8_t modes, absl::string_view input) {
  std::string bytes(input);
  if ((modes & 4) != 0) {
    bytes = std::string(kStateMagic);
    AppendLittleEndian<uint32_t>(kStateVersion, &bytes);
    AppendLittleEndian<uint32_t>(static_cast<uint32_t>(input.size()), &bytes);
    bytes += std::string(input);
  }
  if ((modes & 7) == 0) return bytes;
  const std::string head = CorrectedHead(bytes);
  const absl::string_view rest =
      absl::string_view(bytes).substr(std::min(head.size(), bytes.size()));
  if (!head.empty() && (modes & 2) != 0) return Completed(head, rest);
  return head + std::string(rest);
}

}  // namespace
}  // namespace recurve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string bytes = recurve::Prepare(
      data[0],
      absl::string_view(reinterpret_cast<const char*>(data) + 2, size - 2));
  const recurve::Outcome outcome = recurve::Read(bytes, data[1]);
  // However the bytes are split, the result is the same.
  RECURVE_CHECK(outcome.status == recurve::Read(bytes, 0).status);
  if (outcome.status.ok()) recurve::Repeat(outcome);
  return 0;
}
