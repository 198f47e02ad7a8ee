// Runs tests that need a GPU. Without one those skip themselves; CTest is told
// so by an exit status of its own, so that a test that fails without a GPU is a
// failure all the same.

#include <cuda_runtime_api.h>

#include <cstdio>

#include "gmock/gmock.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const int status = RUN_ALL_TESTS();
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return status;
  std::puts("skipped: there is no CUDA device on this machine");
  constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in CMakeLists.txt
  return status == 0 ? kSkipped : status;
}
