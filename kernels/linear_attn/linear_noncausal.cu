#include <cuda_bf16.h>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/linear_attn/linear_cluster.cuh"
#include "kernels/linear_attn/linear_noncausal_cuda.h"
#include "kernels/linear_attn/linear_prefill_tiles.cuh"
#include "kernels/linear_attn/linear_step_check.h"
#include "kernels/linear_attn/linear_wgmma.cuh"

namespace recurve {
namespace {

using linear_cluster::ClusterBarrier;
using linear_cluster::ClusterRank;
using linear_cluster::InBlock;
using Bf16 = Half<__nv_bfloat16>;

constexpr int kThreads = 256;        // two groups of four warps
constexpr int kParts = 4;            // of a sequence: blocks of a cluster
constexpr int kShare = 16 / kParts;  // of S that each adds up, in 8 columns
constexpr int kFeatures = 128;       // of a head, at most
constexpr int kStages = 2;
constexpr int kStepTokens = 128;
constexpr int kBlockBytes = kStepTokens * 128;  // 64 features of a step
constexpr int kTensorBytes = 2 * kBlockBytes;
constexpr int kStageBytes = 2 * kTensorBytes;  // k and v, or q and g

// What is done to q or k before its encoding.
enum class Change { kNone, kSilu, kFeatureSoftmax, kSequenceSoftmax };

// In 32 bits and ready for the device.
struct Shape {
  int head_dim;
  int value_dim;
  int half;       // feature that is paired with feature 0
  int first_end;  // features of the first half
  Change q_change;
  Change k_change;
};

// ----------------------------------------------------------------------------
// Shared memory

template <int kEncodings>
struct Layout {
  static constexpr int kStateRows = kFeatures * kEncodings;
  static constexpr int kStateBlock = kStateRows * 128;  // of 64 columns
  // What a block keeps of its part of S for each other block of the cluster.
  static constexpr int kShareBytes = kShare * kEncodings * kThreads * 16;
  // Beside the stages where there is room; else the loads of q and g wait.
  static constexpr bool kOwnExchange = kEncodings == 1;
  static constexpr int kExchangeBytes =
      kOwnExchange ? (kParts - 1) * kShareBytes : 0;
  static constexpr int kBytes = 1024 + kStages * kStageBytes + 2 * kStateBlock +
                                kExchangeBytes + 7 * kFeatures * 8;
  static_assert((kParts - 1) * kShareBytes <= kStages * kStageBytes, "");
  static_assert(kBytes <= 227 * 1024, "");

  __device__ __forceinline__ explicit Layout(uint32_t start)
      : stages(start),
        state(start + kStages * kStageBytes),
        exchange(kOwnExchange ? state + 2 * kStateBlock : start),
        angles(state + 2 * kStateBlock + kExchangeBytes),
        token_stats(angles + 2 * kFeatures * 8),
        q_stats(token_stats + kFeatures * 8),
        k_stats(q_stats + kFeatures * 8),
        parts(k_stats + kFeatures * 8) {}

  __device__ __forceinline__ uint32_t Stage(int load) const {
    return stages + load % kStages * kStageBytes;
  }
  __device__ __forceinline__ uint32_t Angles(int load) const {
    return angles + load % 2 * (kFeatures * 8);
  }

  uint32_t stages, state, exchange;
  uint32_t angles;       // [2][features] phase at a step's first token, step
  uint32_t token_stats;  // [tokens of a step] maximum, 1 / sum
  uint32_t q_stats;      // [features] maximum, 1 / sum
  uint32_t k_stats;
  uint32_t parts;  // [q, k][features] of this part: maximum, sum
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

// ----------------------------------------------------------------------------
// Arithmetic

// x / (1 + e^−x) as x/2 + x/2 · tanh(x/2): one special function in place of
// two, which would take as long as the memory does.
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

template <LrpeType kPosition>
struct Noncausal {
  static constexpr int kEncodings = kPosition == LrpeType::kCosine ? 2 : 1;
  using Memory = Layout<kEncodings>;

