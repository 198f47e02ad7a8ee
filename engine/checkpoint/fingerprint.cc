#include "engine/checkpoint/fingerprint.h"

namespace recurve {

void Fingerprinter::Mix(absl::string_view bytes) {
  for (char byte : bytes) {
    state_ ^= static_cast<uint8_t>(byte);
    state_ *= 0x100000001b3u;
  }
}

void Fingerprinter::AddInt(int64_t value) {
  char bytes[8];  // little-endian whatever the machine
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  Mix(absl::string_view(bytes, sizeof(bytes)));
}

void Fingerprinter::AddBytes(absl::string_view bytes) {
  AddInt(static_cast<int64_t>(bytes.size()));
  Mix(bytes);
}

void Fingerprinter::AddTensor(const TensorView& tensor) {
  constexpr int64_t kBlocks = 16;
  constexpr int64_t kBlockBytes = 256;
  AddBytes(Name(tensor.dtype));
  AddInt(static_cast<int64_t>(tensor.shape.size()));
  for (int64_t dim : tensor.shape) AddInt(dim);
  const char* data = static_cast<const char*>(tensor.data);
  const int64_t size = tensor.num_elements() * SizeOf(tensor.dtype);
  if (size <= kBlocks * kBlockBytes) {
    Mix(absl::string_view(data, static_cast<size_t>(size)));
    return;
  }
  const int64_t last = size - kBlockBytes;  // where the last block begins
  for (int64_t i = 0; i < kBlocks; ++i) {
    // last / 15 · i + remainder, since last · i might overflow.
    const int64_t begin =
        last / (kBlocks - 1) * i + last % (kBlocks - 1) * i / (kBlocks - 1);
    Mix(absl::string_view(data + begin, kBlockBytes));
  }
}

uint64_t Fingerprinter::Value() const {
  // FNV-1a alone hardly spreads its last bytes (splitmix64's finaliser does).
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace recurve
