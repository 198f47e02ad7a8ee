#include <cuda_bf16.h>

#include <type_traits>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_cluster.cuh"
#include "kernels/linear_attn/linear_prefill_cuda.h"
#include "kernels/linear_attn/linear_prefill_plan.h"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_step_check.h"
#include "kernels/linear_attn/linear_wgmma.cuh"

namespace recurve {
namespace {

using linear_cluster::ArriveInCluster;
using linear_cluster::ClusterBarrier;
using linear_cluster::ClusterRank;
using linear_cluster::InBlock;
using linear_cluster::SendFour;
using linear_prefill::kChunk;
using linear_prefill::kGroup;
using linear_prefill::Recipe;
using linear_prefill::Row;
using linear_prefill::Slice;
using Bf16 = Half<__nv_bfloat16>;

// How tiles come into shared memory: q, k and v as they are; copied, then
// activated and encoded in place; or made from global memory, which takes any
// type, activation and alignment.
enum class Source { kCopied, kChanged, kMade };

// How many bfloat16 terms stand for the state where it is a factor.
#ifndef RECURVE_LINEAR_PREFILL_TERMS
#define RECURVE_LINEAR_PREFILL_TERMS 1
#endif
constexpr int kStateTerms = RECURVE_LINEAR_PREFILL_TERMS;

// What a launch is cut into, in 32 bits and ready for the device.
struct Shape {
  int head_dim;
  int key_dim;
  int value_dim;
  int value_tiles;
  int stages;
  int key_slices;
  int exchange_bytes;  // of one buffer of partial sums
  int exchange_blocks;
};

// ----------------------------------------------------------------------------
// Shared memory

// Addresses in a block's shared memory, the same in every block of a cluster.
template <int kGroups>
struct Layout {
  static constexpr int kStageBytes = (2 + kGroups) * wgmma::kTileBytes;

  __device__ __forceinline__ Layout(uint32_t start, const Shape& s)
      : scores(start + s.stages * kStageBytes),
        exchange(scores + 2 * wgmma::kTileBytes),
        outputs(exchange + 2 * kGroups * s.exchange_bytes),
        powers(outputs + kGroups * wgmma::kTileBytes),
        barriers(powers + 512),
        stages(start),
        exchange_bytes(s.exchange_bytes) {}

  __device__ __forceinline__ uint32_t Queries(int stage) const {
    return stages + stage * kStageBytes;
  }
  __device__ __forceinline__ uint32_t Keys(int stage) const {
    return Queries(stage) + wgmma::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Values(int stage, int group) const {
    return Queries(stage) + (2 + group) * wgmma::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Scores(int c) const {
    return scores + (c & 1) * wgmma::kTileBytes;
  }
  __device__ __forceinline__ uint32_t Exchange(int group, int c) const {
    return exchange + (2 * group + (c & 1)) * exchange_bytes;
  }
  // Barriers. A stage is full, is free; scores are there, are used; partial
  // sums have come, and those sent have been used.
  __device__ __forceinline__ uint32_t Full(int stage) const {
    return barriers + 8 * stage;
  }
  __device__ __forceinline__ uint32_t Free(int stage) const {
    return barriers + 64 + 8 * stage;
  }
  __device__ __forceinline__ uint32_t ScoresFull(int c) const {
    return barriers + 128 + 8 * (c & 1);
  }
  __device__ __forceinline__ uint32_t ScoresFree(int c) const {
    return barriers + 144 + 8 * (c & 1);
  }
  __device__ __forceinline__ uint32_t SumsFull(int group, int c) const {
    return barriers + 160 + 32 * group + 8 * (c & 1);
  }
  __device__ __forceinline__ uint32_t SumsFree(int group, int c) const {
    return SumsFull(group, c) + 16;
  }

  uint32_t scores, exchange, outputs, powers, barriers;
  uint32_t stages;
  int exchange_bytes;
};

// ----------------------------------------------------------------------------
// The group that prepares: tiles of q̃, k̃ and ṽ, and the scores

template <int kGroups, Source kSource, typename IO>
struct Preparer {
  __device__ __forceinline__ Preparer(const LinearPrefillParams& params,
                                      const Shape& shape,
                                      const Layout<kGroups>& l, const Row& r,
                                      int head_index, int slice_index,
                                      int value_tile_index)
      : p(params),
        s(shape),
        layout(l),
        row(r),
        slice(params.position, shape.head_dim, slice_index),
        head(head_index),
        first_value(value_tile_index * kGroups * 64) {
    q = static_cast<const IO*>(p.q) + int64_t{head} * s.head_dim;
    k = static_cast<const IO*>(p.k) + int64_t{head} * s.head_dim;
    v = static_cast<const IO*>(p.v) + int64_t{head} * s.value_dim;
    if constexpr (kSource != Source::kMade) {
      query_tile.Begin(q, p.stride, slice.first, slice.end, row);
      key_tile.Begin(k, p.stride, slice.first, slice.end, row);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int first[2] = {first_value + g * 64, first_value + g * 64 + 32};
        const int end[2] = {s.value_dim, s.value_dim};
        value_tile[g].Begin(v, p.stride, first, end, row);
      }
    }
  }

  // Starts the copies of chunk c; to be called for each in order.
  __device__ __forceinline__ void Copy(int c, int stage) {
    const bool whole = row.Begin(c) == 0 && row.End(c) == kChunk;
    query_tile.Copy(row, c, whole, layout.Queries(stage));
    key_tile.Copy(row, c, whole, layout.Keys(stage));
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      value_tile[g].Copy(row, c, whole, layout.Values(stage, g));
    }
  }
  // Activates and encodes what has been copied.
  __device__ __forceinline__ void Change(int c, int stage) const {
    linear_prefill::ChangeKeys(p.q_activation, p.k_activation, slice,
                               p.phase_steps + head * p.phase_head_stride, row,
                               c, layout.Queries(stage), layout.Keys(stage));
    if (p.v_activation == Activation::kNone) return;
#pragma unroll 1
    for (int g = 0; g < kGroups; ++g) {
      linear_prefill::ChangeValues(p.v_activation,
                                   s.value_dim - first_value - g * 64, row, c,
                                   layout.Values(stage, g));
    }
  }

