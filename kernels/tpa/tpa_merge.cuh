// Merging the partial results of a row, in the blocks that made them.
#ifndef RECURVE_KERNELS_TPA_TPA_MERGE_CUH_
#define RECURVE_KERNELS_TPA_TPA_MERGE_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/tpa_decode.cuh"

namespace recurve {

// The blocks of a row share its columns and features out among themselves. A
// block first arrives with all its partial results and later, when the others
// have too, merges its share: chunks of a segment one after the other as
// TpaWorker does in registers, then the segments, brought to the largest
// maximum, by addition in their order.
//
// `memory` is `bytes` of shared memory. All threads that compute call both.
class TpaMerger {
 public:
  __device__ __forceinline__ TpaMerger(const TpaDecodeArgs& args, char* memory,
                                       int bytes)
      : args_(args),
        memory_(memory),
        bytes_(bytes),
        threads_(args.consumers()),
        quads_(static_cast<int>(args.scratch.slot_width) / 4) {}

  // After the last partial result of the block.
  __device__ __forceinline__ void Arrive(const TpaBlockWork& work) {
    const bool first = Shared(work.first) && Mine(work, work.first_row);
    const int last_row = LastRow(work);
    const bool last = last_row > work.first_row && Shared(work.last);
    if (!first && !last) return;
    NamedBarrier(kTpaConsumerBarrier, threads_);
    if (threadIdx.x != 0) return;
    if (first) Add(&args_.counters(work.first_row).arrived);
    if (last) Add(&args_.counters(last_row).arrived);
  }

  __device__ __forceinline__ void Merge(const TpaBlockWork& work) {
    const int last_row = LastRow(work);
#pragma unroll 1
    for (int row = work.first_row; row <= last_row; ++row) {
      if (row == work.first_row && !Mine(work, row)) continue;
      const TpaRowWork row_work = row == work.first_row ? work.first
                                  : row == last_row     ? work.last
                                                        : args_.row_work(row);
      MergeRow(row, row_work);
    }
  }

 private:
  // A block without tokens that stands within a row helps to merge it.
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
  // What all threads wrote before the barrier is there for whoever sees this.
  __device__ __forceinline__ static void Add(uint32_t* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter)
                 : "memory");
  }
  __device__ __forceinline__ static void WaitFor(const uint32_t* counter,
                                                 uint32_t wanted) {
    uint32_t value;
    do {
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                   : "=r"(value)
                   : "l"(counter)
                   : "memory");
    } while (value < wanted);
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }

  // Until all blocks of the row have arrived. The last to see it makes the
  // counters ready for the next launch.
  __device__ __forceinline__ void WaitForRow(int row, const TpaRowWork& work) {
    if (Shared(work) && threadIdx.x == 0) {
      const uint32_t blocks = work.last_block - work.first_block + 1;
      TpaRowCounters& counters = args_.counters(row);
      WaitFor(&counters.arrived, blocks);
      if (atomicAdd(&counters.merged, 1u) == blocks - 1) {
        counters.arrived = 0;
        counters.merged = 0;
      }
    }
    NamedBarrier(kTpaConsumerBarrier, threads_);
  }

  // What a batch of columns needs, in shared memory.
  struct Batch {
    float4* results;        // [segments, quads of the batch]
    TpaFoldScales* scales;  // [columns, partials]
    float2* segments;       // [columns, segments] {maximum, sum}, then weights
    float* normalizers;     // [columns]
    int first;              // column
    int columns;
    int begin;  // quads: column · quads_ + its quad of features
    int end;
  };

  __device__ __forceinline__ void MergeRow(int row, const TpaRowWork& work) {
    const int partials = work.end_slot - work.first_slot;
    // One block had it all in one segment: that has been written.
    if (partials <= 1) return;
    const int row_chunks = TpaChunkCount(work.length);
    const int segments = TpaSegmentOf(TpaChunkBegin(row_chunks - 1)) + 1;
    // Where each segment's partial results begin: known before they are there.
    int* begins = reinterpret_cast<int*>(memory_);
    const int32_t* chunks = args_.partial_chunk() + work.first_slot;
    NamedBarrier(kTpaConsumerBarrier, threads_);  // the memory is free
    for (int i = threadIdx.x; i < partials; i += threads_) {
      const int chunk = chunks[i];
      const int segment = TpaSegmentOf(TpaChunkBegin(chunk));
      if (chunk == TpaSegmentFirst(segment)) begins[segment] = i;
    }
    if (threadIdx.x == 0) begins[segments] = partials;
    WaitForRow(row, work);

    const int total = 8 * args_.block_octets() * quads_;
    const int parts = work.last_block - work.first_block + 1;
    const int part = static_cast<int>(blockIdx.x) - work.first_block;
    const int begin = static_cast<int>(int64_t{total} * part / parts);
    const int end = static_cast<int>(int64_t{total} * (part + 1) / parts);
    if (begin == end) return;
    const int head = (4 * (segments + 1) + 15) / 16 * 16;
    const int column_bytes =
        16 * segments * quads_ + 8 * partials + 8 * segments + 16;
    const int most = max(1, (bytes_ - head) / column_bytes);
    const int last_column = (end - 1) / quads_;
#pragma unroll 1
    for (int first = begin / quads_; first <= last_column; first += most) {
      Batch batch;
      batch.first = first;
      batch.columns = min(most, last_column + 1 - first);
      batch.begin = max(begin, first * quads_);
      batch.end = min(end, (first + batch.columns) * quads_);
      batch.results = reinterpret_cast<float4*>(memory_ + head);
      batch.scales = reinterpret_cast<TpaFoldScales*>(
          batch.results + segments * batch.columns * quads_);
      batch.segments =
          reinterpret_cast<float2*>(batch.scales + batch.columns * partials);
      batch.normalizers =
          reinterpret_cast<float*>(batch.segments + batch.columns * segments);
      MergeBatch(row, work, begins, partials, segments, batch);
    }
  }

  __device__ __forceinline__ void MergeBatch(int row, const TpaRowWork& work,
                                             const int* begins, int partials,
                                             int segments, const Batch& batch) {
    const int64_t rows = args_.scratch.slot_rows;
    const int64_t first_row = work.first_slot * rows + 8 * args_.first_octet();
    // A warp takes columns, a lane segments: first scales within each segment,
    // then what brings it to the row's maximum.
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int column = threadIdx.x / 32; column < batch.columns;
         column += threads_ / 32) {
      float2* segment = batch.segments + column * segments;
      const float2* first_max_sum =
          args_.max_sum() + first_row + batch.first + column;
      float max = kMinusInfinity;
#pragma unroll 1
      for (int s = lane; s < segments; s += 32) {
        const int from = begins[s];
        const int count = begins[s + 1] - from;
        const float2* max_sum = first_max_sum + from * rows;
        float2 next[kTpaSegmentChunks];
#pragma unroll
        for (int j = 0; j < kTpaSegmentChunks; ++j) {
          if (j < count) next[j] = __ldcg(max_sum + j * rows);
        }
        float2 state = next[0];
#pragma unroll
        for (int j = 1; j < kTpaSegmentChunks; ++j) {
          if (j >= count) break;
          const TpaFoldScales scales = ScalesFor(state.x, next[j].x);
          state = {fmaxf(state.x, next[j].x), Fold(state.y, next[j].y, scales)};
          batch.scales[column * partials + from + j] = scales;
        }
        segment[s] = state;
        max = fmaxf(max, state.x);
      }
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, offset));
      }
      const float base = max == kMinusInfinity ? 0.0f : max;
      float sum = 0.0f;
