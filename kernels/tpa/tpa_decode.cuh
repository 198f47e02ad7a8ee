// What the kernels of a decode step share: arguments, and who works on what.
#ifndef RECURVE_KERNELS_TPA_TPA_DECODE_CUH_
#define RECURVE_KERNELS_TPA_TPA_DECODE_CUH_

#include <cstdint>

#include "kernels/tpa/tpa_chunks.h"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {

struct TpaDecodeArgs {
  TpaCudaDecodeParams p;
  TpaPageLayout layout;
  TpaScratchLayout scratch;
  int max_length;   // of a row: what the page table holds
  int head_groups;  // groups of 16 heads
  int pairs;        // of new token and group
  int groups;       // pairs in a block
  int stages;
  int stage_bytes;
  bool split;  // rows are shared out over blocks (kParallelBn)
  bool bulk_copies;
};

// A wrong length must not lead outside the page table.
__device__ __forceinline__ int RowLength(const TpaDecodeArgs& args, int row) {
  return min(max(args.p.lengths[row], 0), args.max_length);
}

// Tokens that query `t` of a row of `length` tokens sees.
__device__ __forceinline__ int VisibleTokens(const TpaDecodeArgs& args,
                                             int length, int t) {
  return length - (args.p.new_tokens - 1 - t);
}

// A run of chunks, over rows: from chunk `first_chunk` of `first_row` up to but
// without chunk `last_chunk` of `last_row`.
struct TpaRange {
  int first_row;
  int first_chunk;
  int last_row;
  int last_chunk;

  __device__ int ChunkBegin(int row) const {
    return row == first_row ? first_chunk : 0;
  }
  __device__ int ChunkEnd(int row, int row_chunks) const {
    return row == last_row ? last_chunk : row_chunks;
  }
};

// The share of a block, from the lengths as they are now. Called by whole
// warps.
__device__ __forceinline__ TpaRange FindRange(const TpaDecodeArgs& args,
                                              int block, int blocks) {
  const int rows = args.p.rows;
  if (!args.split) return {block, 0, block + 1, 0};
  const int lane = threadIdx.x % 32;
  int tokens = 0;
  for (int row = lane; row < rows; row += 32) {
    tokens += (RowLength(args, row) + 63) / 64 * 64;
  }
  tokens = __reduce_add_sync(0xffffffffu, tokens);
  const int step = TpaStep(tokens, blocks);
  int found_row[2] = {rows, rows};
  int found_chunk[2] = {0, 0};
  int before = 0;
  for (int first = 0; first < rows; first += 32) {
    const int row = first + lane;
    const int length = row < rows ? RowLength(args, row) : 0;
    const int padded = (length + 63) / 64 * 64;
    int through = padded;  // tokens up to and with this row
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, through, offset);
      if (lane >= offset) through += other;
    }
    const int begin = before + through - padded;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t target = int64_t{block + i} * step;
      const bool here = target >= begin && target < begin + padded;
      int cut_row = row;
      int cut = 0;
      if (here) {
        const int position = min(static_cast<int>(target) - begin, length - 1);
        cut = TpaCutChunk(length, position, step / 8);
        if (cut == TpaChunkCount(length)) {
          ++cut_row;
          cut = 0;
        }
      }
      const uint32_t owner = __ballot_sync(0xffffffffu, here);
      if (owner != 0) {
        found_row[i] = __shfl_sync(0xffffffffu, cut_row, __ffs(owner) - 1);
        found_chunk[i] = __shfl_sync(0xffffffffu, cut, __ffs(owner) - 1);
      }
    }
    before += __shfl_sync(0xffffffffu, through, 31);
  }
  return {found_row[0], found_chunk[0], found_row[1], found_chunk[1]};
}

// In the table of where a chunk's partial result went: the row needs no merge.
inline constexpr int32_t kRowIsDone = -1;

// Merges the partial results of kParallelBn.
cudaError_t LaunchTpaMerge(const TpaDecodeArgs& args, bool dependent_launch,
                           cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_DECODE_CUH_