  __device__ __forceinline__ void Make(int c, int stage) const {
    Recipe recipe = {p.q_activation,
                     s.head_dim,
                     {slice.first[0], slice.first[1]},
                     {slice.end[0], slice.end[1]}};
    const Slice* encode = p.position == LrpeType::kNone ? nullptr : &slice;
    const uint64_t* steps = p.phase_steps + head * p.phase_head_stride;
    linear_prefill::MakeTile(q, p.stride, recipe, encode, steps, row, c,
                             layout.Queries(stage));
    recipe.activation = p.k_activation;
    linear_prefill::MakeTile(k, p.stride, recipe, encode, steps, row, c,
                             layout.Keys(stage));
    recipe.activation = p.v_activation;
    recipe.dim = s.value_dim;
    recipe.end[0] = recipe.end[1] = s.value_dim;
#pragma unroll 1
    for (int g = 0; g < kGroups; ++g) {
      recipe.first[0] = first_value + g * 64;
      recipe.first[1] = recipe.first[0] + 32;
      linear_prefill::MakeTile(v, p.stride, recipe,
                               static_cast<const Slice*>(nullptr), steps, row,
                               c, layout.Values(stage, g));
    }
  }

  // λ^(i−j) (q̃_i · k̃_j) for j <= i, to bfloat16.
  __device__ __forceinline__ void Scores(int c, int stage,
                                         const float (&weight)[32]) const {
    float scores[32];
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      wgmma::Multiply(scores, wgmma::ByRows(layout.Queries(stage), step),
                      wgmma::ByRows(layout.Keys(stage), step), step > 0);
    }
    wgmma::Commit();
    wgmma::Wait<0>();
    wgmma::Hold(scores);
    const int warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32;
    const int ahead = 16 * warp + lane / 4 - 2 * (lane % 4);
    // What comes later may be infinite: it is left out, not multiplied by 0.
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      if (b < 2 * warp) {  // all of it is past
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; ++i) scores[i] *= weight[i];
      } else if (b > 2 * warp + 1) {
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; ++i) scores[i] = 0.0f;
      } else {
#pragma unroll
        for (int i = 4 * b; i < 4 * b + 4; ++i) {
          scores[i] = ahead + Place(i) >= 0 ? scores[i] * weight[i] : 0.0f;
        }
      }
    }
    BarrierWait(layout.ScoresFree(c), (c >> 1 & 1) ^ 1);
    const int matrix = lane / 8;
    const int token = 16 * warp + matrix % 2 * 8 + lane % 8;