  __device__ __forceinline__ Noncausal(const LinearNoncausalParams& params,
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

  // Load number `load`: k and v of a step, and after all of those q and g.
  __device__ __forceinline__ void Load(int load) const {
    if (load < 2 * part_steps) {
      const bool keys = load < part_steps;
      const int step = first_step + (keys ? load : load - part_steps);
      const uint32_t stage = memory.Stage(load);
      LoadTensor(keys ? p.k : p.q, s.head_dim, step, stage);
      const void* other = keys ? p.v : p.g;
      if (other != nullptr) {
        LoadTensor(other, s.value_dim, step, stage + kTensorBytes);
      }
      if (!keys && kPosition != LrpeType::kNone) MakeAngles(load, step);
    }
    linear_prefill::CommitCopies();
  }
  __device__ __forceinline__ void LoadTensor(const void* tensor, int dim,
                                             int step, uint32_t to) const {
    const __nv_bfloat16* x = static_cast<const __nv_bfloat16*>(tensor);
    const int row = thread / 8;
    const int piece = thread % 8;
    const int rows_left = count - step * kStepTokens - row;
    const __nv_bfloat16* from =
        x + (first_token + step * kStepTokens + row) * p.stride +
        int64_t{head} * dim + piece * 8;
    to += wgmma::PieceOffset(row, piece);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      // Where there is no feature, nothing is read, from a valid address.
      const bool exists = block * 64 + piece * 8 < dim;
      const int bytes = exists ? 16 : 0;
      const int64_t next = exists ? 32 * p.stride : 0;
      const __nv_bfloat16* at = exists ? from + block * 64 : x;
#pragma unroll
      for (int m = 0; m < kStepTokens / 32; ++m) {
        const bool token = 32 * m < rows_left;
        linear_prefill::CopyOrZero16(to + block * kBlockBytes + m * (32 * 128),
                                     token ? at : x, token ? bytes : 0);
        at += next;
      }
    }
  }
  // For each angle, its phase at the step's first token and from token to
  // token, in 2⁻³² turns.
  __device__ __forceinline__ void MakeAngles(int load, int step) const {
    const int angles = kPosition == LrpeType::kRotate ? s.half : s.head_dim;
    if (thread >= kFeatures) return;
    uint64_t turn = 0;
    if (thread < angles) {
      turn = p.phase_steps[head * p.phase_head_stride + thread];
    }
    const uint64_t first = static_cast<uint64_t>(position) +
                           static_cast<uint64_t>(step) * kStepTokens;
    const uint32_t at = memory.Angles(load) + thread * 8;
    StoreShared(at, static_cast<uint32_t>(turn * first >> 32));
    StoreShared(at + 4, static_cast<uint32_t>(turn >> 32));
  }

  // ---- softmax over the sequence ----

  // Of this part: maximum and sum of each feature of x.
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

  // ---- S ----

  // Softmax over the features: two threads look at each token of k.
  __device__ __forceinline__ void TokenStats(uint32_t keys) const {
    const int token = thread / 2;
    const int block = thread % 2;
    const uint32_t row = keys + block * kBlockBytes;
    const int features = min(s.head_dim - block * 64, 64);
    float2 stats = make_float2(-INFINITY, 0.0f);
    for (int piece = 0; piece * 8 < features; ++piece) {
      float x[8];
      linear_prefill::LoadEightShared(row + wgmma::PieceOffset(token, piece),
                                      x);
      float max = x[0];
#pragma unroll
      for (int j = 1; j < 8; ++j) max = fmaxf(max, x[j]);
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += FastExp(x[j] - max);
      stats = Merge(stats, make_float2(max, sum));
    }
    float2 other;
    other.x = __shfl_xor_sync(0xffffffffu, stats.x, 1);
    other.y = __shfl_xor_sync(0xffffffffu, stats.y, 1);
    stats = block == 0 ? Merge(stats, other) : Merge(other, stats);
    if (block == 0) {
      StoreShared(memory.token_stats + token * 8,
                  make_float2(stats.x, 1.0f / stats.y));
    }
  }

  // A thread's features of k̃ᵀ: g = lane / 4 of eight in the first half and of
  // the eight that pair with them. M rows of the products are in this order.
  struct Keys {
    int feature[2];
    bool exists[2];
    float2 stats[2];           // over the sequence
    uint64_t turn[2];          // a token
    float turn_cos, turn_sin;  // of 16 tokens, of feature 0 (rotate: both)
    float turn_cos2, turn_sin2;
  };
  __device__ __forceinline__ Keys TakeKeys() const {
    Keys keys;
    const int pair = 8 * (4 * group + warp);
    keys.feature[0] = pair + lane / 4;
    keys.feature[1] = s.half + pair + lane / 4;
    keys.exists[0] = pair < s.first_end;
    keys.exists[1] = pair < s.first_end && s.half + pair < s.head_dim;
    keys.turn_cos = keys.turn_cos2 = 1.0f;
    keys.turn_sin = keys.turn_sin2 = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      keys.turn[i] = 0;
      if (kPosition == LrpeType::kCosine && keys.exists[i]) {
        keys.turn[i] =
            p.phase_steps[head * p.phase_head_stride + keys.feature[i]];
      }
    }
    if (kPosition == LrpeType::kRotate && keys.exists[0]) {
      keys.turn[0] =
          p.phase_steps[head * p.phase_head_stride + keys.feature[0]];
    }
    if (kPosition != LrpeType::kNone) {
      PhaseCosSin(keys.turn[0], 16, &keys.turn_cos, &keys.turn_sin);
      PhaseCosSin(keys.turn[1], 16, &keys.turn_cos2, &keys.turn_sin2);
    }
    if (s.k_change == Change::kSequenceSoftmax) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        keys.stats[i] =
            LoadShared<float2>(memory.k_stats + keys.feature[i] * 8);
      }
    }
    return keys;
  }

