#ifndef RECURVE_ENGINE_CHECKPOINT_CHECK_FINITE_H_
#define RECURVE_ENGINE_CHECKPOINT_CHECK_FINITE_H_

#include <string>

#include "absl/status/status.h"
#include "base/tensor_view.h"

namespace recurve {

// An error that names file, tensor, index and value of the first infinity or
// NaN, in row-major order. OK for integer tensors. The data may be unaligned.
absl::Status CheckFinite(const TensorView& tensor, const std::string& name,
                         const std::string& file);

// As CheckFinite, for the first element that is an infinity or a NaN after
// rounding to `dtype`, a floating-point type.
absl::Status CheckFiniteAs(DType dtype, const TensorView& tensor,
                           const std::string& name, const std::string& file);

}  // namespace recurve

#endif  // RECURVE_ENGINE_CHECKPOINT_CHECK_FINITE_H_
