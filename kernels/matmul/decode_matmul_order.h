#ifndef RECURVE_KERNELS_MATMUL_DECODE_MATMUL_ORDER_H_
#define RECURVE_KERNELS_MATMUL_DECODE_MATMUL_ORDER_H_

#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// The order of sums of decode_matmul_cuda.h on Hopper, for any rows: inputs are
// cut into DecodeMatmulSplits() neighbouring parts; a part is a chain of tensor
// core steps of 16 neighbouring inputs, ascending, from 0; the parts' sums are
// added in order. mma.sync and wgmma of any width give the same bits for a
// step, with rows and weights as either operand; gpu_matmul_test checks that on
// the device.
//
// The matrix's sizes alone decide. Matrices with many outputs have enough work
// for all multiprocessors without cutting their inputs; so have those with
// 4,096 to 8,191 if they have fewer inputs, and a chain of these is short.
inline constexpr int kDecodeMatmulMaxSplits = 8;
RECURVE_HOST_DEVICE constexpr int DecodeMatmulSplits(int64_t outputs,
                                                     int64_t inputs) {
  return outputs < 4096 || (outputs < 8192 && outputs <= inputs)
             ? kDecodeMatmulMaxSplits
             : 1;
}
// First input of part `split`, a multiple of 64; for `splits`, the end of the
// last part.
RECURVE_HOST_DEVICE constexpr int DecodeMatmulSplitBegin(int inputs, int splits,
                                                         int split) {
  return split == splits ? inputs : (inputs + 63) / 64 * split / splits * 64;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_DECODE_MATMUL_ORDER_H_
