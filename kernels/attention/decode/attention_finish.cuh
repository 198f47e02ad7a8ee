// The end of an item: the four warps of an octet of query heads merge their
// parts of a chunk, and the last chunk that arrives has its block merge all.
// Every order is fixed, so which block that is does not show.
#ifndef RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_FINISH_CUH_
#define RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_FINISH_CUH_

#include "kernels/attention/decode/attention_decode.cuh"

namespace recurve {

// What the arrival of an item's partial results showed.
struct AttentionArrival {
  AttentionItem item;
  bool last;  // all chunks of the item's kv head and row are there
};

// Counts the item as arrived. One thread, which all that wrote its results have
// synchronised with; those that synchronise with it then may read the results
// of all chunks, if this was the last.
__device__ __forceinline__ AttentionArrival AttentionArrive(
    const AttentionDecodeArgs& args, const AttentionItem& item, int octet) {
  const int chunks = item.work.chunks;
  if (chunks == 1) return {item, false};
  uint32_t* const counter = args.counter(item.row, item.head, octet);
  uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  const bool last = static_cast<int>(before) == chunks - 1;
  if (last) *counter = 0;
  return {item, last};
}

// One of 128 threads, those of an octet. Results are weighted by 2^(score -
// max); a result without tokens has max -inf and sum 0.
// `kLoads`: of partial results in flight together, for a thread.
template <int kWidth, int kLoads = 8>
class AttentionFinisher {
 public:
  static constexpr int kPart = AttentionSharedLayout::Part(kWidth);
  static constexpr int kParts = kWidth / kPart;

  // `small` is 1024 bytes of shared memory, `exchange` ExchangeBytes(kWidth).
  __device__ __forceinline__ AttentionFinisher(const AttentionDecodeArgs& args,
                                               int octet, char* small,
                                               char* exchange)
      : args_(args),
        octet_(octet),
        heads_(args.heads_of(octet)),
        thread_(static_cast<int>(threadIdx.x) % 128),
        states_(reinterpret_cast<float2*>(small)),
        merged_(reinterpret_cast<float2*>(small) + 32),
        arrival_(reinterpret_cast<AttentionArrival*>(small + 512)),
        exchange_(reinterpret_cast<float*>(exchange)) {}

  __device__ __forceinline__ void Barrier() const {
    NamedBarrier(1 + octet_, 128);
  }
  // Max and sum of a warp's tokens; one thread for each warp and head.
  __device__ __forceinline__ void PutState(int warp, int head, float max,
                                           float sum) {
    states_[8 * warp + head] = {max, sum};
  }
  // After a barrier: what a warp's results of this head are multiplied by.
  __device__ __forceinline__ float ScaleOf(int warp, int head) {
    float max = kAttentionNone;
#pragma unroll
    for (int w = 0; w < 4; ++w) max = fmaxf(max, states_[8 * w + head].x);
    const float base = max == kAttentionNone ? 0.0f : max;
    return FastExp2(states_[8 * warp + head].x - base);
  }
  // Max and sum of the chunk; one thread for each head.
  __device__ __forceinline__ void MergeWarps(int head) {
    float max = kAttentionNone;
#pragma unroll
    for (int w = 0; w < 4; ++w) max = fmaxf(max, states_[8 * w + head].x);
    const float base = max == kAttentionNone ? 0.0f : max;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 state = states_[8 * w + head];
      sum = __fmaf_rn(state.y, FastExp2(state.x - base), sum);
    }
    merged_[head] = {max, sum};
  }
  // A warp's scaled results of a head: kPart features.
  __device__ __forceinline__ float* Exchange(int warp, int head) {
    return exchange_ +
           (8 * warp + head) * AttentionSharedLayout::ExchangeRow(kWidth);
  }

