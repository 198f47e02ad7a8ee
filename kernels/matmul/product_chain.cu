// The products of one row from one attention to the next, in one launch.
//
// A block a multiprocessor. A block's part of each matrix passes through its
// shared memory in one ring, product after product: a warp asks for stages of
// it, about 64 KB ahead of what has come (PlanProductChain), since what others
// wait for stands behind what is asked for; so weights stream on while blocks
// wait for each other. 8 warps multiply, as in stream_matmul.cu.
//
// Between products the blocks exchange a row through words of 8 bytes, a value
// and the number of the launch, written and read whole: who waits for a value
// has it with the word, and nothing is reset: every launch writes all words
// that it reads, so that numbers may come again, after 2^31 launches. A block's
// role is the order in which blocks come: the last, whose multiprocessors
// attention held, have no part of the first matrix, which the others have by
// then.
//
// Blocks wait for each other, so all of them must get a place. They do:
//  1. No block of a kernel that is launched dependently starts before all
//     blocks of the kernel before have started (LaunchDependents, called by
//     every block) or ended; of a kernel that is launched otherwise, before
//     those have ended. So by induction, while a block of ours runs, all blocks
//     of earlier kernels of the stream have their places. They wait for nobody
//     but each other and kernels before them, so they end, and their places
//     become free. This holds of attention's blocks, which wait for each other
//     too: ours never keep them out.
//  2. Likewise no block of a later kernel of the stream starts before all of
//     ours have.
//  3. Kernels of other streams (copies of saved sequences) may hold places, but
//     wait for no other kernel once they run, and end.
//  4. The grid is one block for each multiprocessor, and one fits each that is
//     empty. So when those of 1 and 3 have ended, each of ours has a place, if
//     not before.
// It does not hold beside another kernel whose blocks wait for each other, with
// some of the places each: another launch of this kind, or decode's attention
// of another stream. So a process runs steps of one engine at a time on a
// device (cuda_backend.h); processes take turns as a whole; and where they do
// not, under MPS, this is not used.
#include <cuda.h>

#include <atomic>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/matmul/decode_matmul_order.h"
#include "kernels/matmul/product_chain_cuda.h"
#include "kernels/matmul/product_chain_plan.h"
#include "kernels/matmul/product_chain_rows.cuh"

