#ifndef RECURVE_KERNELS_TPA_TPA_CUDA_H_
#define RECURVE_KERNELS_TPA_TPA_CUDA_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/weight_type.h"
#include "kernels/lrpe/lrpe.h"
#include "kernels/tpa/decode/tpa_plan.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

// Tensor product attention on the GPU, over a paged cache of 16-bit factors;
// kernels/tpa/tpa.h states the mathematics. Every pointer is to device memory.
// Launchers neither allocate nor synchronise and may be captured in a graph;
// values that change between steps are read from device memory, so the graph
// replays while contexts grow.

// Element type of a cache: tensor cores multiply it as it is.
enum class TpaElement { kBFloat16, kFloat16 };
constexpr WeightType TpaWeightType(TpaElement element) {
  return element == TpaElement::kBFloat16 ? WeightType::kBFloat16
                                          : WeightType::kFloat16;
}

// The cache of one layer, in the layout of TpaPageLayout(shape, kOctets).
struct TpaCudaCache {
  TpaElement element;
  void* pages;          // page p begins at pages + p · page_stride, 16-byte
                        // aligned
  int64_t page_stride;  // elements, a multiple of 8; >= page_elements
  const int32_t* page_table;  // [sequences, page_table_stride]
  int64_t page_table_stride;  // pages
};

// Forms the queries of new tokens, in the layout of tpa_layout.h for decode:
//
//   q[h] = (1/Rq) Σ_r A_q[r, h] · B_q[r]     (or whole queries where Rq is 0)
//
// with position, times D^-1/2, the 1/R of the keys, and log2(e), since decode's
// weights are powers of two. In float32, then two terms of the cache's type.
struct TpaCudaQueryParams {
  TpaShape shape;
  TpaElement element;  // of the cache
  int tokens;
  const float* a_q;   // [tokens, Rq, H]; unused where Rq is 0
  const float* b_q;   // [tokens, Rq, D], or [tokens, H, D] where Rq is 0
  int64_t stride;     // elements between tokens of both
  LrpeType position;  // kNone or kRotate
  const float* cos;   // [tokens, D/2] of LrpeTable, unused for kNone
  const float* sin;
  void* queries;  // TpaQueryBytes(shape, tokens), 16-byte aligned
};
// cudaErrorInvalidValue for what the comments above rule out.
cudaError_t LaunchTpaQueries(const TpaCudaQueryParams& params,
                             cudaStream_t stream);

// Factors of new tokens, a row each, as products write them.
struct TpaCudaFactors {
  const float* a_k;   // [rows, R, H]
  const float* b_k;   // [rows, R, D]
  const float* a_v;   // [rows, R, H]
  const float* b_v;   // [rows, R, E]
  int64_t stride;     // elements between rows of each of the four
  LrpeType position;  // kNone or kRotate
  const float* cos;   // [rows, D/2] of LrpeTable, unused for kNone
  const float* sin;
  Activation activation;  // of A_k and A_v; pointwise
  const float* a_q;       // [rows, ...] as in TpaCudaQueryParams
  const float* b_q;
  int64_t query_stride;  // elements between rows of both
};

// Writes the key and value factors of new tokens into their pages: activation
// on A_k and A_v, position on B_k, then rounding to nearest. The same launch
// may form the tokens' queries, as LaunchTpaQueries does.
struct TpaCudaAppendParams {
  TpaShape shape;
  TpaCudaCache cache;
  const int32_t* row_sequence;  // [rows] row of the page table
  const int64_t* positions;     // [rows] negative: padding, nothing is written
  int rows;
  TpaCudaFactors factors;  // a_q and b_q only where queries are formed
  void* queries;           // TpaQueryBytes(shape, query_rows), 16-byte aligned
  int first_query;         // first row whose query is formed,
  int query_rows;          // and their number; may be 0
};
// cudaErrorInvalidValue for what the comments above rule out.
cudaError_t LaunchTpaAppend(const TpaCudaAppendParams& params,
                            cudaStream_t stream);

// Whether launches of this plan take `rows` rows of a page table of this stride
// (in pages): 2^31 - 1 tokens together, and rows that a block can merge.
bool TpaDecodeHolds(const TpaDecodePlan& plan, int rows,
                    int64_t page_table_stride);

// Size of a schedule in bytes.
int64_t TpaScheduleBytes(const TpaDecodePlan& plan, int rows,
                         int64_t page_table_stride);

// One decode step: the last `new_tokens` tokens of each sequence attend to the
// tokens before them and to themselves. Query t of a sequence of `lengths`
// tokens sees the first lengths - new_tokens + 1 + t; one that sees none gives
// zeros, so a sequence with fewer new tokens puts its queries last. Sequences
// are rows of the page table.
//
// All tokens have been appended; or, where TpaDecodeAppends(), this launch
// appends the one new token of each row and forms the queries, to the bits of
// LaunchTpaAppend: one launch less.
struct TpaCudaDecodeParams {
  TpaShape shape;
  TpaCudaCache cache;
  int rows;
  int new_tokens;       // T, 1 to 8
  const void* queries;  // [rows, T]: LaunchTpaQueries', or LaunchTpaAppend's;
                        // nullptr: formed of `factors`, which are appended
  int fresh_tokens;     // tokens at the end of a row that may have been
                        // appended since the schedule was made. Pages without
                        // any are read while the previous launch still runs.
                        // INT32_MAX: read nothing that early. 1 for clusters
                        // that append: they read the new token's page early,
                        // too, and ignore its place
  WeightType out_type;  // kFloat32; or the cache's type, rounded once. out is
                        // then 8-byte aligned
  void* out;            // [rows, T, H, E] of that
  int64_t out_stride;   // elements between tokens
  void* schedule;       // a copy of MakeTpaSchedule's (tpa_schedule.h), of the
                        // same plan, page table and rows, 128-byte aligned. It
                        // and the page table are complete before the previous
                        // launch begins. Launches that share it must follow
                        // each other in one stream
  void* scratch;        // 256-byte aligned, uninitialised
  int64_t scratch_bytes;
  // Constant memory that the next launch reads, 16-byte aligned, or none (and
  // no bytes): blocks that have requested all their pages prefetch its first
  // kTpaNextBytes into L2. sm_90 only; not by clusters.
  const void* next = nullptr;
  int64_t next_bytes = 0;
  TpaCudaFactors factors = {};  // of the rows, if `queries` is nullptr; their
                                // activation is kNone
};
inline constexpr int64_t kTpaNextBytes = int64_t{16} << 20;

// Bytes of TpaCudaDecodeParams::scratch. Consecutive steps in a stream may
// share it.
int64_t TpaDecodeScratchBytes(const TpaCudaDecodeParams& params,
                              const TpaDecodePlan& plan);

// The current device, for PlanTpaDecode.
cudaError_t GetTpaDevice(TpaDevice* device);
// The same with 0 clusters, whose count needs a driver call. For every launch.
cudaError_t GetTpaAttributes(TpaDevice* device);

// `plan` is PlanTpaDecode's for this shape, rows and new tokens. In kParallelBn
// the blocks of a row wait for each other: all must fit the GPU at once, next
// to whatever occupies it permanently. cudaErrorInvalidValue for what the
// comments above rule out.
cudaError_t LaunchTpaDecode(const TpaCudaDecodeParams& params,
                            const TpaDecodePlan& plan, cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_CUDA_H_
