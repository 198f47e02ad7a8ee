#ifndef RECURVE_ENGINE_PROGRAM_ACTIVATIONS_H_
#define RECURVE_ENGINE_PROGRAM_ACTIVATIONS_H_

#include <cstdint>

namespace recurve {

// A slice of a value in an executor's memory: one row for each token of the
// step, float32. On a GPU rows may hold 16-bit values instead, from the same
// address on and the same number of bytes apart (Launch::writes_rounded).
struct Activations {
  float* data = nullptr;
  int64_t cols = 0;
  int64_t stride = 0;  // floats between rows

  Activations Columns(int64_t first, int64_t count) const {
    return {data + first, count, stride};
  }
  Activations RowsFrom(int64_t first) const {
    return {data + first * stride, cols, stride};
  }
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_PROGRAM_ACTIVATIONS_H_
