#ifndef RECURVE_ENGINE_CHECKPOINT_SAFETENSORS_H_
#define RECURVE_ENGINE_CHECKPOINT_SAFETENSORS_H_

#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/tensor_view.h"
#include "engine/checkpoint/mapped_file.h"

namespace recurve {

// One .safetensors file: eight bytes of little-endian header length, a JSON
// header, then the payload that the header's tensors tile.
//
// Open trusts no field: each is checked before use, and the tensors must cover
// the payload exactly, without holes or overlaps. Supported element types are
// F32, F16 and BF16; I32 is parsed too, so that an error can name the tensor.
// "__metadata__" is checked, not kept.
//
// Views point into the mapped file. They live as long as this object or the one
// it was moved to. Thread safety: immutable once open.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_SAFETENSORS_H_
