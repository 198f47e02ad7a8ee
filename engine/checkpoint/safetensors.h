#ifndef RECURVE_ENGINE_CHECKPOINT_SAFETENSORS_H_
#define RECURVE_ENGINE_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
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
// Tensors of other types of the format are kept aside: a model may not need
// them. "__metadata__" is checked, not kept.
//
// Views point into the mapped file. They live as long as this object or the one
// it was moved to. Thread safety: immutable once open.
class SafetensorsFile {
 public:
  // A tensor that cannot be read.
  struct Other {
    std::string type;  // as in the file, e.g. "F8_E4M3"
    int64_t bytes;
  };

  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::map<std::string, Other>& others() const { return others_; }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, Other> others_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_SAFETENSORS_H_
