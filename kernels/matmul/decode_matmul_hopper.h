// Launchers of the kernels for sm_90a, which decode_matmul.cu chooses from.
// Parameters are checked there; `multiprocessors` are the device's.
#ifndef RECURVE_KERNELS_MATMUL_DECODE_MATMUL_HOPPER_H_
#define RECURVE_KERNELS_MATMUL_DECODE_MATMUL_HOPPER_H_

#include "kernels/matmul/decode_matmul_cuda.h"

namespace recurve {

inline constexpr int kStreamRows = 8;

// Rows that fit a block's shared memory beside the ring of weights.
bool StreamMatmulFits(int64_t inputs, int64_t rows);
// At most kStreamRows rows that fit, 16-bit or float32.
cudaError_t LaunchStreamMatmul(const DecodeMatmulParams& params,
                               int multiprocessors, cudaStream_t stream);

// 16-bit x, any number of rows; nothing fused but the gate. Gives many rows to
// LaunchWideMatmul.
cudaError_t LaunchTileMatmul(const DecodeMatmulParams& params,
                             int multiprocessors, cudaStream_t stream);
cudaError_t LaunchWideMatmul(const DecodeMatmulParams& params,
                             int multiprocessors, cudaStream_t stream);

// At least kGatedLeastRows rows of 16 bits, of a matrix that is not in parts,
// with a gate of silu whose results are of 16 bits, rows of them 16 bytes
// aligned.
bool GatedMatmulTakes(const DecodeMatmulParams& params);
cudaError_t LaunchGatedMatmul(const DecodeMatmulParams& params,
                              int multiprocessors, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_MATMUL_HOPPER_H_
