// Attention of TPA prefill on sm_90a: one persistent block a multiprocessor
// takes query tiles, longest first; a producer warp copies keys and values by
// cp.async.bulk into ring buffers; warpgroups of 64 queries multiply by wgmma,
// scores of the next tile with the softmax of this one.
// Shapes: queries, K_h, V_h [tokens, width] 16-bit, a head at a time; query
// tiles of 128 or 192, key tiles of 64 or 128; out [T, H, E] float32 or
// bfloat16.
// Floor: compute bound: 2 · H · (D + E) flops for each pair of a query and a
// token that it sees.
#ifndef RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_ATTEND_CUH_
#define RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_ATTEND_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/prefill_attend.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/tpa/prefill/tpa_prefill_copy.cuh"
#include "kernels/tpa/prefill/tpa_prefill_shared.cuh"

namespace recurve {

template <typename T, typename S>
class TpaPrefillWorker : public PrefillAttend<T, S, TpaPrefillWorker<T, S>> {
 public:
  __device__ __forceinline__ TpaPrefillWorker(const TpaPrefillArgs& args,
                                              char* shared, int group)
      : Base(shared, group), args_(args) {}

 private:
  using Base = PrefillAttend<T, S, TpaPrefillWorker>;
  using Item = typename S::Item;
  friend Base;

  // The copies have zeros where there is no token.
  __device__ __forceinline__ void ClearValues(const Item& /*item*/) {}

  __device__ __forceinline__ void Store(const Item& item) {
    const TpaPrefillParams& p = args_.p;
    const int value_dim = static_cast<int>(p.shape.value_dim);
    const int64_t head = args_.first_head + item.head;
    const int t = this->lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = this->row_ + 8 * half;
      const float sum = LaneSum<4>(this->sum_[half]);
      const float scale =
          __fdiv_rn(1.0f, sum * static_cast<float>(p.shape.kv_rank));
      const bool exists = query < item.tile.queries;
      const int64_t at =
          (item.tile.token + query) * p.out_stride + head * value_dim;
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
          }
          if (p.out_type == ElementType::kFloat32) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              if (exists && 8 * (octet + i) + 2 * t < value_dim) {
                reinterpret_cast<float2*>(static_cast<float*>(p.out) + at +
                                          8 * (octet + i))[t] = x[i];
              }
            }
          } else {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              words[i] = Half<__nv_bfloat16>::Pack(x[i].x, x[i].y);
            }
            this->Transpose(words);  // lane t: all of octet t
            if (exists && 8 * (octet + t) < value_dim) {
              StoreOctet(
                  static_cast<__nv_bfloat16*>(p.out) + at + 8 * (octet + t),
                  value_dim - 8 * (octet + t), words);
            }
          }
        }
      }
    }
  }

  // The features of an octet within `left`, the rest of the head; heads of
  // incomplete octets begin at any 8 bytes.
  __device__ __forceinline__ void StoreOctet(__nv_bfloat16* to, int left,
                                             const uint32_t (&words)[4]) const {
    if (args_.p.shape.value_dim % 8 == 0) {
      *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
      return;
    }
    auto* const halves = reinterpret_cast<uint2*>(to);
    halves[0] = {words[0], words[1]};
    if (left > 4) halves[1] = {words[2], words[3]};
  }

  const TpaPrefillArgs& args_;
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    tpa_prefill_attend(const __grid_constant__ TpaPrefillArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char shared[];
  const uint32_t base = SharedAddress(shared);
  if (threadIdx.x == 0) InitPrefillBarriers<S>(base);
  __syncthreads();
  WaitForPrevious();
  const int group = Uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    ReleaseRegisters<S::kCopyRegisters>();
    const int warp =
        __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) TpaPrefillCopier<S>(args, shared).Run();
  } else {
    ClaimRegisters<S::kComputeRegisters>();
    TpaPrefillWorker<T, S>(args, shared, group - 1).Run();
  }
#else
  __trap();  // never launched
#endif
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_PREFILL_TPA_PREFILL_ATTEND_CUH_