#pragma unroll
    for (int b = 0; b < 8; b += 2) {
      const uint32_t r[4] = {Bf16::Pack(scores[4 * b], scores[4 * b + 1]),
                             Bf16::Pack(scores[4 * b + 2], scores[4 * b + 3]),
                             Bf16::Pack(scores[4 * b + 4], scores[4 * b + 5]),
                             Bf16::Pack(scores[4 * b + 6], scores[4 * b + 7])};
      wgmma::StoreMatrices(
          layout.Scores(c) + wgmma::PieceOffset(token, b + matrix / 2), r);
    }
  }

  // i − j of accumulator register r of thread 0.
  __device__ __forceinline__ static constexpr int Place(int r) {
    return (r & 2 ? 8 : 0) - (r / 4 * 8 + (r & 1));
  }

  __device__ __forceinline__ void Run(float log2_decay) {
    const int thread = threadIdx.x % kGroup;
    const int lane = thread % 32;
    const int ahead = thread / 32 * 16 + lane / 4 - 2 * (lane % 4);
    float weight[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      weight[i] =
          exp2f(log2_decay * static_cast<float>(max(ahead + Place(i), 0)));
    }
    if constexpr (kSource != Source::kMade) {
      for (int c = 0; c < s.stages - 1; ++c) {
        if (c < row.chunks) Copy(c, c);
        linear_prefill::CommitCopies();
      }
    }
    int stage = 0;
    uint32_t phase = 1;  // of Free: at first every stage is
    int ahead_stage = s.stages - 1;
    uint32_t ahead_phase = 1;
    for (int c = 0; c < row.chunks; ++c) {
      if constexpr (kSource != Source::kMade) {
        linear_prefill::WaitCopies(s.stages - 2);
        if constexpr (kSource == Source::kChanged) {
          NamedBarrier(1, kGroup);  // everybody's copies
          Change(c, stage);
        }
      } else {
        BarrierWait(layout.Free(stage), phase);
        Make(c, stage);
      }
      BulkCopyFence();  // wgmma reads what this thread wrote
      NamedBarrier(1, kGroup);
      if (thread == 0) BarrierArrive(layout.Full(stage));
      Scores(c, stage, weight);
      BulkCopyFence();
      NamedBarrier(1, kGroup);
      if (thread == 0) BarrierArrive(layout.ScoresFull(c));
      if constexpr (kSource != Source::kMade) {
        const int next = c + s.stages - 1;
        if (next < row.chunks) {
          BarrierWait(layout.Free(ahead_stage), ahead_phase);
          Copy(next, ahead_stage);
        }
        linear_prefill::CommitCopies();
        if (++ahead_stage == s.stages) {
          ahead_stage = 0;
          ahead_phase ^= 1;
        }
      }
      if (++stage == s.stages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }

  const LinearPrefillParams& p;
  const Shape& s;
  const Layout<kGroups>& layout;
  const Row& row;
  const Slice slice;
  int head;
  int first_value;
  const IO* q;
  const IO* k;
  const IO* v;
  linear_prefill::CopiedTile query_tile, key_tile, value_tile[kGroups];
};

// ----------------------------------------------------------------------------
// What groups have in common

// Index in its group; the compiler would read it anew at each use.
__device__ __forceinline__ int GroupThread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % kGroup;
}

// Who in the cluster sums up which blocks of 8 of a chunk's tokens.
struct Routes {
  __device__ __forceinline__ explicit Routes(int slices) : key_slices(slices) {
    for (int b = 0; b < 8; ++b) {
      const int owner = b * key_slices >> 3;
      packed |= static_cast<uint64_t>(owner | (b - FirstBlock(owner)) << 4)
                << (8 * b);
    }
  }
  __device__ __forceinline__ int FirstBlock(int owner) const {
    return (8 * owner + key_slices - 1) / key_slices;
  }
  __device__ __forceinline__ int Owner(int b) const {
    return static_cast<int>(packed >> (8 * b)) & 15;
  }
  // As which of its own the owner has block b.
  __device__ __forceinline__ int Place(int b) const {
    return static_cast<int>(packed >> (8 * b + 4)) & 15;
  }

  int key_slices;
  uint64_t packed = 0;
};

// ----------------------------------------------------------------------------
// A group that has a part of the state

