// Device memory for tests of kernels.
#ifndef RECURVE_TESTS_GPU_DEVICE_BUFFER_H_
#define RECURVE_TESTS_GPU_DEVICE_BUFFER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "gtest/gtest.h"
#include "kernels/common/element_type.h"

namespace recurve {

// A copy of a host vector. Managed explicitly: a test must not hide a kernel
// that allocates.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(const std::vector<T>& host) : size_(host.size()) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, size_ * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(memory);
    Write(host);
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() { return data_; }
  void Write(const std::vector<T>& host) {
    ASSERT_EQ(host.size(), size_);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), size_ * sizeof(T),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  // Waits for the device first.
  std::vector<T> Read() const {
    std::vector<T> host(size_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, size_ * sizeof(T),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// Reduces the alignment from 16 bytes to 8.
template <typename T>
T* Misaligned(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + 8);
}

// Floats stored as `type` on the device; reads are exact.
class DeviceTensor {
 public:
  DeviceTensor(ElementType type, const std::vector<float>& host)
      : type_(type),
        floats_(type == ElementType::kFloat32 ? host : std::vector<float>(1)),
        halves_(type == ElementType::kFloat32 ? std::vector<uint16_t>(1)
                                              : ToHalves(host)) {}
  void* data() {
    return type_ == ElementType::kFloat32 ? static_cast<void*>(floats_.data())
                                          : halves_.data();
  }
  void Write(const std::vector<float>& host) {
    if (type_ == ElementType::kFloat32) {
      floats_.Write(host);
    } else {
      halves_.Write(ToHalves(host));
    }
  }
  std::vector<float> Read() const {
    if (type_ == ElementType::kFloat32) return floats_.Read();
    std::vector<float> values;
    for (uint16_t bits : halves_.Read()) {
      values.push_back(BFloat16ToFloat(bits));
    }
    return values;
  }

 private:
  static std::vector<uint16_t> ToHalves(const std::vector<float>& host) {
    std::vector<uint16_t> halves;
    for (float value : host) halves.push_back(FloatToBFloat16(value));
    return halves;
  }

  ElementType type_;
  DeviceBuffer<float> floats_;
  DeviceBuffer<uint16_t> halves_;
};

// The values rounded to `type`.
inline std::vector<float> Rounded(ElementType type, std::vector<float> values) {
  if (type == ElementType::kFloat32) return values;
  for (float& value : values) value = BFloat16ToFloat(FloatToBFloat16(value));
  return values;
}

// Relative error of one rounding to `type`.
inline double RoundingOf(ElementType type) {
  return type == ElementType::kFloat32 ? 1e-6 : 4e-3;
}

// Skips tests if there is no device.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no CUDA device on this machine";
    }
  }
};

}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_DEVICE_BUFFER_H_
