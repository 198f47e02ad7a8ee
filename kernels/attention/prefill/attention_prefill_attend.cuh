// Prefill of softmax attention on sm_90a: one persistent block a multiprocessor
// takes query tiles, longest first; a producer warp copies pages of keys and
// values by cp.async.bulk into ring buffers; warpgroups of 64 queries multiply
// by wgmma, scores of the next tile with the softmax of this one.
// Shapes: queries [H, tokens, width], pages of K [64, D] and V [64, E] a kv
// head, 16-bit; query tiles of 128 or 192, key tiles of 64 or 128; out
// [T, H, E].
// Floor: compute bound: 2 · H · (D + E) flops for each pair of a query and a
// token that it sees.
#ifndef RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_ATTEND_CUH_
#define RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_ATTEND_CUH_

#include "kernels/attention/attention_access.cuh"
#include "kernels/attention/prefill/attention_prefill_copy.cuh"
#include "kernels/attention/prefill/attention_prefill_shared.cuh"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/prefill_attend.cuh"
#include "kernels/common/wgmma.cuh"

namespace recurve {

template <typename T, typename S>
class AttentionPrefillWorker
    : public PrefillAttend<T, S, AttentionPrefillWorker<T, S>> {
 public:
  __device__ __forceinline__ AttentionPrefillWorker(
      const AttentionPrefillArgs& args, char* shared, int group)
      : Base(shared, group), args_(args) {}

 private:
  using Base = PrefillAttend<T, S, AttentionPrefillWorker>;
  using Item = typename S::Item;
  friend Base;

  // Values of the tile's tokens from `count` on, which do not exist: a weight
  // of 0 times NaN would show. Each warpgroup clears what it multiplies.
  __device__ __forceinline__ void ClearValues(const Item& item) {
    const int count =
        item.tile.length - (item.tile.key_tiles - 1) * S::kKeyTile;
    if (count >= S::kKeyTile) return;
    const uint32_t values =
        this->base_ + S::kValues + S::kTileBytes * this->values_.index;
    const int octets = static_cast<int>(args_.p.shape.value_dim) / 8;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    for (int i = thread; i < octets * S::kKeyTile; i += 128) {
      const int token = i % S::kKeyTile;
      if (token < count) continue;
      const uint32_t to = values + token / 64 * (S::kTileBytes / S::kPages) +
                          i / S::kKeyTile * 1024 + token % 64 * 16;
      ClearShared16(to);
    }
    BulkCopyFence();  // wgmma reads this thread's writes
    NamedBarrier(5 + this->group_, 128);
  }

  __device__ __forceinline__ void Store(const Item& item) {
    const AttentionCudaOutput& to = args_.p.out;
    const int value_dim = static_cast<int>(args_.p.shape.value_dim);
    const int t = this->lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = this->row_ + 8 * half;
      const float scale = __fdiv_rn(1.0f, LaneSum<4>(this->sum_[half]));
      const bool exists = query < item.tile.queries;
      const int64_t token = item.tile.token + query;
      const int64_t first = static_cast<int64_t>(item.head) * value_dim;
#pragma unroll
      for (int part = 0; part < Base::kParts; ++part) {
        // Four octets of features at a time: a lane has two of each.
#pragma unroll
        for (int j = 0; j < Base::kPartWidth / 8; j += 4) {
          const int octet = part * Base::kPartWidth / 8 + j;
          float2 x[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            x[i] = {this->out_[part][4 * (j + i) + 2 * half] * scale,
                    this->out_[part][4 * (j + i) + 2 * half + 1] * scale};
            if (to.gate != nullptr && exists &&
                8 * (octet + i) + 2 * t < value_dim) {
              const float2 gate = reinterpret_cast<const float2*>(
                  to.gate + token * to.gate_stride + first +
                  8 * (octet + i))[t];
              x[i].x *= DeviceSigmoid(gate.x);
              x[i].y *= DeviceSigmoid(gate.y);
            }
          }
          const int64_t at = token * to.stride + first;
          if (to.type == WeightType::kFloat32) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (exists && 8 * (octet + i) + 2 * t < value_dim) {
                reinterpret_cast<float2*>(static_cast<float*>(to.data) + at +
                                          8 * (octet + i))[t] = x[i];
              }
            }
          } else {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              words[i] = to.type == WeightType::kBFloat16
                             ? Half<__nv_bfloat16>::Pack(x[i].x, x[i].y)
                             : Half<__half>::Pack(x[i].x, x[i].y);
            }
            this->Transpose(words);  // lane t: all of octet t
            if (exists && 8 * (octet + t) < value_dim) {
              *reinterpret_cast<uint4*>(static_cast<uint16_t*>(to.data) + at +
                                        8 * (octet + t)) = {words[0], words[1],
                                                            words[2], words[3]};
            }
          }
        }
      }
    }
  }

  const AttentionPrefillArgs& args_;
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1) attention_prefill_attend(
    const __grid_constant__ AttentionPrefillArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  const uint32_t base = SharedAddress(shared);
  if (threadIdx.x == 0) InitPrefillBarriers<S>(base);
  // Features beyond D are zero in queries; keys must be finite there.
  if (args.p.shape.head_dim < S::kWidth) {
    for (int i = threadIdx.x; i < S::kStages * S::kTileBytes / 16;
         i += S::kThreads) {
      *reinterpret_cast<uint4*>(shared + S::kKeys + 16 * i) = {0, 0, 0, 0};
    }
    BulkCopyFence();
  }
  __syncthreads();
  LaunchDependents();
  WaitForPrevious();
  const int group = Uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    ReleaseRegisters<S::kCopyRegisters>();
    const int warp =
        __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) AttentionPrefillCopier<S>(args, shared).Run();
  } else {
    ClaimRegisters<S::kComputeRegisters>();
    AttentionPrefillWorker<T, S>(args, shared, group - 1).Run();
  }
#else
  __trap();  // never launched
#endif
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_ATTEND_CUH_
