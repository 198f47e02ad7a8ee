// Main loop of TPA decode with tokens as rows of the products: a consumer
// warpgroup attends from its columns of queries to its lane's chunks of the
// block's tokens.
// Shapes: keys [64, D] · queries [D, columns] give scores [64, columns] a page
// and rank; values^T [E, 64] · weights [64, columns] give outputs.
// Floor: that of tpa_decode_hopper.cuh.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_WORKER_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_WORKER_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/decode/tpa_cluster.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"
#include "kernels/tpa/decode/tpa_outputs.cuh"
#include "kernels/tpa/decode/tpa_own_tokens.cuh"
#include "kernels/tpa/decode/tpa_ring.cuh"
#include "kernels/tpa/decode/tpa_rows.cuh"
#include "kernels/tpa/decode/tpa_softmax.cuh"

namespace recurve {

// A block's shared memory after the ring buffers.
struct TpaShared {
  char* queries;     // [groups, octets of kColumns] as TpaQueryCopy brings
  uint32_t weights;  // [lanes, groups, 2] planes of columns
  float* staging;    // the same memory, for factors of queries
  float* exchange;   // [lanes, groups, 2, columns, 4 warps]: maxima, sums;
                     // results pass through these two, too (WriteResult)
  float2* kept;      // [groups, 2, columns]: maximum, sum of a segment so far
  float* kept_outputs;  // [groups, outputs of a thread, 128] of it
};

// Products is one of tpa_products.cuh. Each warp has 16 tokens of a page; a
// thread holds the scores of two tokens and kOctets pairs of columns.
//
// kRank is the key-value rank, or 0: given by the arguments. kAppends: queries
// are formed here.
template <typename T, int kColumns, int kTiles, int kRank, typename Products,
          bool kAppends>
class TpaWorker : private TpaOutputs<T, kColumns, kTiles, kRank> {
  using Outputs = TpaOutputs<T, kColumns, kTiles, kRank>;
  using Outputs::args_;
  using Outputs::chunk_lane_;
  using Outputs::first_octet_;
  using Outputs::FoldSegments;
  using Outputs::group_;
  using Outputs::kOctets;
  using Outputs::kOwn;
  using Outputs::kThreadOutputs;
  using Outputs::kv_rank_;
  using Outputs::lane_;
  using Outputs::out_;
  using Outputs::SendToCluster;
  using Outputs::warp_;
  using Outputs::warpgroup_;
  using Outputs::WritePartial;
  using State = typename Outputs::State;

 public:
  // Ranks whose score products begin a page early.
  static constexpr int kEarly =
      Products::kEarlyKeys ? TpaEarlyRanks(kTiles, kRank) : 1;
  static constexpr int kTerms = Half<T>::kTerms;
  static constexpr int kUnroll = kRank > 0 ? kRank : 1;
  // Ranks whose values are multiplied together.
  static constexpr int kTogether = kEarly == 2 ? 2 : 1;
  static constexpr uint32_t kPlaneBytes = kTpaOctetBytes * kOctets;

  __device__ __forceinline__ TpaWorker(const TpaDecodeArgs& args,
                                       const TpaShared& shared,
                                       const TpaRing& ring,
                                       const TpaQueryCopy& queries, int lane)
      : Outputs(args, lane), ring_(ring), queries_(queries) {
    value_stages_[0] = -1;
    b_offset_ = kTpaOctetBytes * args.head_octet_count();
    query_ = SharedAddress(shared.queries) + group_ * queries.group_bytes();
    staging_ = shared.staging;
    weights_ = shared.weights + 2 * kPlaneBytes * warpgroup_;
    maxima_ = shared.exchange + 8 * kColumns * warpgroup_;
    sums_ = maxima_ + 4 * kColumns;
    kept_ = shared.kept + 2 * kColumns * group_;
    kept_outputs_ = shared.kept_outputs + 128 * kThreadOutputs * group_ +
                    static_cast<int>(threadIdx.x) % 128;
    const int token = 16 * warp_ + lane_ % 16;
    // Padding columns take factors of another column that this block copies.
    const int last_octet = args.first_octet() + args.block_octets() - 1;
    const int first_octet = min(first_octet_, last_octet);
    const bool one = args.p.new_tokens == 1;
    int head_octet = one ? first_octet - args.first_head_octet()
                         : first_octet % args.head_octets;
    uint32_t offset = kTpaOctetBytes * head_octet + 16 * token;
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
      // Lanes 16 to 31 address rows of the next octet; see LoadFactors.
      a_offset_[j] = offset;
      if (first_octet_ + j >= last_octet) continue;
      offset += kTpaOctetBytes;
      if (!one && ++head_octet == args.head_octets) {
        head_octet = 0;
        offset = 16 * token;
      }
    }
  }

