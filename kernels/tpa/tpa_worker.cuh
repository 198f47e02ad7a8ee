// A warpgroup's part of a decode step: its columns of queries against the
// tokens of its block.
#ifndef RECURVE_KERNELS_TPA_TPA_WORKER_CUH_
#define RECURVE_KERNELS_TPA_TPA_WORKER_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/tpa_decode.cuh"
#include "kernels/tpa/tpa_query.cuh"
#include "kernels/tpa/tpa_ring.cuh"

namespace recurve {

// A block's shared memory behind the ring of stages.
struct TpaShared {
  char* terms;        // [groups] planes of queries
  uint32_t weights;   // [groups, 2] planes of columns
  float* exchange;    // [groups, 2, columns, 4 warps]: maxima, sums
  uint32_t barriers;  // [stages] pairs
  float* staging;     // for QueryFormer
};

// Products is one of tpa_products.cuh. Each warp has 16 tokens of a page; what
// a thread holds of a page are the scores of two tokens and kOctets pairs of
// columns.
template <typename T, int kColumns, int kTiles, typename Products>
class TpaWorker {
 public:
  static constexpr int kOctets = kColumns / 8;
  static constexpr int kTerms = Half<T>::kTerms;
  static constexpr int kOwn = 2 * kOctets;  // columns of a thread

  __device__ __forceinline__ TpaWorker(const TpaDecodeArgs& args,
                                       const TpaShared& shared,
                                       const TpaRing& ring)
      : args_(args),
        ring_(ring),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32 % 4),
        group_(threadIdx.x / 128),
        first_octet_(args.first_octet() + group_ * args.group_octets),
        kv_rank_(static_cast<int>(args.p.shape.kv_rank)),
        former_(args, shared.terms, shared.staging) {
    const int k_width = static_cast<int>(args.layout.b_k_width);
    b_offset_ = kTpaOctetBytes * args.head_octet_count();
    query_ =
        SharedAddress(shared.terms) + 2 * group_ * k_width * kTerms * kColumns;
    weights_ = shared.weights + 2 * kTpaOctetBytes * kOctets * group_;
    maxima_ = shared.exchange + 8 * kColumns * group_;
    sums_ = maxima_ + 4 * kColumns;
    const int token = 16 * warp_ + lane_ % 16;
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
      // Columns that do not exist take another's factors.
      const int octet = min(first_octet_ + j, args.octets - 1);
      const int head_octet = octet % args.head_octets - args.first_head_octet();
      // Lanes 16 to 31 name the rows of the next octet; see LoadFactors.
      a_offset_[j] = kTpaOctetBytes * max(head_octet, 0) + 16 * token;
    }
  }

  __device__ __forceinline__ void Run(const TpaBlockWork& work) {
    int slot = work.first_slot;
#pragma unroll 1
    for (int row = work.first_row; row <= work.last_row && row < args_.p.rows;
         ++row) {
      if (row == work.last_row && work.last_chunk == 0) break;
      const int length = row == work.first_row ? work.first.length
                                               : args_.row_work(row).length;
      const int row_chunks = TpaChunkCount(length);
      const int begin = row == work.first_row ? work.first_chunk : 0;
      const int end = row == work.last_row ? work.last_chunk : row_chunks;
      if (begin < end) {
        AttendRow(row, length, row_chunks, begin, end, slot);
      } else if (row_chunks == 0) {
        ClearOutputs();
        WriteResult(row, State());
      }
    }
  }

 private:
  // Of the columns of this thread, without normalisation.
  struct State {
    float max[kOwn];
    float sum[kOwn];
    __device__ __forceinline__ State() {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        max[i] = kMinusInfinity;
        sum[i] = 0.0f;
      }
    }
  };

  __device__ __forceinline__ void AttendRow(int row, int length, int row_chunks,
                                            int begin, int end, int& slot) {
    former_.Form(row);
    State segment;
#pragma unroll 1
    for (int chunk = begin; chunk < end; ++chunk) {
      const int position = TpaChunkBegin(chunk);
      const int stop = min(TpaChunkBegin(chunk + 1), length);
      State state;
      ClearOutputs();
#pragma unroll 1
      for (int page = position; page < stop; page += 64) {
        AttendPage(page, length, state);
      }
      FinishChunk(state);
      const int s = TpaSegmentOf(position);
      const int first = TpaSegmentFirst(s);
      const int last = TpaSegmentEnd(s, row_chunks) - 1;
      if (first < begin || last >= end) {  // some of it is another block's
        WritePartial(slot++, state);
        continue;
      }
      FoldIntoSegment(segment, state, chunk == first);
      if (chunk != last) continue;
      if (first == 0 && last == row_chunks - 1) {
        WriteResult(row, segment);  // all of the row
        ++slot;                     // which the schedule counts all the same
      } else {
        WritePartial(slot++, segment);
      }
    }
  }

  __device__ __forceinline__ void ClearOutputs() {
#pragma unroll
    for (int i = 0; i < kTiles * kOctets * 4; ++i) Out(i) = 0.0f;
  }

  // The first token of `page` is given. state.sum is of this thread's tokens
  // alone, until the chunk is finished.
  __device__ __forceinline__ void AttendPage(int page, int length,
                                             State& state) {
    float scores[kOctets][4];
    Scores(scores);
    // The first column's query sees the fewest tokens.
    const bool masked =
        page + 64 > args_.Visible(length, min(first_octet_, args_.octets - 1) /
                                              args_.head_octets);
    if (masked) {
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (Token(page, i) >= Visible(length, j)) {
            scores[j][i] = kMinusInfinity;
          }
        }
      }
    }
    float max[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      max[k] = fmaxf(scores[k / 2][k % 2], scores[k / 2][k % 2 + 2]);
    }
    OverWarps<true>(max, maxima_);
    // Scores become weights, and older results come to the new maximum.
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const float next = fmaxf(state.max[k], max[k]);
      const float base = next == kMinusInfinity ? 0.0f : next;
      const float scale = Exp2(state.max[k] - base);
      state.max[k] = next;
      float& low = scores[k / 2][k % 2];
      float& high = scores[k / 2][k % 2 + 2];
      low = Exp2(low - base);
      high = Exp2(high - base);
      state.sum[k] = __fmaf_rn(state.sum[k], scale, low + high);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        out_[tile][k / 2][k % 2] *= scale;
        out_[tile][k / 2][k % 2 + 2] *= scale;
      }
    }
