#include "kernels/common/shared_memory.h"

#include <map>
#include <utility>

#include "base/mutex.h"

namespace recurve {

cudaError_t AllowSharedMemory(const void* kernel, int bytes) {
  static auto* const mutex = new Mutex;
  static auto* const allowed = new std::map<std::pair<const void*, int>, int>;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const MutexLock lock(mutex);
  int& most = (*allowed)[{kernel, device}];
  if (bytes <= most) return cudaSuccess;
  error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) most = bytes;
  return error;
}

}  // namespace recurve
