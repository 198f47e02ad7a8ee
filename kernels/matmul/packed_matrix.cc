#include "kernels/matmul/packed_matrix.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace recurve {

namespace {

absl::Status CheckOrder(const std::vector<int32_t>& order, int64_t size,
                        absl::string_view what) {
  if (order.empty()) return absl::OkStatus();
  std::vector<int32_t> stored;
  for (int32_t index : order) {
    if (index != -1) stored.push_back(index);
  }
  std::sort(stored.begin(), stored.end());
  std::vector<int32_t> all(size);
  std::iota(all.begin(), all.end(), 0);
  if (stored != all) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", what,
                     " order of a matrix does not name each of "
                     "its ",
                     all.size(), " ", what, "s once"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(
    absl::Span<const MatrixPart> parts, DType storage) {
  if (storage != DType::kFloat32 && storage != DType::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "matrices are held as float32 or bfloat16, not ", Name(storage)));
  }
  PackedMatrix packed;
  packed.storage_ = storage;
  for (const MatrixPart& part : parts) {
    const std::vector<int64_t>& shape = part.tensor.shape;
    if (shape.size() != 2 ||
        (packed.inputs_ != 0 && part.cols() != packed.inputs_) ||
        shape[0] < 1 || shape[1] < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cannot pack a tensor of shape [", absl::StrJoin(shape, ", "),
          "]; expected [rows, ",
          packed.inputs_ ? absl::StrCat(packed.inputs_) : "columns", "]"));
    }
    RECURVE_RETURN_IF_ERROR(CheckOrder(part.row_order, shape[0], "row"));
    RECURVE_RETURN_IF_ERROR(CheckOrder(part.col_order, shape[1], "column"));
    packed.outputs_ += part.rows();
    packed.inputs_ = part.cols();
  }
  const int64_t blocks = (packed.outputs_ + kBlock - 1) / kBlock;
  const int64_t size = blocks * packed.inputs_ * kBlock;
  if (storage == DType::kFloat32) {
    packed.floats_.assign(size, 0.0f);
  } else {
    packed.bfloats_.assign(size, 0);
  }
  int64_t row = 0;
  for (const MatrixPart& part : parts) {
    for (int64_t r = 0; r < part.rows(); ++r, ++row) {
      const int64_t stored = part.row_order.empty() ? r : part.row_order[r];
      if (stored < 0) continue;  // the storage is zero
      const int64_t base =
          (row / kBlock) * packed.inputs_ * kBlock + row % kBlock;
      for (int64_t c = 0; c < packed.inputs_; ++c) {
        const int64_t column = part.col_order.empty() ? c : part.col_order[c];
        if (column < 0) continue;
        const float value =
            part.tensor.Element(stored * part.tensor.shape[1] + column);
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