namespace recurve {
namespace {

using chain::AttendedRow;
using chain::ConsumerBarrier;
using chain::HiddenRow;
using chain::kFours;
using chain::kThreads;
using chain::kWarps;
using chain::LoadNorm;
using chain::NormedRow;
using chain::StoreWord;

constexpr int kBlockThreads = kThreads + 32;  // and a warp that copies
constexpr int kTile = kChainTile;
constexpr int kChunk = kChainChunk;
constexpr int kChunkBytes = kTile * kChunk * 2;
constexpr int kStageChunks = kChainStageChunks;
constexpr int kStageBytes = kChainStageBytes;
constexpr int kPhases = 4;
// `history` in the copying warp remembers 4 rounds.
static_assert(kChainRoundsAhead <= 4 && kChainUpRoundsAhead <= 4 &&
              kChainRoundsAhead <= kChainUpRoundsAhead);
static_assert(128 + 2 * 8 * kProductChainMaxWidth + 8 * kChainMaxFeatures / 2 <=
              kProductChainExchangeBytes);

enum PhaseId { kOut, kUp, kDown, kNext };

struct ChainArgs {
  ProductChainParams p;
  CUtensorMap maps[kPhases];
  int chunks[kPhases];  // of the inputs
  int tiles[kPhases];
  int slots;                    // of the ring: stages
  int row_bytes;                // of the row in shared memory
  unsigned long long* tickets;  // that blocks have taken, in all launches
  // A value of the residual, or two gated features, and the epoch.
  uint2* out_words;     // [width]
  uint2* hidden_words;  // [features / 2]
  uint2* down_words;    // [width]
};

// What a block does of a product: its stages stand in rounds, a stage of each
// of `lanes` warps a round. A matrix in parts: a tile of 16 outputs, a part for
// each warp. The other: tiles of 8 features, one for each warp.
struct Share {
  int tile;   // the first
  int lanes;  // warps with work; 0: none
  int rounds;
};

__device__ __forceinline__ Share ShareOf(const ChainArgs& a, int phase,
                                         int role) {
  const int grid = static_cast<int>(gridDim.x);
  Share s = {};
  const int chunks = a.chunks[phase];
  const int tiles = a.tiles[phase];
  if (phase == kUp) {
    const int each = tiles / grid;
    const int with_more = tiles - each * grid;  // the last ones
    const int more = max(0, role - (grid - with_more));
    s.tile = role * each + more;
    s.lanes = each + (role >= grid - with_more ? 1 : 0);
    s.rounds = (chunks + kStageChunks - 1) / kStageChunks;
    return s;
  }
  s.tile = phase == kNext ? role - (grid - tiles) : role;
  s.lanes = s.tile >= 0 && s.tile < tiles ? kWarps : 0;
  s.rounds = ((chunks + kWarps - 1) / kWarps + kStageChunks - 1) / kStageChunks;
  return s;
}

__device__ __forceinline__ int PartBegin(int chunks, int part) {
  return chunks * part / kWarps;
}

// [chunk][half][row][64 inputs], swizzled by 128 bytes; halves and rows are a
// gate's two, or are 16 rows. Leaves the second-level cache first.
__device__ __forceinline__ void CopyStage(uint32_t to, const CUtensorMap& map,
                                          int row, int chunk,
                                          uint32_t barrier) {
  asm volatile(
      "{ .reg .b64 policy;"
      "  createpolicy.fractional.L2::evict_first.b64 policy, 1.0;"
      "  cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier"
      "::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %3, %5}], [%2], policy; }" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(chunk)
      : "memory");
}

// What a lane of the copying warp copies of a product: the stages of a warp
// that multiplies.
struct LaneCopies {
  int row;
  int chunk;
  int end;  // chunks
};
__device__ __forceinline__ LaneCopies LaneCopiesOf(const Share& share,
                                                   int chunks, bool up,
                                                   int lane) {
  if (up) return {(share.tile + lane) * (kTile / 2), 0, chunks};
  return {share.tile * kTile, PartBegin(chunks, lane),
          PartBegin(chunks, lane + 1)};
}

// Of a stage.
struct Fragments {
  uint32_t w[kStageChunks][4][4];
  uint32_t x[kStageChunks][2][4];
};

template <typename T>
__global__ void __launch_bounds__(kBlockThreads, 1)
    product_chain(const __grid_constant__ ChainArgs a) {
  extern __shared__ __align__(1024) char memory[];
  const ProductChainParams& p = a.p;
  char* const row = memory + a.slots * kStageBytes;
  float* const sums = reinterpret_cast<float*>(row + a.row_bytes);
  float* const partial = sums + kWarps * kTile;  // of a norm
  const uint32_t barriers = SharedAddress(partial + kWarps);
  uint32_t* const ticket =
      reinterpret_cast<uint32_t*>(partial + kWarps) + 4 * a.slots;
  const auto full = [&](int slot) { return barriers + 16 * slot; };
  const auto empty = [&](int slot) { return barriers + 16 * slot + 8; };
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    // Before LaunchDependents, as in launches before: no other launch's block
    // takes one of these. Its wait for what is before is the other warps'.
    const unsigned long long taken = atomicAdd(a.tickets, 1ull);
    ticket[0] = static_cast<uint32_t>(taken % gridDim.x);
    ticket[1] = static_cast<uint32_t>(taken / gridDim.x) | 1u << 31;
    for (int i = 0; i < a.slots; ++i) {
      BarrierInit(full(i), 1);
      BarrierInit(empty(i), 1);
    }
    BarrierInitFence();
  }
  __syncthreads();
  const int role = static_cast<int>(ticket[0]);
  const uint32_t epoch = ticket[1];
  LaunchDependents();

