// The groups that multiply. Device code only.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/cluster.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_make.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_shared.cuh"

namespace recurve {
namespace linear_ring {

// Four 8x8 matrices as LoadMatricesTransposed reads them.
__device__ __forceinline__ void StoreFourTransposed(uint32_t address,
                                                    const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], "
      "{%1,%2,%3,%4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
#endif
}

// A group has 64 columns. Sᵀ, these columns by all features, is an accumulator
// and, once added up and rounded, the left factor of oᵀ = Sᵀ q̃ᵀ, without
// leaving its registers but for the sum.
template <Form kForm>
struct Multiplier {
  using P = Plan<kForm>;
  static constexpr int kSteps = 8 * P::kEncodings;  // of 16 features

  __device__ __forceinline__ Multiplier(const Args& a, const Layout<kForm>& l)
      : args(a),
        layout(l),
        rank(cluster::ClusterRank()),
        group(Uniform(threadIdx.x / kGroup)),
        warp(Uniform(threadIdx.x % kGroup / 32)) {}

  // The parts of an item's S are on their way while outputs of the item before
  // are made, and its sums while S of the item after is.
  __device__ __forceinline__ void Run() {
    uint32_t mine[P::kSumPieces][4] = {};
    int before = 0;
    int next = AskNext(0);
#pragma unroll 1
    for (;; ++round) {
      const bool ends = next < 0;
      uint32_t own[P::kPartPieces][4] = {};
      {
        float state[P::kEncodings][64] = {};
        const int tiles = TilesOf(next);
#pragma unroll 1
        for (int t = 0; t < tiles; ++t) AddTile(state);
        if (round > 0) BarrierWait(layout.SumsFull(), ~round & 1);
        if (!ends) SendParts(state, own);
      }
      if (round > 0) {
        uint32_t factor[kSteps][4];
        TakeSums(mine, factor);
        if (!ends) LetSend();
        if (P::kMakes && args.q_change == Change::kSoftmax) {
          OutputsOf<P::kMakes>(before, factor);
        } else {
          OutputsOf<false>(before, factor);
        }
        WarpArrive(layout.ItemFree((round - 1) % kItemPlaces));
      }
      if (ends) break;
      before = next;
      next = AddUp(own, mine);
    }
  }
  // How many tiles item `which` has here, twice, and one more if the last is
  // not whole; -1 if there is no such item.
  __device__ __forceinline__ int AskNext(uint32_t which) const {
    BarrierWait(layout.ItemFull(which % kItemPlaces), which / kItemPlaces & 1);
    const Item item = Told(layout, which);
    if (!item.Works()) return -1;
    const int tiles = item.PartTiles();
    int answer = 2 * tiles + (item.Left(0) < tiles * kTokens ? 1 : 0);
    asm volatile("" : "+r"(answer));  // now, not behind what is sent next
    return answer;
  }
  static __device__ __forceinline__ int TilesOf(int asked) {
    return asked < 0 ? 0 : asked / 2;
  }

  // Registers are short where there are some who make.
  static __device__ __forceinline__ uint32_t Thread() {
    if constexpr (!P::kMakes) return threadIdx.x;
    return ThreadAnew();
  }
  static __device__ __forceinline__ uint32_t Lane() { return Thread() % 32; }

  // ---- k̃ and q̃: made, or as they came ----

  __device__ __forceinline__ void WaitForFactor() const {
    BarrierWait(P::kMakes ? layout.Made(key.index) : layout.KeyFull(key.index),
                key.phase);
  }
  // 128 features of it.
  __device__ __forceinline__ uint32_t Factor(int encoding) const {
    return encoding == 0 ? layout.Key(key.index) : layout.Sine(sine.index);
  }
  __device__ __forceinline__ void ReleaseFactor() {
    WarpArrive(layout.KeyFree(key.index));
    key.Next(P::kKeyStages);
    if constexpr (P::kSineBuffers > 0) {
      WarpArrive(layout.SineFree(sine.index));
      sine.Next(P::kSineBuffers);
    }
  }

  // ---- S ----

