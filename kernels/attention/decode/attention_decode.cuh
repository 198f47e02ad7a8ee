// Arguments, items and output of the decode kernels.
#ifndef RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_DECODE_CUH_
#define RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_DECODE_CUH_

#include <cstdint>

#include "kernels/attention/attention_cuda.h"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"

namespace recurve {

struct AttentionDecodeArgs {
  AttentionCudaDecodeParams p;
  AttentionPageLayout layout;
  AttentionScheduleLayout parts;
  int octets;
  int stages;
  int stage_bytes;
  int group;        // query heads of a kv head
  float2* max_sum;  // [slots, group] of partial results
  float* partials;  // [slots, group, E]

  template <typename T>
  __device__ T* Scheduled(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(p.schedule) + offset);
  }
  __device__ const AttentionBlockWork& block_work() const {
    return Scheduled<const AttentionBlockWork>(parts.block_work)[blockIdx.x];
  }
  __device__ const AttentionRowWork& row_work(int row) const {
    return Scheduled<const AttentionRowWork>(parts.row_work)[row];
  }
  __device__ uint32_t* counter(int row, int head, int octet) const {
    return Scheduled<uint32_t>(parts.counters) +
           (static_cast<int64_t>(row) * p.shape.num_kv_heads + head) * octets +
           octet;
  }
  // Query heads of an octet.
  __device__ int heads_of(int octet) const { return min(8, group - 8 * octet); }
};

inline constexpr float kAttentionNone = -__builtin_huge_valf();

// A chunk of a kv head of a row, and the way to the block's next one.
struct AttentionItem {
  int row;
  int head;
  int chunk;
  AttentionRowWork work;

  AttentionItem() = default;
  __device__ __forceinline__ explicit AttentionItem(
      const AttentionBlockWork& block)
      : row(block.row), head(block.head), chunk(block.chunk) {
    Read(block.first);
  }
  // REQUIRES: there is a next one.
  __device__ __forceinline__ void Next(const AttentionDecodeArgs& args) {
    if (++chunk < work.chunks) return;
    chunk = 0;
    if (++head < static_cast<int>(args.p.shape.num_kv_heads)) return;
    head = 0;
    ++row;
    Read(args.row_work(row));
  }
  __device__ __forceinline__ int first_page() const {
    return chunk * work.chunk_pages;
  }
  __device__ __forceinline__ int pages() const {
    return min(work.chunk_pages, AttentionPages(work.length) - first_page());
  }
  __device__ __forceinline__ int slot() const {
    return work.first_slot + head * work.chunks + chunk;
  }

 private:
  __device__ __forceinline__ void Read(const AttentionRowWork& of) {
    const auto* from = reinterpret_cast<const int4*>(&of);
    const int4 low = from[0];
    work.length = low.x;
    work.sequence = low.y;
    work.chunk_pages = low.z;
    work.chunks = low.w;
    work.first_slot = from[1].x;
  }
};

// Four neighbouring results of one head, times the gate. `at` is the first
// one's place in its row.
__device__ __forceinline__ void AttentionEmit(const AttentionCudaOutput& out,
                                              int64_t row, int64_t at, float4 x,
                                              bool gated) {
  if (gated && out.gate != nullptr) {
    const float4 gate =
        *reinterpret_cast<const float4*>(out.gate + row * out.gate_stride + at);
    x.x *= DeviceSigmoid(gate.x);
    x.y *= DeviceSigmoid(gate.y);
    x.z *= DeviceSigmoid(gate.z);
    x.w *= DeviceSigmoid(gate.w);
  }
  at += row * out.stride;
  if (out.type == WeightType::kFloat32) {
    *reinterpret_cast<float4*>(static_cast<float*>(out.data) + at) = x;
  } else if (out.type == WeightType::kBFloat16) {
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(out.data) + at) = {
        Half<__nv_bfloat16>::Pack(x.x, x.y),
        Half<__nv_bfloat16>::Pack(x.z, x.w)};
  } else {
    *reinterpret_cast<uint2*>(static_cast<__half*>(out.data) + at) = {
        Half<__half>::Pack(x.x, x.y), Half<__half>::Pack(x.z, x.w)};
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_DECODE_ATTENTION_DECODE_CUH_
