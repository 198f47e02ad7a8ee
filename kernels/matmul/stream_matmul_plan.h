// The forms of stream_matmul.cu and their shared memory. Pure functions of
// sizes.
#ifndef RECURVE_KERNELS_MATMUL_STREAM_MATMUL_PLAN_H_
#define RECURVE_KERNELS_MATMUL_STREAM_MATMUL_PLAN_H_

#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/matmul/decode_matmul_order.h"

namespace recurve {

// Maximum rows.
inline constexpr int kStreamRows = 8;

namespace stream_matmul {

inline constexpr int64_t kMaxShared = 227 * 1024;  // of a block on sm_90

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTileOutputs = 16;
inline constexpr int kStep = 64;                             // inputs
inline constexpr int kStepBytes = kTileOutputs * kStep * 2;  // of weights
inline constexpr int kSumBytes = kWarps * kTileOutputs * (kStreamRows + 1) * 4;

// Bytes between rows of x in shared memory: eight rows are read at a time
// without bank conflicts.
RECURVE_HOST_DEVICE constexpr int64_t RowBytes(int64_t inputs) {
  return (2 * inputs + 127) / 128 * 128 + 16;
}

// An instance of the kernel. kTileWarps warps of a block have tiles, with up to
// kStages steps in flight each; if that is fewer than all warps, one tile each.
// kBlocks blocks share a multiprocessor.
template <int kSplits_, int kRows_, int kTileWarps_, int kStages_,
          int kBlocks_ = 1>
struct Form {
  static constexpr int kSplits = kSplits_;  // of the inputs, one a warp; or 1
  static constexpr int kRows = kRows_;
  static constexpr int kTileWarps = kTileWarps_;
  static constexpr int kStages = kStages_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int64_t kMostShared =
      kBlocks == 1 ? kMaxShared : kMaxShared / kBlocks - 1024;
  static constexpr bool kOneTile = kSplits > 1 || kTileWarps < kWarps;

  // Stages of a warp's ring buffer: at most its number of steps.
  RECURVE_HOST_DEVICE static constexpr int Places(int64_t inputs) {
    const int64_t steps = (inputs + kStep - 1) / kStep;
    const int64_t most = kOneTile ? (steps + kSplits - 1) / kSplits : kStages;
    return most < kStages ? static_cast<int>(most) : kStages;
  }
  static constexpr int64_t SharedBytes(int64_t inputs, int64_t rows) {
    return kTileWarps * Places(inputs) * kStepBytes + kSumBytes +
           rows * RowBytes(inputs);
  }
};
// With one row, the ring buffer holds nearly all of a warp's weights, for
// matrices as wide as attention's or as tall as a channel mixer's: then none
// have to follow after the row has arrived. Five warps with one tile each
// suffice for 660 tiles of 16 outputs.
inline constexpr int kFewWarps = 5;
using PartsOfOneRow = Form<kDecodeMatmulMaxSplits, 1, kWarps, 10>;
// For more tiles than multiprocessors: up to twice as many blocks are there at
// once.
using PartsOfOneRowPaired = Form<kDecodeMatmulMaxSplits, 1, kWarps, 4, 2>;
using PartsOfRows = Form<kDecodeMatmulMaxSplits, kStreamRows, kWarps, 8>;
using FewOfOneRow = Form<1, 1, kFewWarps, 21>;
using ManyOfOneRow = Form<1, 1, kWarps, 8>;
using ManyOfRows = Form<1, kStreamRows, kWarps, 8>;

}  // namespace stream_matmul

// Whether rows of this many inputs fit into shared memory.
constexpr bool StreamMatmulFits(int64_t inputs, int64_t rows) {
  return rows <= kStreamRows && stream_matmul::ManyOfRows::SharedBytes(
                                    inputs, rows) <= stream_matmul::kMaxShared;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_STREAM_MATMUL_PLAN_H_
