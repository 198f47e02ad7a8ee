#ifndef RECURVE_KERNELS_SEEDS_LRPE_LRPE_CUDA_H_
#define RECURVE_KERNELS_SEEDS_LRPE_LRPE_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/element_type.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// y = position(act(x)) for whole sequences on the GPU, as kernels/lrpe/lrpe.h.
// Every pointer is device memory; pointers and strides are multiples of 16
// bytes, the last dimension is dense. Arithmetic is in float32, and angles are
// reduced modulo a turn in 64-bit integers: cost and error do not grow with the
// position. A token's results depend on that token alone.
struct CudaLrpeParams {
  ElementType type;   // of x and y
  LrpeType position;  // kRotate or kCosine
  int64_t batch;
  int64_t length;     // tokens of each sequence; batch · length < 2³¹
  int64_t num_heads;  // H
  int64_t dim;        // D, a multiple of 8, at most 256

  // Strides in elements. x: [batch, length, H, D]; y: [batch, length, H, Dk]
  // with Dk = LrpeOutputDim(position, D). Must not overlap.
  const void* x;
  int64_t x_batch_stride;
  int64_t x_token_stride;
  int64_t x_head_stride;
  void* y;
  int64_t y_batch_stride;
  int64_t y_token_stride;
  int64_t y_head_stride;

  const uint64_t* phase_steps;  // [angles] of LrpePhaseSteps, or [H, angles]
  int64_t phase_head_stride;    // 0: one set of angles for all heads
  const int64_t* offsets;       // [batch] position of a sequence's first token

  Activation activation;  // kSoftmax is over the features of a head
};

// cudaErrorInvalidValue for a shape that the comments do not allow, or a
// pointer that is missing or not aligned.
cudaError_t LaunchLrpe(const CudaLrpeParams& params, cudaStream_t stream);

// The same with a softmax over the sequence as activation: each feature of each
// head is normalised over the tokens of its sequence. `activation` is not used.
// |x| is below 2e38, or x is −∞; results below the smallest normal number may
// be 0. x is read twice. `workspace` has LrpeSequenceWorkspaceBytes, was zeroed
// when it was allocated, and serves one launch at a time, all of one shape.
int64_t LrpeSequenceWorkspaceBytes(const CudaLrpeParams& params);
cudaError_t LaunchLrpeSequenceSoftmax(const CudaLrpeParams& params,
                                      void* workspace, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LRPE_LRPE_CUDA_H_
