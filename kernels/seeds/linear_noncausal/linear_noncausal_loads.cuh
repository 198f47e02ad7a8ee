// Loads of linear_noncausal.cu: the layout of shared memory, copies and softmax
// over the sequence. Device code only.
#ifndef RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_LOADS_CUH_
#define RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_LOADS_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/copy_groups.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_wgmma.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"

namespace recurve {
namespace linear_noncausal {

using cluster::ClusterBarrier;
using cluster::ClusterRank;
using cluster::InBlock;
using Bf16 = Half<__nv_bfloat16>;

constexpr int kThreads = 256;  // two groups of four warps
constexpr int kWarps = 8;
constexpr int kWarpTokens = 16;      // of a step, whose outputs a warp makes
constexpr int kParts = 4;            // of a sequence: blocks of a cluster
constexpr int kShare = 16 / kParts;  // of S that each block adds, in 8 columns
constexpr int kFeatures = 128;       // of a head, at most
constexpr int kStages = 2;
constexpr int kStepTokens = 128;
constexpr int kBlockBytes = kStepTokens * 128;  // 64 features of a step
constexpr int kTensorBytes = 2 * kBlockBytes;
constexpr int kStageBytes = 2 * kTensorBytes;  // k and v, or q and g

// Change of q or k before its encoding.
enum class Change { kNone, kSilu, kFeatureSoftmax, kSequenceSoftmax };

// Whether 0 stays 0.
template <Change kChange>
constexpr bool kKeepsZero =
    kChange == Change::kNone || kChange == Change::kSilu;

// In 32 bits for the device.
struct Shape {
  int head_dim;
  int value_dim;
  int half;       // feature that is paired with feature 0
  int first_end;  // features of the first half
  Change q_change;
  Change k_change;
};

// Shared memory

template <LrpeType kPosition>
struct Layout {
  static constexpr int kEncodings = kPosition == LrpeType::kCosine ? 2 : 1;
  static constexpr int kStateRows = kFeatures * kEncodings;
  static constexpr int kStateBlock = kStateRows * 128;  // of 64 columns
  // A block's part of S for another block of the cluster.
  static constexpr int kShareBytes = kShare * kEncodings * kThreads * 16;
  // Separate from the stages if there is room; else the loads of q and g wait.
  static constexpr bool kOwnExchange = kEncodings == 1;
  static constexpr int kExchangeBytes =
      kOwnExchange ? (kParts - 1) * kShareBytes : 0;
  // Angles of a head: cosines and sines of q's tokens are products of those of
  // a warp's first token and those of the offsets from it.
  static constexpr int kAngles = kPosition == LrpeType::kNone     ? 0
                                 : kPosition == LrpeType::kRotate ? 64
                                                                  : kFeatures;
  static constexpr int kBaseBytes = kAngles * 8;
  // Neighbouring rows begin half of the banks apart.
  static constexpr int kWaveBytes = kAngles * 8 + (kAngles > 0 ? 64 : 0);
  static constexpr int kBytes = 1024 + kStages * kStageBytes + 2 * kStateBlock +
                                kExchangeBytes + 5 * kFeatures * 8 +
                                kWarps * kBaseBytes + kWarpTokens * kWaveBytes;
  static_assert((kParts - 1) * kShareBytes <= kStages * kStageBytes, "");
  static_assert(kBytes <= 227 * 1024, "");

  __device__ __forceinline__ explicit Layout(uint32_t start)
      : stages(start),
        state(start + kStages * kStageBytes),
        exchange(kOwnExchange ? state + 2 * kStateBlock : start),
        token_stats(state + 2 * kStateBlock + kExchangeBytes),
        q_stats(token_stats + kFeatures * 8),
        k_stats(q_stats + kFeatures * 8),
        parts(k_stats + kFeatures * 8),
        bases(parts + 2 * kFeatures * 8),
        waves(bases + kWarps * kBaseBytes) {}

  __device__ __forceinline__ uint32_t Stage(int load) const {
    return stages + load % kStages * kStageBytes;
  }

