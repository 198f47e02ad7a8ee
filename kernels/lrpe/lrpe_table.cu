// Tables of cosines and sines of position · θ: one block a row, in double.
// Shapes: positions [T], angles [A]; cos and sin [T, A] float32.
// Floor: compute bound: T · A double sincos (with θ an exp, too); 8 T · A bytes
// written.
#include <cuda_bf16.h>

#include "kernels/lrpe/lrpe_table_cuda.h"

namespace recurve {
namespace {

constexpr int kThreads = 128;

// Grid: rows. Double, as on the CPU: made once a step.
__global__ void __launch_bounds__(kThreads)
    table_kernel(const __grid_constant__ CudaLrpeTableParams p) {
  const int64_t row = blockIdx.x;
  const int64_t position = max(p.positions[row], int64_t{0});
  for (int64_t k = threadIdx.x; k < p.angles; k += kThreads) {
    float c, s;
    if (p.phase_steps != nullptr) {
      // As a signed number the phase is within half a turn of 0.
      const auto phase = static_cast<int64_t>(p.phase_steps[k] *
                                              static_cast<uint64_t>(position));
      double wide_c, wide_s;
      sincospi(static_cast<double>(phase) * 0x1p-63, &wide_s, &wide_c);
      c = static_cast<float>(wide_c);
      s = static_cast<float>(wide_s);
    } else {
      const float angle = __fmul_rn(static_cast<float>(position), p.theta[k]);
      const auto decay = static_cast<float>(
          exp(static_cast<double>(__fmul_rn(fabsf(angle), p.log_decay))));
      double wide_c, wide_s;
      sincos(static_cast<double>(angle), &wide_s, &wide_c);
      c = static_cast<float>(wide_c);
      s = static_cast<float>(wide_s);
      if (p.round_to_bfloat16) {
        c = __bfloat162float(__float2bfloat16_rn(c));
        s = __bfloat162float(__float2bfloat16_rn(s));
      }
      c = __fmul_rn(c, decay);
      s = __fmul_rn(s, decay);
    }
    p.cos[row * p.angles + k] = c;
    p.sin[row * p.angles + k] = s;
  }
}

}  // namespace

cudaError_t LaunchLrpeTable(const CudaLrpeTableParams& p, cudaStream_t stream) {
  if (p.rows < 0 || p.rows > INT32_MAX || p.angles < 0 ||
      (p.angles > 0 && p.phase_steps == nullptr && p.theta == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (p.rows == 0 || p.angles == 0) return cudaSuccess;
  table_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace recurve