  if (warp == kWarps) {
    // ---- copying: a lane for each warp that multiplies ----
    int base = 0, lap = 0;  // of the round's first stage
    uint64_t history = 0;   // of the last 4 rounds: slot and parity of the last
    int done = 0;           // rounds
#pragma unroll 1
    for (int phase = 0; phase < kPhases; ++phase) {
      const Share share = ShareOf(a, phase, role);
      if (share.lanes == 0) continue;
      const CUtensorMap& map = a.maps[phase];
      LaneCopies my = LaneCopiesOf(share, a.chunks[phase], phase == kUp, lane);
      const int ahead = phase == kUp ? kChainUpRoundsAhead : kChainRoundsAhead;
#pragma unroll 1
      for (int round = 0; round < share.rounds; ++round) {
        if (done >= ahead) {
          const auto last = static_cast<uint32_t>(history >> 16 * (ahead - 1));
          BarrierWait(full((last & 0xffff) >> 1), last & 1);
        }
        if (lane < share.lanes) {
          int slot = base + lane;
          int my_lap = lap;
          if (slot >= a.slots) {
            slot -= a.slots;
            ++my_lap;
          }
          if (my_lap > 0) BarrierWait(empty(slot), (my_lap - 1) & 1);
          if (my.chunk < my.end) {
            BarrierExpect(full(slot), kStageBytes);
            CopyStage(SharedAddress(memory) + slot * kStageBytes, map, my.row,
                      my.chunk, full(slot));
          } else {
            BarrierArrive(full(slot));
          }
        }
        __syncwarp();
        my.chunk += kStageChunks;
        ++done;
        base += share.lanes;
        if (base >= a.slots) {
          base -= a.slots;
          ++lap;
        }
        const int last = base == 0 ? a.slots - 1 : base - 1;
        const int last_lap = base == 0 ? lap - 1 : lap;
        history =
            history << 16 | static_cast<uint32_t>(last << 1 | (last_lap & 1));
      }
    }
    return;
  }

  float4 up_norm[kFours], next_norm[kFours];
  LoadNorm(p.up_norm, static_cast<int>(p.width), up_norm);
  LoadNorm(p.next_norm, static_cast<int>(p.width), next_norm);
  WaitForPrevious();
  // An output of the residual, in the first and the third product.
  const int out = role * kTile + static_cast<int>(threadIdx.x);
  const bool keeps = threadIdx.x < kTile && out < p.width;
  float residual = keeps ? p.residual[out] : 0.0f;

  // ldmatrix: rows 0-7 and 8-15 of a chunk, then of the next; of the row, which
  // all eight columns are, a chunk after the other.
  const int w_row = lane % 16;
  const int w_chunk = lane / 16;
  const uint32_t x_lane = SharedAddress(row) + lane / 8 * 16;
  int base = 0, lap = 0;  // of the product's first stage
#pragma unroll 1
  for (int phase = 0; phase < kPhases; ++phase) {
    const Share share = ShareOf(a, phase, role);
    if (share.lanes == 0) continue;
    const int chunks = a.chunks[phase];
    const int begin = phase == kUp ? 0 : PartBegin(chunks, warp);
    const int end = phase == kUp ? chunks : PartBegin(chunks, warp + 1);
    int slot = base + warp;
    uint32_t parity = lap & 1;
    if (slot >= a.slots) {
      slot -= a.slots;
      parity ^= 1;
    }
    base += share.lanes * share.rounds;
    while (base >= a.slots) {
      base -= a.slots;
      ++lap;
    }

    // ---- the row ----
    if (phase == kOut) {
      AttendedRow(static_cast<const T*>(p.x), static_cast<int>(p.x_cols),
                  static_cast<int>(p.out_inputs), row);
    } else if (phase == kDown) {
      HiddenRow(a.hidden_words, static_cast<int>(p.down_cols),
                static_cast<int>(p.down_inputs), epoch, row);
    } else {
      const bool up = phase == kUp;
      float4 weight[kFours];
#pragma unroll
      for (int i = 0; i < kFours; ++i)
        weight[i] = up ? up_norm[i] : next_norm[i];
      NormedRow<T>(up ? a.out_words : a.down_words, static_cast<int>(p.width),
                   static_cast<int>(up ? p.up_inputs : p.next_inputs), weight,
                   up ? p.up_eps : p.next_eps, epoch, row, partial);
    }
    ConsumerBarrier();

    // ---- multiplying ----
    float acc[4] = {};
    if (warp < share.lanes) {
      uint32_t x_at = x_lane + 2 * kChunk * begin;
      const auto read = [&](Fragments& f) {
        BarrierWait(full(slot), parity);
        const uint32_t from =
            SharedAddress(memory) + slot * kStageBytes + w_row * 128;
#pragma unroll
        for (int c = 0; c < kStageChunks; ++c) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            LoadMatrices(f.w[c][j], from + c * kChunkBytes +
                                        ((2 * j + w_chunk) ^ w_row % 8) * 16);
          }
          LoadMatrices(f.x[c][0], x_at + 2 * kChunk * c);
          LoadMatrices(f.x[c][1], x_at + 2 * kChunk * c + 64);
        }
        __syncwarp();
        if (lane == 0) BarrierArrive(empty(slot));
        x_at += 2 * kChunk * kStageChunks;
        slot += share.lanes;
        if (slot >= a.slots) {
          slot -= a.slots;
          parity ^= 1;
        }
      };
      const auto multiply = [&](const Fragments& f, int round) {
#pragma unroll
        for (int c = 0; c < kStageChunks; ++c) {
          if (begin + round * kStageChunks + c >= end) break;
          Half<T>::Mma(acc, f.w[c][0], f.x[c][0][0], f.x[c][0][1]);
          Half<T>::Mma(acc, f.w[c][1], f.x[c][0][2], f.x[c][0][3]);
          Half<T>::Mma(acc, f.w[c][2], f.x[c][1][0], f.x[c][1][1]);
          Half<T>::Mma(acc, f.w[c][3], f.x[c][1][2], f.x[c][1][3]);
        }
      };
      // Fragments are read from shared memory during the products of those
      // before.
      Fragments even, odd;
      read(even);
#pragma unroll 1
      for (int round = 0; round < share.rounds; round += 2) {
        if (round + 1 < share.rounds) read(odd);
        multiply(even, round);
        if (round + 2 < share.rounds) read(even);
        if (round + 1 < share.rounds) multiply(odd, round + 1);
      }
    }

