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
    if (first) first_before_ = Add(work.first_row, work.first);
    if (last) last_before_ = Add(last_row, work.last);
  }

  __device__ __forceinline__ void Merge(const TpaBlockWork& work) {
    const int last_row = LastRow(work);
#pragma unroll 1
    for (int row = work.first_row; row <= last_row; ++row) {
      if (row == work.first_row && !Mine(work, row)) continue;
      const TpaRowWork row_work = row == work.first_row ? work.first
                                  : row == last_row     ? work.last
                                                        : args_.row_work(row);
      MergeRow(row, row_work,
               row == work.first_row ? first_before_ : last_before_);
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
  // A row's counter grows by 2^31 when all its blocks have arrived, whatever
  // their order: so its highest bit changes, and it is ready for the next
  // launch. Returns what it was. What all threads wrote before the barrier is
  // there for whoever sees that bit.
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

  // Until all blocks of the row have arrived.
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
    const int partials = work.end_slot - work.first_slot;
    // One block had it all in one segment: that has been written.
    if (partials <= 1) return;
    const int row_chunks = TpaChunkCount(work.length);
    const int segments = TpaSegmentOf(TpaChunkBegin(row_chunks - 1)) + 1;
    // Where each segment's partial results begin: known before they are there.
    int* begins = reinterpret_cast<int*>(memory_);
    const int32_t* chunks = args_.partial_chunk() + work.first_slot;
    NamedBarrier(kTpaConsumerBarrier, threads_);  // the memory is free
#pragma unroll 1
    for (int i = threadIdx.x; i < partials; i += threads_) {
      const int chunk = chunks[i];
      const int segment = TpaSegmentOf(TpaChunkBegin(chunk));
      if (chunk == TpaSegmentFirst(segment)) begins[segment] = i;
    }
    if (threadIdx.x == 0) begins[segments] = partials;
    WaitForRow(row, work, before);

    const int total = 8 * args_.block_octets() * quads_;
    const int parts = work.last_block - work.first_block + 1;
    const int part = static_cast<int>(blockIdx.x) - work.first_block;
    const int begin = static_cast<int>(int64_t{total} * part / parts);
    const int end = static_cast<int>(int64_t{total} * (part + 1) / parts);
    const int head = (4 * (segments + 1) + 15) / 16 * 16;
    // As many at a time as there is room for their segments.
    const int most = (bytes_ - head) / (24 * segments);
#pragma unroll 1
    for (int first = begin; first < end; first += most) {
      MergeQuads(row, work, begins, segments, first, min(most, end - first),
                 reinterpret_cast<float4*>(memory_ + head));
    }
  }

  // Quads [first, first + count) of the row: column · quads_ + a column's quad
  // of features. `results` has room for [segments, count] results and as many
  // pairs of maximum and sum.
  __device__ __forceinline__ void MergeQuads(int row, const TpaRowWork& work,
                                             const int* begins, int segments,
                                             int first, int count,
                                             float4* results) {
    float2* max_sums = reinterpret_cast<float2*>(results + segments * count);
    const int64_t rows = args_.scratch.slot_rows;
    const int64_t first_row = work.first_slot * rows + 8 * args_.first_octet();
    // Segments, each thread one quad of one. All its loads go out together.
#pragma unroll 1
    for (int i = threadIdx.x; i < count * segments; i += threads_) {
      const int s = i / count;
      const int quad = first + i - s * count;
      const int chunks = begins[s + 1] - begins[s];
      const int64_t slot_row = first_row + begins[s] * rows;
      const float4* outputs = reinterpret_cast<const float4*>(args_.outputs()) +
                              slot_row * quads_ + quad;
      const float2* max_sum = args_.max_sum() + slot_row + quad / quads_;
      float4 next[kTpaSegmentChunks];
      float2 next_max_sum[kTpaSegmentChunks];
#pragma unroll
      for (int j = 0; j < kTpaSegmentChunks; ++j) {
        if (j >= chunks) break;
        next[j] = __ldcg(outputs + j * rows * quads_);
        next_max_sum[j] = __ldcg(max_sum + j * rows);
      }
      float4 out = next[0];
      float2 state = next_max_sum[0];
#pragma unroll
      for (int j = 1; j < kTpaSegmentChunks; ++j) {
        if (j >= chunks) break;
        const TpaFoldScales scales = ScalesFor(state.x, next_max_sum[j].x);
        state = {fmaxf(state.x, next_max_sum[j].x),
                 Fold(state.y, next_max_sum[j].y, scales)};
        out.x = Fold(out.x, next[j].x, scales);
        out.y = Fold(out.y, next[j].y, scales);
        out.z = Fold(out.z, next[j].z, scales);
        out.w = Fold(out.w, next[j].w, scales);
      }
      results[i] = out;
      max_sums[i] = state;
    }
    NamedBarrier(kTpaConsumerBarrier, threads_);
    // Segments brought to the row's maximum and added in their order.
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += threads_) {
      float max = kMinusInfinity;
#pragma unroll 4
      for (int s = 0; s < segments; ++s) {
        max = fmaxf(max, max_sums[s * count + i].x);
      }
      const float base = max == kMinusInfinity ? 0.0f : max;
      float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
      float sum = 0.0f;
#pragma unroll 4
      for (int s = 0; s < segments; ++s) {
        const float4 next = results[s * count + i];
        const float2 state = max_sums[s * count + i];
        const float weight = FastExp2(state.x - base);
        sum = __fmaf_rn(state.y, weight, sum);
        out.x = __fmaf_rn(next.x, weight, out.x);
        out.y = __fmaf_rn(next.y, weight, out.y);
        out.z = __fmaf_rn(next.z, weight, out.z);
        out.w = __fmaf_rn(next.w, weight, out.w);
      }
      Write(row, first + i, out,
            Normalizer(sum, static_cast<int>(args_.p.shape.kv_rank)));
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
  // Of the counters of the first and last row, in thread 0.
  uint32_t first_before_ = 0;
  uint32_t last_before_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_MERGE_CUH_
