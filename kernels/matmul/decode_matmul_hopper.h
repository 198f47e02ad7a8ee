// Launchers of the sm_90a kernels that decode_matmul.cu dispatches to, after
// checking parameters; `multiprocessors` are the device's.
#ifndef RECURVE_KERNELS_MATMUL_DECODE_MATMUL_HOPPER_H_
#define RECURVE_KERNELS_MATMUL_DECODE_MATMUL_HOPPER_H_

#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/matmul/stream_matmul_plan.h"

namespace recurve {

// At most kStreamRows rows for which StreamMatmulFits, 16-bit or float32.
cudaError_t LaunchStreamMatmul(const DecodeMatmulParams& params,
                               int multiprocessors, cudaStream_t stream);

// 16-bit x, any number of rows; fuses only the gate. Passes many rows, and any
// of a matrix in parts with many outputs, to LaunchWideMatmul.
cudaError_t LaunchTileMatmul(const DecodeMatmulParams& params,
                             int multiprocessors, cudaStream_t stream);
cudaError_t LaunchWideMatmul(const DecodeMatmulParams& params,
                             int multiprocessors, cudaStream_t stream);

// At least kGatedLeastRows 16-bit rows, a matrix not in parts, a silu gate, and
// 16-bit results in rows aligned to 16 bytes.
bool GatedMatmulTakes(const DecodeMatmulParams& params);
cudaError_t LaunchGatedMatmul(const DecodeMatmulParams& params,
                              int multiprocessors, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_MATMUL_HOPPER_H_
