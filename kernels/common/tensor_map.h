// Maps of boxes for Hopper's tensor copy engine, made on the host.
#ifndef RECURVE_KERNELS_COMMON_TENSOR_MAP_H_
#define RECURVE_KERNELS_COMMON_TENSOR_MAP_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace recurve {

// A three-dimensional array of 16-bit elements or float32, innermost dimension
// first, and the box that a copy brings: 128 bytes wide.
struct TensorMapShape {
  CUtensorMapDataType type;
  int64_t sizes[3];
  int64_t strides[2];  // elements; of the second and third dimension
  int box[3];
};

// The driver's function that makes maps, which is not linked; null if missing.
using TensorMapEncode = decltype(&cuTensorMapEncodeTiled);
inline TensorMapEncode GetTensorMapEncode() {
  static const TensorMapEncode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                         12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      entry = nullptr;
    }
    return reinterpret_cast<TensorMapEncode>(entry);
  }();
  return encode;
}

// A map of boxes swizzled by 128 bytes; elements beyond the sizes read as
// zeros. cudaErrorNotSupported if the driver has no such function,
// cudaErrorInvalidValue if it rejects the shape.
inline cudaError_t MakeTensorMap(const void* data, const TensorMapShape& shape,
                                 CUtensorMap* map) {
  const TensorMapEncode encode = GetTensorMapEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint64_t sizes[3];
  cuuint64_t strides[2];
  cuuint32_t box[3];
  for (int i = 0; i < 3; ++i) {
    sizes[i] = static_cast<cuuint64_t>(shape.sizes[i]);
    box[i] = static_cast<cuuint32_t>(shape.box[i]);
  }
  const int bytes = shape.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  for (int i = 0; i < 2; ++i)
    strides[i] = static_cast<cuuint64_t>(bytes * shape.strides[i]);
  const cuuint32_t steps[3] = {1, 1, 1};
  return encode(map, shape.type, 3, const_cast<void*>(data), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
             ? cudaSuccess
             : cudaErrorInvalidValue;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_TENSOR_MAP_H_