// Sᵀ, 64 columns e by 64 features, is one accumulator; so is oᵀ, 64 columns by
// the 64 tokens of a chunk. Then S is a factor without leaving its registers.
template <int kGroups>
struct StateGroup {
  __device__ __forceinline__ StateGroup(const LinearPrefillParams& params,
                                        const Shape& shape,
                                        const Layout<kGroups>& l, const Row& r,
                                        int slice_index, int value_tile,
                                        int group_index)
      : p(params),
        s(shape),
        layout(l),
        row(r),
        slice(params.position, shape.head_dim, slice_index),
        rank(slice_index),
        group(group_index),
        thread(GroupThread()),
        warp(thread / 32),
        lane(thread % 32),
        first_column((value_tile * kGroups + group_index) * 64 + 16 * warp),
        routes(shape.key_slices) {
    const uint32_t to = layout.Exchange(group, 0) +
                        rank * s.exchange_blocks * (kGroup * 16) + thread * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int block = min(i, s.key_slices - 1);
      sums[i] = InBlock(to, block);
      sums_full[i] = InBlock(layout.SumsFull(group, 0), block);
    }
  }

  // Calls f(register, row of the state, column) for what this thread has.
  template <typename F>
  __device__ __forceinline__ void ForState(F f) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int at = slice.StateRow(i / 4 * 8 + lane % 4 * 2 + (i & 1));
      const int column = first_column + lane / 4 + (i & 2 ? 8 : 0);
      if (at >= 0 && column < s.value_dim) {
        f(i, int64_t{at} * s.value_dim + column);
      }
    }
  }

  // λ^n, n in [0, kChunk].
  __device__ __forceinline__ float Power(int n) const {
    float power;
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(power)
                 : "r"(layout.powers + 4 * n));
    return power;
  }
  // Those of a chunk. Of each eight tokens a thread has two.
  struct Powers {
    float all;          // λ^64
    uint32_t after[8];  // λ^(tokens that come after), as factors of ṽ
    float upto[8][2];   // λ^(tokens up to here and with it), of the outputs
  };
  __device__ __forceinline__ Powers TakePowers(int begin, int end) const {
    Powers w;
    w.all = Power(end - begin);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int place = 8 * i + lane % 4 * 2;
      w.after[i] = Bf16::Pack(Power(max(end - 1 - place, 0)),
                              Power(max(end - 2 - place, 0)));
      w.upto[i][0] = Power(max(place + 1 - begin, 0));
      w.upto[i][1] = Power(max(place + 2 - begin, 0));
    }
    return w;
  }
  // Sᵀ as a factor, and then Sᵀ times what the chunk makes of it.
  __device__ __forceinline__ void TakeState(
      bool decays, const Powers& w, float (&state)[32],
      uint32_t (&factor)[kStateTerms][16]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      float low = state[2 * i];
      float high = state[2 * i + 1];
#pragma unroll
      for (int term = 0; term < kStateTerms; ++term) {
        factor[term][i] = Bf16::Pack(low, high);
        low -= Bf16::Low(factor[term][i]);
        high -= Bf16::High(factor[term][i]);
      }
    }
    if (decays) {
#pragma unroll
      for (int i = 0; i < 32; ++i) state[i] *= w.all;
    }
  }

  // ṽᵀ as a factor, and with each token's column times its power of the decay.
  __device__ __forceinline__ void TakeValues(uint32_t values, bool decays,
                                             const Powers& w,
                                             uint32_t (&value)[4][4],
                                             uint32_t (&weighted)[4][4]) const {
    const int matrix = lane / 8;
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      const int token = 16 * step + matrix / 2 * 8 + lane % 8;
      LoadMatricesTransposed(
          value[step],
          values + wgmma::PieceOffset(token, 2 * warp + matrix % 2));
    }
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weighted[step][i] = value[step][i];
    }
    if (!decays) return;
