#include "engine/checkpoint/check_finite.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/checkpoint/quote.h"

namespace recurve {
namespace {

// Checkpoints are little-endian and are read in place.
static_assert(std::endian::native == std::endian::little);

template <typename Bits>
Bits Load(const void* data, int64_t index) {
  Bits bits;
  std::memcpy(&bits, static_cast<const char*>(data) + index * sizeof(Bits),
              sizeof(Bits));
  return bits;
}

// Index of the first element whose bits, without the sign, are at least
// `least`: bits order by magnitude, with NaNs above infinity. -1 if there is
// none.
template <typename Bits>
int64_t FirstAtLeast(const TensorView& tensor, Bits least) {
  constexpr int64_t kBlock = 4096;
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  const int64_t count = tensor.num_elements();
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    // No early exit, so that compilers vectorise it.
    bool any = false;
    for (int64_t i = begin; i < end; ++i) {
      any |= (Load<Bits>(tensor.data, i) & kMagnitude) >= least;
    }
    if (!any) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((Load<Bits>(tensor.data, i) & kMagnitude) >= least) return i;
    }
  }
  return -1;
}

// The smallest float32 that rounds to an infinity of `dtype`, as bits: the
// midpoint above the largest finite number rounds up, because that number is
// odd.
uint32_t LeastInfinite(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return std::bit_cast<uint32_t>(65520.0f);
    case DType::kBFloat16:
      return 0x7f7f8000u;
    case DType::kFloat32:
    case DType::kInt32:
      break;
  }
  return 0x7f800000u;
}

// [row, column] of the element with a row-major index.
std::string IndexText(const std::vector<int64_t>& shape, int64_t index) {
  std::vector<int64_t> coordinates(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    coordinates[i] = index % shape[i];
    index /= shape[i];
  }
  return absl::StrCat("[", absl::StrJoin(coordinates, ", "), "]");
}

}  // namespace

absl::Status CheckFinite(const TensorView& tensor, const std::string& name,
                         const std::string& file) {
  return CheckFiniteAs(tensor.dtype, tensor, name, file);
}

absl::Status CheckFiniteAs(DType dtype, const TensorView& tensor,
                           const std::string& name, const std::string& file) {
  const uint32_t least = LeastInfinite(dtype);
  int64_t index = -1;
  switch (tensor.dtype) {
    case DType::kFloat32:
      index = FirstAtLeast<uint32_t>(tensor, least);
      break;
    case DType::kFloat16:  // values are within the other types' range
      index = FirstAtLeast<uint16_t>(tensor, 0x7c00u);
      break;
    case DType::kBFloat16:  // the upper half of a float32
      index = FirstAtLeast<uint16_t>(
          tensor, static_cast<uint16_t>((least + 0xffffu) >> 16));
      break;
    case DType::kInt32:
      break;
  }
  if (index < 0) return absl::OkStatus();
  const float value = tensor.Element(index);
  return absl::InvalidArgumentError(absl::StrCat(
      file, ": tensor ", Quote(name), ": element ",
      IndexText(tensor.shape, index), " is ", value, "; expected ",
      std::isfinite(value)
          ? absl::StrCat("numbers that are finite as ", Name(dtype))
          : "finite numbers"));
}

}  // namespace recurve
