#ifndef RECURVE_KERNELS_GLU_GLU_H_
#define RECURVE_KERNELS_GLU_GLU_H_

#include <cstdint>

#include "kernels/common/activation.h"

namespace recurve {

class ThreadPool;

// The gate of a gated linear unit (Shazeer, 2020): y = act(x1) ⊙ x2, where a
// row of x holds x1 and then x2.
struct GluParams {
  const float* x;  // [rows, 2 · cols]
  int64_t x_stride;
  float* y;  // [rows, cols]; must not overlap x
  int64_t y_stride;
  int64_t rows;
  int64_t cols;
  Activation activation;  // pointwise
};
void Glu(const GluParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_GLU_GLU_H_