  // Both factors are read from shared memory: vᵀ in registers would be 16 of
  // them, and S has most of what there are.
  __device__ __forceinline__ void AddTile(float (&state)[P::kEncodings][64]) {
    BarrierWait(layout.ValueFull(value.index), value.phase);
    WaitForFactor();
    const uint32_t columns = layout.Value(value.index) + group * kTileBytes;
    const uint64_t a = WgmmaUniform(wgmma::ByColumns(columns, 0));
    uint64_t b[P::kEncodings];
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) {
      b[e] = WgmmaUniform(wgmma::ByColumns(Factor(e), 0));
    }
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) WgmmaPin(state[e]);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
#pragma unroll
      for (int e = 0; e < P::kEncodings; ++e) {
        wgmma::MultiplyColumns(state[e],
                               WgmmaAdvance(a, step * wgmma::kColumnStep),
                               WgmmaAdvance(b[e], step * wgmma::kColumnStep));
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) WgmmaPin(state[e]);
    WarpArrive(layout.ValueFree(value.index));
    value.Next(P::kValueStages);
    ReleaseFactor();
  }

  // ---- the sum of the parts: each block adds up a quarter of the features, in
  // the order of the blocks from its own on. What a thread sends goes to the
  // same thread of another block. ----

  // Where block `to` has what block `from` sends this thread, `boxes` being the
  // thread's in the first of them.
  template <int kPieces>
  static __device__ __forceinline__ uint32_t Mailbox(uint32_t boxes, int from,
                                                     int to) {
    const int place = from < to ? from : from - 1;
    return boxes + place * (kPieces * P::kPieceBytes);
  }
  // What block `part` adds up.
  static __device__ __forceinline__ const float* Part(
      const float (&state)[P::kEncodings][64], int part) {
    const int first = 4 * P::kShare * part;
    return &state[first / 64][first % 64];
  }
  // Word `j` of piece `i` of a part, as it is sent.
  static __device__ __forceinline__ uint32_t Piece(const float* x, int i,
                                                   int j) {
    if constexpr (P::kRoundParts) {
      return Bf16::Pack(x[8 * i + 2 * j], x[8 * i + 2 * j + 1]);
    } else {
      return __float_as_uint(x[4 * i + j]);
    }
  }
  static __device__ __forceinline__ void Send(uint32_t to, uint32_t barrier,
                                              uint32_t a, uint32_t b,
                                              uint32_t c, uint32_t d) {
    cluster::SendFour(to, barrier, __uint_as_float(a), __uint_as_float(b),
                      __uint_as_float(c), __uint_as_float(d));
  }
  // There is room once every block has sent the sums of the item before, after
  // it had read the parts, and written the state if it took their place. By
  // rank, so that a part's registers are free once it has been sent. This
  // block's own part waits in registers, rounded like others.
  __device__ __forceinline__ void SendParts(
      const float (&state)[P::kEncodings][64],
      uint32_t (&own)[P::kPartPieces][4]) {
    if (P::kStagesState && round > 0 && args.p.states != nullptr) {
      BarrierWait(layout.PartsFree(), ~round & 1);
    }
    if (threadIdx.x == 0) BarrierExpect(layout.PartsFull(), P::kPartBytes);
    switch (rank) {
      case 0:
        SendPartsOf<0>(state, own);
        break;
      case 1:
        SendPartsOf<1>(state, own);
        break;
      case 2:
        SendPartsOf<2>(state, own);
        break;
      default:
        SendPartsOf<3>(state, own);
    }
    WgmmaPin(own);
  }
  template <int kRank>
  __device__ __forceinline__ void SendPartsOf(
      const float (&state)[P::kEncodings][64],
      uint32_t (&own)[P::kPartPieces][4]) const {
#pragma unroll
    for (int i = 0; i < P::kPartPieces; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) own[i][j] = Piece(Part(state, kRank), i, j);
    }
    const uint32_t boxes = layout.parts + Thread() * 16;