    // ---- results: column 0 has those of the row ----
    const int g = lane / 4;
    if (phase == kUp) {
      if (warp < share.lanes) {
        const int feature = (share.tile + warp) * (kTile / 2) + g;
        float value = DeviceActivate(p.activation, acc[0]) * acc[2];
        if (feature >= p.features) value = 0.0f;
        const float other = __shfl_down_sync(0xffffffffu, value, 4);
        if (lane % 8 == 0 && feature < p.features) {
          StoreWord(a.hidden_words + feature / 2, Half<T>::Pack(value, other),
                    epoch);
        }
      }
      // Then shared memory is free for the next row.
      ConsumerBarrier();
      continue;
    }
    if (lane % 4 == 0) {
      sums[warp * kTile + g] = acc[0];
      sums[warp * kTile + g + 8] = acc[2];
    }
    ConsumerBarrier();
    if (threadIdx.x >= kTile) continue;
    float total = sums[threadIdx.x];
#pragma unroll
    for (int s = 1; s < kWarps; ++s) total += sums[s * kTile + threadIdx.x];
    if (phase == kNext) {
      const int output = share.tile * kTile + static_cast<int>(threadIdx.x);
      if (output < p.next_outputs) p.y[output] = total;
    } else if (keeps) {
      residual += total;
      StoreWord((phase == kOut ? a.out_words : a.down_words) + out,
                __float_as_uint(residual), epoch);
      if (phase == kDown) p.residual[out] = residual;
    }
  }
}

// Boxes as CopyStage brings them; zeros beyond the matrix.
cudaError_t Encode(const void* w, int64_t outputs, int64_t inputs, bool gate,
                   CUtensorMap* map) {
  const TensorMapEncode encode = GetTensorMapEncode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const auto u = [](int64_t v) { return static_cast<cuuint64_t>(v); };
  const int64_t planes = gate ? 2 : 1;
  const cuuint64_t sizes[4] = {kChunk, u(outputs / planes), u(planes),
                               u(inputs / kChunk)};
  const cuuint64_t strides[3] = {
      u(2 * inputs), u(2 * inputs * (outputs / planes)), 2 * kChunk};
  const cuuint32_t box[4] = {kChunk, static_cast<cuuint32_t>(kTile / planes),
                             static_cast<cuuint32_t>(planes), kStageChunks};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, const_cast<void*>(w),
                sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
             ? cudaSuccess
             : cudaErrorInvalidValue;
}

