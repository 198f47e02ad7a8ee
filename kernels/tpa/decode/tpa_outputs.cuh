// Current outputs of a consumer warpgroup of decode, and their way to memory
// and back: what is kept of a segment, partial results, in clusters too, and
// the row's result.
#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_OUTPUTS_CUH_
#define RECURVE_KERNELS_TPA_DECODE_TPA_OUTPUTS_CUH_

#include "kernels/common/async_copy.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/tpa/decode/tpa_cluster.cuh"
#include "kernels/tpa/decode/tpa_decode.cuh"

namespace recurve {

// A thread holds the outputs of its pairs of columns, at features lane / 4 and
// 8 more of each 16 of its warp's, in each tile of 64 features.
//
// kRank is the key-value rank, or 0: given by the arguments.
template <typename T, int kColumns, int kTiles, int kRank>
class TpaOutputs {
 protected:
  static constexpr int kOctets = kColumns / 8;
  static constexpr int kOwn = 2 * kOctets;  // columns of a thread
  static constexpr int kThreadOutputs = kTiles * kOctets * 4;
  // Whether E is always 64 kTiles.
  static constexpr bool kAllFeatures = kRank > 0;

  // `lane` is the block's lane of chunks.
  __device__ __forceinline__ TpaOutputs(const TpaDecodeArgs& args, int lane)
      : args_(args),
        lane_(threadIdx.x % 32),
        warp_(Uniform(threadIdx.x / 32 % 4)),
        warpgroup_(Uniform(threadIdx.x / 128)),
        chunk_lane_(Uniform(lane)),
        group_(warpgroup_ - chunk_lane_ * args.groups),
        first_octet_(args.first_octet() + group_ * args.group_octets),
        kv_rank_(kRank > 0 ? kRank : static_cast<int>(args.p.shape.kv_rank)) {}

  // State of this thread's columns, not normalised. `max` is the reference of
  // scores (tpa_softmax.cuh).
  struct State {
    float max[kOwn];
    float sum[kOwn];
    // A chunk's first page uses its scores as they are.
    __device__ __forceinline__ State() {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        max[i] = 0.0f;
        sum[i] = 0.0f;
      }
    }
  };

  __device__ __forceinline__ float& Out(int i) {
    return out_[i / (4 * kOctets)][i / 4 % kOctets][i % 4];
  }

  // Merges the earlier result `before`, with the at-th output out_before(at)
  // (Out), into the current one.
  template <typename Outputs>
  __device__ __forceinline__ void FoldBefore(const float2 (&before)[kOwn],
                                             const Outputs& out_before,
                                             State& state) {
    bool alike = true;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) alike &= before[k].x == state.max[k];
    // Mostly all references are 0. Fold is then an addition, to the bit.
    if (alike) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) state.sum[k] += before[k].y;
#pragma unroll
      for (int i = 0; i < kThreadOutputs; ++i) Out(i) += out_before(i);
      return;
    }
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const TpaFoldScales scales = ScalesFor(before[k].x, state.max[k]);
      state.max[k] = fmaxf(before[k].x, state.max[k]);
      state.sum[k] = recurve::Fold(before[k].y, state.sum[k], scales);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const int at = (tile * kOctets + k / 2) * 4 + k % 2 + i;
          Out(at) = recurve::Fold(out_before(at), Out(at), scales);
        }
      }
    }
  }

  // Merges the kept result of the segment's chunks before `chunk` into the
  // current one: `states` [2, columns] and this thread's `outputs`, every 128th
  // (Keep).
  __device__ __forceinline__ void FoldKept(const float2* states,
                                           const float* outputs, int chunk,
                                           State& state) {
    const float2* kept = states + kColumns * ((chunk - 1) % 2);
    float2 before[kOwn];
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      before[k] = kept[8 * (k / 2) + 2 * (lane_ % 4) + k % 2];
    FoldBefore(
        before, [&](int at) { return outputs[128 * at]; }, state);
  }

  // Keeps it for the segment's next chunk. Two buffers alternate, so that a
  // warp may write while others still read; a page's warpgroup barriers
  // separate this from the next use of either.
  __device__ __forceinline__ void Keep(float2* states, float* outputs,
                                       int chunk, const State& state) {
    float2* kept = states + kColumns * (chunk % 2);
    if (warp_ == 0 && lane_ < 4) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k) {
        kept[8 * (k / 2) + 2 * lane_ + k % 2] = {state.max[k], state.sum[k]};
      }
    }