  __device__ __forceinline__ void Run(const TpaBlockWork& work) {
    TpaAttendRows(*this, args_, chunk_lane_, work);
  }

  // The same in a cluster's block, which has chunks of one row; its lanes take
  // turns. Results go to all blocks.
  __device__ __forceinline__ void RunInCluster(const TpaCluster& cluster,
                                               int row, int length,
                                               int row_chunks) {
    static_assert(kTiles == 1);
    TakeQueries(row);
    const int first =
        TpaClusterFirst(row_chunks, TpaCluster::Block()) + chunk_lane_;
    const int end =
        min(TpaClusterFirst(row_chunks, TpaCluster::Block() + 1), row_chunks);
    if (first >= end) return;
    BeginScores(true);
    Products::template Wait<0>();
#pragma unroll 1
    for (int chunk = first; chunk < end; chunk += kTpaClusterLanes) {
      const int position = TpaChunkBegin(chunk);
      const int stop = min(TpaChunkBegin(chunk + 1), length);
      const bool more_chunks = chunk + kTpaClusterLanes < end;
      State state;
#pragma unroll 1
      for (int page = position; page < stop; page += 64) {
        AttendPage(page, length, page == position,
                   page + 64 < stop || more_chunks, state);
      }
      FinishChunk(state);
      if (chunk == first) cluster::AwaitBegun();
      SendToCluster(cluster, chunk, state);
    }
  }

 private:
  template <typename Worker>
  friend __device__ void TpaAttendRow(Worker& worker, const TpaDecodeArgs& args,
                                      int lane, int row, int length,
                                      int row_chunks, int begin, int end,
                                      int& slot);

  // ---- for TpaAttendRow ----

  __device__ __forceinline__ void BeginRow() {
    BeginScores(true);
    Products::template Wait<0>();
  }
  __device__ __forceinline__ void FoldKept(int chunk, State& state) {
    Outputs::FoldKept(kept_, kept_outputs_, chunk, state);
  }
  __device__ __forceinline__ void Keep(int chunk, const State& state) {
    Outputs::Keep(kept_, kept_outputs_, chunk, state);
  }
  __device__ __forceinline__ void WriteResult(int row,
                                              const State& state) const {
    // Uses the maxima's memory: a barrier (of the sums) follows its last use
    // and that of the weights. Sums may still be read there.
    Outputs::WriteResult(row, state, maxima_, weights_);
  }

  // AskForFirstQueries has requested the first row's.
  __device__ __forceinline__ void TakeQueries(int row) {
    if constexpr (kAppends) {
      // The previous row's weights are no longer read; no row has had any at
      // first.
      if (!fresh_) NamedBarrier(kTpaConsumerBarrier, args_.consumers());
      TpaOwnQueries<T, kColumns, kTiles>(args_, queries_, staging_).Form(row);
    } else if constexpr (Products::kAsync) {
      if (!fresh_) {
        NamedBarrier(kTpaConsumerBarrier, args_.consumers());
        if (threadIdx.x == 0) queries_.Ask(row);
      }
      queries_.Wait(query_phase_);
      query_phase_ ^= 1;
    } else {
      NamedBarrier(kTpaConsumerBarrier, args_.consumers());
      queries_.Copy(row);
      NamedBarrier(kTpaConsumerBarrier, args_.consumers());
    }
    fresh_ = false;
  }

  __device__ __forceinline__ int TurnBarrier(int lane) const {
    return kTpaTurnBarrier + 2 * group_ + lane;
  }

  // Starts the score products of the next keys. Without `more` there are none:
  // the last ones are multiplied again and the result is unused, which is
  // cheaper than a branch that ptxas cannot prove uniform.
  __device__ __forceinline__ void BeginScores(bool more) {
    if (more) {
#pragma unroll
      for (int i = 0; i < kEarly; ++i) key_stages_[i] = ring_.Take();
    }
    PinProducts();
    Products::Begin();
#pragma unroll
    for (int i = 0; i < kEarly; ++i) {
      Products::Scores(products_[i], ring_.At(key_stages_[i]) + b_offset_,
                       query_, static_cast<int>(args_.layout.b_k_width) / 16);
    }
    Products::Commit();
  }

