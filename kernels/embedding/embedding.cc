#include "kernels/embedding/embedding.h"

#include "base/thread_pool.h"

namespace recurve {

void Embedding(const EmbeddingParams& p, ThreadPool& pool) {
  const int64_t cols = p.table->shape[1];
  pool.ParallelFor(p.rows, [&](int64_t row) {
    float* y = p.y + row * p.y_stride;
    const int64_t first = p.tokens[row] * cols;
    for (int64_t i = 0; i < cols; ++i) {
      y[i] = p.scale * p.table->Element(first + i);
    }
  });
}

}  // namespace recurve
