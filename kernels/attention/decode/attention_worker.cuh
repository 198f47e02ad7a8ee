// Decode of softmax attention on sm_90a: persistent blocks walk through chunks
// (items) of rows and kv heads; a producer warp keeps a ring buffer of pages
// full by cp.async.bulk, across items; four warps an octet of query heads
// multiply 16 tokens of each page by mma.m16n8k16; another counts chunks.
// Shapes: queries [rows, G, octets, D] in fragments; pages of K [64, D] and V
// [64, E] a kv head, 16-bit; out [rows, H, E].
// Floor: memory: 2 · G · (D + E) bytes for each token of a row.
#ifndef RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_WORKER_CUH_
#define RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_WORKER_CUH_

#include "kernels/attention/attention_access.cuh"
#include "kernels/attention/decode/attention_decode.cuh"
#include "kernels/attention/decode/attention_finish.cuh"

namespace recurve {

// The block's barriers, by address: pages and queries that are full or empty.
struct AttentionBarriers {
  uint32_t base;
  __device__ __forceinline__ uint32_t full(int stage) const {
    return base + 8 * stage;
  }
  __device__ __forceinline__ uint32_t empty(int stage) const {
    return base + 64 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t full_queries(int slot) const {
    return base + 128 + 8 * slot;
  }
  __device__ __forceinline__ uint32_t empty_queries(int slot) const {
    return base + 144 + 8 * slot;
  }
  // An item's results are written; its arrival is counted.
  __device__ __forceinline__ uint32_t written() const { return base + 160; }
  __device__ __forceinline__ uint32_t counted() const { return base + 168; }
};

template <int kWidth, int kOctets>
inline constexpr int kAttentionThreads =
    128 * kOctets + (AttentionCountsAside(kWidth, kOctets) ? 64 : 32);

// A stage of the ring buffer of pages, and its phase's parity.
struct AttentionStage {
  int index = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next(int stages) {
    if (++index == stages) {
      index = 0;
      phase ^= 1;
    }
  }
};

// ---- producer warp ----

template <int kWidth>
class AttentionProducer {
 public:
  __device__ __forceinline__ AttentionProducer(const AttentionDecodeArgs& args,
                                               uint32_t shared)
      : args_(args),
        layout_(kWidth, args.octets),
        shared_(shared),
        barriers_{shared + static_cast<uint32_t>(layout_.barriers)},
        query_bytes_(args.octets * static_cast<int>(args.p.shape.head_dim) *
                     32) {}

  __device__ __forceinline__ void Run(const AttentionBlockWork& block,
                                      int items) {
    AttentionItem item(block);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int32_t ids = lane < block.page_count ? block.pages[lane] : PageOf(item, 0);
    int issued = 0;
#pragma unroll 1
    for (int n = 0; n < items; ++n) {
      if (n > 0) CopyQueries(item, n);
      // The next item's page numbers are read ahead: its copies do not wait.
      AttentionItem next = item;
      int32_t next_ids = 0;
      if (n + 1 < items) {
        next.Next(args_);
        next_ids = PageOf(next, 0);
      }
      const int pages = item.pages();
#pragma unroll 1
      for (int first = 0; first < pages; first += 32) {
        const int index = item.first_page() + first;
        if (first > 0) ids = PageOf(item, first);
        const int count = min(32, pages - first);
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
          // Consumers cannot free a stage before they have queries.
          if (!waited_ &&
              (issued == args_.stages || !Early(item.work.length, index + i))) {
            Await(item);
          }
          CopyPage(__shfl_sync(0xffffffffu, ids, i), item.head);
          ++issued;
        }
      }
      if (!waited_) Await(item);
      item = next;
      ids = next_ids;
    }
  }

