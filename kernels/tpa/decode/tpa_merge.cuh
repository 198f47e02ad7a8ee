// Merging a row's partial results, in the blocks that made them.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_MERGE_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_MERGE_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"

namespace recurve {

// The blocks of a row share its columns and features. A block first arrives,
// with all its partial results written; when the others have arrived, it merges
// its share: chunks of a segment in order, then the segments, as TpaWorker does
// in registers.
//
// `memory` is `bytes` of shared memory. All consumer threads call both.
class TpaMerger {
 public:
  __device__ __forceinline__ TpaMerger(const TpaDecodeArgs& args, char* memory,
                                       int bytes)
      : args_(args),
        memory_(memory),
        bytes_(bytes),
        threads_(args.consumers()),
        quads_(static_cast<int>(args.scratch.slot_width) / 4),
        inverse_quads_(1.0f / static_cast<float>(quads_)) {}

  // After the last partial result of the block.
  __device__ __forceinline__ void Arrive(const TpaBlockWork& work) {
    const bool first = Shared(work.first) && Mine(work, work.first_row);
    const int last_row = LastRow(work);
    const bool last = last_row > work.first_row && Shared(work.last);
    if (!first && !last) return;
    NamedBarrier(kTpaConsumerBarrier, threads_);
    free_ = true;
    if (threadIdx.x != 0) return;
    if (first) first_before_ = Add(work.first_row, work.first);
    if (last) last_before_ = Add(last_row, work.last);
  }

  __device__ __forceinline__ void Merge(const TpaBlockWork& work) {
    const int last_row = LastRow(work);
    // Rows between them are this block's alone.
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const bool first = i == 0;
      if (first ? !Mine(work, work.first_row) : last_row <= work.first_row) {
        continue;
      }
      MergeRow(first ? work.first_row : last_row,
               first ? work.first : work.last,
               first ? first_before_ : last_before_);
    }
  }

 private:
  // A block without tokens inside a row helps to merge it.
  __device__ __forceinline__ static bool Mine(const TpaBlockWork& work,
                                              int row) {
    return row < work.last_row || work.last_chunk > 0;
  }
  __device__ __forceinline__ static int LastRow(const TpaBlockWork& work) {
    return work.last_chunk > 0 ? work.last_row : work.last_row - 1;
  }
  __device__ __forceinline__ static bool Shared(const TpaRowWork& row) {
    return row.first_block < row.last_block;
  }
  // A row's counter grows by 2^31 when all its blocks have arrived, in any
  // order: its highest bit changes, and it is ready for the next launch.
  // Returns its previous value. All threads' writes before the barrier are
  // visible to readers of that bit.
  __device__ __forceinline__ uint32_t Add(int row,
                                          const TpaRowWork& work) const {
    const uint32_t others = work.last_block - work.first_block;
    const bool first = static_cast<int>(blockIdx.x) == work.first_block;
    uint32_t before;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(&args_.counter(row)),
                   "r"(first ? 0x80000000u - others : 1u)
                 : "memory");
    return before;
  }

  // Waits until all blocks of the row have arrived.
  __device__ __forceinline__ void WaitForRow(int row, const TpaRowWork& work,
                                             uint32_t before) const {
    if (Shared(work) && threadIdx.x == 0) {
      uint32_t value;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(value)
                     : "l"(&args_.counter(row))
                     : "memory");
      } while (((value ^ before) & 0x80000000u) == 0);
    }
    NamedBarrier(kTpaConsumerBarrier, threads_);
  }

  __device__ __forceinline__ void MergeRow(int row, const TpaRowWork& work,
                                           uint32_t before) {
    // The only block of a row has written its result.
    if (!Shared(work)) return;
    const int partials = work.end_slot - work.first_slot;
    // The chunks of a row's only segment are added as segments are: the same
    // sums, by all threads at once.
    const int whole_segments = TpaSegmentCount(work.length);
    const int segments = whole_segments == 1 ? partials : whole_segments;
    // First partial result of each segment: known before they are written. Most
    // segments are one.
    int* begins = reinterpret_cast<int*>(memory_);
    const bool chunks = partials > segments;
    if (!free_) NamedBarrier(kTpaConsumerBarrier, threads_);
    free_ = false;
    // Not by warp 0: its thread 0 may still wait for the block's writes to be
    // visible (Add).
    if (chunks && threadIdx.x >= 32) {
      const int32_t* first_chunks = args_.partial_chunk() + work.first_slot;
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x) - 32; i < partials;
           i += threads_ - 32) {
        const int chunk = first_chunks[i];
        const int segment = TpaSegmentOf(TpaChunkBegin(chunk));
        if (chunk == TpaSegmentFirst(segment)) begins[segment] = i;
      }
      if (threadIdx.x == 32) begins[segments] = partials;
    }
    // Less than 2^17 quads and 2^14 blocks.
    const uint32_t total = 8 * args_.block_octets() * quads_;
    const uint32_t parts = work.last_block - work.first_block + 1;
    const uint32_t part = blockIdx.x - work.first_block;
    const int begin = static_cast<int>(total * part / parts);
    const int end = static_cast<int>(total * (part + 1) / parts);
    const int most = TpaMergeQuads(bytes_, partials, segments);
    WaitForRow(row, work, before);

