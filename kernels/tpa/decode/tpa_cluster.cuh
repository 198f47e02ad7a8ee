// Rows in clusters: how the blocks of a cluster exchange and merge a row's
// chunks.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_CLUSTER_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_CLUSTER_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"

namespace recurve {

// A block of a row's cluster has the chunks from TpaClusterFirst on, and merges
// kTpaClusterFeatures features of all columns of the cluster. Lanes send each
// block its features of their chunks, and maxima and sums, to its shared
// memory, where a barrier counts bytes: no trip through L2, no fence, no
// counter, nothing to reset.
//
// Chunks and segments are merged as by TpaWorker and TpaMerger, to the bit.
class TpaCluster {
 public:
  // `memory`: TpaClusterBytes(octets of the block), 16-byte aligned.
  __device__ __forceinline__ TpaCluster(const TpaDecodeArgs& args,
                                        uint32_t memory)
      : args_(args),
        barrier_(memory),
        states_(memory + 16),
        columns_(8 * args.block_octets()),
        values_(states_ + 8 * kTpaClusterChunks * columns_) {}

  __device__ __forceinline__ static int Row() {
    return static_cast<int>(blockIdx.x) / kTpaClusterBlocks;
  }
  __device__ __forceinline__ static int Block() {
    return static_cast<int>(blockIdx.x) % kTpaClusterBlocks;
  }

  // By all warps of the block, once, at its start.
  __device__ __forceinline__ void Begin() const {
    if (threadIdx.x == 0) {
      BarrierInit(barrier_, 1);
      BarrierInitFence();
    }
    cluster::Begun();
  }
  // By one thread: the bytes to expect for a row of `chunks` chunks. Some may
  // have arrived.
  __device__ __forceinline__ void Expect(int chunks) const {
    BarrierExpect(barrier_, chunks * columns_ * (8 + 4 * kTpaClusterFeatures));
  }

  // Sends outputs of `chunk` for columns `column`, a multiple of 2, and the
  // next one: a feature of both to the block that merges it; SendStates: maxima
  // and sums to one block.
  __device__ __forceinline__ void SendOutputs(int chunk, int column,
                                              int feature, float a,
                                              float b) const {
    const int to = feature / kTpaClusterFeatures;
    cluster::SendTwo(cluster::InBlock(PairAt(chunk, column / 2, feature), to),
                     cluster::InBlock(barrier_, to), a, b);
  }
  __device__ __forceinline__ void SendStates(int chunk, int column, int to,
                                             float2 a, float2 b) const {
    cluster::SendFour(
        cluster::InBlock(states_ + 8 * (chunk * columns_ + column), to),
        cluster::InBlock(barrier_, to), a.x, a.y, b.x, b.y);
  }

  // Waits for the whole row, and writes the features that this block merges. By
  // all consumer threads.
  __device__ __forceinline__ void Merge(int row, int chunks) const {
    const TpaCudaDecodeParams& p = args_.p;
    const int column = static_cast<int>(threadIdx.x) / kTpaClusterFeatures;
    const int feature = static_cast<int>(threadIdx.x) % kTpaClusterFeatures;
    const int head = 8 * args_.first_octet() + column;
    if (column >= columns_ || head >= p.shape.num_heads) return;
    BarrierWait(barrier_, 0);
    WriteOut(p,
             int64_t{row} * p.out_stride +
                 head * static_cast<int>(p.shape.value_dim) +
                 kTpaClusterFeatures * Block() + feature,
             Merged(column, feature, chunks));
  }

 private:
  struct Partial {
    float out;
    float max;
    float sum;
  };

  // Address of a feature of a pair of columns, 8 bytes.
  __device__ __forceinline__ uint32_t PairAt(int chunk, int pair,
                                             int feature) const {
    return values_ +
           8 * ((chunk * (columns_ / 2) + pair) * kTpaClusterFeatures +
                feature % kTpaClusterFeatures);
  }

  __device__ __forceinline__ float Merged(int column, int feature,
                                          int chunks) const {
    // Segments of chunks [0, 4), ..., [12, 16) and [16, 24).
    static_assert(TpaSegmentFirst(4) == 16 && TpaSegmentFirst(5) == 24 &&
                  kTpaClusterChunks <= 24);
    constexpr int kSegments = 5;
    const uint32_t value = PairAt(0, column / 2, feature) + 4 * (column % 2);
    const uint32_t state = states_ + 8 * column;
    // Interleaved: each is a chain of dependent operations.
    Partial segments[kSegments];
    const int longest = chunks > 16 ? 8 : 4;
#pragma unroll 1
    for (int i = 0; i < longest; ++i) {
#pragma unroll
      for (int s = 0; s < kSegments; ++s) {
        const int chunk = 4 * s + i;
        if (chunk >= chunks || (i >= 4 && s < 4)) continue;
        Partial next;
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(next.out)
                     : "r"(value + 4 * kTpaClusterFeatures * columns_ * chunk)
                     : "memory");
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(next.max), "=f"(next.sum)
                     : "r"(state + 8 * columns_ * chunk)
                     : "memory");
        segments[s] = i == 0 ? next : Both(segments[s], next);
      }
    }
    Partial all = segments[0];
#pragma unroll
    for (int s = 1; s < kSegments; ++s) {
      if (4 * s < chunks) all = Both(all, segments[s]);
    }
    return __fmul_rn(
        all.out, Normalizer(all.sum, static_cast<int>(args_.p.shape.kv_rank)));
  }
  __device__ __forceinline__ static Partial Both(const Partial& a,
                                                 const Partial& b) {
    const TpaFoldScales scales = ScalesFor(a.max, b.max);
    return {Fold(a.out, b.out, scales), fmaxf(a.max, b.max),
            Fold(a.sum, b.sum, scales)};
  }

  const TpaDecodeArgs& args_;
  const uint32_t barrier_;
  const uint32_t states_;  // [chunks, columns] {maximum, sum}
  const int columns_;
  const uint32_t values_;  // [chunks, columns / 2, kTpaClusterFeatures, 2]
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_CLUSTER_CUH_