 private:
  // This lane's page number of an item's 32 from `first` on, if there is one.
  __device__ __forceinline__ int32_t PageOf(const AttentionItem& item,
                                            int first) const {
    const int index = first + static_cast<int>(threadIdx.x) % 32;
    if (index >= item.pages()) return 0;
    return args_.p.cache
        .page_table[item.work.sequence * args_.p.cache.page_table_stride +
                    item.first_page() + index];
  }
  // Whether the page's tokens have been there since before the previous launch.
  __device__ __forceinline__ bool Early(int length, int page) const {
    return int64_t{length} - args_.p.fresh_tokens >=
           kAttentionPageTokens * (int64_t{page} + 1);
  }
  __device__ __forceinline__ void Await(const AttentionItem& first) {
    WaitForPrevious();
    waited_ = true;
    CopyQueries(first, 0);
  }
  __device__ __forceinline__ void CopyQueries(const AttentionItem& item,
                                              int n) {
    const int slot = n % 2;
    BarrierWait(barriers_.empty_queries(slot), (n / 2 % 2) ^ 1);
    const int64_t head =
        static_cast<int64_t>(item.row) * args_.p.shape.num_kv_heads + item.head;
    if (ElectLane()) {
      BarrierExpect(barriers_.full_queries(slot), query_bytes_);
      BulkCopy(
          shared_ + layout_.queries + slot * args_.octets * (kWidth / 16) * 512,
          static_cast<const char*>(args_.p.queries) + head * query_bytes_,
          query_bytes_, barriers_.full_queries(slot));
    }
    __syncwarp();
  }
  // A page's keys and values of one kv head are one run of memory.
  __device__ __forceinline__ void CopyPage(int page, int head) {
    const uint32_t full = barriers_.full(stage_.index);
    BarrierWait(barriers_.empty(stage_.index), stage_.phase ^ 1);
    if (ElectLane()) {
      BarrierExpect(full, args_.stage_bytes);
      BulkCopy(shared_ + layout_.ring + stage_.index * args_.stage_bytes,
               static_cast<const char*>(args_.p.cache.pages) +
                   2 * (page * args_.p.cache.page_stride +
                        head * args_.layout.block),
               args_.stage_bytes, full);
    }
    __syncwarp();
    stage_.Next(args_.stages);
  }

  const AttentionDecodeArgs& args_;
  const AttentionSharedLayout layout_;
  const uint32_t shared_;
  const AttentionBarriers barriers_;
  const int query_bytes_;
  AttentionStage stage_;
  bool waited_ = false;
};

// ---- counting warp ----

// One thread, which counts the arrivals of a block's items but the last.
__device__ __forceinline__ void CountAttentionArrivals(
    const AttentionDecodeArgs& args, const AttentionBarriers& barriers,
    AttentionArrival* arrival, const AttentionBlockWork& block, int items) {
  WaitForPrevious();
  AttentionItem item(block);
#pragma unroll 1
  for (int n = 0; n + 1 < items; ++n) {
    BarrierWait(barriers.written(), n % 2);
    *arrival = AttentionArrive(args, item, 0);
    BarrierArrive(barriers.counted());
    item.Next(args);
  }
}

// ---- consumer warps ----

// An octet's queries are the first operand of m16n8k16: rows 0 to 7 are the
// eight heads' first terms, rows 8 to 15 their second terms, so the sum of a
// thread's two rows is the score of both. Weights are split in the same way. A
// query octet in memory is [D / 16] fragments of [32 lanes][4 registers].
template <typename T, int kWidth, int kOctets>
class AttentionDecodeWorker {
  static constexpr bool kCountsAside = AttentionCountsAside(kWidth, kOctets);
  // As many loads in flight as there are registers for.
  using Finisher =
      AttentionFinisher<kWidth, kWidth == 256 && kOctets == 1 ? 32 : 16>;

 public:
  __device__ __forceinline__
  AttentionDecodeWorker(const AttentionDecodeArgs& args, char* shared)
      : args_(args),
        layout_(kWidth, args.octets),
        shared_(SharedAddress(shared)),
        barriers_{shared_ + static_cast<uint32_t>(layout_.barriers)},
        octet_(Uniform(static_cast<int>(threadIdx.x) / 128)),
        warp_(Uniform(static_cast<int>(threadIdx.x) / 32 % 4)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        steps_(static_cast<int>(args.p.shape.head_dim) / 16),
        tiles_(static_cast<int>(args.p.shape.value_dim) / 16),
        finisher_(args, octet_, shared + 1024 * octet_,
                  shared + layout_.exchange +
                      octet_ * AttentionSharedLayout::ExchangeBytes(kWidth)) {}

  __device__ __forceinline__ void Run(const AttentionBlockWork& block,
                                      int items) {
    WaitForPrevious();
    AttentionItem item(block);
#pragma unroll 1
    for (int n = 0; n < items; ++n) {
      if (n > 0) item.Next(args_);
      BarrierWait(barriers_.full_queries(n % 2), n / 2 % 2);
      queries_ = shared_ + layout_.queries +
                 (n % 2 * args_.octets + octet_) * (kWidth / 16) * 512 +
                 16 * lane_;
      Attend(item);
      Release(barriers_.empty_queries(n % 2));
      Finish(item);
      if constexpr (kCountsAside) HandOver(n, items);
      // What follows the last item would wait for the counting warp.
      if (!kCountsAside || n + 1 == items) finisher_.Arrive(item);
    }
  }

 private:
  // Has item n counted unless it is the last, and merges the chunks of item
  // n - 1 if all were there.
  __device__ __forceinline__ void HandOver(int n, int items) {
    AttentionArrival before = {};
    if (n > 0) {
      BarrierWait(barriers_.counted(), (n - 1) % 2);
      before = finisher_.ReadArrival();
    }
    if (n + 1 < items) {
      __syncwarp();
      if (lane_ < kArrivingLanes) BarrierArrive(barriers_.written());
    }
    if (before.last) {
      finisher_.Barrier();
      finisher_.MergeChunks(before.item);
    }
  }

  // One arrival a warp, which has read all.
  __device__ __forceinline__ void Release(uint32_t barrier) const {
    BulkCopyFence();
    __syncwarp();
    if (lane_ < kArrivingLanes) BarrierArrive(barrier);
  }

  __device__ __forceinline__ void Attend(const AttentionItem& item) {
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out_[j][i] = 0.0f;
    }
    max_ = kAttentionNone;
    sum_ = 0.0f;
    const int pages = item.pages();
    // Tokens from this warp's first one in the page on.
    int left = item.work.length -
               static_cast<int>(kAttentionPageTokens) * item.first_page() -
               16 * warp_;
#pragma unroll 1
    for (int i = 0; i < pages; ++i) {
      BarrierWait(barriers_.full(stage_.index), stage_.phase);
      const uint32_t page =
          shared_ + layout_.ring + stage_.index * args_.stage_bytes;
      if (left > 0) Multiply(page, left);
      Release(barriers_.empty(stage_.index));
      stage_.Next(args_.stages);
      left -= static_cast<int>(kAttentionPageTokens);
    }
  }

