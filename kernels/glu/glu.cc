#include "kernels/glu/glu.h"

#include "base/thread_pool.h"

namespace recurve {

void Glu(const GluParams& p, ThreadPool& pool) {
  pool.ParallelFor(p.rows, [&](int64_t row) {
    const float* x1 = p.x + row * p.x_stride;
    const float* x2 = x1 + p.cols;
    float* y = p.y + row * p.y_stride;
    for (int64_t i = 0; i < p.cols; ++i)
      y[i] = Activate(p.activation, x1[i]) * x2[i];
  });
}

}  // namespace recurve
