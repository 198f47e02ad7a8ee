#include "kernels/tpa/append/expand_factors.h"

#include "base/thread_pool.h"

namespace recurve {

void ExpandFactors(const ExpandFactorsParams& p, ThreadPool& pool) {
  const float scale = 1.0f / static_cast<float>(p.rank);
  pool.ParallelFor(p.rows, [&](int64_t row) {
    const float* a = p.a + row * p.stride;
    const float* b = p.b + row * p.stride;
    for (int64_t h = 0; h < p.num_heads; ++h) {
      float* out = p.out + row * p.out_stride + h * p.dim;
      for (int64_t d = 0; d < p.dim; ++d) {
        float sum = 0.0f;
        for (int64_t r = 0; r < p.rank; ++r) {
          sum += a[r * p.num_heads + h] * b[r * p.dim + d];
        }
        out[d] = sum * scale;
      }
    }
  });
}

}  // namespace recurve
