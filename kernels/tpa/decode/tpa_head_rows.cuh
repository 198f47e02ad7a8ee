// Main loop of TPA decode with heads, not tokens, as rows of the products (one
// new token, up to 64 heads, 64 features): one warpgroup a lane multiplies all
// heads against its lane's chunks of the block's tokens.
// Shapes: queries [64, 64] in two 16-bit terms, pages as in
// tpa_decode_hopper.cuh.
// Floor: that of tpa_decode_hopper.cuh; a page is read from shared memory once.
// A head's data is in four lanes of one warp, and weights go from scores to
// outputs in registers: no vote, no barrier, no weights in shared memory. With
// tokens as rows (tpa_worker.cuh) a page takes all three, and two warpgroups
// that share the heads each read all of it. Results are the same to the bit:
// the terms and the order of each sum are.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_HEAD_ROWS_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_HEAD_ROWS_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"
#include "kernels/tpa/decode/tpa_own_tokens.cuh"
#include "kernels/tpa/decode/tpa_ring.cuh"
#include "kernels/tpa/decode/tpa_rows.cuh"
#include "kernels/tpa/decode/tpa_softmax.cuh"
#include "kernels/tpa/decode/tpa_worker.cuh"

namespace recurve {

// Kernel argument in place of the products of tpa_products.cuh.
struct TpaHeadRows {
  static constexpr bool kAsync = true;
};

// A thread holds data of two heads: of its warp's 16 the `lane` / 4-th and the
// one 8 further; and of each 8 tokens, or features, 2 (`lane` % 4) and the
// next.
template <typename T, int kRank, bool kAppends>
class TpaHeadRowsWorker {
 public:
  static constexpr int kTerms = Half<T>::kTerms;
  static constexpr int kOctets = 8;  // of a page's tokens; of features
  static constexpr int kSteps = 4;   // of 16 features, or tokens

  __device__ __forceinline__ TpaHeadRowsWorker(const TpaDecodeArgs& args,
                                               const TpaShared& shared,
                                               const TpaRing& ring,
                                               const TpaQueryCopy& queries,
                                               int lane)
      : args_(args),
        ring_(ring),
        queries_(queries),
        staging_(shared.staging),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(Uniform(threadIdx.x / 32 % 4)),
        chunk_lane_(Uniform(lane)) {
    const int matrix = lane_ / 8;  // of four, one whose row it addresses
    query_address_ = SharedAddress(shared.queries) +
                     (2 * warp_ + matrix % 2) * args.query_octet_bytes +
                     128 * (matrix / 2) + 16 * (lane_ % 8);
    // Padding heads take another head's factors.
    a_offset_ = kTpaOctetBytes * min(2 * warp_ + matrix / 2, args.octets - 1) +
                128 * (matrix % 2) + 16 * (lane_ % 8);
    b_offset_ = kTpaOctetBytes * args.head_octet_count();
    kept_ = shared.kept + 16 * warp_ + lane_ / 4;
    kept_outputs_ = shared.kept_outputs + static_cast<int>(threadIdx.x) % 128;
    value_stages_[0] = -1;
  }

  __device__ __forceinline__ void Run(const TpaBlockWork& work) {
    TpaAttendRows(*this, args_, chunk_lane_, work);
  }

 private:
  // Outputs are kept where the queries were (TpaDecodeBlock).
  static_assert(4 * 128 * 4 * kOctets <= 2 * kTerms * kTpaHeadRowsHeads * 64 &&
                kTerms == kTpaQueryTerms);

  template <typename Worker>
  friend __device__ void TpaAttendRow(Worker& worker, const TpaDecodeArgs& args,
                                      int lane, int row, int length,
                                      int row_chunks, int begin, int end,
                                      int& slot);

  static constexpr int kThreadOutputs = 4 * kOctets;

  // State of this thread's two heads.
  struct State {
    float max[2] = {};  // reference of scores
    float sum[2] = {};
    // Sums of weights so far, of tokens 16 w and 8 further.
    float parts[2][4][2] = {};
  };

  // ---- for TpaAttendRow ----

  __device__ __forceinline__ void BeginRow() {
    TakeKeys();
    WgmmaFence();
    Scores();
    WgmmaCommit();
  }
  __device__ __forceinline__ int TurnBarrier(int lane) const {
    return kTpaTurnBarrier + lane;
  }