  // 16 tokens of a page, of which `count` exist.
  __device__ __forceinline__ void Multiply(uint32_t page, int count) {
    const uint32_t values =
        page + 2 * static_cast<uint32_t>(args_.layout.k_plane);
    if (count < 16) ClearValues(values, count);
    // Two chains of products for each 8 tokens: one would wait for itself.
    float scores[2][2][4] = {};
    // Matrices: tokens 0 to 7 of features 0 to 7, then 8 to 15; tokens 8 to 15.
    const uint32_t keys = page + lane_ / 8 % 2 * kOctetBytes +
                          (16 * warp_ + lane_ / 16 * 8 + lane_ % 8) * 16;
    // One or two warps a scheduler hide little of a load's latency: the next
    // batch of fragments is read before the products of this one.
    uint32_t k[2][kBatch][4];
    uint32_t q[2][kBatch][4];
    const auto read_keys = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int step = batch * kBatch + i;
        if (step >= steps_) continue;
        LoadMatrices(k[batch % 2][i], keys + 2 * kOctetBytes * step);
        LoadShared16(q[batch % 2][i], queries_ + 512 * step);
      }
    };
    read_keys(0);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches) read_keys(batch + 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int step = batch * kBatch + i;
        if (step >= steps_) continue;
        const uint32_t(&of)[4] = k[batch % 2][i];
        Half<T>::Mma(scores[step % 2][0], q[batch % 2][i], of[0], of[1]);
        Half<T>::Mma(scores[step % 2][1], q[batch % 2][i], of[2], of[3]);
      }
    }
    // Matrices: tokens 0 to 7 of features 0 to 7, tokens 8 to 15; features 8 to
    // 15.
    const uint32_t from = values + lane_ / 16 * kOctetBytes +
                          (16 * warp_ + lane_ / 8 % 2 * 8 + lane_ % 8) * 16;
    uint32_t v[2][kBatch][4];
    const auto read_values = [&](int batch) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int tile = batch * kBatch + i;
        if (tile >= tiles_) continue;
        LoadMatricesTransposed(v[batch % 2][i], from + 2 * kOctetBytes * tile);
      }
    };
    read_values(0);
    uint32_t weights[4];
    Weigh(scores, count, weights);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      if (batch + 1 < kBatches) read_values(batch + 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int tile = batch * kBatch + i;
        if (tile >= tiles_) continue;
        const uint32_t(&of)[4] = v[batch % 2][i];
        Half<T>::Mma(out_[2 * tile], weights, of[0], of[1]);
        Half<T>::Mma(out_[2 * tile + 1], weights, of[2], of[3]);
      }
    }
  }

  // Scores become weights, as fragments; a thread has four tokens of head
  // lane / 4. The maximum moves, and what has been added is scaled.
  __device__ __forceinline__ void Weigh(const float (&scores)[2][2][4],
                                        int count, uint32_t (&weights)[4]) {
    float x[4];
    float max = max_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile = i / 2;
      x[i] = (scores[0][tile][i % 2] + scores[1][tile][i % 2]) +
             (scores[0][tile][2 + i % 2] + scores[1][tile][2 + i % 2]);
      if (8 * tile + 2 * (lane_ % 4) + i % 2 >= count) x[i] = kAttentionNone;
      max = fmaxf(max, x[i]);
    }
    max = LaneMax<4>(max);
    const float scale = FastExp2(max_ - max);
    max_ = max;
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = FastExp2(x[i] - max);
    sum_ = __fmaf_rn(sum_, scale, (x[0] + x[1]) + (x[2] + x[3]));
    // Multiplying by 1 changes nothing: no bit depends on the other heads.
    if (__any_sync(0xffffffffu, scale != 1.0f)) {
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out_[j][i] *= scale;
      }
    }
    uint32_t low[2];
    uint32_t high[2];
    Split<T>(x[0], x[1], low);
    Split<T>(x[2], x[3], high);
    weights[0] = low[0];
    weights[1] = low[1];
    weights[2] = high[0];
    weights[3] = high[1];
  }

  // Values of tokens that do not exist: a weight of 0 times NaN would show.
  // This warp alone reads them.
  __device__ __forceinline__ void ClearValues(uint32_t values, int count) {
    if (lane_ % 16 >= count) {
      const uint32_t from =
          values + (16 * warp_ + lane_ % 16) * 16 + lane_ / 16 * kOctetBytes;
      for (int i = 0; i < tiles_; ++i) {
        ClearShared16(from + 2 * kOctetBytes * i);
      }
    }
    __syncwarp();
  }

  __device__ __forceinline__ void Finish(const AttentionItem& item) {
    const int head = lane_ / 4;
    const float sum = LaneSum<4>(sum_);
    if (lane_ % 4 == 0) finisher_.PutState(warp_, head, max_, sum);
    finisher_.Barrier();
    const float scale = finisher_.ScaleOf(warp_, head);
    if (warp_ == 0 && lane_ % 4 == 0) finisher_.MergeWarps(head);
#pragma unroll
    for (int part = 0; part < Finisher::kParts; ++part) {
      if (part > 0) finisher_.Barrier();
      float* const to = finisher_.Exchange(warp_, head) + 2 * (lane_ % 4);
#pragma unroll
      for (int j = 0; j < Finisher::kPart / 8; ++j) {
        const float(&x)[4] = out_[part * Finisher::kPart / 8 + j];
        *reinterpret_cast<float2*>(to + 8 * j) = {(x[0] + x[2]) * scale,
                                                  (x[1] + x[3]) * scale};
      }
      finisher_.Barrier();
      finisher_.WritePart(item, part);
    }
  }

  // Bytes between octets of features.
  static constexpr uint32_t kOctetBytes = 16 * kAttentionPageTokens;
  // Steps of 16 features whose fragments are read together: as many as there
  // are registers for.
  static constexpr int kBatch = kWidth == 256 && kOctets == 2 ? 1 : 2;
  static constexpr int kBatches = kWidth / 16 / kBatch;

  const AttentionDecodeArgs& args_;
  const AttentionSharedLayout layout_;
  const uint32_t shared_;
  const AttentionBarriers barriers_;
  const int octet_;
  const int warp_;  // of the octet
  const int lane_;
  const int steps_;
  const int tiles_;
  Finisher finisher_;
  uint32_t queries_ = 0;  // this thread's first fragment
  AttentionStage stage_;
  float out_[kWidth / 8][4];
  float max_ = kAttentionNone;
  float sum_ = 0.0f;
};

