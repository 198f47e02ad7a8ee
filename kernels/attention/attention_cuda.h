#ifndef RECURVE_KERNELS_ATTENTION_ATTENTION_CUDA_H_
#define RECURVE_KERNELS_ATTENTION_ATTENTION_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention/attention_layout.h"
#include "kernels/attention/decode/attention_plan.h"
#include "kernels/common/weight_type.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// Softmax attention on the GPU, over a paged cache of keys and values;
// kernels/attention/attention.h states the mathematics. Every pointer is to
// device memory. Launchers neither allocate nor synchronise and may be captured
// in a graph; values that change between steps are read from device memory, so
// the graph replays while contexts grow.

// Order of a page's elements, by their type.
constexpr AttentionPageOrder AttentionOrderOf(WeightType element) {
  return element == WeightType::kFloat32 ? AttentionPageOrder::kPlain
                                         : AttentionPageOrder::kOctets;
}

// The cache of one layer, in the layout of AttentionPageLayout(shape,
// AttentionOrderOf(element)).
struct AttentionCudaCache {
  WeightType element;
  void* pages;          // page p begins at pages + p · page_stride, 16-byte
                        // aligned
  int64_t page_stride;  // elements, a multiple of 8; >= page_elements
  const int32_t* page_table;  // [sequences, page_table_stride]
  int64_t page_table_stride;  // pages
};

// RMSNorm of each head: x · rsqrt(mean(x²) + eps) · weight.
struct AttentionCudaNorm {
  const float* weight;  // [D], the same for all heads; null: no norm
  float eps;            // added to the mean of squares
};

// Position of the rows of a launch.
struct AttentionCudaPosition {
  LrpeType type;     // kNone or kRotate
  const float* cos;  // [rows, D/2] of LrpeTable, unused for kNone
  const float* sin;
};

// Queries as decode reads them: with norm and position, times `scale` and
// log2(e), since weights are powers of two. For a 16-bit cache each group of 8
// query heads of a kv head is two terms of the cache's type that add up to
// them, in the order of tensor-core fragments (attention_decode.cuh); for a
// float32 cache, [tokens, H, D] float32.
RECURVE_HOST_DEVICE constexpr int64_t AttentionHeadOctets(
    const AttentionShape& shape) {
  return (AttentionGroup(shape) + 7) / 8;
}
RECURVE_HOST_DEVICE constexpr int64_t AttentionQueryBytes(
    const AttentionShape& shape, WeightType element, int64_t tokens) {
  return element == WeightType::kFloat32
             ? 4 * tokens * shape.num_heads * shape.head_dim
             : 32 * tokens * shape.num_kv_heads * AttentionHeadOctets(shape) *
                   shape.head_dim;
}

// Writes the keys and values of new tokens into their pages: norm and position
// on keys, then rounding to nearest. The same launch may form the tokens'
// queries for decode.
struct AttentionCudaAppendParams {
  AttentionShape shape;
  AttentionCudaCache cache;
  const int32_t* row_sequence;  // [rows] row of the page table
  const int64_t* positions;     // [rows] negative: padding, nothing is written
  int rows;
  const float* k;  // [rows, G, D], without position
  const float* v;  // [rows, G, E]
  int64_t stride;  // elements between rows of both
  AttentionCudaPosition position;
  AttentionCudaNorm k_norm;
  const float* q;        // [rows, H, D], without position; only where queries
                         // are formed
  int64_t query_stride;  // elements between rows
  AttentionCudaNorm q_norm;
  float scale;      // of scores; D^-1/2 as a rule
  void* queries;    // AttentionQueryBytes(shape, element, query_rows), 16-byte
                    // aligned
  int first_query;  // first row whose query is formed,
  int query_rows;   // and their number; may be 0
};
// cudaErrorInvalidValue for what the comments above rule out.
cudaError_t LaunchAttentionAppend(const AttentionCudaAppendParams& params,
                                  cudaStream_t stream);

// Where results go, and what they are multiplied by.
struct AttentionCudaOutput {
  WeightType type;      // kFloat32; or a 16-bit type, rounded once
  void* data;           // [rows, H, E], 16-byte aligned
  int64_t stride;       // elements between rows, a multiple of 8
  const float* gate;    // [rows, H, E]: results are multiplied by its sigmoid;
                        // 16-byte aligned; null: no gate
  int64_t gate_stride;  // elements between rows, a multiple of 4
};

// Whether the comments above hold.
bool AttentionOutputValid(const AttentionShape& shape,
                          const AttentionCudaOutput& out);

// One row, a token, attends to the first `length` tokens of its sequence, its
// own included, which have been appended. Rows of a length of 0 give zeros.
// Lengths and sequences are in the schedule.
struct AttentionCudaDecodeParams {
  AttentionShape shape;
  AttentionCudaCache cache;
  int rows;
  const void* queries;  // [rows] of LaunchAttentionAppend
  int fresh_tokens;  // tokens at the end of a row's length that may have been
                     // appended since the schedule was made. Pages without
                     // any are read while the previous launch still runs.
                     // INT32_MAX: read nothing that early
  AttentionCudaOutput out;
  void* schedule;  // a copy of MakeAttentionSchedule's, of the same plan and
                   // rows, 128-byte aligned. It and the page table are complete
                   // before the previous launch begins. Launches that share it
                   // must follow each other in one stream
  void* scratch;   // 256-byte aligned, uninitialised
  int64_t scratch_bytes;  // >= AttentionScratchBytes(plan, rows, stride of the
                          // page table)
};
// `plan` is PlanAttention's for this shape and element. cudaErrorInvalidValue
// for what the comments above rule out.
cudaError_t LaunchAttentionDecode(const AttentionCudaDecodeParams& params,
                                  const AttentionPlan& plan,
                                  cudaStream_t stream);

// The current device, for PlanAttention.
cudaError_t GetAttentionDevice(AttentionDevice* device);

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_ATTENTION_CUDA_H_