#pragma unroll
    for (int n = 1; n < kParts; ++n) {
      const int part = (kRank + n) % kParts;
      const uint32_t to =
          cluster::InBlock(Mailbox<P::kPartPieces>(boxes, kRank, part), part);
      const uint32_t barrier = cluster::InBlock(layout.PartsFull(), part);
#pragma unroll
      for (int i = 0; i < P::kPartPieces; ++i) {
        Send(to + i * P::kPieceBytes, barrier, Piece(Part(state, part), i, 0),
             Piece(Part(state, part), i, 1), Piece(Part(state, part), i, 2),
             Piece(Part(state, part), i, 3));
      }
    }
  }
  // Every block may send this one the sums of the next item: this warp has read
  // those of the one before it. (The loads were issued before the arrival,
  // whose way there and back with new sums is much longer than theirs.)
  __device__ __forceinline__ void LetSend() const {
    __syncwarp();
    for (int i = Lane(); i < kParts * kArrivingLanes; i += 32) {
      cluster::ArriveInCluster(cluster::InBlock(layout.SumsFree(), i % kParts));
    }
  }
  static __device__ __forceinline__ void AddPiece(const uint32_t (&x)[4], int i,
                                                  float (&sum)[4 * P::kShare]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (P::kRoundParts) {
        sum[8 * i + 2 * j] += Bf16::Low(x[j]);
        sum[8 * i + 2 * j + 1] += Bf16::High(x[j]);
      } else {
        sum[4 * i + j] += __uint_as_float(x[j]);
      }
    }
  }
  // The state gets the sums, and everybody their rounded values. What AskNext
  // says of the next item: its answer would be late behind all that is sent.
  __device__ __forceinline__ int AddUp(const uint32_t (&own)[P::kPartPieces][4],
                                       uint32_t (&mine)[P::kSumPieces][4]) {
    float sum[4 * P::kShare] = {};
#pragma unroll
    for (int i = 0; i < P::kPartPieces; ++i) AddPiece(own[i], i, sum);
    BarrierWait(layout.PartsFull(), round & 1);
    const uint32_t offset = Thread() * 16;
#pragma unroll
    for (int n = 1; n < kParts; ++n) {
      const uint32_t from = Mailbox<P::kPartPieces>(layout.parts + offset,
                                                    (rank + n) % kParts, rank);
#pragma unroll
      for (int i = 0; i < P::kPartPieces; ++i) {
        uint32_t x[4];
        ReadFour(from + i * P::kPieceBytes, x);
        AddPiece(x, i, sum);
      }
    }
    if (P::kStagesState && args.p.states != nullptr) LeaveState(sum);
    const int next = AskNext(round + 1);
    // In front of what is sent, which these would wait behind.
    if (!P::kStagesState) Keep(sum, StateOfThread());
#pragma unroll
    for (int i = 0; i < 4 * P::kSumPieces; ++i) {
      mine[i / 4][i % 4] =
          Bf16::Pack(sum[2 * i] * args.p.scale, sum[2 * i + 1] * args.p.scale);
    }
    if (round > 0) BarrierWait(layout.SumsFree(), ~round & 1);
    if (threadIdx.x == 0) BarrierExpect(layout.SumsFull(), P::kSumBytes);
#pragma unroll
    for (int n = 1; n < kParts; ++n) {
      const int other = (rank + n) % kParts;
      const uint32_t to = cluster::InBlock(
          Mailbox<P::kSumPieces>(layout.sums + offset, rank, other), other);
      const uint32_t barrier = cluster::InBlock(layout.SumsFull(), other);
#pragma unroll
      for (int i = 0; i < P::kSumPieces; ++i) {
        Send(to + i * P::kPieceBytes, barrier, mine[i][0], mine[i][1],
             mine[i][2], mine[i][3]);
      }
    }
    return next;
  }
  // Everybody's sums as a factor.
  __device__ __forceinline__ void TakeSums(
      const uint32_t (&mine)[P::kSumPieces][4],
      uint32_t (&factor)[kSteps][4]) const {
    const uint32_t boxes = layout.sums + Thread() * 16;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < P::kSumPieces; ++i) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = mine[i][j];
        if (part != rank) {
          ReadFour(
              Mailbox<P::kSumPieces>(boxes, part, rank) + i * P::kPieceBytes,
              x);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) factor[P::kSumPieces * part + i][j] = x[j];
      }
    }
  }
  // The first of the thread's numbers in the state; null if it has none.
  __device__ __forceinline__ float* StateOfThread() const {
    const LinearNoncausalParams& p = args.p;
    const int lane = Lane();
    const int column = 64 * group + 16 * warp;
    if (p.states == nullptr || column >= args.value_dim) return nullptr;
    const Item item = Told(layout, round);
    return p.states + int64_t{item.slot} * p.slot_stride +
           (int64_t{item.head} * args.head_dim + rank * P::kOwnFeatures +
            lane % 4 * 2) *
               args.value_dim +
           column + lane / 4;
  }
  __device__ __forceinline__ void Keep(const float (&sum)[4 * P::kShare],
                                       float* row) const {
    if (row == nullptr) return;
    // Whole eights of features and of columns exist, or none of them.
    const int64_t columns = args.value_dim;
    const bool both = 64 * group + 16 * warp + 8 < columns;
#pragma unroll
    for (int n = 0; n < P::kShare; ++n) {
      if (rank * P::kOwnFeatures + 8 * n >= args.head_dim) break;
      row[0] = sum[4 * n];
      row[columns] = sum[4 * n + 1];
      if (both) {
        row[8] = sum[4 * n + 2];
        row[columns + 8] = sum[4 * n + 3];
      }
      row += 8 * columns;
    }
  }
  // Sums for the warp that writes the state, where the parts were.
  __device__ __forceinline__ void LeaveState(
      const float (&sum)[4 * P::kShare]) const {
    NamedBarrier(4, kMultipliers);  // all have read their parts
    const uint32_t lane = Lane();
    const uint32_t to =
        layout.State(lane % 4 * 2) + (64 * group + 16 * warp + lane / 4) * 4;
#pragma unroll
    for (int n = 0; n < P::kShare; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(
                         to + (8 * n + i % 2) * kStateRowBytes + i / 2 * 32),
                     "f"(sum[4 * n + i])
                     : "memory");
      }
    }
    BulkCopyFence();
    WarpArrive(layout.StateFull());
  }

  // ---- outputs ----

  template <bool kScaled>
  __device__ __forceinline__ void OutputsOf(
      int asked, const uint32_t (&factor)[kSteps][4]) {
    if (args.p.g == nullptr) {
      Outputs<kScaled, false, false>(asked, factor);
    } else if (args.p.g_activation == Activation::kSilu) {
      Outputs<kScaled, true, true>(asked, factor);
    } else {
      Outputs<kScaled, true, false>(asked, factor);
    }
  }
  template <bool kScaled, bool kGated, bool kSilu>
  __device__ __forceinline__ void Outputs(int asked,
                                          const uint32_t (&factor)[kSteps][4]) {
    const int tiles = TilesOf(asked);
    // How many the copy engine takes.
    const int whole =
        args.p.out_type == ElementType::kBFloat16 ? tiles - asked % 2 : 0;
    const uint32_t lane = Lane();
    // Of 16 tokens the piece that this thread reads and writes.
    const uint32_t piece =
        group * kTileBytes +
        wgmma::PieceOffset(lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2);
#pragma unroll 1
    for (int t = 0; t < tiles; ++t) {
      OutTile<kScaled, kGated, kSilu>(factor,
                                      layout.Value(value.index) + piece);
      BulkCopyFence();
      if (t < whole) {
        WarpArrive(layout.OutFull(value.index));
      } else {
        NamedBarrier(1 + group, kGroup);
        Write(Told(layout, round - 1), t,
              layout.Value(value.index) + group * kTileBytes);
        BulkCopyFence();
        WarpArrive(layout.ValueFree(value.index));
      }
      value.Next(P::kValueStages);
    }
  }
  // Gated outputs take the place of the gates, at `at` and each 16 tokens on.
  template <bool kScaled, bool kGated, bool kSilu>
  __device__ __forceinline__ void OutTile(const uint32_t (&factor)[kSteps][4],
                                          uint32_t at) {
    float out[32];
    uint64_t queries[P::kEncodings];
#pragma unroll
    for (int e = 0; e < P::kEncodings; ++e) {
      queries[e] = WgmmaUniform(wgmma::ByRows(Factor(e), 0));
    }
    WaitForFactor();
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma::Multiply<false>(
          out, factor[step],
          WgmmaAdvance(queries[step / 8],
                       step % 8 / wgmma::kSteps * kTileBytes +
                           step % wgmma::kSteps * wgmma::kRowStep),
          step > 0);
    }
    WgmmaCommit();
    BarrierWait(layout.ValueFull(value.index), value.phase);
    // All are read before the first is needed, while products are under way.
    uint32_t gate[4][4];
    if constexpr (kGated) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        LoadMatricesTransposed(gate[i], at + i * 2048);
    }
    float scale[16];  // of two neighbouring tokens of each eight
    if constexpr (kScaled) ReadScales(scale);
    WgmmaWait<0>();
    WgmmaPin(out);
    ReleaseFactor();
    if constexpr (kScaled) {
#pragma unroll
      for (int i = 0; i < 32; ++i) out[i] *= scale[i / 4 * 2 + i % 2];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Gate<kGated, kSilu>(gate[i], &out[8 * i], at + i * 2048);
    }
  }
  __device__ __forceinline__ void ReadScales(float (&scale)[16]) const {
    const uint32_t from = layout.Scale(key.index, Lane() % 4 * 2);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(scale[2 * i]), "=f"(scale[2 * i + 1])
                   : "r"(from + 32 * i)
                   : "memory");
    }
  }
  template <bool kGated, bool kSilu>
  static __device__ __forceinline__ void Gate(const uint32_t (&gate)[4],
                                              const float* out, uint32_t to) {
    uint32_t rounded[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low = out[2 * j];
      float high = out[2 * j + 1];
      if constexpr (kGated) {
        const uint32_t g = kSilu ? HalvePair(gate[j]) : gate[j];
        low *= kSilu ? SiluOfTwice(Bf16::Low(g)) : Bf16::Low(g);
        high *= kSilu ? SiluOfTwice(Bf16::High(g)) : Bf16::High(g);
      }
      rounded[j] = Bf16::Pack(low, high);
    }
    StoreFourTransposed(to, rounded);
  }
  __device__ __forceinline__ void Write(const Item& item, int tile,
                                        uint32_t from) const {
    const int first = Thread() % kGroup / 8;
    const int column = 64 * group + Thread() % 8 * 8;
    if (column >= args.value_dim) return;
    const int left = item.Left(tile) - first;
    const int64_t at = (int64_t{item.Token(tile)} + first) * args.p.out_stride +
                       int64_t{item.head} * args.value_dim + column;
    from += wgmma::PieceOffset(first, Thread() % 8);
    if (args.p.out_type == ElementType::kFloat32) {
      WriteRows(static_cast<float*>(args.p.out) + at, from, left);
    } else {
      WriteRows(static_cast<__nv_bfloat16*>(args.p.out) + at, from, left);
    }
  }
  template <typename T>
  __device__ __forceinline__ void WriteRows(T* to, uint32_t from,
                                            int left) const {
    constexpr int kRows = kGroup / 8;
#pragma unroll 4
    for (int i = 0; i < kTokens / kRows; ++i) {
      uint32_t x[4];
      ReadFour(from + i * (kRows * 128), x);
      if (kRows * i < left) Put(to, x);
      to += kRows * args.p.out_stride;
    }
  }
  static __device__ __forceinline__ void Put(__nv_bfloat16* to,
                                             const uint32_t (&x)[4]) {
    // The compiler would take this apart into four.
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
  }
  static __device__ __forceinline__ void Put(float* to,
                                             const uint32_t (&x)[4]) {
    float4* const at = reinterpret_cast<float4*>(to);
    at[0] = make_float4(Bf16::Low(x[0]), Bf16::High(x[0]), Bf16::Low(x[1]),
                        Bf16::High(x[1]));
    at[1] = make_float4(Bf16::Low(x[2]), Bf16::High(x[2]), Bf16::Low(x[3]),
                        Bf16::High(x[3]));
  }

  const Args& args;
  const Layout<kForm>& layout;
  int rank;
  int group;
  int warp;
  Place key;
  Place sine;
  Place value;
  uint32_t round = 0;  // how many items have been added up
};

}  // namespace linear_ring
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_NONCAUSAL_RING_MULTIPLY_CUH_