#pragma unroll 1
    for (int first = begin; first < end; first += most) {
      Batch batch;
      batch.partials = partials;
      batch.segments = segments;
      batch.first = first;
      batch.count = min(most, end - first);
      batch.first_column = ColumnOf(first);
      batch.columns =
          ColumnOf(first + batch.count - 1) + 1 - batch.first_column;
      batch.begins = begins;
      batch.results =
          reinterpret_cast<float4*>(memory_ + TpaMergeHeadBytes(segments));
      batch.max_sums =
          reinterpret_cast<float2*>(batch.results + partials * batch.count);
      Load(work, batch);
      float2* states = batch.max_sums;
      if (chunks) {
        states += partials * batch.columns;
        FoldChunks(batch, states);
      }
      AddSegments(row, batch, chunks, states);
    }
  }

  // Quads [first, first + count) of a row: column · quads_ + a column's quad of
  // features.
  struct Batch {
    int partials;
    int segments;
    int first;
    int count;
    int first_column;  // of these quads
    int columns;
    const int* begins;  // [segments + 1] where segments are several partials
    float4* results;    // [partials, count]
    float2* max_sums;   // [partials, columns] {maximum, sum}
  };

  // Threads in rows of a power of two, at most 2^max_bits, so that sharing out
  // rows of `count` elements needs no division.
  struct Grid {
    int width;  // threads in a row
    int rows;
    int row;  // this thread's
    int at;   // and its index in the row
    __device__ __forceinline__ Grid(int count, int threads, int max_bits = 5) {
      const int bits = min(max_bits, 32 - __clz(max(count, 1) - 1));
      width = 1 << bits;
      rows = threads >> bits;
      row = static_cast<int>(threadIdx.x) >> bits;
      at = static_cast<int>(threadIdx.x) & (width - 1);
    }
  };
  // quad / quads_. Exact: there are less than 2^18 quads, and a half is far
  // more than the rounding errors.
  __device__ __forceinline__ int ColumnOf(int quad) const {
    return static_cast<int>((static_cast<float>(quad) + 0.5f) * inverse_quads_);
  }

  // Loads all data of the batch at once.
  __device__ __forceinline__ void Load(const TpaRowWork& work,
                                       const Batch& batch) const {
    const int64_t rows = args_.scratch.slot_rows;
    const int64_t first_row = work.first_slot * rows + 8 * args_.first_octet();
    const float4* outputs = reinterpret_cast<const float4*>(args_.outputs()) +
                            first_row * quads_ + batch.first;
    const uint32_t to = SharedAddress(batch.results);
    // Maxima and sums, mostly one a thread: requested first, and not waited for
    // before the outputs are in flight, too.
    const float2* max_sum = args_.max_sum() + first_row + batch.first_column;
    const Grid pairs(batch.columns, threads_);
    float2 pair = {0.0f, 0.0f};
    const bool has_pair =
        pairs.row < batch.partials && pairs.at < batch.columns;
    if (has_pair) pair = __ldcg(max_sum + pairs.row * rows + pairs.at);
    const Grid grid(batch.count, threads_);
#pragma unroll 1
    for (int partial = grid.row; partial < batch.partials;
         partial += grid.rows) {
#pragma unroll 1
      for (int quad = grid.at; quad < batch.count; quad += grid.width) {
        CopyAsync16(to + 16 * (partial * batch.count + quad),
                    outputs + partial * rows * quads_ + quad);
      }
    }
    if (has_pair) batch.max_sums[pairs.row * batch.columns + pairs.at] = pair;
#pragma unroll 1
    for (int partial = pairs.row; partial < batch.partials;
         partial += pairs.rows) {
#pragma unroll 1
      for (int column = pairs.at; column < batch.columns;
           column += pairs.width) {
        if (partial == pairs.row && column == pairs.at) continue;
        batch.max_sums[partial * batch.columns + column] =
            __ldcg(max_sum + partial * rows + column);
      }
    }
    CopyAsyncWait();
    NamedBarrier(kTpaConsumerBarrier, threads_);
  }

  // Merges a result, with its maximum and sum, into the earlier ones.
  __device__ __forceinline__ static void FoldNext(float4 next,
                                                  float2 next_state,
                                                  float4& out, float2& state) {
    const TpaFoldScales scales = ScalesFor(state.x, next_state.x);
    state = {fmaxf(state.x, next_state.x), Fold(state.y, next_state.y, scales)};
    out.x = Fold(out.x, next.x, scales);
    out.y = Fold(out.y, next.y, scales);
    out.z = Fold(out.z, next.z, scales);
    out.w = Fold(out.w, next.w, scales);
  }

  // The chunks of each segment in order, as TpaWorker does. A segment's result
  // replaces its first chunk's, its maximum and sum go to `states`
  // [segments, columns].
  __device__ __forceinline__ void FoldChunks(const Batch& batch,
                                             float2* states) const {
    // A row of threads for each segment, if segments are few.
    const Grid grid(batch.count, threads_,
                    max(5, 31 - __clz(threads_ / batch.segments)));
    const auto fold = [&](int s, int quad) {
      const int column = ColumnOf(batch.first + quad) - batch.first_column;
      const int from = batch.begins[s];
      float4 out = batch.results[from * batch.count + quad];
      float2 state = batch.max_sums[from * batch.columns + column];
#pragma unroll 1
      for (int p = from + 1; p < batch.begins[s + 1]; ++p) {
        const float4 next = batch.results[p * batch.count + quad];
        const float2 next_state = batch.max_sums[p * batch.columns + column];
        FoldNext(next, next_state, out, state);
      }
      batch.results[from * batch.count + quad] = out;
      const int quad_of_column =
          batch.first + quad - (batch.first_column + column) * quads_;
      if (quad == 0 || quad_of_column == 0) {
        states[s * batch.columns + column] = state;
      }
    };
#pragma unroll 1
    for (int s = grid.row; s < batch.segments; s += grid.rows) {
#pragma unroll 1
      for (int quad = grid.at; quad < batch.count; quad += grid.width) {
        fold(s, quad);
      }
    }
    NamedBarrier(kTpaConsumerBarrier, threads_);
  }

  // The segments in order.
  __device__ __forceinline__ void AddSegments(int row, const Batch& batch,
                                              bool chunks,
                                              const float2* states) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < batch.count; i += threads_) {
      const int quad = batch.first + i;
      const int column = ColumnOf(quad);
      const float2* state = states + column - batch.first_column;
      float2 running = state[0];
      float4 out = batch.results[i];
#pragma unroll 4
      for (int s = 1; s < batch.segments; ++s) {
        const int partial = chunks ? batch.begins[s] : s;
        const float4 next = batch.results[partial * batch.count + i];
        FoldNext(next, state[s * batch.columns], out, running);
      }
      Write(row, column, quad - column * quads_, out,
            Normalizer(running.y, static_cast<int>(args_.p.shape.kv_rank)));
    }
    NamedBarrier(kTpaConsumerBarrier, threads_);
  }

  __device__ __forceinline__ void Write(int row, int column, int quad,
                                        float4 out, float scale) const {
    const TpaCudaDecodeParams& p = args_.p;
    const int octet = args_.first_octet() + column / 8;
    const int t = p.new_tokens == 1 ? 0 : octet / args_.head_octets;
    const int head = (octet - t * args_.head_octets) * 8 + column % 8;
    const int feature = quad * 4;
    const int value_dim = static_cast<int>(p.shape.value_dim);
    if (head >= p.shape.num_heads || feature >= value_dim) return;
    const int64_t query = int64_t{row} * p.new_tokens + t;
    const int64_t to = query * p.out_stride + head * value_dim + feature;
    WriteFour(p, to,
              {__fmul_rn(out.x, scale), __fmul_rn(out.y, scale),
               __fmul_rn(out.z, scale), __fmul_rn(out.w, scale)});
  }

  const TpaDecodeArgs& args_;
  char* const memory_;
  const int bytes_;
  const int threads_;
  const int quads_;  // groups of four features
  const float inverse_quads_;
  bool free_ = false;  // `memory` is free, by a barrier
  // Counters of the first and last row, in thread 0.
  uint32_t first_before_ = 0;
  uint32_t last_before_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_MERGE_CUH_
