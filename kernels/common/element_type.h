#ifndef RECURVE_KERNELS_COMMON_ELEMENT_TYPE_H_
#define RECURVE_KERNELS_COMMON_ELEMENT_TYPE_H_

namespace recurve {

// Type that a GPU kernel reads or writes; arithmetic is in float32.
// (base/dtype.h needs C++20, which CUDA sources do not use.)
enum class ElementType { kFloat32, kBFloat16 };

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_ELEMENT_TYPE_H_
