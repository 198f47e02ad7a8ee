#ifndef RECURVE_KERNELS_MATMUL_MATMUL_H_
#define RECURVE_KERNELS_MATMUL_MATMUL_H_

#include <cstdint>

#include "kernels/matmul/packed_matrix.h"

namespace recurve {

class ThreadPool;

// y[t, n] = Σ_k x[t, k] · w[n, k], or y[t, n] += that sum.
struct MatmulParams {
  const float* x;         // [rows, w->inputs()]
  int64_t x_stride;       // elements between rows of x
  const PackedMatrix* w;  // [outputs, inputs]
  float* y;               // [rows, w->outputs()]; must not overlap x
  int64_t y_stride;       // elements between rows of y
  int64_t rows;
  bool accumulate;  // add to y in place of overwriting it
};

// Each y[t, n] is one chain of fused multiply-adds over k in ascending order,
// from 0 (on machines without FMA: multiply, then add). So the bits of a row
// depend on that row alone, never on `rows` or on other rows.
void Matmul(const MatmulParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_MATMUL_H_