  // After a barrier: adds the warps' results, features part · kPart on, and
  // writes them.
  __device__ __forceinline__ void WritePart(const AttentionItem& item,
                                            int part) {
    constexpr int kFours = kPart / 4;
    const int value_dim = static_cast<int>(args_.p.shape.value_dim);
    const bool whole = item.work.chunks == 1;
    const int64_t partial =
        static_cast<int64_t>(item.slot()) * args_.group + 8 * octet_;
    if (part == 0 && !whole && thread_ < heads_) {
      args_.max_sum[partial + thread_] = merged_[thread_];
    }
    for (int i = thread_; i < heads_ * kFours; i += 128) {
      const int head = i / kFours;
      const int in_part = 4 * (i % kFours);
      const int feature = part * kPart + in_part;
      if (feature >= value_dim) continue;
      float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float4 y =
            *reinterpret_cast<const float4*>(Exchange(w, head) + in_part);
        x.x += y.x;
        x.y += y.y;
        x.z += y.z;
        x.w += y.w;
      }
      if (whole) {
        Emit(item, head, feature, x, merged_[head].y);
      } else {
        *reinterpret_cast<float4*>(args_.partials +
                                   (partial + head) * value_dim + feature) = x;
      }
    }
  }

  // After all parts.
  __device__ __forceinline__ void Arrive(const AttentionItem& item) {
    if (item.work.chunks == 1) return;
    Barrier();
    if (thread_ == 0) *arrival_ = AttentionArrive(args_, item, octet_);
    Barrier();
    if (arrival_->last) MergeChunks(item);
  }
  // Where a warp of its own has called AttentionArrive for an item.
  __device__ __forceinline__ AttentionArrival ReadArrival() const {
    return *arrival_;
  }

  // The results of an item's head and row, whose chunks are all there. After a
  // barrier: the last item's results have been exchanged.
  __device__ __forceinline__ void MergeChunks(const AttentionItem& item) {
    const int lane = thread_ % 32;
    const int chunks = item.work.chunks;
    const int value_dim = static_cast<int>(args_.p.shape.value_dim);
    const int64_t first =
        (static_cast<int64_t>(item.work.first_slot) + item.head * chunks) *
            args_.group +
        8 * octet_;
    float* const weights = exchange_;  // [heads, kAttentionMostChunks]
    for (int head = thread_ / 32; head < heads_; head += 4) {
      float2 states[kAttentionMostChunks / 32];
      float max = kAttentionNone;
#pragma unroll
      for (int j = 0; j < kAttentionMostChunks / 32; ++j) {
        const int chunk = lane + 32 * j;
        states[j] = {kAttentionNone, 0.0f};
        if (chunk < chunks) {
          states[j] =
              __ldcg(args_.max_sum + first + chunk * args_.group + head);
        }
        max = fmaxf(max, states[j].x);
      }
      max = LaneMax(max);
      const float base = max == kAttentionNone ? 0.0f : max;
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kAttentionMostChunks / 32; ++j) {
        const float weight = FastExp2(states[j].x - base);
        weights[head * kAttentionMostChunks + lane + 32 * j] = weight;
        sum = __fmaf_rn(weight, states[j].y, sum);
      }
      sum = LaneSum(sum);
      if (lane == 0) merged_[head] = {max, sum};
    }
    Barrier();
    const int fours = value_dim / 4;
    const int64_t step = static_cast<int64_t>(args_.group) * value_dim / 4;
    for (int i = thread_; i < heads_ * fours; i += 128) {
      const int head = i / fours;
      const int feature = 4 * (i % fours);
      const auto* from = reinterpret_cast<const float4*>(
          args_.partials + (first + head) * value_dim + feature);
      const float* weight = weights + head * kAttentionMostChunks;
      float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
      for (int chunk = 0; chunk < chunks; chunk += kLoads) {
        float4 y[kLoads];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          y[j] = {0.0f, 0.0f, 0.0f, 0.0f};
          if (chunk + j < chunks) y[j] = __ldcg(from + (chunk + j) * step);
        }
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
          if (chunk + j >= chunks) break;
          const float w = weight[chunk + j];
          x.x = __fmaf_rn(w, y[j].x, x.x);
          x.y = __fmaf_rn(w, y[j].y, x.y);
          x.z = __fmaf_rn(w, y[j].z, x.z);
          x.w = __fmaf_rn(w, y[j].w, x.w);
        }
      }
      Emit(item, head, feature, x, merged_[head].y);
    }
  }

 private:
  __device__ __forceinline__ void Emit(const AttentionItem& item, int head,
                                       int feature, float4 x, float sum) const {
    const float scale = sum == 0.0f ? 0.0f : __fdiv_rn(1.0f, sum);
    const int64_t whole_head = item.head * args_.group + 8 * octet_ + head;
    AttentionEmit(
        args_.p.out, item.row, whole_head * args_.p.shape.value_dim + feature,
        {x.x * scale, x.y * scale, x.z * scale, x.w * scale}, sum != 0.0f);
  }

  const AttentionDecodeArgs& args_;
  const int octet_;
  const int heads_;
  const int thread_;
  float2* const states_;  // [4 warps, 8 heads]
  float2* const merged_;  // [8 heads]
  AttentionArrival* const arrival_;
  float* const exchange_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_FINISH_CUH_
