#include "engine/tokenizer/proto_reader.h"

#include <cstring>

namespace recurve {

bool ProtoReader::Fail() {
  ok_ = false;
  rest_ = "";
  return false;
}

bool ProtoReader::ReadVarint(uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) return false;
    const uint8_t byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    *value |= uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool ProtoReader::Next() {
  if (rest_.empty()) return false;
  uint64_t tag = 0;
  if (!ReadVarint(&tag) || tag >> 3 == 0 || tag >> 3 > 0x1fffffff) {
    return Fail();
  }
  field_ = static_cast<int>(tag >> 3);
  varint_ = 0;
  float_ = 0;
  bytes_ = "";
  uint64_t size = 0;
  switch (tag & 7) {
    case 0:
      return ReadVarint(&varint_) || Fail();
    case 1:
      size = 8;
      break;
    case 2:
      if (!ReadVarint(&size)) return Fail();
      break;
    case 5:
      size = 4;
      break;
    default:
      return Fail();
  }
  if (size > rest_.size()) return Fail();
  const absl::string_view payload = rest_.substr(0, size);
  rest_.remove_prefix(size);
  if ((tag & 7) == 2) bytes_ = payload;
  // Little-endian, like every supported machine.
  if ((tag & 7) == 5) std::memcpy(&float_, payload.data(), sizeof(float_));
  return true;
}

}  // namespace recurve
