#ifndef RECURVE_BASE_TENSOR_VIEW_H_
#define RECURVE_BASE_TENSOR_VIEW_H_

#include <cstdint>
#include <vector>

#include "base/dtype.h"

namespace recurve {

// A contiguous, row-major tensor in memory owned elsewhere. `data` need not be
// aligned to its element type: a safetensors payload may start anywhere.
struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;

  int64_t num_elements() const {
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    return n;
  }

  // Element `index` in row-major order, widened to float32.
  // REQUIRES: 0 <= index < num_elements().
  float Element(int64_t index) const;
};

}  // namespace recurve

#endif  // RECURVE_BASE_TENSOR_VIEW_H_
