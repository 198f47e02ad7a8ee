#ifndef RECURVE_KERNELS_EMBEDDING_EMBEDDING_H_
#define RECURVE_KERNELS_EMBEDDING_EMBEDDING_H_

#include <cstdint>

#include "base/tensor_view.h"
#include "kernels/matmul/packed_matrix.h"

namespace recurve {

class ThreadPool;

// y[t] = scale · table[tokens[t]].
struct EmbeddingParams {
  const TensorView* table;  // [vocab, cols], any float type; null: `packed`
  const int32_t* tokens;    // [rows], each in [0, vocab)
  float* y;                 // [rows, cols]
  int64_t y_stride;
  int64_t rows;
  float scale;
  const PackedMatrix* packed = nullptr;  // the same, of a tied head
};
void Embedding(const EmbeddingParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_EMBEDDING_EMBEDDING_H_