#pragma unroll
    for (int eight = 0; eight < 8; ++eight) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t& x = weighted[eight / 2][eight % 2 * 2 + i];
        asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(x) : "r"(w.after[eight]));
      }
    }
  }

  // oᵀ = Sᵀ q̃ᵀ, and in a second group of products Sᵀ += ṽᵀ k̃.
  __device__ __forceinline__ void QueryAndUpdate(
      int stage, const uint32_t (&factor)[kStateTerms][16],
      const uint32_t (&weighted)[4][4], float (&out)[32],
      float (&state)[32]) const {
    wgmma::Fence();
#pragma unroll
    for (int term = 0; term < kStateTerms; ++term) {
#pragma unroll
      for (int step = 0; step < wgmma::kSteps; ++step) {
        const uint32_t(&f)[16] = factor[term];
        const uint32_t a[4] = {f[4 * step], f[4 * step + 1], f[4 * step + 2],
                               f[4 * step + 3]};
        wgmma::Multiply<false>(out, a,
                               wgmma::ByRows(layout.Queries(stage), step),
                               term + step > 0);
      }
    }
    wgmma::Commit();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      wgmma::Multiply<true>(state, weighted[step],
                            wgmma::ByColumns(layout.Keys(stage), step), true);
    }
    wgmma::Commit();
  }

  // Sends each block of 8 tokens of oᵀ to the block of the cluster that sums it
  // up.
  __device__ __forceinline__ void Send(int c, const float (&out)[32]) const {
    BarrierWait(layout.SumsFree(group, c), (c >> 1 & 1) ^ 1);
    const uint32_t buffer = (c & 1) * s.exchange_bytes;
    const uint32_t barrier = (c & 1) * 8;
    if (s.key_slices == 1) {
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        asm volatile(
            "st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                layout.Exchange(group, c) + b * (kGroup * 16) + thread * 16),
            "f"(out[4 * b]), "f"(out[4 * b + 1]), "f"(out[4 * b + 2]),
            "f"(out[4 * b + 3])
            : "memory");
      }
      BarrierArrive(layout.SumsFull(group, c));
    } else if (s.key_slices == 2) {
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        SendFour(sums[b / 4] + buffer + b % 4 * (kGroup * 16),
                 sums_full[b / 4] + barrier, out[4 * b], out[4 * b + 1],
                 out[4 * b + 2], out[4 * b + 3]);
      }
    } else {
      const uint32_t to = layout.Exchange(group, c) +
                          rank * s.exchange_blocks * (kGroup * 16) +
                          thread * 16;
#pragma unroll
      for (int b = 0; b < 8; ++b) {
        SendFour(InBlock(to + routes.Place(b) * (kGroup * 16), routes.Owner(b)),
                 InBlock(layout.SumsFull(group, c), routes.Owner(b)),
                 out[4 * b], out[4 * b + 1], out[4 * b + 2], out[4 * b + 3]);
      }
    }
  }

  __device__ __forceinline__ void Run(float* head_state, bool fresh,
                                      bool decays) {
    float state[32] = {};
    if (!fresh) {
      ForState([&](int i, int64_t at) { state[i] = head_state[at]; });
    }
    Powers powers = TakePowers(row.Begin(0), row.End(0));
    int stage = 0;
    uint32_t phase = 0;
    for (int c = 0; c < row.chunks; ++c) {
      if (c == 1 || c == row.chunks - 1) {
        powers = TakePowers(row.Begin(c), row.End(c));
      }
      Step(c, stage, phase, decays, powers, state);
      if (++stage == s.stages) {
        stage = 0;
        phase ^= 1;
      }
    }
    ForState([&](int i, int64_t at) { head_state[at] = state[i]; });
  }

  __device__ __forceinline__ void Step(int c, int stage, uint32_t phase,
                                       bool decays, const Powers& w,
                                       float (&state)[32]) const {
    float out[32];
    uint32_t factor[kStateTerms][16];
    uint32_t value[4][4];
    uint32_t weighted[4][4];
    BarrierWait(layout.Full(stage), phase);
    TakeValues(layout.Values(stage, group), decays, w, value, weighted);
    TakeState(decays, w, state, factor);
    wgmma::Hold(state);
    QueryAndUpdate(stage, factor, weighted, out, state);
    wgmma::Wait<1>();
    wgmma::Hold(out);
    if (decays) {
#pragma unroll
      for (int i = 0; i < 32; ++i) out[i] *= w.upto[i / 4][i % 2];
    }
    BarrierWait(layout.ScoresFull(c), c >> 1 & 1);
    wgmma::Hold(out);
    wgmma::Fence();
#pragma unroll
    for (int step = 0; step < wgmma::kSteps; ++step) {
      wgmma::Multiply<false>(out, value[step],
                             wgmma::ByRows(layout.Scores(c), step), true);
    }
    wgmma::Commit();
    wgmma::Wait<0>();
    wgmma::Hold(out);
    wgmma::Hold(state);
    wgmma::Hold(factor);
    wgmma::Hold(weighted);
    wgmma::Hold(value);
    if (lane == 0) {
      BarrierArrive(layout.Free(stage));
      BarrierArrive(layout.ScoresFree(c));
    }
    Send(c, out);
  }

  const LinearPrefillParams& p;
  const Shape& s;
  const Layout<kGroups>& layout;
  const Row& row;
  const Slice slice;
  int rank;
  int group;
  int thread;
  int warp;
  int lane;
  int first_column;  // of this warp's 16
  Routes routes;
  uint32_t sums[2];  // where two key slices send to, and the barriers there
  uint32_t sums_full[2];
};

// ----------------------------------------------------------------------------
// The group that finishes: sums over the key slices, and writes