constexpr int64_t kMaxShared = 227 * 1024;  // of a block on sm_90

std::atomic<int64_t> launches{0};

bool Aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

// Of the current device; none unless it is a Hopper of this process alone.
cudaError_t Multiprocessors(int* count) {
  int device = 0;
  int major = 0;
  *count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                   device);
  }
  if (error != cudaSuccess || major != 9) return error;
  int mps = 0;
  error = cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, device);
  if (error != cudaSuccess) {
    // A driver that does not know: it may, so no. Nor must the next launch be
    // told of it.
    (void)cudaGetLastError();
    return error;
  }
  if (mps != 0) return cudaSuccess;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

ProductChainPlan PlanOf(const ProductChainParams& p, int multiprocessors) {
  if (p.type == WeightType::kFloat32 || p.activation == Activation::kSoftmax ||
      p.x_cols < 0 || p.x_cols > p.out_inputs || !Aligned(p.x) ||
      !Aligned(p.out) || !Aligned(p.up) || !Aligned(p.down) ||
      !Aligned(p.next) || !Aligned(p.up_norm) || !Aligned(p.next_norm) ||
      p.down_cols > p.features || p.down_cols > p.down_inputs) {
    return {};
  }
  return PlanProductChain(
      {p.width, p.out_inputs, p.features, p.up_inputs, p.down_inputs,
       p.next == nullptr ? 0 : p.next_outputs, p.next_inputs},
      multiprocessors, kMaxShared);
}

}  // namespace

bool ProductChainTakes(const ProductChainParams& p) {
  int multiprocessors = 0;
  return Multiprocessors(&multiprocessors) == cudaSuccess &&
         PlanOf(p, multiprocessors).slots > 0;
}

cudaError_t LaunchProductChain(const ProductChainParams& p,
                               cudaStream_t stream) {
  int multiprocessors = 0;
  cudaError_t error = Multiprocessors(&multiprocessors);
  if (error != cudaSuccess) return error;
  const ProductChainPlan plan = PlanOf(p, multiprocessors);
  if (plan.slots == 0) return cudaErrorInvalidValue;
  ChainArgs a = {};
  a.p = p;
  a.slots = plan.slots;
  a.row_bytes = plan.row_bytes;
  const void* const w[kPhases] = {p.out, p.up, p.down, p.next};
  const int64_t outputs[kPhases] = {p.width, 2 * p.features, p.width,
                                    p.next_outputs};
  const int64_t inputs[kPhases] = {p.out_inputs, p.up_inputs, p.down_inputs,
                                   p.next_inputs};
  for (int i = 0; i < kPhases; ++i) {
    if (w[i] == nullptr) continue;
    error = Encode(w[i], outputs[i], inputs[i], i == kUp, &a.maps[i]);
    if (error != cudaSuccess) return error;
    a.chunks[i] = static_cast<int>(inputs[i] / kChunk);
    a.tiles[i] = static_cast<int>((outputs[i] + kTile - 1) / kTile);
  }
  a.tiles[kUp] = static_cast<int>((p.features + kTile / 2 - 1) / (kTile / 2));
  a.tickets = static_cast<unsigned long long*>(p.exchange);
  a.out_words = reinterpret_cast<uint2*>(static_cast<char*>(p.exchange) + 128);
  a.down_words = a.out_words + kProductChainMaxWidth;
  a.hidden_words = a.down_words + kProductChainMaxWidth;
  const auto kernel = p.type == WeightType::kBFloat16
                          ? product_chain<__nv_bfloat16>
                          : product_chain<__half>;
  const auto bytes = static_cast<int>(plan.bytes);
  error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  error = LaunchDependent(kernel, dim3(static_cast<unsigned>(multiprocessors)),
                          kBlockThreads, static_cast<size_t>(bytes), stream, a);
  if (error == cudaSuccess) ++launches;
  return error;
}

int64_t ProductChainLaunches() { return launches; }

}  // namespace recurve