  // x[feature][token] of 16 tokens from `token`: its own two, and those eight
  // further.
  template <Change kChange>
  __device__ __forceinline__ void ChangeKeys(const Keys& keys, int token,
                                             float (&x)[2][4]) const {
    switch (kChange) {
      case Change::kNone:
        break;
      case Change::kSilu:
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i / 4][i % 4] = FastSilu(x[i / 4][i % 4]);
        break;
      case Change::kFeatureSoftmax:
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float4 stats = LoadShared<float4>(
              memory.token_stats + (token + 8 * h + lane % 4 * 2) * 8);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            x[i][2 * h] = FastExp(x[i][2 * h] - stats.x) * stats.y;
            x[i][2 * h + 1] = FastExp(x[i][2 * h + 1] - stats.z) * stats.w;
          }
        }
        break;
      case Change::kSequenceSoftmax:
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          x[i / 4][i % 4] = FastExp(x[i / 4][i % 4] - keys.stats[i / 4].x) *
                            keys.stats[i / 4].y;
        }
        break;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!keys.exists[i / 4]) x[i / 4][i % 4] = 0.0f;
    }
  }

  // Factors of 16 tokens: their own, or cosines then sines.
  __device__ __forceinline__ void EncodeKeys(
      const float (&x)[2][4], const float (&cos)[2][4],
      const float (&sin)[2][4], uint32_t (&factor)[kEncodings][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // register: feature i % 2, tokens by i / 2
      const int f = i % 2;
      const int t = i / 2 * 2;
      if constexpr (kPosition == LrpeType::kCosine) {
        factor[0][i] =
            Bf16::Pack(x[f][t] * cos[f][t], x[f][t + 1] * cos[f][t + 1]);
        factor[1][i] =
            Bf16::Pack(x[f][t] * sin[f][t], x[f][t + 1] * sin[f][t + 1]);
      } else if constexpr (kPosition == LrpeType::kRotate) {
        float y[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          y[j] =
              f == 0
                  ? x[0][t + j] * cos[0][t + j] - x[1][t + j] * sin[0][t + j]
                  : x[0][t + j] * sin[0][t + j] + x[1][t + j] * cos[0][t + j];
        }
        factor[0][i] = Bf16::Pack(y[0], y[1]);
      } else {
        factor[0][i] = Bf16::Pack(x[f][t], x[f][t + 1]);
      }
    }
  }

  // S += k̃ᵀ v of one step.
  __device__ __forceinline__ void AddStep(int load, const Keys& keys,
                                          float (&state)[kEncodings][64]) {
    switch (s.k_change) {
      case Change::kNone:
        return AddChanged<Change::kNone>(load, keys, state);
      case Change::kSilu:
        return AddChanged<Change::kSilu>(load, keys, state);
      case Change::kFeatureSoftmax:
        return AddChanged<Change::kFeatureSoftmax>(load, keys, state);
      case Change::kSequenceSoftmax:
        return AddChanged<Change::kSequenceSoftmax>(load, keys, state);
    }
  }
  template <Change kChange>
  __device__ __forceinline__ void AddChanged(int load, const Keys& keys,
                                             float (&state)[kEncodings][64]) {
    const uint32_t stage = memory.Stage(load);
    const uint32_t values = stage + kTensorBytes;
    const int feature =
        (lane / 8 % 2 == 0 ? 0 : s.half) + 8 * (4 * group + warp);
    const uint32_t from =
        stage + feature / 64 * kBlockBytes +
        wgmma::PieceOffset(lane / 16 * 8 + lane % 8, feature / 8 % 8);
    constexpr int kSteps = kStepTokens / 16;
    if constexpr (kPosition == LrpeType::kNone && kChange == Change::kNone) {
      uint32_t factor[kSteps][4];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        LoadMatricesTransposed(factor[step], from + step * 2048);
      }
      wgmma::Fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        wgmma::Multiply128(state[0], factor[step],
                           wgmma::ByColumns(values, step, kBlockBytes), true);
      }
      wgmma::Commit();
      wgmma::Wait<0>();
      wgmma::Hold(factor);
      wgmma::Hold(state[0]);
    } else {
      Waves waves;
      waves.Begin(keys,
                  static_cast<uint64_t>(position) +
                      static_cast<uint64_t>(first_step + load) * kStepTokens +
                      static_cast<uint64_t>(lane % 4 * 2));
      uint32_t factor[2][kEncodings][4];
      uint32_t raw[2][4];
      LoadMatricesTransposed(raw[0], from);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        if (step + 1 < kSteps) {  // in time
          LoadMatricesTransposed(raw[(step + 1) % 2], from + (step + 1) * 2048);
        }
        auto& f = factor[step % 2];
        float x[2][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[i % 2][i / 2 * 2] = Bf16::Low(raw[step % 2][i]);
          x[i % 2][i / 2 * 2 + 1] = Bf16::High(raw[step % 2][i]);
        }
        ChangeKeys<kChange>(keys, 16 * step, x);
        EncodeKeys(x, waves.cos, waves.sin, f);
        wgmma::Fence();
#pragma unroll
        for (int e = 0; e < kEncodings; ++e) {
          wgmma::Multiply128(state[e], f[e],
                             wgmma::ByColumns(values, step, kBlockBytes), true);
        }
        wgmma::Commit();
        waves.Turn(keys);
        wgmma::Wait<1>();
        wgmma::Hold(factor[(step + 1) % 2]);
      }
      wgmma::Wait<0>();
      wgmma::Hold(factor[(kSteps - 1) % 2]);
