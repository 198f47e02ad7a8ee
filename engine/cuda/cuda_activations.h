#ifndef RECURVE_ENGINE_CUDA_CUDA_ACTIVATIONS_H_
#define RECURVE_ENGINE_CUDA_CUDA_ACTIVATIONS_H_

#include <cstdint>

#include "engine/models/backend.h"

namespace recurve {

// Activations of a CudaBackend as floats; those that are rounded have another
// type (CudaProducts).
inline float* Floats(const Activations& a) {
  return reinterpret_cast<float*>(a.data);
}

// Whether rows can be accessed with 16-byte loads and stores.
inline bool AlignedFloats(const float* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_ACTIVATIONS_H_
