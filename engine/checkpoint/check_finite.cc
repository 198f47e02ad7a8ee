#include "engine/checkpoint/check_finite.h"

#include <algorithm>
#include <bit>
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

// The first element whose exponent bits, those of `mask`, are all ones: an
// infinity or a NaN. -1 without one.
template <typename Bits>
int64_t FirstNonFinite(const TensorView& tensor, Bits mask) {
  constexpr int64_t kBlock = 4096;
  const int64_t count = tensor.num_elements();
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    // Without an early exit, so that compilers vectorise it.
    bool any = false;
    for (int64_t i = begin; i < end; ++i) {
      any |= (Load<Bits>(tensor.data, i) & mask) == mask;
    }
    if (!any) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((Load<Bits>(tensor.data, i) & mask) == mask) return i;
    }
  }
  return -1;
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
  int64_t index = -1;
  float value = 0;
  switch (tensor.dtype) {
    case DType::kFloat32:
      index = FirstNonFinite<uint32_t>(tensor, 0x7f800000u);
      if (index >= 0) value = Load<float>(tensor.data, index);
      break;
    case DType::kFloat16:
      index = FirstNonFinite<uint16_t>(tensor, 0x7c00u);
      if (index >= 0)
        value = Float16ToFloat(Load<uint16_t>(tensor.data, index));
      break;
    case DType::kBFloat16:
      index = FirstNonFinite<uint16_t>(tensor, 0x7f80u);
      if (index >= 0) {
        value = BFloat16ToFloat(Load<uint16_t>(tensor.data, index));
      }
      break;
    case DType::kInt32:
      break;
  }
  if (index < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": tensor ", Quote(name), ": element ",
                   IndexText(tensor.shape, index), " is ", value,
                   "; expected finite numbers"));
}

}  // namespace recurve
