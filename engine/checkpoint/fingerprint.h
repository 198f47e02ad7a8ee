#ifndef RECURVE_ENGINE_CHECKPOINT_FINGERPRINT_H_
#define RECURVE_ENGINE_CHECKPOINT_FINGERPRINT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/tensor_view.h"

namespace recurve {

// A 64-bit hash (FNV-1a, then a finaliser) that is the same on every machine
// and in every build, because saved sequence states carry it. It tells models
// apart; it is no protection against someone who wants a collision.
class Fingerprinter {
 public:
  void AddInt(int64_t value);
  // Length and bytes, so that "ab","c" and "a","bc" differ.
  void AddBytes(absl::string_view bytes);
  // Type, shape, and of the payload at most 16 blocks of 256 bytes, evenly
  // spaced with the first and last bytes included: hashing all of a large
  // model would take longer than loading it.
  void AddTensor(const TensorView& tensor);

  uint64_t Value() const;

 private:
  void Mix(absl::string_view bytes);

  uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_FINGERPRINT_H_