template <typename T, int kWidth, int kOctets>
__global__ void __launch_bounds__((kAttentionThreads<kWidth, kOctets>),
                                  kWidth <= 128 && kOctets == 1 ? 2 : 1)
    attention_decode_kernel(const __grid_constant__ AttentionDecodeArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) char shared[];
  LaunchDependents();
  const AttentionBlockWork& block = args.block_work();
  const int items = block.items;
  if (items == 0) return;
  const AttentionSharedLayout layout(kWidth, args.octets);
  const AttentionBarriers barriers = {SharedAddress(shared) +
                                      static_cast<uint32_t>(layout.barriers)};
  if (threadIdx.x == 0) {
    const int arrivals = 4 * args.octets * kArrivingLanes;
    for (int i = 0; i < args.stages; ++i) {
      BarrierInit(barriers.full(i), 1);
      BarrierInit(barriers.empty(i), arrivals);
    }
    for (int i = 0; i < 2; ++i) {
      BarrierInit(barriers.full_queries(i), 1);
      BarrierInit(barriers.empty_queries(i), arrivals);
    }
    BarrierInit(barriers.written(), arrivals);
    BarrierInit(barriers.counted(), 1);
    BarrierInitFence();
  }
  __syncthreads();
  const int warp = Uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp == 4 * kOctets) {
    AttentionProducer<kWidth>(args, SharedAddress(shared)).Run(block, items);
  } else if (warp > 4 * kOctets) {
    if (threadIdx.x % 32 == 0) {
      CountAttentionArrivals(args, barriers,
                             reinterpret_cast<AttentionArrival*>(shared + 512),
                             block, items);
    }
  } else {
    AttentionDecodeWorker<T, kWidth, kOctets>(args, shared).Run(block, items);
  }
#else
  __trap();  // never launched
#endif
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_WORKER_CUH_
