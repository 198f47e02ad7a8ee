#ifndef RECURVE_KERNELS_SHORT_CONV_SHORT_CONV_CUDA_H_
#define RECURVE_KERNELS_SHORT_CONV_SHORT_CONV_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/short_conv/short_conv.h"

namespace recurve {

// short_conv.h on the GPU, for prompts and for single tokens. Every pointer is
// device memory. A token's bits depend on its sequence alone.
struct CudaShortConvParams {
  // x, y and states are 16-byte aligned; C and the strides multiples of 16
  // bytes. Slot 0 is the sink: its rows read and write no state, and their y
  // is 0.
  ShortConvParams of;
  int64_t rows;          // of all sequences, at most
  const int32_t* live;   // [1] sequences in use, null: all
  const int32_t* fresh;  // [sequences] not 0: inputs before the first token are
                         // zero, and the slot is not read. Null: none is.
};

// A dependent launch. cudaErrorInvalidValue for sizes that the comments do not
// allow, or a pointer that is missing or not aligned.
cudaError_t LaunchShortConv(const CudaShortConvParams& params,
                            cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_SHORT_CONV_SHORT_CONV_CUDA_H_
