#include <cuda_runtime_api.h>

#include "kernels/tpa/tpa_cuda.h"
#include "kernels/tpa/tpa_schedule.h"

namespace recurve {
namespace {

constexpr int kThreads = 1024;

struct Args {
  TpaCudaScheduleParams p;
  TpaScheduleLayout layout;
  int max_length;  // of a row: what the page table holds
  int blocks;
  int counters;
  bool split;     // rows are shared out over blocks (kParallelBn)
  bool clusters;  // which are clusters, one a row
};

// ----------------------------------------------------------------------------
// CUDA kernels

// A wrong length must not lead outside the page table.
__device__ int RowLength(const Args& args, int row) {
  return min(max(args.p.lengths[row], 0), args.max_length);
}

// Sums before each of values [0, count), in place; values[count] becomes the
// sum of all. By the whole block.
__device__ void PrefixSums(int* values, int count) {
  __shared__ int warp_sums[kThreads / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int share = (count + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * share, count);
  const int end = min(begin + share, count);
  __syncthreads();
  int own = 0;
  for (int i = begin; i < end; ++i) own += values[i];
  int through = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, through, offset);
    if (lane >= offset) through += other;
  }
  if (lane == 31) warp_sums[warp] = through;
  __syncthreads();
  int before = through - own;
  for (int i = 0; i < warp; ++i) before += warp_sums[i];
  for (int i = begin; i < end; ++i) {
    const int value = values[i];
    values[i] = before;
    before += value;
  }
  if (threadIdx.x == kThreads - 1) values[count] = before;
  __syncthreads();
}

// How the launch's work is shared out (tpa_chunks.h).
struct Sharing {
  int share;      // tokens, where rows have blocks of their own; else 0
  int rows_each;  // where blocks have whole rows; else 0
};

// The best for these lengths. By the whole block.
__device__ Sharing ChooseSharing(const Args& args, const int* row_begin) {
  __shared__ int counts[kTpaShares];
  __shared__ int loads[kTpaShares];
  __shared__ int best;     // the least share that suffices
  __shared__ int whole;    // tokens, at most, of a block that has whole rows
  __shared__ int longest;  // tokens of a row
  const int rows = args.p.rows;
  const int tokens = row_begin[rows];
  const int thread = static_cast<int>(threadIdx.x);
  const int rows_each = (rows + args.blocks - 1) / args.blocks;
  if (thread < kTpaShares) counts[thread] = loads[thread] = 0;
  if (thread == 0) {
    best = kTpaShares;
    whole = longest = 0;
  }
  __syncthreads();
  if (rows_each == 1) {
    const int i = thread % kTpaShares;
    const int share = TpaShare(tokens, args.blocks, i);
    int count = 0;
    int load = 0;
    int most = 0;
    for (int row = thread / kTpaShares; row < rows;
         row += kThreads / kTpaShares) {
      const int length = RowLength(args, row);
      const int blocks = TpaRowBlocks(length, share);
      count += blocks;
      load = max(load, TpaRowLoad(length, blocks));
      most = max(most, length);
    }
    atomicAdd(&counts[i], count);
    atomicMax(&loads[i], load);
    if (i == 0) atomicMax(&longest, most);
  } else {
    int load = 0;
    for (int row = thread * rows_each; row < rows; row += kThreads * rows_each)
      load = max(load, row_begin[min(row + rows_each, rows)] - row_begin[row]);
    if (load > 0) atomicMax(&whole, load);
  }
  __syncthreads();
  const int line = TpaLineLoad(TpaStep(tokens, args.blocks));
  if (rows_each > 1) return {0, whole < line ? rows_each : 0};
  if (thread < kTpaShares && counts[thread] <= args.blocks)
    atomicMin(&best, thread);
  __syncthreads();
  // No block has less than a chunk, however short its piece of the line is: it
  // would have that or nothing, and the row more blocks than it needs.
  if (best == kTpaShares ||
      (loads[best] >= line && loads[best] > TpaLastChunk(longest))) {
    return {0, 0};
  }
  return {TpaShare(tokens, args.blocks, best), 0};
}

// The last of `count` values that is at most `target`: there is one.
__device__ int LastAtMost(const int* values, int count, int target) {
  int low = 0;
  int high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (values[middle] <= target) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Rows up to the last one with tokens. Those behind it, of which a padded batch
// may have as many again, are no block's: each would cost the block that has
// the last tokens a read of its length.
__device__ int UsedRows(const Args& args, const int* row_begin) {
  const int rows = args.p.rows;
  const int tokens = row_begin[rows];
  return tokens == 0 ? 0 : LastAtMost(row_begin, rows, tokens - 1) + 1;
}

// Row and chunk where block i begins. `row_block`: the first block of each row,
// where rows have blocks of their own.
__device__ int2 Cut(const Args& args, const Sharing& sharing, int used_rows,
                    const int* row_begin, const int* row_block, int i) {
  const int rows = args.p.rows;
  if (i == 0) return {0, 0};
  if (args.clusters) {
    const int row = i / kTpaClusterBlocks;
    if (row >= used_rows) return {used_rows, 0};
    const int chunks = TpaChunkCount(RowLength(args, row));
    const int chunk = TpaClusterFirst(chunks, i % kTpaClusterBlocks);
    if (chunk > 0 && chunk >= chunks) return {row + 1, 0};
    return {row, chunk};
  }
  if (sharing.rows_each > 0) {
    return {static_cast<int>(min(int64_t{i} * sharing.rows_each,
                                 static_cast<int64_t>(used_rows))),
            0};
  }
  int row, chunk;
  if (sharing.share > 0) {
    if (i >= row_block[rows]) return {used_rows, 0};
    // The last row that begins at or before the block: it has tokens.
    row = LastAtMost(row_block, rows, i);
    const int first = row_block[row];
    if (i == first) return {row, 0};
    chunk =
        TpaRowCut(RowLength(args, row), row_block[row + 1] - first, i - first);
  } else {
    const int tokens = row_begin[rows];
    const int step = TpaStep(tokens, args.blocks);
    const int64_t target = int64_t{i} * step;
    if (target >= tokens) return {used_rows, 0};
    row = LastAtMost(row_begin, rows, static_cast<int>(target));
    const int length = RowLength(args, row);
    const int position =
        min(static_cast<int>(target) - row_begin[row], length - 1);
    chunk = TpaCutChunk(length, position, step / 8);
  }
  if (chunk == TpaChunkCount(RowLength(args, row))) return {row + 1, 0};
  return {row, chunk};
}

// Calls `visit(row, length, begin, end)` for each row of a block's share, with
// the chunks the block attends to; begin == end for a row without tokens.
template <typename Visit>
__device__ void ForEachRow(const Args& args, int2 from, int2 to,
                           const Visit& visit) {
  for (int row = from.x; row <= to.x && row < args.p.rows; ++row) {
    if (row == to.x && to.y == 0) break;
    const int length = RowLength(args, row);
    const int begin = row == from.x ? from.y : 0;
    const int end = row == to.x ? to.y : TpaChunkCount(length);
    visit(row, length, begin, end);
  }
}

__global__ void __launch_bounds__(kThreads)
    tpa_schedule_kernel(const __grid_constant__ Args args) {
  extern __shared__ int memory[];
  const int rows = args.p.rows;
  int* row_begin = memory;                 // [rows + 1] tokens, by whole pages
  int* slots = row_begin + rows + 1;       // [blocks + 1]
  int* cut_row = slots + args.blocks + 1;  // [blocks + 1], if split
  int* cut_chunk = cut_row + args.blocks + 1;    // [blocks + 1]
  int* row_block = cut_chunk + args.blocks + 1;  // [blocks + 1]
  char* out = static_cast<char*>(args.p.schedule);
  auto* blocks = reinterpret_cast<TpaBlockWork*>(out + args.layout.block_work);
  auto* row_work = reinterpret_cast<TpaRowWork*>(out + args.layout.row_work);
  auto* counters = reinterpret_cast<uint32_t*>(out + args.layout.counters);
  auto* partial_chunk =
      reinterpret_cast<int32_t*>(out + args.layout.partial_chunk);
  for (int i = threadIdx.x; i < args.counters; i += kThreads) counters[i] = 0;
  for (int row = threadIdx.x; row < rows; row += kThreads) {
    row_begin[row] = (RowLength(args, row) + 63) / 64 * 64;
  }
  PrefixSums(row_begin, rows);
  const int used_rows = UsedRows(args, row_begin);
  for (int row = used_rows + static_cast<int>(threadIdx.x); row < rows;
       row += kThreads) {
    row_work[row] = {};
  }
  if (args.split) {
    const Sharing sharing =
        args.clusters ? Sharing{} : ChooseSharing(args, row_begin);
    if (sharing.share > 0) {
      for (int row = threadIdx.x; row < rows; row += kThreads)
        row_block[row] = TpaRowBlocks(RowLength(args, row), sharing.share);
      PrefixSums(row_block, rows);
    }
    for (int i = threadIdx.x; i <= args.blocks; i += kThreads) {
      const int2 cut = Cut(args, sharing, used_rows, row_begin, row_block, i);
      cut_row[i] = cut.x;
      cut_chunk[i] = cut.y;
    }
    __syncthreads();
  }
  // Where block i begins.
  const auto begin_of = [&](int i) -> int2 {
    return args.split ? int2{cut_row[i], cut_chunk[i]} : int2{i, 0};
  };
  for (int i = threadIdx.x; i < args.blocks; i += kThreads) {
    int count = 0;
    ForEachRow(args, begin_of(i), begin_of(i + 1),
               [&](int, int length, int begin, int end) {
                 count += TpaPartialCount(begin, end, TpaChunkCount(length));
               });
    slots[i] = count;
  }
  PrefixSums(slots, args.blocks);
  // A row's first block notes its begin, its last block its end.
  for (int i = threadIdx.x; i < args.blocks; i += kThreads) {
    int slot = slots[i];
    ForEachRow(args, begin_of(i), begin_of(i + 1),
               [&](int row, int length, int begin, int end) {
                 const int row_chunks = TpaChunkCount(length);
                 TpaRowWork& work = row_work[row];
                 if (begin == 0) {
                   work.length = length;
                   work.first_slot = slot;
                   work.first_block = i;
                 }
                 for (int chunk = begin; chunk < end;) {
                   partial_chunk[slot++] = chunk;
                   chunk = TpaPartialEnd(chunk, begin, end, row_chunks);
                 }
                 if (end == row_chunks) {
                   work.end_slot = slot;
                   // All of a cluster work to its end.
                   work.last_block =
                       args.clusters ? (row + 1) * kTpaClusterBlocks - 1 : i;
                 }
               });
  }
  __syncthreads();
  for (int i = threadIdx.x; i < args.blocks; i += kThreads) {
    const int2 from = begin_of(i);
    const int2 to = begin_of(i + 1);
    TpaBlockWork work = {};
    work.first_row = from.x;
    work.first_chunk = from.y;
    work.last_row = to.x;
    work.last_chunk = to.y;
    work.first_slot = slots[i];
    work.behind_page = -1;
    if (from.x < rows) work.first = row_work[from.x];
    const int last = to.y > 0 ? to.x : to.x - 1;
    if (last >= 0) work.last = row_work[last];
    if (from.x < rows) {
      const int row_chunks = TpaChunkCount(work.first.length);
      const int end = from.x == to.x ? to.y : row_chunks;
      const int first_page = TpaChunkBegin(from.y) / 64;
      const int last_page =
          (min(TpaChunkBegin(end), work.first.length) + 63) / 64;
      if (from.y < end) {
        work.behind_page = max(work.first.length - 64 * (first_page + 1), -1);
      }
      const int32_t* table =
          args.p.page_table + from.x * args.p.page_table_stride;
#pragma unroll
      for (int j = 0; j < kTpaEarlyPages; ++j) {
        if (first_page + j < last_page) work.pages[j] = table[first_page + j];
      }
    }
    blocks[i] = work;
  }
  // The decode kernel reads this, and the page table, before it waits for the
  // launch in front of it. It may, since this launch lets nothing that depends
  // on it begin before its end (no LaunchDependents here), and by then what it
  // has written is there.
  __threadfence();
}

}  // namespace

// ----------------------------------------------------------------------------
// Launchers

cudaError_t LaunchTpaSchedule(const TpaCudaScheduleParams& params,
                              const TpaDecodePlan& plan, cudaStream_t stream) {
  if (params.rows == 0) return cudaSuccess;
  const int64_t max_length = kTpaPageTokens * params.page_table_stride;
  const bool split = plan.form == TpaDecodeForm::kParallelBn;
  if (params.rows < 0 || params.rows > kTpaMaxRows || plan.blocks <= 0 ||
      (!split && plan.blocks != params.rows) ||
      (plan.cluster_blocks > 0 &&
       plan.blocks != params.rows * kTpaClusterBlocks) ||
      max_length * params.rows > INT32_MAX ||
      reinterpret_cast<uintptr_t>(params.schedule) % 128 != 0) {
    return cudaErrorInvalidValue;
  }
  const TpaScheduleLayout layout =
      TpaScheduleParts(plan, params.rows, max_length);
  if (params.schedule_bytes < layout.bytes) return cudaErrorInvalidValue;
  const Args args = {params,
                     layout,
                     static_cast<int>(max_length),
                     plan.blocks,
                     params.rows * plan.head_blocks,
                     split,
                     plan.cluster_blocks > 0};
  const int bytes = 4 * (params.rows + 1 + (split ? 4 : 1) * (plan.blocks + 1));
  const cudaError_t error = cudaFuncSetAttribute(
      tpa_schedule_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  tpa_schedule_kernel<<<1, kThreads, bytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace recurve
