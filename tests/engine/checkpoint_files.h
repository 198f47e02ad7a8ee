#ifndef RECURVE_TESTS_ENGINE_CHECKPOINT_FILES_H_
#define RECURVE_TESTS_ENGINE_CHECKPOINT_FILES_H_

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {

// Matches a status whose message contains every one of `parts`.
template <typename... Parts>
auto FailsWith(absl::StatusCode code, const Parts&... parts) {
  return testing::AllOf(
      testing::ResultOf(
          "code", [](const absl::Status& status) { return status.code(); },
          code),
      testing::ResultOf(
          "message",
          [](const absl::Status& status) {
            return std::string(status.message());
          },
          testing::AllOf(testing::HasSubstr(std::string(parts))...)));
}

// An empty directory, removed when the test ends.
class TempFolder {
 public:
  TempFolder() {
    static int count = 0;
    path_ = absl::StrCat(testing::TempDir(), "/recurve_checkpoint_", getpid(),
                         "_", count++);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

  // Returns the path of the file.
  std::string Write(const std::string& name, absl::string_view content) const {
    std::string path = absl::StrCat(path_, "/", name);
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    EXPECT_TRUE(file.good()) << path;
    return path;
  }

 private:
  std::string path_;
};

// The eight bytes that begin a safetensors file.
inline std::string HeaderLength(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(length >> (8 * i)));
  }
  return bytes;
}

inline std::string SafetensorsBytes(absl::string_view header,
                                    absl::string_view payload) {
  return absl::StrCat(HeaderLength(header.size()), header, payload);
}

// All elements of a float32, float16 or bfloat16 tensor, which may be
// unaligned.
inline std::vector<float> Floats(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  const char* at = static_cast<const char*>(tensor.data);
  for (float& value : values) {
    if (tensor.dtype == DType::kFloat32) {
      std::memcpy(&value, at, sizeof(value));
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, at, sizeof(bits));
      value = tensor.dtype == DType::kFloat16 ? Float16ToFloat(bits)
                                              : BFloat16ToFloat(bits);
    }
    at += SizeOf(tensor.dtype);
  }
  return values;
}

}  // namespace recurve

#endif  // RECURVE_TESTS_ENGINE_CHECKPOINT_FILES_H_
