#ifndef RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_CUDA_H_
#define RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_cuda.h"
#include "kernels/attention/prefill/attention_prefill_plan.h"

namespace recurve {

// Softmax attention of many new tokens of each row at once, causal;
// kernels/attention/attention.h states the mathematics. The pages hold the keys
// and values of all tokens of a row, the new ones included
// (LaunchAttentionAppend runs before): the new tokens may be a whole prompt, or
// a later chunk of one.
//
// Every pointer is to device memory. Launchers neither allocate nor synchronise
// and may be captured in a graph; lengths, tokens of each row and pages are
// read from device memory.
//
// 16-bit caches on sm_90 take tensor cores: queries and weights are rounded to
// the cache's type; sums and the softmax are float32. In float16 no query,
// times the scale and log2(e), may be beyond 65504; weights are up to 8.
// Float32 caches, and other GPUs, take plain arithmetic, which is slow.
//
// Exactness: a token's bits depend on its row's keys and values and its own
// query and position alone, not on the batch or the chunks of a prompt. (They
// are not those of LaunchAttentionDecode, which does not round queries.)

// Shares out the work, by lengths in device memory. Once a step, for all its
// layers of the same plan.
struct AttentionPrefillScheduleParams {
  // Row b has new tokens query_start[b] ... query_start[b + 1] of the launch,
  // possibly none, and they are the last of its lengths[b] tokens. A row with
  // more new tokens than tokens, or beyond the plan's limits, is skipped.
  const int32_t* query_start;   // [max_rows + 1]
  const int32_t* lengths;       // [max_rows]
  const int32_t* row_sequence;  // [max_rows] row of the page table, or null:
                                // its own
  void* schedule;               // plan.schedule_bytes, 128-byte aligned,
                                // uninitialised
};
cudaError_t LaunchAttentionPrefillSchedule(
    const AttentionPrefillScheduleParams& params,
    const AttentionPrefillPlan& plan, cudaStream_t stream);

struct AttentionPrefillParams {
  AttentionShape shape;
  AttentionCudaCache cache;
  const float* q;                  // [tokens, H, D], without position
  int64_t stride;                  // elements between tokens
  AttentionCudaPosition position;  // of the tokens
  AttentionCudaNorm norm;          // of queries
  float scale;                     // of scores; D^-1/2 as a rule
  AttentionCudaOutput out;         // of the tokens
  void* schedule;  // LaunchAttentionPrefillSchedule's, of the same plan.
                   // Launches that share it must follow each other in one
                   // stream
  void* scratch;   // plan.scratch_bytes, 128-byte aligned, uninitialised
};
// cudaErrorInvalidValue for what the comments rule out or a plan of another
// shape or element.
cudaError_t LaunchAttentionPrefill(const AttentionPrefillParams& params,
                                   const AttentionPrefillPlan& plan,
                                   cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_CUDA_H_