template <int kGroups, typename IO>
struct Finisher {
  __device__ __forceinline__ Finisher(const LinearPrefillParams& params,
                                      const Shape& shape,
                                      const Layout<kGroups>& l, const Row& r,
                                      int head_index, int slice_index,
                                      int value_tile)
      : p(params),
        s(shape),
        layout(l),
        row(r),
        head(head_index),
        thread(GroupThread()),
        warp(thread / 32),
        lane(thread % 32),
        first_column(value_tile * kGroups * 64 + 16 * warp) {
    const Routes routes(s.key_slices);
    first_block = routes.FirstBlock(slice_index);
    own_blocks = routes.FirstBlock(slice_index + 1) - first_block;
  }

  __device__ __forceinline__ void Run() const {
    for (int c = 0; c < 2 && c < row.chunks; ++c) {
      for (int g = 0; g < kGroups; ++g) Expect(g, c);
    }
    for (int c = 0; c < row.chunks; ++c) {
#pragma unroll 1
      for (int g = 0; g < kGroups; ++g) Finish(g, c);
    }
  }

  // Where there is one slice, its threads arrive themselves.
  __device__ __forceinline__ void Expect(int group, int c) const {
    if (thread == 0 && s.key_slices > 1) {
      BarrierExpect(layout.SumsFull(group, c),
                    own_blocks * s.key_slices * (kGroup * 16));
    }
  }

  // Sums up this block's tokens of chunk c, in the order of the slices, and
  // writes them.
  __device__ __forceinline__ void Finish(int group, int c) const {
    BarrierWait(layout.SumsFull(group, c), c >> 1 & 1);
    if (c + 2 < row.chunks) Expect(group, c + 2);
    __syncwarp();  // what was staged last has been read
    const uint32_t parts = layout.Exchange(group, c) + thread * 16;
    if (s.key_slices == 2) {  // without loops
      float sum[4][4];
      float more[4][4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        LoadPart(parts + b * (kGroup * 16), sum[b]);
        LoadPart(parts + (4 + b) * (kGroup * 16), more[b]);
      }
#pragma unroll
      for (int b = 0; b < 4; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[b][i] = (sum[b][i] + more[b][i]) * p.scale;
        }
        Put(group, c, b, sum[b]);
      }
    } else {
      for (int b = 0; b < own_blocks; ++b) {
        float sum[4] = {};
        for (int from = 0; from < s.key_slices; ++from) {
          float more[4];
          LoadPart(parts + (from * s.exchange_blocks + b) * (kGroup * 16),
                   more);
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i] += more[i];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] *= p.scale;
        Put(group, c, b, sum);
      }
    }
    __syncwarp();
    if (s.key_slices == 1) {
      if (lane == 0) BarrierArrive(layout.SumsFree(group, c));
    } else if (lane < s.key_slices) {
      ArriveInCluster(InBlock(layout.SumsFree(group, c), lane));
    }
    if constexpr (!std::is_same<IO, float>::value) WriteStaged(group, c);
  }
  __device__ __forceinline__ void LoadPart(uint32_t at, float (&x)[4]) const {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(at));
  }
  __device__ __forceinline__ uint32_t Staging(int group) const {
    return layout.outputs + group * wgmma::kTileBytes +
           warp * (wgmma::kTileBytes / 4);
  }
  // Own block b of 8 tokens: to memory, or turned round on its way there.
  __device__ __forceinline__ void Put(int group, int c, int b,
                                      const float (&x)[4]) const {
    if constexpr (std::is_same<IO, float>::value) {
      WriteFloats(group, c, 8 * (first_block + b), x);
    } else {
      wgmma::StoreMatricesTransposed(
          Staging(group) + (8 * b + lane % 8) * 32 + lane / 8 % 2 * 16,
          Bf16::Pack(x[0], x[1]), Bf16::Pack(x[2], x[3]));
    }
  }
  __device__ __forceinline__ IO* Out(int c, int place, int column) const {
    return static_cast<IO*>(p.out) + row.Token(c, place) * p.out_stride +
           int64_t{head} * s.value_dim + column;
  }
  __device__ __forceinline__ void WriteFloats(int group, int c, int first,
                                              const float (&sum)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int place = first + lane % 4 * 2 + i % 2;
      const int column = first_column + 64 * group + lane / 4 + i / 2 * 8;
      if (place >= row.Begin(c) && place < row.End(c) && column < s.value_dim) {
        *Out(c, place, column) = FromFloat<IO>(sum[i]);
      }
    }
  }
  // A warp's 16 columns of each token: 32 bytes, by two lanes.
  __device__ __forceinline__ void WriteStaged(int group, int c) const {
    const int column = first_column + 64 * group + lane % 2 * 8;
    if (column >= s.value_dim) return;
    const int first = 8 * first_block + lane / 2;
    IO* to = Out(c, first, column);
    uint32_t from = Staging(group) + lane / 2 * 32 + lane % 2 * 16;
    for (int i = 0; i < 8 * own_blocks; i += 16) {
      uint32_t x[4];
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(from));
      const int place = first + i;
      if (place >= row.Begin(c) && place < row.End(c) &&
          i + lane / 2 < 8 * own_blocks) {
        *reinterpret_cast<uint4*>(to) = make_uint4(x[0], x[1], x[2], x[3]);
      }
      to += 16 * p.out_stride;
      from += 16 * 32;
    }
  }

  const LinearPrefillParams& p;
  const Shape& s;
  const Layout<kGroups>& layout;
  const Row& row;
  int head;
  int thread;
  int warp;
  int lane;
  int first_column;  // of this warp's 16 of group 0
  int first_block;   // of 8 tokens, of those that this block sums up
  int own_blocks;
};

