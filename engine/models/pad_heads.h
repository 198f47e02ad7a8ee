#ifndef RECURVE_ENGINE_MODELS_PAD_HEADS_H_
#define RECURVE_ENGINE_MODELS_PAD_HEADS_H_

#include <cstdint>
#include <vector>

#include "kernels/matmul/packed_matrix.h"

namespace recurve {

// Kernels take heads whose features are a multiple of some number. A layer with
// others has zeros in between: rows of zeros where vectors are projected,
// columns of zeros where they are read. What is computed stays the same.

// Which feature of a head each feature of the padded head is, or -1.
using PaddedFeatures = std::vector<int32_t>;
// The features in order, then the padding.
PaddedFeatures PadAtEnd(int64_t dim, int64_t multiple);
// Each half of the features is padded: features i and i + D/2 still form a
// pair. REQUIRES: dim is even.
PaddedFeatures PadHalves(int64_t dim, int64_t multiple);

// Heads that follow each other in the rows, or columns, of a matrix.
struct PaddedHeads {
  int64_t count;
  int64_t dim;  // as stored
  PaddedFeatures features;
};
// REQUIRES: the heads are all of the rows, or columns.
MatrixPart PadRows(MatrixPart part, const std::vector<PaddedHeads>& heads);
MatrixPart PadCols(MatrixPart part, const std::vector<PaddedHeads>& heads);
// Entries of `width` values for each feature: [heads, dim, width].
std::vector<float> PadValues(const std::vector<float>& values, int64_t width,
                             const std::vector<PaddedHeads>& heads);

// An RMSNorm over padded heads is that over the heads if its eps and weight are
// multiplied by these: the mean is over more features, some of them zero.
struct PaddedNorm {
  double eps;
  float weight;
};
PaddedNorm PadNorm(int64_t dim, int64_t padded);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_PAD_HEADS_H_
