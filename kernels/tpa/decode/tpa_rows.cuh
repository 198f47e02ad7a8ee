// The order in which a warpgroup goes through its block's rows, chunks and
// segments, and other code common to all workers (tpa_worker.cuh,
// tpa_head_rows.cuh).
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_ROWS_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_ROWS_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"

namespace recurve {

// Zeros the values at `plane` of tokens from `tokens` on: their weights are
// zero, but uninitialised memory may hold NaN. By all warps of lane `lane`.
__device__ __forceinline__ void TpaClearValues(const TpaDecodeArgs& args,
                                               int lane, uint32_t plane,
                                               int tokens) {
  const int threads = args.lane_threads();
  const int thread = static_cast<int>(threadIdx.x) - threads * lane;
  if (thread % 64 < tokens) return;
  const uint32_t end =
      plane +
      kTpaOctetBytes * (static_cast<uint32_t>(args.layout.b_v_width) / 8);
#pragma unroll 1
  for (uint32_t at = plane + 16 * thread; at < end; at += 16 * threads) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0)
                 : "memory");
  }
}

// Chunks [begin, end) of the `row_chunks` of `row`, of `length` tokens: every
// args.lanes-th is `lane`'s. `slot` is the block's next slot for a partial
// result.
//
// A worker has State, a chunk's results other than outputs, and
//
//   TakeQueries(row)    once a row
//   BeginRow()          before the first page, if the lane has one
//   AttendPage(page, length, fresh, more, state)
//                       `page` is its first token; `fresh`: it begins a
//                       chunk; `more` of the row follows
//   FinishChunk(state)
//   FoldKept(chunk, state), Keep(chunk, state)
//                       merges the kept result of the segment; keeps it
//   FoldSegments(slot, state), WritePartial(slot, state)
//                       the same for segments of the row, through `slot`
//   WriteResult(row, state)
//   TurnBarrier(lane)   barrier of both lanes' warpgroups
template <typename Worker>
__device__ __forceinline__ void TpaAttendRow(Worker& worker,
                                             const TpaDecodeArgs& args,
                                             int lane, int row, int length,
                                             int row_chunks, int begin, int end,
                                             int& slot) {
  worker.TakeQueries(row);
  if (begin + lane < end) worker.BeginRow();
  // All of the row is this block's: its segments merge here.
  const bool whole = begin == 0 && end == row_chunks;
  const int row_slot = slot;
  int turn = 0;  // the lane of this chunk
  int next = TpaChunkBegin(begin);
  // The segment, and its chunks.
  int s = TpaSegmentOf(next);
  int first = TpaSegmentFirst(s);
  int last = TpaSegmentEnd(s, row_chunks) - 1;
#pragma unroll 1
  for (int chunk = begin; chunk < end; ++chunk) {
    const int position = next;
    next = TpaChunkBegin(chunk + 1);
    if (chunk > last) {
      ++s;
      first = chunk;
      last = TpaSegmentEnd(s, row_chunks) - 1;
    }
    // In a segment shared with another block, each chunk is a result.
    const bool loose = first < begin || last >= end;
    const bool result = loose || chunk == last;
    if (turn == lane) {
      const int stop = min(next, length);
      const bool more_chunks = chunk + args.lanes < end;
      typename Worker::State state;
#pragma unroll 1
      for (int page = position; page < stop; page += 64) {
        worker.AttendPage(page, length, page == position,
                          page + 64 < stop || more_chunks, state);
      }
      worker.FinishChunk(state);
      // Chunks finish in order: the kept result goes from each to the next,
      // which is another lane's.
      if (args.lanes > 1 && chunk > begin) {
        NamedBarrier(worker.TurnBarrier(turn), 256);
      }
      if (chunk > first && !loose) worker.FoldKept(chunk, state);
      if (!result) worker.Keep(chunk, state);
      if (result && whole) {
        // Two slots alternate, as in Keep.
        if (s > 0) worker.FoldSegments(row_slot + (s - 1) % 2, state);
        if (chunk + 1 < end) worker.WritePartial(row_slot + s % 2, state);
      }
      if (args.lanes > 1 && chunk + 1 < end) {
        NamedBarrierArrive(worker.TurnBarrier(turn ^ 1), 256);
      }
      if (whole && chunk + 1 == end) {
        worker.WriteResult(row, state);
      } else if (result && !whole) {
        worker.WritePartial(slot, state);
      }
    }
    if (result) ++slot;
    if (args.lanes > 1) turn ^= 1;
  }
}

// All of the block's share, `lane` of its lanes.
template <typename Worker>
__device__ __forceinline__ void TpaAttendRows(Worker& worker,
                                              const TpaDecodeArgs& args,
                                              int lane,
                                              const TpaBlockWork& work) {
  int slot = Uniform(work.first_slot);
#pragma unroll 1
  for (int row = Uniform(work.first_row);
       row <= work.last_row && row < args.p.rows; ++row) {
    if (row == work.last_row && work.last_chunk == 0) break;
    const int length = Uniform(
        row == work.first_row ? work.first.length : args.row_work(row).length);
    const int row_chunks = TpaChunkCount(length);
    const int begin = Uniform(row == work.first_row ? work.first_chunk : 0);
    const int end =
        Uniform(row == work.last_row ? work.last_chunk : row_chunks);
    if (begin < end) {
      TpaAttendRow(worker, args, lane, row, length, row_chunks, begin, end,
                   slot);
    }
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_ROWS_CUH_
