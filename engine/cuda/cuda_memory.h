#ifndef RECURVE_ENGINE_CUDA_CUDA_MEMORY_H_
#define RECURVE_ENGINE_CUDA_CUDA_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Internal "CUDA: <what>: <why>" unless `error` is cudaSuccess.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// Memory of the current device, or page-locked memory of the host. Freed with
// the object. Move-only.
class CudaMemory {
 public:
  enum class Kind { kDevice, kHost };

  CudaMemory() = default;
  CudaMemory(CudaMemory&& other) noexcept { *this = std::move(other); }
  CudaMemory& operator=(CudaMemory&& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~CudaMemory();

  // ResourceExhausted, naming `what` and the bytes, when there is not enough.
  // Device memory is zero; 0 bytes give a null pointer.
  static absl::StatusOr<CudaMemory> Allocate(Kind kind, int64_t bytes,
                                             absl::string_view what);
  // Whether the error means that device memory ran out.
  static bool LacksDevice(const absl::Status& status);

  char* data() const { return static_cast<char*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  Kind kind_ = Kind::kDevice;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

inline constexpr auto kDevice = CudaMemory::Kind::kDevice;

}  // namespace recurve

#endif  // RECURVE_ENGINE_CUDA_CUDA_MEMORY_H_