  __device__ __forceinline__ void TakeQueries(int row) {
    if constexpr (kAppends) {
      if (!fresh_) NamedBarrier(kTpaConsumerBarrier, args_.consumers());
      TpaOwnQueries<T, kTpaHeadRowsHeads, 1>(args_, queries_, staging_)
          .Form(row);
    } else {
      if (!fresh_) {
        BulkCopyFence();  // kept outputs share the queries' memory
        NamedBarrier(kTpaConsumerBarrier, args_.consumers());
        if (threadIdx.x == 0) queries_.Ask(row);
      }
      queries_.Wait(query_phase_);
      query_phase_ ^= 1;
    }
    fresh_ = false;
#pragma unroll
    for (int term = 0; term < kTerms; ++term) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        LoadMatrices(query_[term][step],
                     query_address_ + 256 * (kSteps * term + step));
        // Padding heads: their scores take part in the vote.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (2 * warp_ + i % 2 >= args_.octets) query_[term][step][i] = 0;
        }
      }
    }
    // Outputs are kept in the same memory.
    NamedBarrier(kTpaConsumerBarrier, args_.consumers());
  }

  // ---- products ----

  __device__ __forceinline__ void TakeKeys() {
#pragma unroll
    for (int r = 0; r < kRank; ++r) key_stages_[r] = ring_.Take();
  }
  // Products of the last taken keys with the queries, first the small term of
  // these, then the large one.
  __device__ __forceinline__ void Scores() {
#pragma unroll
    for (int r = 0; r < kRank; ++r) {
      const uint64_t keys = WgmmaUniform(WgmmaOperand(
          ring_.At(key_stages_[r]) + b_offset_, kTpaOctetBytes, 128));
#pragma unroll
      for (int term = kTerms - 1; term >= 0; --term) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          WgmmaOfRegisters<kMajorK>(
              products_[r], query_[term][step],
              WgmmaAdvance(keys, 2 * kTpaOctetBytes * step),
              term < kTerms - 1 || step > 0, T());
        }
      }
    }
  }
  // out += (weights ∘ A_v) · B_v of all ranks; out = that if not `add`.
  __device__ __forceinline__ void Values(
      const uint32_t (&weights)[kRank][kSteps][4], bool add) {
#pragma unroll
    for (int r = 0; r < kRank; ++r) {
      const uint64_t values = WgmmaUniform(WgmmaOperand(
          ring_.At(value_stages_[r]) + b_offset_, 128, kTpaOctetBytes));
#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
        WgmmaOfRegisters<kMajorMN>(out_, weights[r][t],
                                   WgmmaAdvance(values, 256 * t),
                                   add || r > 0 || t > 0, T());
      }
    }
  }
  __device__ __forceinline__ void Await() {
    WgmmaWait<0>();
    WgmmaPin(products_);
    WgmmaPin(out_);
    WgmmaPin(query_);
    WgmmaPin(weights_);
  }
  // Releases the values of finished products.
  __device__ __forceinline__ void GiveValues() {
    if (value_stages_[0] >= 0) {
#pragma unroll
      for (int r = 0; r < kRank; ++r) ring_.Give(value_stages_[r]);
    }
    value_stages_[0] = -1;
  }

  // `page` is its first token; its score products are in flight, and on return
  // those of the next page are, if there is `more` of the row. `fresh`: it
  // begins a chunk.
  __device__ __forceinline__ void AttendPage(int page, int length, bool fresh,
                                             bool more, State& state) {
    Await();
    __syncwarp();
    GiveValues();
    float scores[kOctets][4];
    TakeScores(state, scores);
    if (page + 64 > length) Hide(page, length, scores);
    if (__any_sync(0xffffffffu, OutOfRange(scores, fresh))) {
      Raise(scores, fresh, state);
    }
    // Scores become weights.
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = FastExp2(scores[j][i]);
    }
#pragma unroll
    for (int j = 0; j < kOctets; j += 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        state.parts[i / 2][j / 2][i % 2] += scores[j][i] + scores[j + 1][i];
    }
    TakeValues(scores, page, length);
    WgmmaFence();
    Values(weights_, !fresh);
    if (more) TakeKeys();
    WgmmaFence();
    Scores();
    WgmmaCommit();
  }

  // Scores of this warp's heads, minus their references.
  __device__ __forceinline__ void TakeScores(const State& state,
                                             float (&scores)[kOctets][4]) {
    uint32_t a_k[kRank][kSteps][4];
#pragma unroll
    for (int r = 0; r < kRank; ++r) {
      const uint32_t a = ring_.At(key_stages_[r]) + a_offset_;
#pragma unroll
      for (int t = 0; t < kSteps; ++t)
        LoadMatricesTransposed(a_k[r][t], a + 256 * t);
    }
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = -state.max[i / 2];
#pragma unroll
        for (int r = 0; r < kRank; ++r) {
          score = __fmaf_rn(Factor(a_k[r][j / 2], j % 2, i),
                            products_[r][4 * j + i], score);
        }
        scores[j][i] = score;
      }
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kRank; ++r)
      ring_.Give(key_stages_[r], a_k[r][kSteps - 1][3] & args_.zero);
  }

  // Masks scores of tokens that do not exist.
  __device__ __forceinline__ void Hide(int page, int length,
                                       float (&scores)[kOctets][4]) const {
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (Token(page, j, i) >= length) scores[j][i] = kMinusInfinity;
      }
    }
  }

  // Whether any of this thread's scores needs another reference.
  __device__ __forceinline__ static bool OutOfRange(
      const float (&scores)[kOctets][4], bool fresh) {
    bool out = !kTpaFixedReference<T> && fresh;
    const float least = fresh ? kTpaLeast : kMinusInfinity;
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const float a = scores[j][i];
        const float b = scores[j][i + 1];
        out |= fmaxf(a, b) > kTpaSlack<T>;
        if (kTpaFixedReference<T>) out |= fminf(a, b) < least;
      }
    }
    return out;
  }

  __device__ __forceinline__ void Raise(float (&scores)[kOctets][4], bool fresh,
                                        State& state) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float max = kMinusInfinity;