  // `page` is its first token; its BeginScores has been called, and that of the
  // next page is called here, if there is `more` of the row. `fresh`: it begins
  // a chunk. state.sum is of this thread's tokens alone until the chunk is
  // finished.
  //
  // While products are in flight no code may write accumulators, or ptxas
  // serialises them: hence `fresh`, and references that move seldom.
  __device__ __forceinline__ void AttendPage(int page, int length, bool fresh,
                                             bool more, State& state) {
    float scores[kOctets][4];
    Scores(state, scores);
    if (Products::kEarlyKeys) BeginScores(more);
    // The first column's query sees the fewest tokens.
    if (page + 64 > args_.Visible(length, 0)) Hide(page, length, scores);
    if (NamedBarrierAny(kTpaGroupBarrier + warpgroup_, 128,
                        TpaOutOfRange<T>(scores, fresh))) {
      Raise(scores, fresh, state);
    }
    // Scores become weights.
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      float& low = scores[k / 2][k % 2];
      float& high = scores[k / 2][k % 2 + 2];
      low = FastExp2(low);
      high = FastExp2(high);
      state.sum[k] += low + high;
    }
#pragma unroll kUnroll
    for (int r = 0; r < kv_rank_; r += kTogether) {
      if (!Products::kEarlyKeys && r == kv_rank_ - 1) BeginScores(more);
      AddValues(scores, r, page, length, fresh && r == 0);
    }
  }

  // Masks scores of tokens that queries do not see.
  __device__ __forceinline__ void Hide(int page, int length,
                                       float (&scores)[kOctets][4]) const {
    const bool one = args_.p.new_tokens == 1;
    int t =
        one ? 0 : min(first_octet_ / args_.head_octets, args_.p.new_tokens - 1);
    int head_octet = first_octet_ - t * args_.head_octets;
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
      const int visible = args_.Visible(length, t);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (Token(page, i) >= visible) scores[j][i] = kMinusInfinity;
      }
      // Padding columns see what the last one does.
      ++head_octet;
      if (!one && head_octet == args_.head_octets &&
          t + 1 < args_.p.new_tokens) {
        head_octet = 0;
        ++t;
      }
    }
  }

  __device__ __forceinline__ static float Base(float max) {
    return max == kMinusInfinity ? 0.0f : max;
  }

  // New references for the columns that need them; this page's scores and the
  // current outputs become relative to these. A column's does not depend on
  // other columns.
  __device__ __forceinline__ void Raise(float (&scores)[kOctets][4], bool fresh,
                                        State& state) {
    float max[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      max[k] = fmaxf(scores[k / 2][k % 2], scores[k / 2][k % 2 + 2]);
    }
    OverWarps<true>(max, maxima_);
    if (fresh) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        state.max[k] = TpaReference<T>(max[k]);
        scores[k / 2][k % 2] -= Base(state.max[k]);
        scores[k / 2][k % 2 + 2] -= Base(state.max[k]);
      }
      return;
    }
    Products::template Wait<0>();
    PinProducts();
    PinOutputs();
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const bool raise = max[k] > kTpaSlack<T>;
      const float next = raise ? state.max[k] + max[k] : state.max[k];
      const float change = raise ? state.max[k] - next : 0.0f;
      const float scale = FastExp2(change);
      state.max[k] = next;
      scores[k / 2][k % 2] += change;
      scores[k / 2][k % 2 + 2] += change;
      state.sum[k] *= scale;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        out_[tile][k / 2][k % 2] *= scale;
        out_[tile][k / 2][k % 2 + 2] *= scale;
      }
    }
  }

  // Scores of this warp's tokens, minus the references of their columns.
  __device__ __forceinline__ void Scores(const State& state,
                                         float (&scores)[kOctets][4]) {
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = -state.max[2 * j + i % 2];
    }
