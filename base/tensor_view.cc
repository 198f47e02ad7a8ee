#include "base/tensor_view.h"

#include <cstring>

namespace recurve {

float TensorView::Element(int64_t index) const {
  const char* p = static_cast<const char*>(data) + index * SizeOf(dtype);
  switch (dtype) {
    case DType::kFloat32: {
      float value;
      std::memcpy(&value, p, sizeof(value));
      return value;
    }
    case DType::kInt32: {
      int32_t value;
      std::memcpy(&value, p, sizeof(value));
      return static_cast<float>(value);
    }
    case DType::kFloat16:
    case DType::kBFloat16:
      break;
  }
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return dtype == DType::kBFloat16 ? BFloat16ToFloat(bits)
                                   : Float16ToFloat(bits);
}

}  // namespace recurve
