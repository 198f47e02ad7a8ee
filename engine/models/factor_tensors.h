#ifndef RECURVE_ENGINE_MODELS_FACTOR_TENSORS_H_
#define RECURVE_ENGINE_MODELS_FACTOR_TENSORS_H_

#include "kernels/matmul/packed_matrix.h"

namespace recurve {

// Weights of a query, key or value as factors. Weights are [outputs, inputs];
// views into the mapped checkpoint, whose rows the model may need in another
// order.
struct FactorTensors {
  MatrixPart a;  // [R·H, C], rank-major
  MatrixPart b;  // [R·D, C]
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_FACTOR_TENSORS_H_
