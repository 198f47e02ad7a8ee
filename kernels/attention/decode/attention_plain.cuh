// Decode of softmax attention in plain arithmetic, for float32 caches and for
// GPUs other than sm_90: a warp goes through 16 tokens of each page, a lane has
// eight features of up to eight query heads.
// Shapes: as attention_worker.cuh, or K [64, D], V [64, E] float32.
// Floor: memory: G · (D + E) elements for each token of a row.
#ifndef RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_PLAIN_CUH_
#define RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_PLAIN_CUH_

#include "kernels/attention/decode/attention_decode.cuh"
#include "kernels/attention/decode/attention_finish.cuh"

namespace recurve {

template <typename T>
class AttentionPlainWorker {
 public:
  __device__ __forceinline__
  AttentionPlainWorker(const AttentionPageLayout& layout,
                       const AttentionCudaCache& cache, int dim, int value_dim)
      : layout_(layout),
        cache_(cache),
        warp_(static_cast<int>(threadIdx.x) / 32 % 4),
        lane_(static_cast<int>(threadIdx.x) % 32),
        has_keys_(8 * lane_ < dim),
        has_values_(8 * lane_ < value_dim) {}

  // Queries of up to eight heads: the lane's eight features of each.
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int h = 0; h < 8; ++h) {
      max[h] = kAttentionNone;
      sum[h] = 0.0f;
#pragma unroll
      for (int i = 0; i < 8; ++i) queries[h][i] = out[h][i] = 0.0f;
    }
  }

  // Pages [first, first + pages) of a sequence's row of the page table, of
  // which `length` tokens from position 0 on are seen.
  __device__ __forceinline__ void Attend(const int32_t* table, int first,
                                         int pages, int length, int kv_head) {
#pragma unroll 1
    for (int i = first; i < first + pages; ++i) {
      const int left = length - static_cast<int>(kAttentionPageTokens) * i;
      const int count = min(16, left - 16 * warp_);
      if (count <= 0) continue;
      const T* page =
          static_cast<const T*>(cache_.pages) + table[i] * cache_.page_stride;
      Multiply(page, kv_head, count);
    }
  }

  float queries[8][8];
  float out[8][8];
  float max[8];
  float sum[8];

 private:
  __device__ __forceinline__ void Multiply(const T* page, int kv_head,
                                           int count) {
    float scores[8];  // lane m: of token m
#pragma unroll
    for (int h = 0; h < 8; ++h) scores[h] = kAttentionNone;
#pragma unroll 2
    for (int m = 0; m < count; ++m) {
      float k[8];
      Load(page + layout_.K(16 * warp_ + m, kv_head, has_keys_ ? 8 * lane_ : 0),
           has_keys_, k);
#pragma unroll
      for (int h = 0; h < 8; ++h) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) dot = __fmaf_rn(queries[h][i], k[i], dot);
        dot = LaneSum(dot);
        if (lane_ == m) scores[h] = dot;
      }
    }
#pragma unroll
    for (int h = 0; h < 8; ++h) {
      const float top = fmaxf(max[h], LaneMax(scores[h]));
      const float scale = FastExp2(max[h] - top);
      max[h] = top;
      scores[h] = lane_ < count ? FastExp2(scores[h] - top) : 0.0f;
      sum[h] = __fmaf_rn(sum[h], scale, LaneSum(scores[h]));
#pragma unroll
      for (int i = 0; i < 8; ++i) out[h][i] *= scale;
    }
#pragma unroll 2
    for (int m = 0; m < count; ++m) {
      float v[8];
      Load(page +
               layout_.V(16 * warp_ + m, kv_head, has_values_ ? 8 * lane_ : 0),
           has_values_, v);
#pragma unroll
      for (int h = 0; h < 8; ++h) {
        const float weight = __shfl_sync(0xffffffffu, scores[h], m);
#pragma unroll
        for (int i = 0; i < 8; ++i)
          out[h][i] = __fmaf_rn(weight, v[i], out[h][i]);
      }
    }
  }

  // Eight neighbouring elements, or zeros.
  __device__ __forceinline__ void Load(const T* from, bool exists,
                                       float (&x)[8]) const {
    if constexpr (sizeof(T) == 4) {
      float4 low = {0.0f, 0.0f, 0.0f, 0.0f};
      float4 high = low;
      if (exists) {
        low = reinterpret_cast<const float4*>(from)[0];
        high = reinterpret_cast<const float4*>(from)[1];
      }
      x[0] = low.x;
      x[1] = low.y;
      x[2] = low.z;
      x[3] = low.w;
      x[4] = high.x;
      x[5] = high.y;
      x[6] = high.z;
      x[7] = high.w;
    } else {
      uint4 words = {0, 0, 0, 0};
      if (exists) words = *reinterpret_cast<const uint4*>(from);
      const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[2 * i] = Half<T>::Low(pairs[i]);
        x[2 * i + 1] = Half<T>::High(pairs[i]);
      }
    }
  }

  const AttentionPageLayout& layout_;
  const AttentionCudaCache& cache_;
  const int warp_;
  const int lane_;
  const bool has_keys_;
  const bool has_values_;
};