#pragma unroll 1
    for (int r = 0; r < kv_rank_; ++r) {
      AddValues(scores, r, page, length, masked);
    }
  }

  // Scores of this warp's tokens.
  __device__ __forceinline__ void Scores(float (&scores)[kOctets][4]) {
    const int steps = static_cast<int>(args_.layout.b_k_width) / 16;
#pragma unroll 1
    for (int r = 0; r < kv_rank_; ++r) {
      const uint32_t stage = ring_.Take();
      float sum[kTerms * kOctets][4];
      Products::Scores(sum, stage + b_offset_, query_, steps);
      uint32_t a_k[kOctets][2];
      LoadFactors(a_k, stage);
      Products::Wait(out_);
      Pin(sum);
      ring_.Release();  // what the last page's products read, too
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          // Small terms first.
          float score = sum[(kTerms - 1) * kOctets + j][i];
#pragma unroll
          for (int term = kTerms - 2; term >= 0; --term) {
            score += sum[term * kOctets + j][i];
          }
          const float a = Factor(a_k, j, i);
          scores[j][i] =
              r == 0 ? __fmul_rn(a, score) : __fmaf_rn(a, score, scores[j][i]);
        }
      }
    }
  }

  // out += (weights ∘ A_v) · B_v of the next rank.
  __device__ __forceinline__ void AddValues(const float (&weights)[kOctets][4],
                                            int r, int page, int length,
                                            bool masked) {
    const uint32_t stage = ring_.Take();
    const int tiles = (static_cast<int>(args_.p.shape.value_dim) + 63) / 64;
    uint32_t a_v[kOctets][2];
    LoadFactors(a_v, stage);
    const uint32_t plane = weights_ + kTpaOctetBytes * kOctets * (r & 1);
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // tokens lane / 4 and that plus 8
        uint32_t pair =
            Half<T>::Pack(weights[j][2 * i] * Factor(a_v, j, 2 * i),
                          weights[j][2 * i + 1] * Factor(a_v, j, 2 * i + 1));
        // Nobody may have written the factors of tokens that are not there.
        if (masked && Token(page, 2 * i) >= Visible(length, j)) pair = 0;
        const uint32_t at = plane + kTpaOctetBytes * j +
                            16 * (16 * warp_ + lane_ / 4 + 8 * i) +
                            4 * (lane_ % 4);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(pair) : "memory");
      }
    }
    if (r > 0) {
      // The last rank's products are done: for all warps, after the barrier, so
      // that the next rank may have their buffer of weights.
      Products::Wait(out_);
      ring_.Release(1);
    }
    if (page + 64 > length) {
      ClearValues(stage + b_offset_, length - page);
      BulkCopyFence();
      NamedBarrier(kTpaConsumerBarrier, args_.consumers());
    } else {
      BulkCopyFence();
      GroupBarrier();
    }
    Products::Values(out_, stage + b_offset_, plane, tiles);
    if constexpr (!Products::kAsync) ring_.Release();
  }

  // Values of tokens from `tokens` on become zero: their weights are, but
  // memory that nobody wrote may hold a NaN. By all warps that compute.
  __device__ __forceinline__ void ClearValues(uint32_t plane, int tokens) {
    const int missing = 64 - tokens;
    const int count = static_cast<int>(args_.layout.b_v_width) / 8 * missing;
    for (int i = threadIdx.x; i < count; i += args_.consumers()) {
      const uint32_t at =
          plane + kTpaOctetBytes * (i / missing) + 16 * (tokens + i % missing);
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0)
                   : "memory");
    }
  }

  __device__ __forceinline__ void FinishChunk(State& state) {
    Products::Wait(out_);
    ring_.Release();
    OverWarps<false>(state.sum, sums_);
  }

  // The maximum (or the sum) over all tokens of the warpgroup, for each column
  // of this thread: over lanes with the same columns each lane takes a part of
  // the columns, over warps it goes through `memory` [columns, 4].
  template <bool kMax>
  __device__ __forceinline__ void OverWarps(float (&value)[kOwn],
                                            float* memory) {
    const auto join = [](float a, float b) {
      return kMax ? fmaxf(a, b) : a + b;
    };
    constexpr float kNothing = kMax ? kMinusInfinity : 0.0f;
    float own[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) own[k] = value[k];
    int first = 0;  // own[i] is of column first + i, for i < count
    int count = kOwn;
#pragma unroll
    for (int step = 0; step < 3; ++step) {
      constexpr int kHalves[] = {kOwn, (kOwn + 1) / 2, (kOwn + 3) / 4,
                                 (kOwn + 7) / 8};
      const int lane_bit = 16 >> step;
      const bool upper = (lane_ & lane_bit) != 0;
      const int size = kHalves[step];
      const int half = kHalves[step + 1];
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float low = own[i];
        const float high = half + i < size ? own[half + i] : kNothing;
        const float other =
            __shfl_xor_sync(0xffffffffu, upper ? low : high, lane_bit);
        own[i] = upper ? join(other, high) : join(low, other);
      }
      first += upper ? half : 0;
      count = upper ? count - half : min(count, half);
    }
