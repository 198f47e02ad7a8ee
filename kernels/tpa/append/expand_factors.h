#ifndef RECURVE_KERNELS_TPA_APPEND_EXPAND_FACTORS_H_
#define RECURVE_KERNELS_TPA_APPEND_EXPAND_FACTORS_H_

#include <cstdint>

namespace recurve {

class ThreadPool;

// out[h] = (1/R) Σ_r A[r,h] · B[r]: the vectors of all heads from their
// factors, for layers that cache no factors (linear attention over factored
// queries, keys and values).
struct ExpandFactorsParams {
  const float* a;  // [rows, R, H]
  const float* b;  // [rows, R, D]
  int64_t stride;  // elements between rows of both
  float* out;      // [rows, H, D]
  int64_t out_stride;
  int64_t rows;
  int64_t rank;       // R
  int64_t num_heads;  // H
  int64_t dim;        // D
};
void ExpandFactors(const ExpandFactorsParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_APPEND_EXPAND_FACTORS_H_