#pragma unroll
      for (int e = 0; e < kEncodings; ++e) wgmma::Hold(state[e]);
    }
  }
  // cos and sin of a thread's features, at its four of 16 tokens.
  struct Waves {
    __device__ __forceinline__ void Begin(const Keys& keys, uint64_t first) {
      if constexpr (kPosition != LrpeType::kNone) {
#pragma unroll
        for (int f = 0; f < kEncodings; ++f) {
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            linear_prefill::FastCosSin(
                static_cast<uint32_t>(
                    keys.turn[f] * (first + t % 2 + t / 2 * 8) >> 32),
                &cos[f][t], &sin[f][t]);
          }
        }
      }
    }
    // 16 tokens on.
    __device__ __forceinline__ void Turn(const Keys& keys) {
      if constexpr (kPosition != LrpeType::kNone) {
#pragma unroll
        for (int f = 0; f < kEncodings; ++f) {
          const float turn_cos = f == 0 ? keys.turn_cos : keys.turn_cos2;
          const float turn_sin = f == 0 ? keys.turn_sin : keys.turn_sin2;
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            const float c = cos[f][t];
            cos[f][t] = c * turn_cos - sin[f][t] * turn_sin;
            sin[f][t] = sin[f][t] * turn_cos + c * turn_sin;
          }
        }
      }
    }
    float cos[2][4];
    float sin[2][4];
  };

  // Adds up the parts of S. Each block does its share of the columns, writes
  // them to the slot, and to every block as the factor of the second half.
  __device__ __forceinline__ void Reduce(const float (&state)[kEncodings][64],
                                         float* head_state) const {
    float own[kEncodings][4 * kShare];
#pragma unroll
    for (int other = 0; other < kParts; ++other) {
      const int place = other < rank ? other : other - 1;
      const uint32_t to =
          memory.exchange + place * Memory::kShareBytes + thread * 16;
#pragma unroll
      for (int e = 0; e < kEncodings; ++e) {
#pragma unroll
        for (int b = 0; b < kShare; ++b) {
          const float* x = &state[e][4 * (kShare * other + b)];
          if (other == rank) {
#pragma unroll
            for (int i = 0; i < 4; ++i) own[e][4 * b + i] = x[i];
          } else {
            asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(
                             to + (kShare * e + b) * (kThreads * 16)),
                         "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
                         : "memory");
          }
        }
      }
    }
    ClusterBarrier();
