#ifndef RECURVE_KERNELS_TPA_TPA_H_
#define RECURVE_KERNELS_TPA_TPA_H_

#include <cstdint>

#include "kernels/common/activation.h"
#include "kernels/common/paged_cache.h"
#include "kernels/lrpe/lrpe.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {

class ThreadPool;

// Tensor product attention (Zhang et al., 2025) over a paged cache of factors.
// For a token m, keys and values of head h exist only as sums of rank R:
//
//   k[m,h] = (1/R) Σ_r A_k[m,r,h] · B_k[m,r]     v[m,h] likewise
//   q[h]   = (1/Rq) Σ_r A_q[r,h] · B_q[r]       or whole, as projected
//   o[h]   = Σ_m softmax_m(D^-1/2 · q[h]·k[m,h]) · v[m,h]
//
// B_q and B_k carry the position (LRPE rotate, or none).

// Writes the key and value factors of new tokens into their pages, with the
// position applied to B_k and the activation to A_k and A_v.
struct TpaAppendParams {
  TpaShape shape;
  PagedCacheView cache;
  const float* a_k;   // [rows, R, H]
  const float* b_k;   // [rows, R, D]
  const float* a_v;   // [rows, R, H]
  const float* b_v;   // [rows, R, E]
  int64_t stride;     // elements between rows of each of the four
  LrpeType position;  // kNone or kRotate
  const float* cos;   // [rows, D/2] of LrpeTable, unused for kNone
  const float* sin;
  Activation activation;  // of A_k and A_v; softmax over all R·H of them
};
void TpaAppend(const TpaAppendParams& params, ThreadPool& pool);

// Attends from each row to the tokens 0 ... positions[row] of its sequence,
// which must have been appended.
//
// The context is cut into chunks of one page. Each chunk gives a partial result
// with its own maximum; partials merge in page order in float32. Only the row's
// position decides the cuts, so a row's bits do not depend on the batch.
struct TpaAttendParams {
  TpaShape shape;
  PagedCacheView cache;
  const float* a_q;  // [rows, Rq, H]; unused when Rq is 0
  const float* b_q;  // [rows, Rq, D], without position; [rows, H, D] for Rq 0
  int64_t stride;    // elements between rows of both
  LrpeType position;
  const float* cos;
  const float* sin;
  float* out;  // [rows, H, E]
  int64_t out_stride;
};
void TpaAttend(const TpaAttendParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_H_
