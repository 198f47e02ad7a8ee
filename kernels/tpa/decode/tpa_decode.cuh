// Arguments and helpers shared by the parts of the decode kernel.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_DECODE_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_DECODE_CUH_

#include <cstdint>

#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/decode/tpa_chunks.h"
#include "kernels/tpa/decode/tpa_schedule.h"
#include "kernels/tpa/tpa_cuda.h"

namespace recurve {

struct TpaDecodeArgs {
  TpaCudaDecodeParams p;
  TpaPageLayout layout;
  TpaScratchLayout scratch;
  TpaScheduleLayout schedule;
  int head_octets;        // groups of 8 heads
  int octets;             // of all new tokens
  int query_octet_bytes;  // for 8 columns of queries
  int group_octets;       // of a warpgroup
  int groups;             // warpgroups that share the columns of a block
  int lanes;              // sets of them that share its chunks: 1 or 2
  int stages;             // of each lane
  int stage_bytes;
  int early_keys;
  float query_scale;  // of queries formed here
  uint32_t zero;      // 0, unknown to the compiler

  __device__ const TpaBlockWork& block_work() const {
    return reinterpret_cast<const TpaBlockWork*>(
        static_cast<const char*>(p.schedule) + schedule.block_work)[blockIdx.x];
  }
  __device__ const TpaRowWork& row_work(int row) const {
    return reinterpret_cast<const TpaRowWork*>(
        static_cast<const char*>(p.schedule) + schedule.row_work)[row];
  }
  __device__ uint32_t& counter(int row) const {
    return reinterpret_cast<uint32_t*>(
        static_cast<char*>(p.schedule) +
        schedule.counters)[row * gridDim.y + blockIdx.y];
  }
  __device__ const int32_t* partial_chunk() const {
    return reinterpret_cast<const int32_t*>(
        static_cast<const char*>(p.schedule) + schedule.partial_chunk);
  }
  __device__ float2* max_sum() const {
    return reinterpret_cast<float2*>(static_cast<char*>(p.scratch) +
                                     scratch.max_sum);
  }
  __device__ float* outputs() const {
    return reinterpret_cast<float*>(static_cast<char*>(p.scratch) +
                                    scratch.outputs);
  }

  // This block's first octet of columns, and its number of octets.
  __device__ int first_octet() const {
    return static_cast<int>(blockIdx.y) * groups * group_octets;
  }
  __device__ int block_octets() const {
    return min(groups * group_octets, octets - first_octet());
  }
  // The octets of heads that this block copies: those of its columns if they
  // are of one token, else all.
  __device__ int first_head_octet() const {
    return p.new_tokens == 1 ? first_octet() : 0;
  }
  __device__ int head_octet_count() const {
    return p.new_tokens == 1 ? block_octets() : head_octets;
  }
  // Consumer threads: of a lane, and of the block.
  __device__ int lane_threads() const { return 128 * groups; }
  __device__ int consumers() const { return lane_threads() * lanes; }

  // Warps that append, if the launch does: those of the last warpgroup that do
  // not copy. And threads at a barrier of theirs with a producer warp.
  __device__ int append_warps() const { return 4 - lanes; }
  __device__ int append_threads() const { return 32 * (append_warps() + 1); }

  // Tokens that query `t` sees in a row of `length` tokens.
  __device__ int Visible(int length, int t) const {
    return length - (p.new_tokens - 1 - t);
  }
};

// Bytes between octets of elements, in a plane of factors or weights.
inline constexpr uint32_t kTpaOctetBytes = 16 * kTpaPageTokens;

// Named barriers of the block, other than 0: of all consumer warps; of a
// lane's; of each consumer warpgroup; and, for the turns of two warpgroups with
// the same columns, one a turn.
inline constexpr int kTpaConsumerBarrier = 15;
inline constexpr int kTpaLaneBarrier = 13;  // and 14
inline constexpr int kTpaGroupBarrier = 1;  // and 2
inline constexpr int kTpaTurnBarrier = 5;   // and 6
// Barriers of the appending warps and one producer warp, one for each lane.
inline constexpr int kTpaAppendBarrier = 9;  // and 10
// And of those and the producer warps, for the block's share.
inline constexpr int kTpaShareBarrier = 0;

inline constexpr float kMinusInfinity = -__builtin_huge_valf();

// ---- merging ----

// Merges a running result and the next one: each has an output weighted by
// 2^(score - max), the sum of those weights, and max, which scores are relative
// to (tpa_softmax.cuh). A result without tokens has max -inf and changes
// nothing.
struct TpaFoldScales {
  float running;
  float next;
};
__device__ __forceinline__ TpaFoldScales ScalesFor(float running_max,
                                                   float next_max) {
  const float max = fmaxf(running_max, next_max);
  const float base = max == kMinusInfinity ? 0.0f : max;
  return {FastExp2(running_max - base), FastExp2(next_max - base)};
}
__device__ __forceinline__ float Fold(float running, float next,
                                      TpaFoldScales scales) {
  return __fmaf_rn(running, scales.running, __fmul_rn(next, scales.next));
}

// Element `at` of the outputs; for code in loops.
__device__ __forceinline__ void WriteOut(const TpaCudaDecodeParams& p,
                                         int64_t at, float value) {
  if (p.out_type == WeightType::kFloat32) {
    static_cast<float*>(p.out)[at] = value;
  } else if (p.out_type == WeightType::kBFloat16) {
    static_cast<__nv_bfloat16*>(p.out)[at] = Half<__nv_bfloat16>::From(value);
  } else {
    static_cast<__half*>(p.out)[at] = Half<__half>::From(value);
  }
}

// Elements at to at + 3 of one head; in one store where possible.
__device__ __forceinline__ void WriteFour(const TpaCudaDecodeParams& p,
                                          int64_t at,
                                          const float (&values)[4]) {
  if (p.out_type == WeightType::kBFloat16 && p.out_stride % 4 == 0) {
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.out) + at) =
        make_uint2(Half<__nv_bfloat16>::Pack(values[0], values[1]),
                   Half<__nv_bfloat16>::Pack(values[2], values[3]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) WriteOut(p, at + i, values[i]);
}

// Final factor of an output. Without tokens: zero.
__device__ __forceinline__ float Normalizer(float sum, int kv_rank) {
  return sum == 0.0f ? 0.0f
                     : __frcp_rn(__fmul_rn(sum, static_cast<float>(kv_rank)));
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_DECODE_CUH_
