#ifndef RECURVE_KERNELS_COMMON_READ_MEMORY_CUDA_H_
#define RECURVE_KERNELS_COMMON_READ_MEMORY_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace recurve {

// Reads device memory and discards it. Reading twice the bytes of a cache
// evicts its contents and leaves nothing to write back. REQUIRES: 16-byte
// aligned; `bytes` a multiple of 16.
cudaError_t LaunchReadMemory(const void* data, int64_t bytes,
                             cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_READ_MEMORY_CUDA_H_
