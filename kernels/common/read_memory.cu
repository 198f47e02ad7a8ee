// Reads device memory and discards it, to evict caches: 528 blocks, 16-byte
// loads, four in flight a thread.
// Shapes: N bytes.
// Floor: N bytes read, nothing written.
#include "kernels/common/alignment.h"
#include "kernels/common/read_memory_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 528;
constexpr int kLoads = 4;  // in flight together, of a thread

__global__ void __launch_bounds__(kThreads)
    read_memory_kernel(const uint4* data, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += kLoads * step) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (i + j * step >= count) break;
      // Volatile, or the compiler would remove it: the result is unused.
      asm volatile(
          "{\n"
          ".reg .b32 x, y, z, w;\n"
          "ld.volatile.global.v4.b32 {x, y, z, w}, [%0];\n"
          "}\n" ::"l"(data + i + j * step));
    }
  }
}

}  // namespace

cudaError_t LaunchReadMemory(const void* data, int64_t bytes,
                             cudaStream_t stream) {
  if (data == nullptr || bytes < 0 || !IsAligned(data) || bytes % 16 != 0) {
    return cudaErrorInvalidValue;
  }
  read_memory_kernel<<<kBlocks, kThreads, 0, stream>>>(
      static_cast<const uint4*>(data), bytes / 16);
  return cudaGetLastError();
}

}  // namespace recurve