// The outputs of a row in the sink: 0, in this block's columns.
template <int kGroups, typename IO>
__device__ void WriteZeros(const LinearPrefillParams& p, const Shape& s,
                           int64_t first_token, int count, int head,
                           int value_tile) {
  const int first = value_tile * kGroups * 64;
  const int columns = min(kGroups * 64, s.value_dim - first);
  for (int64_t i = threadIdx.x; i < int64_t{count} * columns; i += blockDim.x) {
    static_cast<IO*>(p.out)[(first_token + i / columns) * p.out_stride +
                            int64_t{head} * s.value_dim + first + i % columns] =
        FromFloat<IO>(0.0f);
  }
}

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (key slices, heads · value tiles, rows), in clusters of the key slices.
// Key slices are independent but for the sum of their outputs, and parts of the
// values altogether. The first group of threads prepares, the second finishes,
// the others keep the state.
template <int kGroups, Source kSource, typename IO>
__global__ void __launch_bounds__(kGroup*(2 + kGroups), 1)
    linear_prefill_kernel(const __grid_constant__ LinearPrefillParams p,
                          const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  const int b = blockIdx.z;
  const int head = blockIdx.y / s.value_tiles;
  const int value_tile = blockIdx.y % s.value_tiles;
  if (p.rows != nullptr && b >= *p.rows) return;
  const int64_t first_token = p.query_start[b];
  const int count = p.query_start[b + 1] - p.query_start[b];
  const int slot = p.slots[b];
  if (count <= 0) return;
  if (slot <= 0) {
    if (blockIdx.x == 0) {
      WriteZeros<kGroups, IO>(p, s, first_token, count, head, value_tile);
    }
    return;
  }
  const Row row(first_token, count, p.positions[b]);
  const bool fresh = p.fresh != nullptr && p.fresh[b] != 0;
  const float decay = p.decay == nullptr ? 1.0f : p.decay[head];
  const float log2_decay = log2f(decay);
  const Layout<kGroups> layout((SharedAddress(shared) + 1023) & ~1023u, s);
  if (threadIdx.x == 0) {
    for (int i = 0; i < s.stages; ++i) {
      BarrierInit(layout.Full(i), 1);
      BarrierInit(layout.Free(i), 4 * kGroups);
    }
    for (int i = 0; i < 2; ++i) {
      BarrierInit(layout.ScoresFull(i), 1);
      BarrierInit(layout.ScoresFree(i), 4 * kGroups);
      for (int g = 0; g < kGroups; ++g) {
        BarrierInit(layout.SumsFull(g, i), s.key_slices == 1 ? kGroup : 1);
        BarrierInit(layout.SumsFree(g, i), 4 * s.key_slices);
      }
    }
    BarrierInitFence();
  }
  for (int n = threadIdx.x; n <= kChunk; n += blockDim.x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(layout.powers + 4 * n),
                 "f"(exp2f(log2_decay * static_cast<float>(n)))
                 : "memory");
  }
  __syncthreads();
  ClusterBarrier();  // everybody's barriers are ready

  // Registers go to the groups that keep the state.
  const int rank = ClusterRank();
  const int role = threadIdx.x / kGroup;
  if (role == 0) {
    ReleaseRegisters<kGroups == 2 ? 112 : 128>();
    Preparer<kGroups, kSource, IO> preparer(p, s, layout, row, head, rank,
                                            value_tile);
    preparer.Run(log2_decay);
  } else if (role == 1) {
    ReleaseRegisters<kGroups == 2 ? 80 : 112>();
    const Finisher<kGroups, IO> finisher(p, s, layout, row, head, rank,
                                         value_tile);
    finisher.Run();
  } else {
    ClaimRegisters<kGroups == 2 ? 160 : 240>();
    float* head_state = p.states + int64_t{slot} * p.slot_stride +
                        int64_t{head} * s.key_dim * s.value_dim;
    StateGroup<kGroups> group(p, s, layout, row, rank, value_tile, role - 2);
    group.Run(head_state, fresh, decay != 1.0f);
  }
  ClusterBarrier();  // nobody leaves while others send to it
