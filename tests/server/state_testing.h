#ifndef RECURVE_TESTS_SERVER_STATE_TESTING_H_
#define RECURVE_TESTS_SERVER_STATE_TESTING_H_

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "server/states/state_wire.h"
#include "server/states/wire_bytes.h"
#include "tests/testing/test_random.h"

namespace recurve {

struct TestState {
  v1::StateHeader header;
  std::vector<std::string> blocks;
};

inline v1::StateHeader MakeTestHeader(int64_t num_blocks, int64_t block_bytes) {
  v1::StateHeader header;
  v1::StateFingerprint& fingerprint = *header.mutable_fingerprint();
  fingerprint.set_model("4f2a");
  fingerprint.set_device("cpu avx2");
  fingerprint.set_block_bytes(static_cast<uint64_t>(block_bytes));
  for (const uint32_t id : {7u, 300u, 70000u}) header.add_token_ids(id);
  header.set_token_kinds(std::string("\0\1\2", 3));
  header.set_computed_tokens(2);
  header.set_num_blocks(static_cast<uint64_t>(num_blocks));
  header.set_seed(0);
  return header;
}

inline TestState MakeTestState(int64_t num_blocks, int64_t block_bytes,
                               uint64_t seed = 1) {
  TestRandom random(seed);
  TestState state{MakeTestHeader(num_blocks, block_bytes), {}};
  for (int64_t i = 0; i < num_blocks; ++i) {
    std::string& block = state.blocks.emplace_back();
    while (static_cast<int64_t>(block.size()) < block_bytes) {
      block.push_back(static_cast<char>(random.Next()));
    }
  }
  return state;
}

// `state` outlives it.
inline StateWriter MakeWriter(const TestState& state) {
  auto writer = StateWriter::Make(state.header, [&state](int64_t i) {
    return absl::MakeConstSpan(state.blocks.at(static_cast<size_t>(i)));
  });
  RECURVE_CHECK(writer.ok());
  return *std::move(writer);
}

// All the bytes.
inline std::string ExportState(const TestState& state,
                               size_t piece_bytes = StateWriter::kPieceBytes) {
  StateWriter writer = MakeWriter(state);
  std::string bytes;
  while (!writer.done()) bytes += writer.Next(piece_bytes);
  RECURVE_CHECK(static_cast<int64_t>(bytes.size()) == writer.total_bytes());
  return bytes;
}

// A reader whose owner takes every state of at most a megabyte.
class TestImport {
 public:
  explicit TestImport(int64_t max_header_bytes = kMaxStateHeaderBytes)
      : reader_(
            [this](v1::StateHeader header)
                -> absl::StatusOr<StateReader::BlockSink> {
              RECURVE_CHECK(num_headers_++ == 0);
              state_.header = std::move(header);
              const uint64_t num_blocks = state_.header.num_blocks();
              const uint64_t block_bytes =
                  state_.header.fingerprint().block_bytes();
              constexpr uint64_t kRoom = uint64_t{1} << 20;
              if (num_blocks > kRoom || num_blocks * block_bytes > kRoom) {
                return absl::ResourceExhaustedError("no room for the state");
              }
              state_.blocks.resize(num_blocks);
              return [this, block_bytes](int64_t i) {
                // One after the other, and none beyond the last.
                RECURVE_CHECK(i == num_sunk_++);
                std::string& block = state_.blocks.at(static_cast<size_t>(i));
                block.resize(block_bytes);
                return absl::MakeSpan(block.data(), block.size());
              };
            },
            max_header_bytes) {}

  // Appends the bytes in pieces of the sizes that `next_size` gives, until an
  // error, and finishes.
  absl::Status Pass(absl::string_view bytes,
                    const std::function<int64_t()>& next_size) {
    while (!bytes.empty()) {
      const absl::string_view piece =
          bytes.substr(0, static_cast<size_t>(next_size()));
      const absl::Status status = reader_.Append(piece);
      if (!status.ok()) {
        RECURVE_CHECK(reader_.Append("") == status);
        RECURVE_CHECK(reader_.Finish() == status);
        return status;
      }
      bytes.remove_prefix(piece.size());
    }
    return reader_.Finish();
  }
  absl::Status Pass(absl::string_view bytes) {
    return Pass(bytes,
                [&] { return std::max<int64_t>(1, int64_t(bytes.size())); });
  }

  StateReader& reader() { return reader_; }
  const TestState& state() const { return state_; }
  int64_t num_sunk() const { return num_sunk_; }

 private:
  TestState state_;
  int num_headers_ = 0;
  int64_t num_sunk_ = 0;
  StateReader reader_;
};

// The head of a state, valid except for what the serialized header says.
inline std::string HeadOf(absl::string_view header) {
  std::string head(kStateMagic);
  AppendLittleEndian<uint32_t>(kStateVersion, &head);
  AppendLittleEndian<uint32_t>(static_cast<uint32_t>(header.size()), &head);
  head.append(header.data(), header.size());
  head.resize(
      static_cast<size_t>(StateHeadBytes(static_cast<int64_t>(header.size())) -
                          kStateHeadChecksumBytes));
  AppendLittleEndian<uint64_t>(StateChecksum(head), &head);
  return head;
}

}  // namespace recurve

#endif  // RECURVE_TESTS_SERVER_STATE_TESTING_H_
