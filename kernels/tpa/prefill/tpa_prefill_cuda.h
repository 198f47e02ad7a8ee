#ifndef RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_CUDA_H_
#define RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/element_type.h"
#include "kernels/lrpe/lrpe.h"
#include "kernels/tpa/prefill/tpa_prefill_plan.h"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {

// Tensor product attention of many new tokens of each row at once, on a GPU of
// compute capability 9.0; kernels/tpa/tpa.h states the mathematics. The pages
// hold the factors of all tokens of a row, the new ones included
// (LaunchTpaAppend runs before): the new tokens may be a whole prompt, or a
// later chunk of one.
//
// Every pointer is to device memory. Launchers neither allocate nor synchronise
// and may be captured in a graph; lengths, tokens of each row and pages are
// read from device memory.
//
// Precision: queries, weights, K_h and V_h are rounded to the cache's 16-bit
// type; sums and the softmax are float32. In float16 none of these may be
// beyond 65504; weights are up to 8.
//
// Exactness: a token's bits depend on its row's factors and its own query and
// position alone, not on the batch, the chunks of a prompt or the heads that
// share scratch memory. (They are not those of LaunchTpaDecode, which does not
// round queries.)

// Shares out the work, by lengths in device memory. Once a step, for all its
// layers of the same plan.
struct TpaPrefillScheduleParams {
  // Row b has new tokens query_start[b] ... query_start[b + 1] of the launch,
  // possibly none, and they are the last of its lengths[b] tokens. A row with
  // more new tokens than tokens, or beyond the plan's limits, is skipped.
  const int32_t* query_start;  // [max_rows + 1]
  const int32_t* lengths;      // [max_rows]
  void* schedule;              // plan.schedule_bytes, 128-byte aligned,
                               // uninitialised
};
cudaError_t LaunchTpaPrefillSchedule(const TpaPrefillScheduleParams& params,
                                     const TpaPrefillPlan& plan,
                                     cudaStream_t stream);

struct TpaPrefillParams {
  TpaShape shape;
  TpaCudaCache cache;  // row b of its page table is row b of the launch
  const float* a_q;    // [tokens, Rq, H]; unused where Rq is 0
  const float* b_q;    // [tokens, Rq, D], or [tokens, H, D] where Rq is 0;
                       // without position
  int64_t stride;      // elements between tokens of both
  LrpeType position;   // kNone or kRotate
  const float* cos;    // [tokens, D/2]
  const float* sin;
  ElementType out_type;
  void* out;           // [tokens, H, E], 16-byte aligned
  int64_t out_stride;  // elements between tokens; a multiple of 8
  void* schedule;      // LaunchTpaPrefillSchedule's, of the same plan. Launches
                       // that share it must follow each other in one stream.
  void* scratch;       // plan.scratch_bytes, 128-byte aligned, uninitialised
};

// cudaErrorInvalidValue for what the comments rule out or a plan of another
// shape; cudaErrorNotSupported on a device of compute capability other than
// 9.0.
cudaError_t LaunchTpaPrefill(const TpaPrefillParams& params,
                             const TpaPrefillPlan& plan, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_CUDA_H_
