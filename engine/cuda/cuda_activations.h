#ifndef RECURVE_ENGINE_CUDA_CUDA_ACTIVATIONS_H_
#define RECURVE_ENGINE_CUDA_CUDA_ACTIVATIONS_H_

#include <cstdint>

#include "engine/models/backend.h"

namespace recurve {

// Activations of a CudaBackend, as what they are unless they are rounded
// (CudaProducts).
inline float* Floats(const Activations& a) {
  return reinterpret_cast<float*>(a.data);
}

// Whether rows may be read and written by 16 bytes.
inline bool AlignedFloats(const float* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_ACTIVATIONS_H_