#pragma unroll
    for (int e = 0; e < kEncodings; ++e) {
#pragma unroll
      for (int b = 0; b < kShare; ++b) {
        float sum[4] = {};
        for (int part = 0; part < kParts; ++part) {
          float x[4];
          const int place = rank < part ? rank : rank - 1;
          if (part != rank) {
            linear_cluster::ReadFour(
                InBlock(memory.exchange + place * Memory::kShareBytes +
                            (kShare * e + b) * (kThreads * 16) + thread * 16,
                        part),
                x);
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum[i] += part == rank ? own[e][4 * b + i] : x[i];
          }
        }
        Publish(e, 8 * (kShare * rank + b), sum, head_state);
      }
    }
    asm volatile("fence.proxy.async;" ::: "memory");
    ClusterBarrier();
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
  }
  // Columns from `column` of two rows of S.
  __device__ __forceinline__ void Publish(int encoding, int column,
                                          const float (&x)[4],
                                          float* head_state) const {
    const int pair = 8 * (4 * group + warp);
    const int mine = column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = encoding * kFeatures + 2 * pair + 8 * i + lane / 4;
      const uint32_t to = memory.state + column / 64 * Memory::kStateBlock +
                          wgmma::PieceOffset(row, column / 8 % 8) +
                          lane % 4 * 4;
      const uint32_t word = Bf16::Pack(x[2 * i], x[2 * i + 1]);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        linear_cluster::Write(InBlock(to, part), word);
      }
      const int feature = (i == 0 ? 0 : s.half) + pair + lane / 4;
      const bool exists =
          pair < s.first_end && feature < s.head_dim && mine < s.value_dim;
      if (head_state != nullptr && exists) {
        *reinterpret_cast<float2*>(
            head_state +
            int64_t{encoding * s.head_dim + feature} * s.value_dim + mine) =
            make_float2(x[2 * i], x[2 * i + 1]);
      }
    }
  }

  // ---- outputs ----

  // A thread's q: tokens g and g + 8 of its warp's 16, and of each pair of
  // eights of features, its own two of both.
  __device__ __forceinline__ void LoadQueries(uint32_t queries, int eight,
                                              uint32_t (&raw)[4]) const {
    const int token = first_row + lane / 8 % 2 * 8 + lane % 8;
    const int feature = (lane / 16 == 0 ? 0 : s.half) + 8 * eight;
    LoadMatrices(raw, queries + feature / 64 * kBlockBytes +
                          wgmma::PieceOffset(token, feature / 8 % 8));
  }
  __device__ __forceinline__ bool Exists(int eight, int i) const {
    return 8 * eight < s.first_end &&
           (i == 0 || s.half + 8 * eight < s.head_dim);
  }
  // Maximum and 1 / sum over the features of the two tokens.
  __device__ __forceinline__ void QueryStats(uint32_t queries,
                                             float2 (&stats)[2]) const {
    stats[0] = stats[1] = make_float2(-INFINITY, 0.0f);
#pragma unroll 1
    for (int eight = 0; eight < 8; ++eight) {
      uint32_t raw[4];
      LoadQueries(queries, eight, raw);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // token i % 2, feature i / 2
        if (!Exists(eight, i / 2)) continue;
        const float low = Bf16::Low(raw[i]);
        const float high = Bf16::High(raw[i]);
        const float max = fmaxf(low, high);
        stats[i % 2] =
            Merge(stats[i % 2],
                  make_float2(max, FastExp(low - max) + FastExp(high - max)));
      }
    }
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        float2 other;
        other.x = __shfl_xor_sync(0xffffffffu, stats[t].x, offset);
        other.y = __shfl_xor_sync(0xffffffffu, stats[t].y, offset);
        stats[t] =
            lane & offset ? Merge(other, stats[t]) : Merge(stats[t], other);
      }
      stats[t].y = 1.0f / stats[t].y;
    }
  }

  // x[token][half][two features].
  template <Change kChange>
  __device__ __forceinline__ void ChangeQueries(int eight,
                                                const float2 (&stats)[2],
                                                float (&x)[2][2][2]) const {
    switch (kChange) {
      case Change::kNone:
        break;
      case Change::kSilu:
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& y = x[i / 4][i / 2 % 2][i % 2];
          y = FastSilu(y);
        }
        break;
      case Change::kFeatureSoftmax:
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& y = x[i / 4][i / 2 % 2][i % 2];
          y = FastExp(y - stats[i / 4].x) * stats[i / 4].y;
        }
        break;
      case Change::kSequenceSoftmax:
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int feature = (h == 0 ? 0 : s.half) + 8 * eight + lane % 4 * 2;
          const float4 of = LoadShared<float4>(memory.q_stats + feature * 8);
