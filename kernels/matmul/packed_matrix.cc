#include "kernels/matmul/packed_matrix.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace recurve {

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(
    absl::Span<const TensorView> parts, DType storage) {
  if (storage != DType::kFloat32 && storage != DType::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "matrices are held as float32 or bfloat16, not ", Name(storage)));
  }
  PackedMatrix packed;
  packed.storage_ = storage;
  for (const TensorView& part : parts) {
    if (part.shape.size() != 2 ||
        (packed.inputs_ != 0 && part.shape[1] != packed.inputs_) ||
        part.shape[0] < 1 || part.shape[1] < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot pack a tensor of shape [", absl::StrJoin(part.shape, ", "),
          "]; expected [rows, ",
          packed.inputs_ ? absl::StrCat(packed.inputs_) : "columns", "]"));
    }
    packed.outputs_ += part.shape[0];
    packed.inputs_ = part.shape[1];
  }
  const int64_t blocks = (packed.outputs_ + kBlock - 1) / kBlock;
  const int64_t size = blocks * packed.inputs_ * kBlock;
  if (storage == DType::kFloat32) {
    packed.floats_.assign(size, 0.0f);
  } else {
    packed.bfloats_.assign(size, 0);
  }
  int64_t row = 0;
  for (const TensorView& part : parts) {
    for (int64_t r = 0; r < part.shape[0]; ++r, ++row) {
      const int64_t base =
          (row / kBlock) * packed.inputs_ * kBlock + row % kBlock;
      for (int64_t c = 0; c < packed.inputs_; ++c) {
        const float value = part.Element(r * packed.inputs_ + c);
        if (storage == DType::kFloat32) {
          packed.floats_[base + c * kBlock] = value;
        } else {
          packed.bfloats_[base + c * kBlock] = FloatToBFloat16(value);
        }
      }
    }
  }
  return packed;
}

}  // namespace recurve
