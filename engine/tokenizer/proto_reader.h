#ifndef RECURVE_ENGINE_TOKENIZER_PROTO_READER_H_
#define RECURVE_ENGINE_TOKENIZER_PROTO_READER_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace recurve {

// Iterates over the fields of one message in protobuf's wire format.
// Deliberately small, so that the engine does not depend on protobuf.
class ProtoReader {
 public:
  explicit ProtoReader(absl::string_view message) : rest_(message) {}

  // Moves to the next field; false at the end, and if the message is malformed:
  // then ok() is false.
  bool Next();
  bool ok() const { return ok_; }

  int field() const { return field_; }
  // The current field's value; zero or empty if it has another wire type.
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