#pragma unroll kUnroll
    for (int first = 0; first < kv_rank_; first += kEarly) {
      if (first > 0) BeginScores(true);
      uint32_t a_k[kEarly][kOctets][2];
#pragma unroll
      for (int r = 0; r < kEarly; ++r) {
        LoadFactors(a_k[r], ring_.At(key_stages_[r]));
      }
      Products::template Wait<0>();  // for the last page's outputs, too
      PinProducts();
      PinOutputs();
      __syncwarp();
      // Nothing has waited for a_k, but this does.
#pragma unroll
      for (int r = 0; r < kEarly; ++r)
        ring_.Give(key_stages_[r], a_k[r][kOctets - 1][1] & args_.zero);
      GiveValues();
#pragma unroll
      for (int r = 0; r < kEarly; ++r) {
#pragma unroll
        for (int j = 0; j < kOctets; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            scores[j][i] = __fmaf_rn(Factor(a_k[r], j, i),
                                     Product(products_[r], j, i), scores[j][i]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ static float Product(
      const float (&products)[Products::kSums][4], int j, int i) {
    if constexpr (Products::kApart) {
      static_assert(kTerms == 2);
      return products[2 * j + 1][i] + products[2 * j][i];
    } else {
      return products[j][i];
    }
  }

  // out += (weights ∘ A_v) · B_v of the next kTogether ranks, from `r` on.
  __device__ __forceinline__ void AddValues(const float (&weights)[kOctets][4],
                                            int r, int page, int length,
                                            bool fresh) {
    const int tiles = (static_cast<int>(args_.p.shape.value_dim) + 63) / 64;
    const bool partial = page + 64 > length;
    // There are two planes of weights. If ranks are separate, the last products
    // may still read the other one. All warps have waited for those before: at
    // this page's vote, or at the previous rank's barrier.
    const uint32_t plane = weights_ + weights_offset_;
    if (kTogether == 1) weights_offset_ ^= kPlaneBytes;
    int stages[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      stages[i] = ring_.Take();
      WriteWeights(weights, ring_.At(stages[i]), page, length,
                   plane + i * kPlaneBytes);
    }
    if (kTogether == 1 && r > 0) {
      Products::template Wait<0>();
      PinProducts();
      PinOutputs();
      __syncwarp();
      GiveValues();
    }
    BulkCopyFence();
    if (partial) {
      NamedBarrier(kTpaLaneBarrier + chunk_lane_, args_.lane_threads());
    } else {
      GroupBarrier();
    }
    PinOutputs();
    Products::Begin();
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      Products::Values(out_, ring_.At(stages[i]) + b_offset_,
                       plane + i * kPlaneBytes, tiles, i > 0 || !fresh);
      value_stages_[i] = stages[i];
    }
    Products::Commit();
  }

  // Weights ∘ A_v of a rank, whose values are in `stage`: an operand of
  // products. By all warps of the lane, which clear values of tokens that do
  // not exist.
  __device__ __forceinline__ void WriteWeights(
      const float (&weights)[kOctets][4], uint32_t stage, int page, int length,
      uint32_t plane) {
    uint32_t a_v[kOctets][2];
    LoadFactors(a_v, stage);
    if (page + 64 > length) {
      // Factors of tokens that do not exist may be uninitialised.
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (Token(page, 2 * i) < length) continue;
#pragma unroll
        for (int j = 0; j < kOctets; ++j) a_v[j][i] = 0;
      }
      TpaClearValues(args_, chunk_lane_, stage + b_offset_, length - page);
    }
    const uint32_t own =
        plane + 16 * (16 * warp_ + lane_ / 4) + 4 * (lane_ % 4);
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // tokens lane / 4 and that plus 8
        const uint32_t pair =
            Half<T>::Pack(weights[j][2 * i] * Factor(a_v, j, 2 * i),
                          weights[j][2 * i + 1] * Factor(a_v, j, 2 * i + 1));
        asm volatile(
            "st.shared.b32 [%0], %1;" ::"r"(own + kTpaOctetBytes * j + 128 * i),
            "r"(pair)
            : "memory");
      }
    }
  }

  // Releases the values of finished products.
  __device__ __forceinline__ void GiveValues() {
    if (value_stages_[0] >= 0) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) ring_.Give(value_stages_[i]);
    }
    value_stages_[0] = -1;
  }

  __device__ __forceinline__ void FinishChunk(State& state) {
    Products::template Wait<0>();
    PinOutputs();
    __syncwarp();
    GiveValues();
    OverWarps<false>(state.sum, sums_);
  }

  template <bool kMax>
  __device__ __forceinline__ void OverWarps(float (&value)[kOwn],
                                            float* memory) const {
    TpaOverWarps<kMax>(value, memory, lane_, warp_,
                       kTpaGroupBarrier + warpgroup_);
  }

  // A_k or A_v in the layout of scores: [j][i] are columns 2 (lane % 4) and the
  // next, of token lane / 4 + 8 i of the warp's.
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

  __device__ __forceinline__ void PinProducts() {
#pragma unroll
    for (int r = 0; r < kEarly; ++r) Products::Pin(products_[r]);
  }
  __device__ __forceinline__ void PinOutputs() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) Products::Pin(out_[tile]);
  }
  __device__ __forceinline__ void GroupBarrier() {
    NamedBarrier(kTpaGroupBarrier + warpgroup_, 128);
  }
  // Token of scores[][i]; `page` is the page's first token.
  __device__ __forceinline__ int Token(int page, int i) const {
    return page + 16 * warp_ + lane_ / 4 + 8 * (i / 2);
  }

  TpaRing ring_;
  const TpaQueryCopy queries_;
  float products_[kEarly][Products::kSums][4];  // of keys and queries
  int key_stages_[kEarly] = {};  // of the score products in flight
  int value_stages_[kTogether];  // of the output products; first -1: none
  uint32_t b_offset_;            // of B in a stage
  uint32_t query_;
  uint32_t weights_;
  uint32_t weights_offset_ = 0;
  float* staging_;
  bool fresh_ = true;  // no row yet
  uint32_t query_phase_ = 0;
  float* maxima_;
  float* sums_;
  float2* kept_;
  float* kept_outputs_;
  uint32_t a_offset_[kOctets];  // of this lane's row of an octet of A
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_WORKER_CUH_