#pragma unroll
      for (int j = 0; j < kOctets; ++j)
        max = fmaxf(max, fmaxf(scores[j][2 * h], scores[j][2 * h + 1]));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
      max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
      float change;
      if (fresh) {
        state.max[h] = TpaReference<T>(max);
        change = -(state.max[h] == kMinusInfinity ? 0.0f : state.max[h]);
      } else {
        const bool raise = max > kTpaSlack<T>;
        const float next = raise ? state.max[h] + max : state.max[h];
        change = raise ? state.max[h] - next : 0.0f;
        state.max[h] = next;
        const float scale = FastExp2(change);
#pragma unroll
        for (int i = 0; i < 8; ++i) state.parts[h][i / 2][i % 2] *= scale;
#pragma unroll
        for (int j = 0; j < kOctets; ++j) {
          out_[4 * j + 2 * h] *= scale;
          out_[4 * j + 2 * h + 1] *= scale;
        }
      }
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
        scores[j][2 * h] += change;
        scores[j][2 * h + 1] += change;
      }
    }
  }

  // weights_ = weights ∘ A_v, of all ranks, as operands of products.
  __device__ __forceinline__ void TakeValues(const float (&weights)[kOctets][4],
                                             int page, int length) {
    const bool partial = page + 64 > length;
#pragma unroll
    for (int r = 0; r < kRank; ++r) {
      value_stages_[r] = ring_.Take();
      const uint32_t stage = ring_.At(value_stages_[r]);
      if (partial)
        TpaClearValues(args_, chunk_lane_, stage + b_offset_, length - page);
#pragma unroll
      for (int t = 0; t < kSteps; ++t) {
        uint32_t a_v[4];
        LoadMatricesTransposed(a_v, stage + a_offset_ + 256 * t);
        if (partial) {
          // Factors of tokens that do not exist may be uninitialised.
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int j = 2 * t + i % 2;
            a_v[i] &= (Token(page, j, 0) < length ? 0xffffu : 0) |
                      (Token(page, j, 1) < length ? 0xffff0000u : 0);
          }
        }
        // Weights of head i % 2, octet i / 2.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&of)[4] = weights[2 * t + i / 2];
          const int h = 2 * (i % 2);
          weights_[r][t][i] =
              Half<T>::Pack(of[h] * Factor(a_v, i / 2, h),
                            of[h + 1] * Factor(a_v, i / 2, h + 1));
        }
      }
    }
    if (partial) {
      BulkCopyFence();
      NamedBarrier(kTpaLaneBarrier + chunk_lane_, args_.lane_threads());
    }
  }

  __device__ __forceinline__ void FinishChunk(State& state) {
    // In the order of TpaOverWarps: over tokens by the bits of their numbers,
    // then over the tokens that are separate warps there.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float part[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        part[w] = state.parts[h][w][0] + state.parts[h][w][1];
        part[w] += __shfl_xor_sync(0xffffffffu, part[w], 1);
        part[w] += __shfl_xor_sync(0xffffffffu, part[w], 2);
      }
      state.sum[h] = (part[0] + part[1]) + (part[2] + part[3]);
    }
    Await();
    __syncwarp();
    GiveValues();
  }

  // ---- current results, and their way to memory and back ----

  __device__ __forceinline__ void FoldIn(int h, float2 before,
                                         const float (&outputs)[2 * kOctets],
                                         State& state) {
    const TpaFoldScales scales = ScalesFor(before.x, state.max[h]);
    state.max[h] = fmaxf(before.x, state.max[h]);
    state.sum[h] = Fold(before.y, state.sum[h], scales);
#pragma unroll
    for (int i = 0; i < 2 * kOctets; ++i) {
      float& out = out_[4 * (i / 2) + 2 * h + i % 2];
      out = Fold(outputs[i], out, scales);
    }
  }

  // See TpaOutputs for these.
  __device__ __forceinline__ void FoldKept(int chunk, State& state) {
    const float2* kept = kept_ + kTpaHeadRowsHeads * ((chunk - 1) % 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float outputs[2 * kOctets];
#pragma unroll
      for (int i = 0; i < 2 * kOctets; ++i)
        outputs[i] = kept_outputs_[128 * (2 * kOctets * h + i)];
      FoldIn(h, kept[8 * h], outputs, state);
    }
  }
  __device__ __forceinline__ void Keep(int chunk, const State& state) {
    float2* kept = kept_ + kTpaHeadRowsHeads * (chunk % 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane_ % 4 == 0) kept[8 * h] = {state.max[h], state.sum[h]};
#pragma unroll
      for (int i = 0; i < 2 * kOctets; ++i)
        kept_outputs_[128 * (2 * kOctets * h + i)] =
            out_[4 * (i / 2) + 2 * h + i % 2];
    }
  }

  __device__ __forceinline__ int Head(int h) const {
    return 16 * warp_ + lane_ / 4 + 8 * h;
  }

  __device__ __forceinline__ void FoldSegments(int slot, State& state) {
    const int64_t width = args_.scratch.slot_width;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (Head(h) >= 8 * args_.octets) break;
      const int64_t column = slot * args_.scratch.slot_rows + Head(h);
      const float2 before = args_.max_sum()[column];
      const float* from = args_.outputs() + column * width + 2 * (lane_ % 4);
      float outputs[2 * kOctets];
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
        const float2 two = *reinterpret_cast<const float2*>(from + 8 * j);
        outputs[2 * j] = two.x;
        outputs[2 * j + 1] = two.y;
      }
      FoldIn(h, before, outputs, state);
    }
  }
  __device__ __forceinline__ void WritePartial(int slot,
                                               const State& state) const {
    const int64_t width = args_.scratch.slot_width;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (Head(h) >= 8 * args_.octets) break;
      const int64_t column = slot * args_.scratch.slot_rows + Head(h);
      if (lane_ % 4 == 0)
        args_.max_sum()[column] = {state.max[h], state.sum[h]};
      float* to = args_.outputs() + column * width + 2 * (lane_ % 4);
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j) = {out_[4 * j + 2 * h],
                                                  out_[4 * j + 2 * h + 1]};
      }
    }
  }
  __device__ __forceinline__ void WriteResult(int row,
                                              const State& state) const {
    const TpaCudaDecodeParams& p = args_.p;
    const bool floats = p.out_type == WeightType::kFloat32;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (Head(h) >= static_cast<int>(p.shape.num_heads)) break;
      const float scale = Normalizer(state.sum[h], kRank);
      const int64_t at = row * p.out_stride + 64 * Head(h) + 2 * (lane_ % 4);
#pragma unroll
      for (int j = 0; j < kOctets; ++j) {
        const float a = __fmul_rn(out_[4 * j + 2 * h], scale);
        const float b = __fmul_rn(out_[4 * j + 2 * h + 1], scale);
        if (floats) {
          static_cast<float*>(p.out)[at + 8 * j] = a;
          static_cast<float*>(p.out)[at + 8 * j + 1] = b;
        } else {
          static_cast<T*>(p.out)[at + 8 * j] = Half<T>::From(a);
          static_cast<T*>(p.out)[at + 8 * j + 1] = Half<T>::From(b);
        }
      }
    }
  }

  // A_k or A_v of 16 tokens, from fragments of LoadMatricesTransposed: the one
  // of element [octet][i] of scores.
  __device__ __forceinline__ static float Factor(const uint32_t (&a)[4],
                                                 int octet, int i) {
    const uint32_t pair = a[2 * (i / 2) + octet];
    return i % 2 == 0 ? Half<T>::Low(pair) : Half<T>::High(pair);
  }
  __device__ __forceinline__ int Token(int page, int j, int i) const {
    return page + 8 * j + 2 * (lane_ % 4) + i % 2;
  }

  const TpaDecodeArgs& args_;
  TpaRing ring_;
  const TpaQueryCopy queries_;
  float* const staging_;
  const int lane_;
  const int warp_;
  const int chunk_lane_;  // of the block's lanes
  uint32_t query_[kTerms][kSteps][4];
  float products_[kRank][4 * kOctets];  // of queries and keys
  float out_[4 * kOctets] = {};
  uint32_t weights_[kRank][kSteps][4] = {};
  int key_stages_[kRank] = {};  // of the score products in flight
  int value_stages_[kRank];     // of the output products; first -1: none
  // Addresses of this lane's row for the loads of four 8 by 8 matrices.
  uint32_t query_address_;
  uint32_t a_offset_;  // in a stage
  uint32_t b_offset_;  // of B in a stage
  bool fresh_ = true;  // no row yet
  uint32_t query_phase_ = 0;
  float2* kept_;
  float* kept_outputs_;
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_HEAD_ROWS_CUH_