#pragma unroll 1
      for (int s = lane; s < segments; s += 32) {
        const float weight = FastExp2(segment[s].x - base);
        sum = __fmaf_rn(segment[s].y, weight, sum);
        segment[s].x = weight;
      }
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      }
      if (lane == 0) {
        batch.normalizers[column] =
            Normalizer(sum, static_cast<int>(args_.p.shape.kv_rank));
      }
    }
    NamedBarrier(kTpaConsumerBarrier, threads_);
    // Segments, each with its weight.
    const int count = batch.end - batch.begin;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * segments; i += threads_) {
      const int quad = batch.begin + i % count;
      const int s = i / count;
      const int column = quad / quads_ - batch.first;
      const int from = begins[s];
      const int chunks = begins[s + 1] - from;
      const float4* outputs = reinterpret_cast<const float4*>(args_.outputs()) +
                              (first_row + from * rows) * quads_ + quad;
      const TpaFoldScales* scales = batch.scales + column * partials + from;
      float4 next[kTpaSegmentChunks];
#pragma unroll
      for (int j = 0; j < kTpaSegmentChunks; ++j) {
        if (j < chunks) next[j] = __ldcg(outputs + j * rows * quads_);
      }
      float4 out = next[0];
#pragma unroll
      for (int j = 1; j < kTpaSegmentChunks; ++j) {
        if (j >= chunks) break;
        out.x = Fold(out.x, next[j].x, scales[j]);
        out.y = Fold(out.y, next[j].y, scales[j]);
        out.z = Fold(out.z, next[j].z, scales[j]);
        out.w = Fold(out.w, next[j].w, scales[j]);
      }
      const float weight = batch.segments[column * segments + s].x;
      batch.results[s * count + i % count] = {out.x * weight, out.y * weight,
                                              out.z * weight, out.w * weight};
    }
    NamedBarrier(kTpaConsumerBarrier, threads_);
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += threads_) {
      float4 out = batch.results[i];
#pragma unroll 1
      for (int s = 1; s < segments; ++s) {
        const float4 next = batch.results[s * count + i];
        out.x += next.x;
        out.y += next.y;
        out.z += next.z;
        out.w += next.w;
      }
      const int quad = batch.begin + i;
      Write(row, quad, out, batch.normalizers[quad / quads_ - batch.first]);
    }
    NamedBarrier(kTpaConsumerBarrier, threads_);
  }

  __device__ __forceinline__ void Write(int row, int quad, float4 out,
                                        float scale) const {
    const TpaCudaDecodeParams& p = args_.p;
    const int octet = args_.first_octet() + quad / quads_ / 8;
    const int head = octet % args_.head_octets * 8 + quad / quads_ % 8;
    const int feature = quad % quads_ * 4;
    const int value_dim = static_cast<int>(p.shape.value_dim);
    if (head >= p.shape.num_heads || feature >= value_dim) return;
    const int64_t query =
        int64_t{row} * p.new_tokens + octet / args_.head_octets;
    float* to = p.out + query * p.out_stride + head * value_dim + feature;
    const float values[4] = {out.x, out.y, out.z, out.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = __fmul_rn(values[i], scale);
  }

  const TpaDecodeArgs& args_;
  char* const memory_;
  const int bytes_;
  const int threads_;
  const int quads_;  // fours of features
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_MERGE_CUH_