#endif
}

// ----------------------------------------------------------------------------
// Launchers

bool Valid(const LinearPrefillParams& p) {
  return p.num_heads >= 1 && ValidLinearDim(p.head_dim) &&
         ValidLinearDim(p.value_dim) && p.num_heads <= 65535 / 4 &&
         p.max_rows >= 0 && p.max_rows <= 65535 && p.q != nullptr &&
         p.k != nullptr && p.v != nullptr && p.out != nullptr &&
         p.stride % 8 == 0 && p.out_stride % 8 == 0 &&
         p.query_start != nullptr && p.slots != nullptr &&
         p.positions != nullptr && p.states != nullptr &&
         (p.position == LrpeType::kNone || p.phase_steps != nullptr);
}

template <int kGroups, Source kSource, typename IO>
cudaError_t Launch(const LinearPrefillParams& p, const LinearPrefillPlan& plan,
                   cudaStream_t stream) {
  const auto kernel = linear_prefill_kernel<kGroups, kSource, IO>;
  // What the driver makes of PTX for other devices has nothing in it.
  cudaFuncAttributes attributes;
  cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  if (error != cudaSuccess) return error;
  if (attributes.binaryVersion != 90 || attributes.ptxVersion < 90) {
    return cudaErrorNotSupported;
  }
  error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               plan.shared_bytes);
  if (error != cudaSuccess) return error;
  const Shape shape = {static_cast<int>(p.head_dim),
                       static_cast<int>(LrpeOutputDim(p.position, p.head_dim)),
                       static_cast<int>(p.value_dim),
                       plan.value_tiles,
                       plan.stages,
                       plan.key_slices,
                       plan.key_slices * plan.exchange_blocks * kGroup * 16,
                       plan.exchange_blocks};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.key_slices,
                        static_cast<unsigned>(p.num_heads * plan.value_tiles),
                        static_cast<unsigned>(p.max_rows));
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = plan.key_slices;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, shape);
}

template <int kGroups>
cudaError_t LaunchGroups(const LinearPrefillParams& p,
                         const LinearPrefillPlan& plan, cudaStream_t stream) {
  const auto is = [&p](Activation activation) {
    return p.q_activation == activation || p.k_activation == activation ||
           p.v_activation == activation;
  };
  const bool none = p.q_activation == Activation::kNone &&
                    p.k_activation == Activation::kNone &&
                    p.v_activation == Activation::kNone;
  if (p.io_type == ElementType::kFloat32) {
    return Launch<kGroups, Source::kMade, float>(p, plan, stream);
  }
  if (is(Activation::kSoftmax) ||
      (p.position == LrpeType::kRotate && p.head_dim % 16 != 0)) {
    return Launch<kGroups, Source::kMade, __nv_bfloat16>(p, plan, stream);
  }
  return p.position == LrpeType::kNone && none
             ? Launch<kGroups, Source::kCopied, __nv_bfloat16>(p, plan, stream)
             : Launch<kGroups, Source::kChanged, __nv_bfloat16>(p, plan,
                                                                stream);
}

}  // namespace

cudaError_t LaunchLinearPrefill(const LinearPrefillParams& p,
                                cudaStream_t stream) {
  if (!Valid(p)) return cudaErrorInvalidValue;
  if (p.max_rows == 0) return cudaSuccess;
  int device = 0;
  int multiprocessors = 0;
  int shared_limit = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors,
                                   cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(
        &shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error != cudaSuccess) return error;
  const LinearPrefillPlan plan =
      PlanLinearPrefill(p.position, p.head_dim, p.value_dim, p.num_heads,
                        p.max_rows, multiprocessors, shared_limit);
  if (plan.stages < 3) return cudaErrorNotSupported;
  return plan.groups == 2 ? LaunchGroups<2>(p, plan, stream)
                          : LaunchGroups<1>(p, plan, stream);
}

}  // namespace recurve
