// recurve-server with a fault in its device, for tests. RECURVE_TEST_FAULT says
// which, from the first step on that finds a file RECURVE_TEST_FAULT_FILE:
//   error    the step reports an error
//   illegal  the GPU writes where it may not
//   hang     the step does not end

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "server/server_main.h"
#include "tests/testing/faulty_runner.h"
#ifdef RECURVE_HAVE_CUDA
#include "tests/gpu/device_fault.h"
#endif

namespace recurve {
namespace {

absl::Status Fault(const std::string& fault) {
  if (fault == "hang") {
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
#ifdef RECURVE_HAVE_CUDA
  if (fault == "illegal") {
    // What the backend does next meets the error by itself.
    return LaunchDeviceFault() == cudaSuccess
               ? absl::OkStatus()
               : absl::InternalError("the fault cannot be launched");
  }
#endif
  return absl::InternalError("a fault of the kind " + fault);
}

int Main(int argc, char** argv) {
  const char* fault = std::getenv("RECURVE_TEST_FAULT");
  const char* file = std::getenv("RECURVE_TEST_FAULT_FILE");
  if (fault == nullptr || file == nullptr) return 2;
  return ServerMain(argc, argv, [&](std::unique_ptr<ModelRunner> real) {
    auto runner = std::make_unique<FaultyRunner>(std::move(real));
    runner->SetBeforeRun([fault = std::string(fault), file = std::string(file)](
                             const StepBatch&, CacheStorage&) {
      return std::filesystem::exists(file) ? Fault(fault) : absl::OkStatus();
    });
    return runner;
  });
}

}  // namespace
}  // namespace recurve

int main(int argc, char** argv) { return recurve::Main(argc, argv); }
