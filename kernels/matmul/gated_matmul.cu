// Gate and up product with the gate fused, for hundreds of rows: persistent
// clusters of two blocks, TMA with multicast, wgmma. The two blocks have the
// same outputs of neighbouring tiles of 128 rows, and each copies half of the
// weights to both: if each copied all, L2 would be the limit. Copies of the
// next tile are in flight while a tile is written.
// Shapes: x [T, I], w [2 F, I], y [T, F], all 16-bit.
// Floor: compute bound: 4 · T · F · I flops; 2 · (T · I + 2 F · I + T · F)
// bytes.

#include <algorithm>
#include <iterator>

#include "kernels/common/alignment.h"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/cluster.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/matmul/decode_matmul_hopper.h"
#include "kernels/matmul/decode_tiles.cuh"
#include "kernels/matmul/gated_matmul_plan.h"

namespace recurve {
namespace {

constexpr int kBlocks = 2;  // of a cluster
constexpr int kGroups = 2;  // warpgroups that multiply, 64 rows each
constexpr int kRows = 64 * kGroups;
constexpr int kThreads = 128 * kGroups + 32;
// Neighbouring clusters have the same outputs of this many pairs of row tiles:
// these rows stay in L2, and weights come from memory once for all of them.
constexpr int kPairsTogether = 8;

// A block has kHalf features of the gate: kHalf outputs of its first half and
// their partners of the second.
template <int kHalf_, int kStages_>
struct GatedTile {
  static constexpr int kHalf = kHalf_;
  static constexpr int kStages = kStages_;
  static constexpr int kOutputs = 2 * kHalf;
  static constexpr int kColumns = kOutputs / 8;
  static constexpr int kRowBytes = kRows * 128;
  static constexpr int kPlaneBytes = kHalf * 128;
  static constexpr int kStageBytes = kRowBytes + 2 * kPlaneBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  // A warp transposes its 16 rows in pieces of kPiece groups of 8 features. The
  // pitch is an odd number of groups: no bank conflicts.
  static constexpr int kEights = kHalf / 8;
  static constexpr int kPiece = (kEights + 1) / 2;
  static constexpr int kPitch = (kPiece | 1) * 16;
  static constexpr int kTurnBytes = 16 * kPitch;
  static constexpr int kSharedBytes =
      kRingBytes + 4 * kGroups * kTurnBytes + 16 * kStages + 16 + 1024;
  static_assert(kHalf % 8 == 0 && kSharedBytes <= 227 * 1024);
};

struct GatedArgs {
  DecodeMatmulParams p;
  int pairs;         // of tiles of rows
  int tiles;         // of features
  int last_row;      // last first row of a tile
  int last_feature;  // likewise; a multiple of 8
  CUtensorMap w;     // boxes of 64 inputs by kHalf outputs
  CUtensorMap x;     // boxes of 64 inputs by kRows rows
};

// Start of a tile. A last tile with too few rows or features begins earlier:
// both tiles write what they share, with the same bits.
struct GatedPlace {
  int row;
  int feature;
};
template <typename S>
__device__ __forceinline__ GatedPlace PlaceOfUnit(const GatedArgs& args,
                                                  int unit, int rank) {
  const int together = kPairsTogether * args.tiles;
  const int first = unit / together * kPairsTogether;
  const int pairs = min(kPairsTogether, args.pairs - first);
  const int rest = unit % together;
  const int pair = first + rest % pairs;
  return {min((pair * kBlocks + rank) * kRows, args.last_row),
          min(rest / pairs * S::kHalf, args.last_feature)};
}

// Grid: persistent clusters of kBlocks blocks.
//
// Weights do not wait for the previous kernel.
template <typename T, typename S>
__global__ void __launch_bounds__(kThreads, 1)
    gated_kernel(const __grid_constant__ GatedArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  LaunchDependents();
  const DecodeMatmulParams& p = args.p;
  const uint32_t ring = (SharedAddress(unaligned) + 1023) / 1024 * 1024;
  const uint32_t full = ring + S::kRingBytes + 4 * kGroups * S::kTurnBytes;
  const uint32_t empty = full + 8 * S::kStages;
  // Whether the previous kernel is done.
  auto* const flag = reinterpret_cast<volatile uint32_t*>(
      unaligned + (empty + 8 * S::kStages - SharedAddress(unaligned)));
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = Uniform(thread / 32);
  const int lane = thread % 32;
  const int rank = cluster::ClusterRank();
  if (thread == 0) {
    for (int s = 0; s < S::kStages; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(empty + 8 * s, kBlocks * kGroups);
    }
    *flag = 0;
    BarrierInitFence();
  }
  __syncthreads();
  cluster::Meet();

  const int stages =
      (static_cast<int>(p.inputs) + kStageInputs - 1) / kStageInputs;
  const int units = args.pairs * args.tiles;
  const int first_unit = static_cast<int>(blockIdx.x) / kBlocks;
  const int step = static_cast<int>(gridDim.x) / kBlocks;
  int slot = 0;
  uint32_t phase = 0;
  const auto next_slot = [&] {
    if (++slot == S::kStages) {
      slot = 0;
      phase ^= 1;
    }
  };

  if (warp == 4 * kGroups) {
    if (ElectLane()) {
      const auto ask_for_weights = [&](int stage, int s, int feature) {
        const uint32_t barrier = full + 8 * s;
        BarrierExpect(barrier, S::kStageBytes);
        CopyBoxToAll(
            ring + s * S::kStageBytes + S::kRowBytes + rank * S::kPlaneBytes,
            args.w, stage * kStageInputs, feature, rank, barrier,
            (1 << kBlocks) - 1);
      };
      const auto ask_for_rows = [&](int stage, int s, int row) {
        CopyBox(ring + s * S::kStageBytes, args.x, stage * kStageInputs, row, 0,
                full + 8 * s);
      };
      const int early = min(stages, S::kStages);
      const GatedPlace begin = PlaceOfUnit<S>(args, first_unit, rank);
      AskUnhurried(
          early, [&] { return *flag != 0; },
          [&](int s) { ask_for_weights(s, s, begin.feature); });
      WaitForPrevious();
      for (int unit = first_unit; unit < units; unit += step) {
        const GatedPlace place = PlaceOfUnit<S>(args, unit, rank);
        for (int stage = 0; stage < stages; ++stage) {
          if (unit != first_unit || stage >= early) {
            // Both blocks have consumed the slot. A barrier without arrivals
            // counts as one whose previous phase has completed.
            BarrierWait(empty + 8 * slot, phase ^ 1);
            ask_for_weights(stage, slot, place.feature);
          }
          ask_for_rows(stage, slot, place.row);
          next_slot();
        }
      }
      // No copy to this block is in flight when it ends.
      for (int s = 0; s < S::kStages; ++s) {
        BarrierWait(empty + 8 * slot, phase ^ 1);
        next_slot();
      }
    }
    __syncwarp();
  } else {
    const int other = rank ^ 1;
    const uint32_t offset = warp / 4 * 64 * 128;
    char* const turn = unaligned + (ring - SharedAddress(unaligned)) +
                       S::kRingBytes + warp * S::kTurnBytes;
    WaitForPrevious();  // before the first write
    if (thread == 0) *flag = 1;
    // Releases the stage whose products are done, in both blocks.
    const auto release = [&](int s) {
      if (thread % 128 != 0) return;
      BarrierArrive(empty + 8 * s);
      cluster::ArriveInCluster(cluster::InBlock(empty + 8 * s, other));
    };
    float acc[S::kColumns][4];
#pragma unroll 1
    for (int unit = first_unit; unit < units; unit += step) {
      int before = 0;
#pragma unroll 1
      for (int stage = 0; stage < stages; ++stage) {
        BarrierWait(full + 8 * slot, phase);
        const uint32_t at = ring + slot * S::kStageBytes;
        const uint64_t a = WgmmaUniform(SwizzledOperand(at + offset));
        const uint64_t b = WgmmaUniform(SwizzledOperand(at + S::kRowBytes));
        WgmmaPin(acc);
        WgmmaFence();
        // Inputs beyond the last are zeros.
#pragma unroll
        for (int k = 0; k < kStageInputs / 16; ++k) {
          Wgmma<kMajorK, kMajorK>(acc, WgmmaAdvance(a, 32 * k),
                                  WgmmaAdvance(b, 32 * k), k > 0 || stage > 0,
                                  T());
        }
        WgmmaCommit();
        WgmmaWait<1>();
        if (stage > 0) release(before);
        before = slot;
        next_slot();
      }
      WgmmaWait<0>();
      WgmmaPin(acc);
      release(before);

      const GatedPlace place = PlaceOfUnit<S>(args, unit, rank);
      const int64_t features = p.outputs / 2;
      const int row = place.row + 16 * warp;
#pragma unroll
      for (int piece = 0; piece < S::kEights; piece += S::kPiece) {
        constexpr int kPiece = S::kPiece;
        const int eights = min(kPiece, S::kEights - piece);
        char* const mine = turn + lane / 4 * S::kPitch + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < kPiece; ++i) {
          if (piece + i >= S::kEights) break;
          const float(&gate)[4] = acc[piece + i];
          const float(&up)[4] = acc[S::kEights + piece + i];
          float value[4];
#pragma unroll
          for (int j = 0; j < 4; ++j)
            value[j] = DeviceActivate(Activation::kSilu, gate[j]) * up[j];
          *reinterpret_cast<uint32_t*>(mine + 16 * i) =
              Half<T>::Pack(value[0], value[1]);
          *reinterpret_cast<uint32_t*>(mine + 16 * i + 8 * S::kPitch) =
              Half<T>::Pack(value[2], value[3]);
        }
        __syncwarp();
#pragma unroll 1
        for (int i = lane; i < 16 * eights; i += 32) {
          const int r = i / eights;
          const int eight = i % eights;
          const int feature = place.feature + 8 * (piece + eight);
          const char* const from = turn + r * S::kPitch + 16 * eight;
          T* const to =
              reinterpret_cast<T*>(p.y) + (row + r) * p.y_stride + feature;
          if (feature + 8 <= features) {
            *reinterpret_cast<uint4*>(to) =
                *reinterpret_cast<const uint4*>(from);
          } else {
            for (int j = 0; feature + j < features; ++j)
              to[j] = reinterpret_cast<const T*>(from)[j];
          }
        }
        __syncwarp();
      }
    }
  }
  // A block's memory must live until the other's copies and arrivals have
  // reached it.
  cluster::Meet();
#else
  __trap();  // never launched there
#endif
}

template <typename T, typename S>
cudaError_t Launch(const DecodeMatmulParams& p, int multiprocessors,
                   cudaStream_t stream) {
  const auto kernel = gated_kernel<T, S>;
  const int64_t features = p.outputs / 2;
  GatedArgs args = {};
  args.p = p;
  args.pairs = static_cast<int>((p.rows + kGatedRows - 1) / kGatedRows);
  args.tiles = static_cast<int>((features + S::kHalf - 1) / S::kHalf);
  args.last_row = static_cast<int>(p.rows) - kRows;
  args.last_feature =
      static_cast<int>(std::max<int64_t>(0, features - S::kHalf + 7) / 8 * 8);
  cudaError_t error = AllowSharedMemory(kernel, S::kSharedBytes);
  if (error == cudaSuccess) {
    error = MakeMap(p.w, p.inputs, features, p.inputs, 2, features * p.inputs,
                    S::kHalf, 1, &args.w);
  }
  if (error == cudaSuccess) {
    error = MakeMap(p.x, p.x_cols, p.rows, p.x_stride, 1, p.rows * p.x_stride,
                    kRows, 1, &args.x);
  }
  if (error != cudaSuccess) return error;
  const int clusters =
      std::min(multiprocessors / kBlocks, args.pairs * args.tiles);
  return LaunchDependentCluster(
      kernel, dim3(static_cast<unsigned>(clusters * kBlocks)), kThreads,
      S::kSharedBytes, kBlocks, stream, args);
}

// In the order of kGatedForms.
using Form0 = GatedTile<72, 6>;
using Form1 = GatedTile<88, 5>;
using Form2 = GatedTile<128, 4>;
static_assert(std::size(kGatedForms) == 3,
              "LaunchForm has a case for each form");
static_assert(Form0::kHalf == kGatedForms[0].features &&
              Form1::kHalf == kGatedForms[1].features &&
              Form2::kHalf == kGatedForms[2].features &&
              kBlocks * kRows == kGatedRows);

template <typename T>
cudaError_t LaunchForm(const DecodeMatmulParams& p, int multiprocessors,
                       cudaStream_t stream) {
  switch (ChooseGatedForm(p.rows, p.outputs / 2, multiprocessors)) {
    case 0:
      return Launch<T, Form0>(p, multiprocessors, stream);
    case 1:
      return Launch<T, Form1>(p, multiprocessors, stream);
    default:
      return Launch<T, Form2>(p, multiprocessors, stream);
  }
}

}  // namespace

bool GatedMatmulTakes(const DecodeMatmulParams& p) {
  return p.gate && IsGatedMatmul(p.outputs, p.inputs, p.activation) &&
         p.y_is_half && p.rows >= kGatedLeastRows && p.y_stride % 8 == 0 &&
         IsAligned(p.y);
}

cudaError_t LaunchGatedMatmul(const DecodeMatmulParams& p, int multiprocessors,
                              cudaStream_t stream) {
  return p.type == WeightType::kBFloat16
             ? LaunchForm<__nv_bfloat16>(p, multiprocessors, stream)
             : LaunchForm<__half>(p, multiprocessors, stream);
}

}  // namespace recurve
