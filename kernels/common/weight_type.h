#ifndef RECURVE_KERNELS_COMMON_WEIGHT_TYPE_H_
#define RECURVE_KERNELS_COMMON_WEIGHT_TYPE_H_

#include <cstdint>

namespace recurve {

// Type of weights on the GPU. (base/dtype.h needs C++20, which CUDA sources do
// not use.)
enum class WeightType { kFloat32, kBFloat16, kFloat16 };

constexpr int64_t WeightBytes(WeightType type) {
  return type == WeightType::kFloat32 ? 4 : 2;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_WEIGHT_TYPE_H_