// The end of a plain worker's item, as AttentionDecodeWorker::Finish.
template <typename T>
__device__ __forceinline__ void AttentionFinishPlain(
    AttentionFinisher<256>& finisher, const AttentionPlainWorker<T>& worker,
    const AttentionItem& item) {
  using Finisher = AttentionFinisher<256>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int h = 0; h < 8; ++h) {
    if (lane == h) finisher.PutState(warp, h, worker.max[h], worker.sum[h]);
  }
  finisher.Barrier();
  if (warp == 0 && lane < 8) finisher.MergeWarps(lane);
#pragma unroll
  for (int part = 0; part < Finisher::kParts; ++part) {
    if (part > 0) finisher.Barrier();
    constexpr int kLanes = Finisher::kPart / 8;
    if (lane / kLanes == part) {
#pragma unroll
      for (int h = 0; h < 8; ++h) {
        const float scale = finisher.ScaleOf(warp, h);
        auto* const to = reinterpret_cast<float4*>(finisher.Exchange(warp, h) +
                                                   8 * (lane % kLanes));
        const float(&x)[8] = worker.out[h];
        to[0] = {x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale};
        to[1] = {x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale};
      }
    }
    finisher.Barrier();
    finisher.WritePart(item, part);
  }
  finisher.Arrive(item);
}

// Shared memory for `octets` octets of heads.
__host__ __device__ constexpr int AttentionPlainBytes(int octets) {
  return octets * (1024 + AttentionSharedLayout::ExchangeBytes(256));
}

template <typename T>
__global__ void __launch_bounds__(256, 1)
    attention_plain_kernel(const __grid_constant__ AttentionDecodeArgs args) {
  extern __shared__ __align__(1024) char shared[];
  LaunchDependents();
  const AttentionBlockWork& block = args.block_work();
  const int items = block.items;
  WaitForPrevious();
  if (items == 0) return;
  const int octet = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int dim = static_cast<int>(args.p.shape.head_dim);
  AttentionFinisher<256> finisher(
      args, octet, shared + 1024 * octet,
      shared + 1024 * args.octets +
          octet * AttentionSharedLayout::ExchangeBytes(256));
  AttentionPlainWorker<T> worker(args.layout, args.p.cache, dim,
                                 static_cast<int>(args.p.shape.value_dim));
  AttentionItem item(block);
  for (int n = 0; n < items; ++n) {
    if (n > 0) item.Next(args);
    worker.Begin();
    const int64_t kv_head =
        static_cast<int64_t>(item.row) * args.p.shape.num_kv_heads + item.head;
#pragma unroll
    for (int h = 0; h < 8; ++h) {
      if (h >= args.heads_of(octet) || 8 * lane >= dim) continue;
      if constexpr (sizeof(T) == 4) {
        const auto* from = reinterpret_cast<const float4*>(
            static_cast<const float*>(args.p.queries) +
            (kv_head * args.group + 8 * octet + h) * dim + 8 * lane);
        const float4 low = from[0];
        const float4 high = from[1];
        const float x[8] = {low.x,  low.y,  low.z,  low.w,
                            high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) worker.queries[h][i] = x[i];
      } else {
        const auto* from =
            static_cast<const uint32_t*>(args.p.queries) +
            ((kv_head * args.octets + octet) * (dim / 16) + lane / 2) * 128 +
            h * 16 + lane % 2 * 2;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const uint2 terms = *reinterpret_cast<const uint2*>(from + 4 * t);
          worker.queries[h][2 * t] =
              Half<T>::Low(terms.x) + Half<T>::Low(terms.y);
          worker.queries[h][2 * t + 1] =
              Half<T>::High(terms.x) + Half<T>::High(terms.y);
        }
      }
    }
    worker.Attend(args.p.cache.page_table +
                      item.work.sequence * args.p.cache.page_table_stride,
                  item.first_page(), max(0, item.pages()), item.work.length,
                  item.head);
    AttentionFinishPlain(finisher, worker, item);
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_PLAIN_CUH_
