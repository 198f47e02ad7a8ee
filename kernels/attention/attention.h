#ifndef RECURVE_KERNELS_ATTENTION_ATTENTION_H_
#define RECURVE_KERNELS_ATTENTION_ATTENTION_H_

#include <cstdint>

#include "kernels/attention/attention_layout.h"
#include "kernels/common/paged_cache.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

class ThreadPool;

// Softmax attention (Vaswani et al., 2017) over a paged cache of keys and
// values, with as many or fewer key-value heads than query heads:
//
//   g    = h / (H / G)
//   o[h] = Σ_m softmax_m(scale · q[h]·k[m,g]) · v[m,g]
//
// q and k carry the position (LRPE rotate, or none; an angle that is always 0
// leaves its pair of features alone). Before that, each head of them may be
// normalised, and each element of o may be multiplied by a gate.

// RMSNorm of each head: x · rsqrt(mean(x²) + eps) · weight.
struct AttentionNorm {
  const float* weight;  // [D], the same for all heads; null: no norm
  float eps;            // added to the mean of squares
};

// Writes the keys and values of new tokens into their pages: the norm, then the
// position applied to keys.
struct AttentionAppendParams {
  AttentionShape shape;
  PagedCacheView cache;
  const float* k;     // [rows, G, D], without position
  const float* v;     // [rows, G, E]
  int64_t stride;     // elements between rows of both
  LrpeType position;  // kNone or kRotate
  const float* cos;   // [rows, D/2] of LrpeTable, unused for kNone
  const float* sin;
  AttentionNorm norm;  // of keys
};
void AttentionAppend(const AttentionAppendParams& params, ThreadPool& pool);

// Attends from each row to the tokens 0 ... positions[row] of its sequence,
// which must have been appended. A row of position -1 gives zeros.
//
// The context is cut into chunks of one page. Each chunk gives a partial result
// with its own maximum; partials merge in page order in float32. Only the row's
// position decides the cuts, so a row's bits do not depend on the batch.
struct AttentionAttendParams {
  AttentionShape shape;
  PagedCacheView cache;
  const float* q;     // [rows, H, D], without position
  int64_t stride;     // elements between rows
  float scale;        // of scores; D^-1/2 as a rule
  LrpeType position;  // kNone or kRotate
  const float* cos;   // [rows, D/2] of LrpeTable, unused for kNone
  const float* sin;
  AttentionNorm norm;   // of queries
  const float* gate;    // [rows, H, E]: out is multiplied by its sigmoid; null:
                        // no gate
  int64_t gate_stride;  // elements between rows
  float* out;           // [rows, H, E]
  int64_t out_stride;
};
void AttentionAttend(const AttentionAttendParams& params, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_ATTENTION_H_
