#ifndef RECURVE_KERNELS_MATMUL_PACKED_MATRIX_H_
#define RECURVE_KERNELS_MATMUL_PACKED_MATRIX_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/huge_pages.h"
#include "base/tensor_view.h"

namespace recurve {

// Rows of a weight matrix, [n, inputs], possibly reordered, as may be its
// columns.
struct MatrixPart {
  MatrixPart() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is its rows in order
  MatrixPart(TensorView view) : tensor(std::move(view)) {}
  MatrixPart(TensorView view, std::vector<int32_t> order)
      : tensor(std::move(view)), row_order(std::move(order)) {}

  TensorView tensor;
  int64_t rows() const {
    return row_order.empty() ? tensor.shape[0]
                             : static_cast<int64_t>(row_order.size());
  }

  int64_t cols() const {
    return col_order.empty() ? tensor.shape[1]
                             : static_cast<int64_t>(col_order.size());
  }

  // Row i of the part is row row_order[i] of the tensor, or zero for -1. Every
  // row of the tensor occurs once. Empty: as stored.
  std::vector<int32_t> row_order;
  // The same for columns.
  std::vector<int32_t> col_order;
};

// A weight matrix [outputs, inputs] repacked for Matmul: groups of 16 output
// rows, interleaved, so that one vector load reads the same input column of 16
// outputs. Layout: [ceil(outputs / 16)][inputs][16], padding rows zero.
//
// Stored as float32 or bfloat16; both widen to float32 exactly, so the choice
// changes memory traffic, not results.
//
// Immutable, hence safe to share between threads.
class PackedMatrix {
 public:
  static constexpr int64_t kBlock = 16;

  PackedMatrix() = default;

  // Packs the rows of `parts`, each [n_i, inputs], one after the other.
  // `storage` is kFloat32 or kBFloat16; bfloat16 rounds wider parts.
  // InvalidArgument when a part is not such a matrix.
  static absl::StatusOr<PackedMatrix> Pack(absl::Span<const MatrixPart> parts,
                                           DType storage);

  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  DType storage() const { return storage_; }
  int64_t bytes() const {
    return static_cast<int64_t>(floats_.size() * 4 + bfloats_.size() * 2);
  }

  // Row `row`, column `column`, widened.
  float Element(int64_t row, int64_t column) const {
    const int64_t i = (row / kBlock * inputs_ + column) * kBlock + row % kBlock;
    return storage_ == DType::kFloat32 ? floats_[i]
                                       : BFloat16ToFloat(bfloats_[i]);
  }

  // The packed elements; the vector of storage() is not empty.
  const HugePageVector<float>& floats() const { return floats_; }
  const HugePageVector<uint16_t>& bfloats() const { return bfloats_; }

 private:
  int64_t outputs_ = 0;
  int64_t inputs_ = 0;
  DType storage_ = DType::kFloat32;
  HugePageVector<float> floats_;
  HugePageVector<uint16_t> bfloats_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_PACKED_MATRIX_H_
