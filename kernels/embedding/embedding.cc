#include "kernels/embedding/embedding.h"

#include "base/thread_pool.h"

namespace recurve {

void Embedding(const EmbeddingParams& p, ThreadPool& pool) {
  pool.ParallelFor(p.rows, [&](int64_t row) {
    float* y = p.y + row * p.y_stride;
    if (p.packed != nullptr) {
      for (int64_t i = 0; i < p.packed->inputs(); ++i) {
        y[i] = p.scale * p.packed->Element(p.tokens[row], i);
      }
      return;
    }
    const int64_t cols = p.table->shape[1];
    const int64_t first = p.tokens[row] * cols;
    for (int64_t i = 0; i < cols; ++i) {
      y[i] = p.scale * p.table->Element(first + i);
    }
  });
}

}  // namespace recurve