#pragma unroll
    for (int i = 0; i < kThreadOutputs; ++i) outputs[128 * i] = Out(i);
  }

  // Merges the result that WritePartial wrote to `slot`, of the row's earlier
  // segments, into the current one. One warp writes maxima and sums for all:
  // between the write and this there is a page, with the vote of all the lane's
  // threads; between lanes a turn barrier.
  __device__ __forceinline__ void FoldSegments(int slot, State& state) {
    const int64_t width = args_.scratch.slot_width;
    const int64_t column =
        slot * args_.scratch.slot_rows + 8 * first_octet_ + 2 * (lane_ % 4);
    const float2* max_sum = args_.max_sum() + column;
    const int feature = 16 * warp_ + lane_ / 4;
    const float* from = args_.outputs() + column * width + feature;
    const int octets = min(args_.group_octets, args_.octets - first_octet_);
    float2 before[kOwn];
    float before_out[kTiles][kOctets][4];
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        before[2 * j + k] = j < octets ? max_sum[8 * j + k] : float2{};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int d = 64 * tile + 8 * i;
            const bool exists =
                j < octets && (kAllFeatures || feature + d < width);
            before_out[tile][j][k + 2 * i] =
                exists ? from[(8 * j + k) * width + d] : 0.0f;
          }
        }
      }
    }
    FoldBefore(
        before,
        [&](int at) {
          return before_out[at / (4 * kOctets)][at / 4 % kOctets][at % 4];
        },
        state);
  }

  // Sends the current outputs, of `chunk`, to the blocks of the cluster.
  __device__ __forceinline__ void SendToCluster(const TpaCluster& cluster,
                                                int chunk,
                                                const State& state) const {
    const int octets = min(args_.group_octets, args_.octets - first_octet_);
    const int feature = 16 * warp_ + lane_ / 4;
    // All threads have the maxima and sums of their columns: of the eight with
    // the same ones, four in each of two warps send them to a block each.
    const int to = 4 * warp_ + lane_ / 4;
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
      if (j >= octets) break;
      const int column = 8 * j + 2 * (lane_ % 4);
      if (lane_ < 16 && to < kTpaClusterBlocks) {
        cluster.SendStates(chunk, column, to,
                           {state.max[2 * j], state.sum[2 * j]},
                           {state.max[2 * j + 1], state.sum[2 * j + 1]});
      }
      const float(&out)[4] = out_[0][j];
      cluster.SendOutputs(chunk, column, feature, out[0], out[1]);
      cluster.SendOutputs(chunk, column, feature + 8, out[2], out[3]);
    }
  }

  // Writes the current outputs as a partial result. Few instructions: they are
  // cold, as this mostly runs once a block.
  __device__ __forceinline__ void WritePartial(int slot,
                                               const State& state) const {
    const int64_t width = args_.scratch.slot_width;
    const int64_t column =
        slot * args_.scratch.slot_rows + 8 * first_octet_ + 2 * (lane_ % 4);
    float2* max_sum = args_.max_sum() + column;
    const int feature = 16 * warp_ + lane_ / 4;
    float* out = args_.outputs() + column * width + feature;
    const int octets = min(args_.group_octets, args_.octets - first_octet_);
#pragma unroll
    for (int j = 0; j < kOctets; ++j) {
      if (j >= octets) break;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (warp_ == 0 && lane_ < 4) {
          max_sum[8 * j + k] = {state.max[2 * j + k], state.sum[2 * j + k]};
        }
        float* to = out + k * width;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (kAllFeatures || feature + 64 * tile + 8 * i < width) {
              to[64 * tile + 8 * i] = out_[tile][j][k + 2 * i];
            }
          }
        }
      }
      out += 8 * width;
    }
  }

  // Writes the current outputs as the result of `row`, through shared memory,
  // so that it is a loop: unrolled, it would be a tenth of the kernel, whose
  // end would be fetched from further away (docs/kernels/tpa_decode.md). `sums`
  // [columns, 4 warps] and `outputs`, 2 kTpaOctetBytes an octet of columns,
  // belong to the warpgroup, none of whose threads uses them any more.
  __device__ __forceinline__ void WriteResult(int row, const State& state,
                                              float* sums,
                                              uint32_t outputs) const {
    const TpaCudaDecodeParams& p = args_.p;
    const bool floats = p.out_type == WeightType::kFloat32;
    const int value_dim = static_cast<int>(p.shape.value_dim);
    const int num_heads = static_cast<int>(p.shape.num_heads);
    float* const own_sums = sums + 8 * (lane_ % 4) + warp_;
    if (lane_ < 4) {
#pragma unroll
      for (int k = 0; k < kOwn; ++k)
        own_sums[32 * (k / 2) + 4 * (k % 2)] = state.sum[k];
    }
    __syncwarp();
    const uint32_t own = outputs + 4 * (threadIdx.x % 128);
    const int octets = min(args_.group_octets, args_.octets - first_octet_);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4 * kOctets; ++i) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(own + 512 * i),
                     "f"(out_[tile][i / 4][i % 4])
                     : "memory");
      }
      const int feature = 64 * tile + 16 * warp_ + lane_ / 4;
      int t = p.new_tokens == 1 ? 0 : first_octet_ / args_.head_octets;
      int head_octet = first_octet_ - t * args_.head_octets;
#pragma unroll 1
      for (int j = 0; j < octets; ++j) {
        const int head = 8 * head_octet + 2 * (lane_ % 4);
        const int64_t at = (int64_t{row} * p.new_tokens + t) * p.out_stride +
                           head * value_dim + feature;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float scale = Normalizer(own_sums[32 * j + 4 * k], kv_rank_);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float value;
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(value)
                         : "r"(own + 512 * (4 * j + k + 2 * i))
                         : "memory");
            value = __fmul_rn(value, scale);
            if (head + k >= num_heads || feature + 8 * i >= value_dim) continue;
            const int64_t to = at + k * value_dim + 8 * i;
            if (floats) {
              static_cast<float*>(p.out)[to] = value;
            } else {
              static_cast<T*>(p.out)[to] = Half<T>::From(value);
            }
          }
        }
        if (++head_octet == args_.head_octets) {
          head_octet = 0;
          ++t;
        }
      }
    }
  }

  const TpaDecodeArgs& args_;
  const int lane_;
  const int warp_;
  const int warpgroup_;   // of the block's
  const int chunk_lane_;  // of the block's lanes
  const int group_;       // of the lane's warpgroups
  const int first_octet_;
  const int kv_rank_;
  float out_[kTiles][kOctets][4] = {};
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_OUTPUTS_CUH_
