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
  bool split;  // rows are shared out over blocks (kParallelBn)
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

// Row and chunk where block i begins.
__device__ int2 Cut(const Args& args, const int* row_begin, int i) {
  const int rows = args.p.rows;
  if (!args.split) return {i, 0};
  const int tokens = row_begin[rows];
  const int step = TpaStep(tokens, args.blocks);
  const int64_t target = int64_t{i} * step;
  if (i == 0) return {0, 0};
  if (target >= tokens) return {rows, 0};
  // The last row that begins at or before the target: it has tokens there.
  int low = 0;
  int high = rows - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (row_begin[middle] <= target) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int length = RowLength(args, low);
  const int position =
      min(static_cast<int>(target) - row_begin[low], length - 1);
  const int chunk = TpaCutChunk(length, position, step / 8);
  if (chunk == TpaChunkCount(length)) return {low + 1, 0};
  return {low, chunk};
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
  int* row_begin = memory;            // [rows + 1] tokens, by whole pages
  int* slots = row_begin + rows + 1;  // [blocks + 1]
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
  for (int i = threadIdx.x; i < args.blocks; i += kThreads) {
    int count = 0;
    ForEachRow(args, Cut(args, row_begin, i), Cut(args, row_begin, i + 1),
               [&](int, int length, int begin, int end) {
                 count += TpaPartialCount(begin, end, TpaChunkCount(length));
               });
    slots[i] = count;
  }
  PrefixSums(slots, args.blocks);
  // A row's first block notes its begin, its last block its end.
  for (int i = threadIdx.x; i < args.blocks; i += kThreads) {
    int slot = slots[i];
    ForEachRow(args, Cut(args, row_begin, i), Cut(args, row_begin, i + 1),
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
                   work.last_block = i;
                 }
               });
  }
  __syncthreads();
  for (int i = threadIdx.x; i < args.blocks; i += kThreads) {
    const int2 from = Cut(args, row_begin, i);
    const int2 to = Cut(args, row_begin, i + 1);
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
                     split};
  const int bytes = 4 * (params.rows + 1 + plan.blocks + 1);
  const cudaError_t error = cudaFuncSetAttribute(
      tpa_schedule_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  tpa_schedule_kernel<<<1, kThreads, bytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace recurve
