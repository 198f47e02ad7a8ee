#ifndef RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_LIMITS_H_
#define RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_LIMITS_H_

#include <cstdint>

namespace recurve {

// The largest sizes that the scan on the GPU takes.
inline constexpr int64_t kLinearScanMaxKeyDim = 512;  // LrpeOutputDim
inline constexpr int64_t kLinearScanMaxValueDim = 1024;

}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_SCAN_LINEAR_SCAN_LIMITS_H_
