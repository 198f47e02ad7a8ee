#include "server/vllm/zip_archive.h"

#include <array>

namespace recurve {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint16_t kVersion = 20;    // of the format: 2.0
constexpr uint16_t kUtf8 = 1 << 11;  // flag: names are UTF-8
constexpr uint16_t kDate = (1 << 5) | 1;

void Put16(uint32_t value, std::string* out) {
  out->push_back(static_cast<char>(value & 0xff));
  out->push_back(static_cast<char>((value >> 8) & 0xff));
}

void Put32(uint32_t value, std::string* out) {
  Put16(value & 0xffff, out);
  Put16(value >> 16, out);
}

// What a file's header and its entry in the directory have in common.
void PutCommon(const std::string& name, const std::string& bytes, uint32_t crc,
               std::string* out) {
  const auto size = static_cast<uint32_t>(bytes.size());
  Put16(kVersion, out);
  Put16(kUtf8, out);
  Put16(0, out);  // stored
  Put16(0, out);  // time
  Put16(kDate, out);
  Put32(crc, out);
  Put32(size, out);
  Put32(size, out);
  Put16(static_cast<uint32_t>(name.size()), out);
  Put16(0, out);  // no extra field
}

}  // namespace

uint32_t Crc32(absl::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> out{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0);
      }
      out[i] = value;
    }
    return out;
  }();
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) {
    crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~crc;
}

std::string ZipOf(
    const std::vector<std::pair<std::string, std::string>>& files) {
  std::string out;
  std::string directory;
  for (const auto& [name, bytes] : files) {
    const auto offset = static_cast<uint32_t>(out.size());
    const uint32_t crc = Crc32(bytes);
    Put32(kLocalSignature, &out);
    PutCommon(name, bytes, crc, &out);
    out += name;
    out += bytes;
    Put32(kCentralSignature, &directory);
    Put16(kVersion, &directory);  // that it was made with
    PutCommon(name, bytes, crc, &directory);
    Put16(0, &directory);  // no comment
    Put16(0, &directory);  // first disk
    Put16(0, &directory);  // internal attributes
    Put32(0, &directory);  // external attributes
    Put32(offset, &directory);
    directory += name;
  }
  const auto begin = static_cast<uint32_t>(out.size());
  const auto size = static_cast<uint32_t>(directory.size());
  const auto count = static_cast<uint32_t>(files.size());
  out += directory;
  Put32(kEndSignature, &out);
  Put16(0, &out);  // this disk
  Put16(0, &out);  // the directory's
  Put16(count, &out);
  Put16(count, &out);
  Put32(size, &out);
  Put32(begin, &out);
  Put16(0, &out);  // no comment
  return out;
}

}  // namespace recurve