  uint32_t stages, state, exchange;
  uint32_t token_stats;  // [tokens of a step] maximum, 1 / sum
  uint32_t q_stats;      // [features] maximum, 1 / sum
  uint32_t k_stats;
  uint32_t parts;  // [q, k][features] of this part: maximum, sum
  uint32_t bases;  // [warps][angles] cos and sin at a warp's first token
  uint32_t waves;  // [tokens of a warp][angles] cos and sin from there
};

template <typename T>
__device__ __forceinline__ T LoadShared(uint32_t at);
template <>
__device__ __forceinline__ float2 LoadShared<float2>(uint32_t at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(x.x), "=f"(x.y)
               : "r"(at));
  return x;
}
template <>
__device__ __forceinline__ float4 LoadShared<float4>(uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at));
  return x;
}
template <>
__device__ __forceinline__ uint4 LoadShared<uint4>(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at));
  return x;
}
template <>
__device__ __forceinline__ uint32_t LoadShared<uint32_t>(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}
__device__ __forceinline__ void StoreShared(uint32_t at, float2 x) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x.x), "f"(x.y)
               : "memory");
}
__device__ __forceinline__ void StoreShared(uint32_t at, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

// Arithmetic

// x / (1 + e^−x) as x/2 + x/2 · tanh(x/2): one special function instead of two,
// which would take as long as memory does.
__device__ __forceinline__ float FastSilu(float x) {
  const float h = 0.5f * x;
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
  return fmaf(h, t, h);
}

// (maximum, sum of exponentials) of two sets.
__device__ __forceinline__ float2 Merge(float2 a, float2 b) {
  const float max = fmaxf(a.x, b.x);
  if (max == -INFINITY) return make_float2(max, 0.0f);
  return make_float2(max, a.y * FastExp(a.x - max) + b.y * FastExp(b.x - max));
}

// Copies of one part of a sequence, and its softmax over the sequence.
template <LrpeType kPosition>
struct NoncausalLoads {
  using Memory = Layout<kPosition>;
  static constexpr int kEncodings = Memory::kEncodings;

  __device__ __forceinline__ NoncausalLoads(const LinearNoncausalParams& params,
                                            const Shape& shape, const Memory& m,
                                            int64_t first, int tokens,
                                            int64_t row_position)
      : p(params),
        s(shape),
        memory(m),
        first_token(first),
        count(tokens),
        position(row_position),
        head(blockIdx.y),
        rank(ClusterRank()),
        thread(threadIdx.x),
        group(thread / 128),
        warp(thread / 32 % 4),
        lane(thread % 32),
        first_row(64 * group + 16 * warp) {
    const int steps = (count + kStepTokens - 1) / kStepTokens;
    first_step = static_cast<int>(int64_t{rank} * steps / kParts);
    part_steps =
        static_cast<int>((rank + int64_t{1}) * steps / kParts) - first_step;
  }

  // ---- copies ----

  // Load number `load`: k and v of a step, and after all of those q and g; none
  // from `end` on.
  __device__ __forceinline__ void Load(int load, int end) const {
    if (load >= end) return;
    const bool keys = load < part_steps;
    const int step = first_step + (keys ? load : load - part_steps);
    const uint32_t stage = memory.Stage(load);
    LoadTensor(keys ? p.k : p.q, s.head_dim, step, stage);
    const void* other = keys ? p.v : p.g;
    if (other != nullptr) {
      LoadTensor(other, s.value_dim, step, stage + kTensorBytes);
    }
    CommitCopies();
  }
  // Waits for `load`; the next kStages loads, up to `end`, have been issued.
  __device__ __forceinline__ void WaitForLoad(int load, int end) const {
    WaitForAllBut<kStages - 1>(end - 1 - load);
  }
  // Each warpgroup copies the tokens whose outputs it makes.
  __device__ __forceinline__ void LoadTensor(const void* tensor, int dim,
                                             int step, uint32_t to) const {
    constexpr int kRows = 16;  // of a pass over the group's tokens
    constexpr int kPasses = kStepTokens / 2 / kRows;
    const __nv_bfloat16* x = static_cast<const __nv_bfloat16*>(tensor);
    const int row = kStepTokens / 2 * group + thread % 128 / 8;
    const int piece = thread % 8;
    const int rows_left = count - step * kStepTokens - row;
    const __nv_bfloat16* from =
        x + (first_token + step * kStepTokens + row) * p.stride +
        int64_t{head} * dim + piece * 8;
    to += wgmma::PieceOffset(row, piece);
    if (dim == kFeatures && rows_left > (kPasses - 1) * kRows) {
#pragma unroll
      for (int m = 0; m < kPasses; ++m) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          linear_prefill::CopyOrZero16(
              to + block * kBlockBytes + m * (kRows * 128), from + block * 64,
              16);
        }
        from += kRows * p.stride;
      }
      return;
    }
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      // Missing features read nothing, from a valid address.
      const bool exists = block * 64 + piece * 8 < dim;
      const int bytes = exists ? 16 : 0;
      const int64_t next = exists ? kRows * p.stride : 0;
      const __nv_bfloat16* at = exists ? from + block * 64 : x;
#pragma unroll
      for (int m = 0; m < kPasses; ++m) {
        const bool token = kRows * m < rows_left;
        linear_prefill::CopyOrZero16(
            to + block * kBlockBytes + m * (kRows * 128), token ? at : x,
            token ? bytes : 0);
        at += next;
      }
    }
  }

  // ---- angles of q ----

  // A lane's angles, in turns a token.
  static constexpr int kLaneAngles = (Memory::kAngles + 31) / 32;
  struct Turns {
    uint64_t of[kLaneAngles > 0 ? kLaneAngles : 1];
  };
  __device__ __forceinline__ Turns TakeTurns() const {
    Turns turns;
    const int angles = kPosition == LrpeType::kRotate ? s.half : s.head_dim;
#pragma unroll
    for (int i = 0; i < kLaneAngles; ++i) {
      const int angle = 32 * i + lane;
      turns.of[i] = angle < angles
                        ? p.phase_steps[head * p.phase_head_stride + angle]
                        : 0;
    }
    return turns;
  }
  // By a warp: cos and sin of all angles at `position`.
  __device__ __forceinline__ void MakeWaves(const Turns& turns,
                                            uint64_t position,
                                            uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kLaneAngles; ++i) {
      float2 wave;
      linear_prefill::FastCosSin(
          static_cast<uint32_t>(turns.of[i] * position >> 32), &wave.x,
          &wave.y);
      StoreShared(to + (32 * i + lane) * 8, wave);
    }
  }
  // The same for a warp's tokens, relative to its first.
  __device__ __forceinline__ void MakeTokenWaves() const {
    if constexpr (kPosition != LrpeType::kNone) {
      const Turns turns = TakeTurns();
      for (int token = thread / 32; token < kWarpTokens; token += kWarps) {
        MakeWaves(turns, token, memory.waves + token * Memory::kWaveBytes);
      }
    }
  }
  // The same for this warp's first token of a step.
  __device__ __forceinline__ void MakeBases(const Turns& turns,
                                            int step) const {
    if constexpr (kPosition != LrpeType::kNone) {
      __syncwarp();
      MakeWaves(turns,
                static_cast<uint64_t>(position) +
                    static_cast<uint64_t>(step) * kStepTokens +
                    static_cast<uint64_t>(first_row),
                Bases());
      __syncwarp();
    }
  }
  __device__ __forceinline__ uint32_t Bases() const {
    return memory.bases + first_row / kWarpTokens * Memory::kBaseBytes;
  }

  // ---- softmax over the sequence ----

  // For this part: maximum and sum of each feature of x.
  __device__ __forceinline__ void PartStats(const void* tensor,
                                            uint32_t to) const {
    const int column = thread % 16 * 8;
    const __nv_bfloat16* x = static_cast<const __nv_bfloat16*>(tensor) +
                             first_token * p.stride +
                             int64_t{head} * s.head_dim + column;
    float2 stats[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) stats[j] = make_float2(-INFINITY, 0.0f);
    const int end = min(count, (first_step + part_steps) * kStepTokens);
    if (column < s.head_dim) {
#pragma unroll 4
      for (int i = first_step * kStepTokens + thread / 16; i < end; i += 16) {
        float value[8];
        Unpack(LoadPack<__nv_bfloat16, 8>(x + i * p.stride), value);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          stats[j] = Merge(stats[j], make_float2(value[j], 1.0f));
        }
      }
    }
    const uint32_t scratch = memory.stages;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      StoreShared(scratch + (thread / 16 * kFeatures + column + j) * 8,
                  stats[j]);
    }
    __syncthreads();
    if (thread < kFeatures) {
      float2 all = LoadShared<float2>(scratch + thread * 8);
      for (int i = 1; i < 16; ++i) {
        all = Merge(all,
                    LoadShared<float2>(scratch + (i * kFeatures + thread) * 8));
      }
      StoreShared(to + thread * 8, all);
    }
    __syncthreads();
  }
  __device__ __forceinline__ void WholeStats(uint32_t part, uint32_t to) const {
    if (thread >= kFeatures) return;
    float2 all = make_float2(-INFINITY, 0.0f);
    for (int i = 0; i < kParts; ++i) {
      float2 other = make_float2(-INFINITY, 0.0f);
#if __CUDA_ARCH__ >= 900
      asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                   : "+f"(other.x), "+f"(other.y)
                   : "r"(InBlock(part + thread * 8, i)));
#endif
      all = Merge(all, other);
    }
    StoreShared(to + thread * 8, make_float2(all.x, 1.0f / all.y));
  }
  __device__ __forceinline__ void SequenceStats() const {
    const bool q = s.q_change == Change::kSequenceSoftmax;
    const bool k = s.k_change == Change::kSequenceSoftmax;
    if (!q && !k) return;
    if (q) PartStats(p.q, memory.parts);
    if (k) PartStats(p.k, memory.parts + kFeatures * 8);
    ClusterBarrier();
    if (q) WholeStats(memory.parts, memory.q_stats);
    if (k) WholeStats(memory.parts + kFeatures * 8, memory.k_stats);
    __syncthreads();
  }

  const LinearNoncausalParams& p;
  const Shape& s;
  const Memory& memory;
  int64_t first_token;
  int count;
  int64_t position;
  int head;
  int rank;
  int thread;
  int group;
  int warp;
  int lane;
  int first_row;   // of a step, of the 16 whose outputs this warp makes
  int first_step;  // of this part
  int part_steps;
};

}  // namespace linear_noncausal
}  // namespace recurve

#endif  // RECURVE_KERNELS_SEEDS_LINEAR_NONCAUSAL_LINEAR_NONCAUSAL_LOADS_CUH_
