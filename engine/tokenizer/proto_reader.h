#ifndef RECURVE_ENGINE_TOKENIZER_PROTO_READER_H_
#define RECURVE_ENGINE_TOKENIZER_PROTO_READER_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace recurve {

// Walks the fields of one message in protobuf's wire format. Small on purpose:
// protobuf itself stays out of the engine.
class ProtoReader {
 public:
  explicit ProtoReader(absl::string_view message) : rest_(message) {}

  // Moves to the next field; false at the end, and where the message is broken:
  // then ok() is false.
  bool Next();
  bool ok() const { return ok_; }

  int field() const { return field_; }
  // Of the current field; zero or empty when it has another wire type.
  uint64_t varint() const { return varint_; }
  float float32() const { return float_; }
  absl::string_view bytes() const { return bytes_; }

 private:
  bool ReadVarint(uint64_t* value);
  bool Fail();

  absl::string_view rest_;
  bool ok_ = true;
  int field_ = 0;
  uint64_t varint_ = 0;
  float float_ = 0;
  absl::string_view bytes_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_TOKENIZER_PROTO_READER_H_
