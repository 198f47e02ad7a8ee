#ifndef RECURVE_BASE_DTYPE_H_
#define RECURVE_BASE_DTYPE_H_

#include <bit>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recurve {

// Element types that a checkpoint or a cache may hold.
enum class DType { kFloat32, kFloat16, kBFloat16, kInt32 };

// Bytes of one element.
int64_t SizeOf(DType dtype);

// "float32", "float16", "bfloat16", "int32".
absl::string_view Name(DType dtype);

// The inverse of Name. InvalidArgument for anything else.
absl::StatusOr<DType> ParseDType(absl::string_view name);

// bfloat16 is the upper half of a float32.
inline float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even; a NaN stays a NaN.
inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE binary16, subnormals, infinities and NaNs included.
float Float16ToFloat(uint16_t bits);

// Rounds to nearest, ties to even; beyond 65504 an infinity, a NaN stays a NaN.
uint16_t FloatToFloat16(float value);

}  // namespace recurve

#endif  // RECURVE_BASE_DTYPE_H_