#pragma unroll
          for (int t = 0; t < 2; ++t) {
            x[t][h][0] = FastExp(x[t][h][0] - of.x) * of.y;
            x[t][h][1] = FastExp(x[t][h][1] - of.z) * of.w;
          }
        }
        break;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (!Exists(eight, i / 2 % 2)) x[i / 4][i / 2 % 2][i % 2] = 0.0f;
    }
  }

  __device__ __forceinline__ void EncodeQueries(
      int load, int eight, const float (&x)[2][2][2],
      uint32_t (&factor)[kEncodings][4]) const {
    float cos[2][2][2];
    float sin[2][2][2];
    if constexpr (kPosition != LrpeType::kNone) {
#pragma unroll
      for (int h = 0; h < kEncodings; ++h) {
        const int angle = (h == 0 ? 0 : s.half) + 8 * eight + lane % 4 * 2;
        const uint4 turn = LoadShared<uint4>(memory.Angles(load) + angle * 8);
#pragma unroll
        for (int t = 0; t < 2; ++t) {
          const uint32_t row = first_row + lane / 4 + 8 * t;
          linear_prefill::FastCosSin(turn.x + row * turn.y, &cos[t][h][0],
                                     &sin[t][h][0]);
          linear_prefill::FastCosSin(turn.z + row * turn.w, &cos[t][h][1],
                                     &sin[t][h][1]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // register: token i % 2, half i / 2
      const int t = i % 2;
      const int h = i / 2;
      float y[kEncodings][2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (kPosition == LrpeType::kCosine) {
          y[0][j] = x[t][h][j] * cos[t][h][j];
          y[1][j] = x[t][h][j] * sin[t][h][j];
        } else if constexpr (kPosition == LrpeType::kRotate) {
          y[0][j] = h == 0
                        ? x[t][0][j] * cos[t][0][j] - x[t][1][j] * sin[t][0][j]
                        : x[t][0][j] * sin[t][0][j] + x[t][1][j] * cos[t][0][j];
        } else {
          y[0][j] = x[t][h][j];
        }
      }
#pragma unroll
      for (int e = 0; e < kEncodings; ++e) {
        factor[e][i] = Bf16::Pack(y[e][0], y[e][1]);
      }
    }
  }

  // The outputs of a step; each group has 64 of its tokens.
  __device__ __forceinline__ void OutStep(int load) const {
    float out[64];
    switch (s.q_change) {
      case Change::kNone:
        Query<Change::kNone>(load, out);
        break;
      case Change::kSilu:
        Query<Change::kSilu>(load, out);
        break;
      case Change::kFeatureSoftmax:
        Query<Change::kFeatureSoftmax>(load, out);
        break;
      case Change::kSequenceSoftmax:
        Query<Change::kSequenceSoftmax>(load, out);
        break;
    }
    const uint32_t gates = memory.Stage(load) + kTensorBytes;
    if (p.g == nullptr) {
      Gate<false, false>(gates, out);
    } else if (p.g_activation == Activation::kSilu) {
      Gate<true, true>(gates, out);
    } else {
      Gate<true, false>(gates, out);
    }
    Write(load, gates);
  }
  template <Change kChange>
  __device__ __forceinline__ void Query(int load, float (&out)[64]) const {
    const uint32_t stage = memory.Stage(load);
    if constexpr (kPosition == LrpeType::kNone && kChange == Change::kNone) {
      uint32_t factor[8][4];
#pragma unroll
      for (int eight = 0; eight < 8; ++eight) {
        LoadQueries(stage, eight, factor[eight]);
      }
      wgmma::Fence();
#pragma unroll
      for (int eight = 0; eight < 8; ++eight) {
        MultiplyState(out, factor[eight], eight, eight > 0);
      }
      wgmma::Commit();
      wgmma::Wait<0>();
      wgmma::Hold(factor);
    } else {
      float2 stats[2];
      if (kChange == Change::kFeatureSoftmax) QueryStats(stage, stats);
      uint32_t factor[2][kEncodings][4];
      uint32_t raw[2][4];
      LoadQueries(stage, 0, raw[0]);
#pragma unroll
      for (int eight = 0; eight < 8; ++eight) {
        if (eight < 7) LoadQueries(stage, eight + 1, raw[(eight + 1) % 2]);
        auto& f = factor[eight % 2];
        float x[2][2][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[i % 2][i / 2][0] = Bf16::Low(raw[eight % 2][i]);
          x[i % 2][i / 2][1] = Bf16::High(raw[eight % 2][i]);
        }
        ChangeQueries<kChange>(eight, stats, x);
        EncodeQueries(load, eight, x, f);
        wgmma::Fence();
#pragma unroll
        for (int e = 0; e < kEncodings; ++e) {
          MultiplyState(out, f[e], 8 * e + eight, eight + e > 0);
        }
        wgmma::Commit();
        wgmma::Wait<1>();
        wgmma::Hold(factor[(eight + 1) % 2]);
      }
      wgmma::Wait<0>();
      wgmma::Hold(factor[1]);
    }
    wgmma::Hold(out);
  }
  __device__ __forceinline__ void MultiplyState(float (&out)[64],
                                                const uint32_t (&factor)[4],
                                                int step, bool add) const {
    wgmma::Multiply128(
        out, factor, wgmma::ByColumns(memory.state, step, Memory::kStateBlock),
        add);
  }
  // Gated outputs take the place of the gates in shared memory.
  template <bool kGated, bool kSilu>
  __device__ __forceinline__ void Gate(uint32_t gates,
                                       const float (&out)[64]) const {
    const int token = first_row + lane / 4;
    // Rows 8 apart have their pieces in the same places.
    const uint32_t row = gates + token * 128 + lane % 4 * 4;
    const int swap = token & 7;
#pragma unroll
    for (int b = 0; b < 16; ++b) {
      const uint32_t piece = row + b / 8 * kBlockBytes + ((b % 8 ^ swap) << 4);
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        const uint32_t at = piece + t * (8 * 128);
        float low = out[4 * b + 2 * t] * p.scale;
        float high = out[4 * b + 2 * t + 1] * p.scale;
        if constexpr (kGated) {
          const uint32_t gate = LoadShared<uint32_t>(at);
          const float g0 = Bf16::Low(gate);
          const float g1 = Bf16::High(gate);
          low *= kSilu ? FastSilu(g0) : g0;
          high *= kSilu ? FastSilu(g1) : g1;
        }
        StoreShared(at, Bf16::Pack(low, high));
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void Write(int load, uint32_t from) const {
    const int step = first_step + load - part_steps;
    const int column = lane % 16 * 8;
    if (column >= s.value_dim) return;
    const int row = first_row + lane / 16;
    const int left = count - step * kStepTokens - row;
    __nv_bfloat16* to =
        static_cast<__nv_bfloat16*>(p.out) +
        (first_token + step * kStepTokens + row) * p.out_stride +
        int64_t{head} * s.value_dim + column;
    from += column / 64 * kBlockBytes;
    const int64_t next = 2 * p.out_stride;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint4 x = LoadShared<uint4>(
          from + wgmma::PieceOffset(row + 2 * i, column / 8 % 8));
      if (2 * i < left) *reinterpret_cast<uint4*>(to) = x;
      to += next;
    }
  }

  __device__ __forceinline__ void Run(float* head_state) {
    SequenceStats();
    // Loads of q and g begin before the parts of S are added up, unless their
    // memory is needed for that.
    const int early = Memory::kOwnExchange ? 2 * part_steps : part_steps;
    float state[kEncodings][64] = {};
    for (int i = 0; i < kStages; ++i) LoadUpTo(i, early);
    const Keys keys = TakeKeys();
    for (int load = 0; load < part_steps; ++load) {
      Arrive();
      if (s.k_change == Change::kFeatureSoftmax) {
        TokenStats(memory.Stage(load));
        __syncthreads();
      }
      AddStep(load, keys, state);
      __syncthreads();
      LoadUpTo(load + kStages, early);
    }
    Reduce(state, head_state);
    if (!Memory::kOwnExchange) {
      for (int i = 0; i < kStages; ++i) Load(part_steps + i);
    }
    for (int load = part_steps; load < 2 * part_steps; ++load) {
      Arrive();
      OutStep(load);
      __syncthreads();
      Load(load + kStages);
    }
  }
  __device__ __forceinline__ void LoadUpTo(int load, int end) const {
    if (load < end) {
      Load(load);
    } else {
      linear_prefill::CommitCopies();
    }
  }
  // Until everybody's copies of the next load have come.
  __device__ __forceinline__ void Arrive() const {
    linear_prefill::WaitCopies(kStages - 1);
    BulkCopyFence();
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
  int first_row;   // of a step, of the 16 whose outputs this warp has
  int first_step;  // of this part
  int part_steps;
};

// The outputs of a row in the sink.
__device__ void WriteZeros(const LinearNoncausalParams& p, int value_dim,
                           int64_t first_token, int count) {
  for (int64_t i = threadIdx.x; i < int64_t{count} * value_dim;
       i += blockDim.x) {
    static_cast<__nv_bfloat16*>(
        p.out)[(first_token + i / value_dim) * p.out_stride +
               int64_t{blockIdx.y} * value_dim + i % value_dim] =
        __float2bfloat16_rn(0.0f);
  }
}

// ----------------------------------------------------------------------------
// CUDA kernels

// Grid: (parts, heads, rows), a cluster for each (head, row). A block makes S
// of its part of the tokens; the parts are added up; then it makes the outputs
// of the same part.
template <LrpeType kPosition>
__global__ void __launch_bounds__(kThreads, 1)
    linear_noncausal_kernel(const __grid_constant__ LinearNoncausalParams p,
                            const __grid_constant__ Shape s) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char shared[];
  const int b = blockIdx.z;
  if (p.rows != nullptr && b >= *p.rows) return;
  const int64_t first_token = p.query_start[b];
  const int count = p.query_start[b + 1] - p.query_start[b];
  if (count <= 0) return;
  float* head_state = nullptr;
  using Work = Noncausal<kPosition>;
  if (p.states != nullptr) {
    const int slot = p.slots[b];
    if (slot <= 0) {
      if (blockIdx.x == 0) WriteZeros(p, s.value_dim, first_token, count);
      return;
    }
    head_state =
        p.states + int64_t{slot} * p.slot_stride +
        int64_t{blockIdx.y} * (Work::kEncodings * s.head_dim) * s.value_dim;
  }
  const int64_t position = p.positions == nullptr ? 0 : p.positions[b];
  const typename Work::Memory memory((SharedAddress(shared) + 1023) & ~1023u);
  Work work(p, s, memory, first_token, count, position);
  work.Run(head_state);
#endif
}

// ----------------------------------------------------------------------------
// Launchers

bool ValidActivation(Activation activation) {
  return activation == Activation::kNone || activation == Activation::kSilu ||
         activation == Activation::kSoftmax;
}

bool Valid(const LinearNoncausalParams& p) {
  return p.num_heads >= 1 && p.num_heads <= 65535 &&
         ValidLinearDim(p.head_dim) && ValidLinearDim(p.value_dim) &&
         p.head_dim <= kFeatures && p.value_dim <= kFeatures &&
         (p.position != LrpeType::kRotate || p.head_dim % 16 == 0) &&
         p.max_rows >= 0 && p.max_rows <= 65535 && p.q != nullptr &&
         p.k != nullptr && p.v != nullptr && p.out != nullptr &&
         p.stride % 8 == 0 && p.out_stride % 8 == 0 &&
         p.query_start != nullptr && ValidActivation(p.q_activation) &&
         ValidActivation(p.k_activation) &&
         p.g_activation != Activation::kSoftmax &&
         ValidActivation(p.g_activation) &&
         (p.position == LrpeType::kNone ||
          (p.phase_steps != nullptr && p.positions != nullptr)) &&
         (p.states == nullptr ||
          (p.slots != nullptr && p.slot_stride % 2 == 0));
}

Change ChangeOf(Activation activation, bool sequence_softmax) {
  if (sequence_softmax) return Change::kSequenceSoftmax;
  if (activation == Activation::kSilu) return Change::kSilu;
  return activation == Activation::kSoftmax ? Change::kFeatureSoftmax
                                            : Change::kNone;
}

template <LrpeType kPosition>
cudaError_t Launch(const LinearNoncausalParams& p, cudaStream_t stream) {
  const auto kernel = linear_noncausal_kernel<kPosition>;
  // What the driver makes of PTX for other devices has nothing in it.
  cudaFuncAttributes attributes;
  cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  if (error != cudaSuccess) return error;
  if (attributes.binaryVersion != 90 || attributes.ptxVersion < 90) {
    return cudaErrorNotSupported;
  }
  constexpr int kBytes = Noncausal<kPosition>::Memory::kBytes;
  error =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int head_dim = static_cast<int>(p.head_dim);
  const int half = kPosition == LrpeType::kRotate ? head_dim / 2 : 64;
  const Shape shape = {head_dim,
                       static_cast<int>(p.value_dim),
                       half,
                       head_dim < half ? head_dim : half,
                       ChangeOf(p.q_activation, p.q_sequence_softmax),
                       ChangeOf(p.k_activation, p.k_sequence_softmax)};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kParts, static_cast<unsigned>(p.num_heads),
                        static_cast<unsigned>(p.max_rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kParts;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, shape);
}

}  // namespace

cudaError_t LaunchLinearNoncausal(const LinearNoncausalParams& p,
                                  cudaStream_t stream) {
  if (!Valid(p)) return cudaErrorInvalidValue;
  if (p.max_rows == 0) return cudaSuccess;
  switch (p.position) {
    case LrpeType::kRotate:
      return Launch<LrpeType::kRotate>(p, stream);
    case LrpeType::kCosine:
      return Launch<LrpeType::kCosine>(p, stream);
    case LrpeType::kNone:
      break;
  }
  return Launch<LrpeType::kNone>(p, stream);
}

}  // namespace recurve