#pragma unroll
    for (int i = 0; i < (kOwn + 7) / 8; ++i) {
      const int k = first + i;
      if (i < count) {
        memory[4 * (8 * (k / 2) + 2 * (lane_ % 4) + k % 2) + warp_] = own[i];
      }
    }
    GroupBarrier();
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const float4 all = *reinterpret_cast<const float4*>(
          memory + 4 * (8 * (k / 2) + 2 * (lane_ % 4) + k % 2));
      value[k] = join(join(all.x, all.y), join(all.z, all.w));
    }
  }

  // Merges what is at hand into the segment's result; both then hold that.
  __device__ __forceinline__ void FoldIntoSegment(State& segment,
                                                  const State& state,
                                                  bool first) {
    if (first) {
      segment = state;
    } else {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        const TpaFoldScales scales = ScalesFor(segment.max[k], state.max[k]);
        segment.max[k] = fmaxf(segment.max[k], state.max[k]);
        segment.sum[k] = Fold(segment.sum[k], state.sum[k], scales);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const int at = (tile * kOctets + k / 2) * 4 + k % 2 + i;
            Out(at) = Fold(segment_out_[at], Out(at), scales);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles * kOctets * 4; ++i) segment_out_[i] = Out(i);
  }

  __device__ __forceinline__ void WritePartial(int slot, const State& state) {
    const int width = static_cast<int>(args_.scratch.slot_width);
    const int64_t base =
        slot * args_.scratch.slot_rows + 8 * first_octet_ + lane_ % 4 * 2;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      if (!Exists(k / 2)) continue;
      const int64_t column = base + 8 * (k / 2) + k % 2;
      if (warp_ == 0 && lane_ < 4) {
        args_.max_sum()[column] = {state.max[k], state.sum[k]};
      }
      float* out = args_.outputs() + column * width;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int feature = Feature(tile, i);
          if (feature < width) out[feature] = out_[tile][k / 2][k % 2 + 2 * i];
        }
      }
    }
  }

  __device__ __forceinline__ void WriteResult(int row, const State& state) {
    const TpaCudaDecodeParams& p = args_.p;
    const int value_dim = static_cast<int>(p.shape.value_dim);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int octet = first_octet_ + k / 2;
      const int head = octet % args_.head_octets * 8 + lane_ % 4 * 2 + k % 2;
      if (!Exists(k / 2) || head >= p.shape.num_heads) continue;
      const int64_t query =
          int64_t{row} * p.new_tokens + octet / args_.head_octets;
      float* out = p.out + query * p.out_stride + head * value_dim;
      const float scale = Normalizer(state.sum[k], kv_rank_);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int feature = Feature(tile, i);
          if (feature < value_dim) {
            out[feature] = __fmul_rn(out_[tile][k / 2][k % 2 + 2 * i], scale);
          }
        }
      }
    }
  }

  // A_k or A_v as scores lie: [j][i] are columns 2 (lane % 4) and the next, of
  // token lane / 4 + 8 i of the warp's.
  __device__ __forceinline__ void LoadFactors(uint32_t (&a)[kOctets][2],
                                              uint32_t stage) const {
#pragma unroll
    for (int j = 0; j < kOctets; j += 2) {
      uint32_t four[4];
      const int upper = min(j + 1, kOctets - 1);
      LoadMatrices(four,
                   stage + (lane_ < 16 ? a_offset_[j] : a_offset_[upper]));
      a[j][0] = four[0];
      a[j][1] = four[1];
      a[upper][0] = j == upper ? four[0] : four[2];
      a[upper][1] = j == upper ? four[1] : four[3];
    }
  }
  __device__ __forceinline__ static float Factor(
      const uint32_t (&a)[kOctets][2], int j, int i) {
    const uint32_t pair = a[j][i / 2];
    return i % 2 == 0 ? Half<T>::Low(pair) : Half<T>::High(pair);
  }

  template <int kRows>
  __device__ __forceinline__ static void Pin(float (&d)[kRows][4]) {
    if constexpr (Products::kAsync) WgmmaPin(d);
  }
  __device__ __forceinline__ float& Out(int i) {
    return out_[i / (4 * kOctets)][i / 4 % kOctets][i % 4];
  }
  __device__ __forceinline__ void GroupBarrier() {
    NamedBarrier(1 + group_, 128);
  }
  // Token of scores[][i], for a page whose first token is given.
  __device__ __forceinline__ int Token(int page, int i) const {
    return page + 16 * warp_ + lane_ / 4 + 8 * (i / 2);
  }
  // First feature of out_[tile][][2 i].
  __device__ __forceinline__ int Feature(int tile, int i) const {
    return 64 * tile + 16 * warp_ + lane_ / 4 + 8 * i;
  }
  __device__ __forceinline__ int Visible(int length, int j) const {
    return args_.Visible(
        length, min(first_octet_ + j, args_.octets - 1) / args_.head_octets);
  }
  __device__ __forceinline__ bool Exists(int j) const {
    return j < args_.group_octets && first_octet_ + j < args_.octets;
  }

  const TpaDecodeArgs& args_;
  TpaRing ring_;
  const int lane_;
  const int warp_;
  const int group_;
  const int first_octet_;
  const int kv_rank_;
  QueryFormer<T, kColumns> former_;
  float out_[kTiles][kOctets][4];
  float segment_out_[kTiles * kOctets * 4];
  uint32_t b_offset_;  // of B in a stage
  uint32_t query_;
  uint32_t weights_;
  float* maxima_;
  float* sums_;
  uint32_t a_offset_[kOctets];  // of this lane's row of an octet of A
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_WORKER_CUH_
