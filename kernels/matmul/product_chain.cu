// The products of one row from one attention to the next, in one launch.
//
// A block a multiprocessor. A block's part of each matrix passes through its
// shared memory in one ring, product after product: warps ask for stages of
// it, about 64 KB ahead of what has come (PlanProductChain), since what others
// wait for stands behind what is asked for; so weights stream on while blocks
// wait for each other. 8 warps multiply, as in stream_matmul.cu. While there is
// no row yet, they take the first product's weights to registers, and the
// second's take their place in the ring.
//
// Between products the blocks exchange a row through words of 8 bytes, a value
// and the number of the launch, written and read whole: who waits for a value
// has it with the word, and nothing is reset: every launch writes all words
// that it reads, so that numbers may come again, after 2^31 launches. A block's
// role is the order in which blocks come: the last, whose multiprocessors
// attention held, have no part of the first matrix, which the others have by
// then, and, where attention held few (ShareChainTiles), of the second. Beside
// clusters they have none of the fourth, either (ChainNextTile).
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
#include "kernels/common/device_attribute.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/common/tensor_map.h"
#include "kernels/matmul/decode_matmul_order.h"
#include "kernels/matmul/product_chain_copy.cuh"
#include "kernels/matmul/product_chain_cuda.h"
#include "kernels/matmul/product_chain_plan.h"
#include "kernels/matmul/product_chain_rows.cuh"

namespace recurve {
namespace {

using chain::AttendedRow;
using chain::ChainArgs;
using chain::ConsumerBarrier;
using chain::CopyShare;
using chain::HiddenRow;
using chain::kChunk;
using chain::kChunkBytes;
using chain::kCopyWarps;
using chain::kDown;
using chain::kFours;
using chain::kNext;
using chain::kOut;
using chain::kPhases;
using chain::kStageBytes;
using chain::kStageChunks;
using chain::kStageSteps;
using chain::kThreads;
using chain::kTile;
using chain::kUp;
using chain::kWarps;
using chain::LoadNorm;
using chain::NormedRow;
using chain::PartBegin;
using chain::Share;
using chain::ShareOf;
using chain::StoreWord;

// Behind the warps that multiply: those that copy, and one that looks for the
// end of what is before. A warpgroup, for the sake of its registers.
constexpr int kBlockThreads = kThreads + 128;
static_assert(kCopyWarps < 4);
static_assert(128 + 2 * 8 * kProductChainMaxWidth + 8 * kChainMaxFeatures / 2 <=
              kProductChainExchangeBytes);

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
  // The role, the number of the launch, whether what is before is done, and how
  // many blocks are late.
  uint32_t* const ticket =
      reinterpret_cast<uint32_t*>(partial + kWarps) + 4 * a.slots;
  const auto full = [&](int slot) { return barriers + 16 * slot; };
  const auto empty = [&](int slot) { return barriers + 16 * slot + 8; };
  const int warp = Uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    // Before LaunchDependents, as in launches before: no other launch's block
    // takes one of these. Its wait for what is before is the other warps'.
    const unsigned long long taken = atomicAdd(a.tickets, 1ull);
    ticket[0] = static_cast<uint32_t>(taken % gridDim.x);
    ticket[1] = static_cast<uint32_t>(taken / gridDim.x) | 1u << 31;
    ticket[2] = 0;
    // The same for all blocks: it is older than the kernel in front.
    ticket[3] = p.working.last == nullptr
                    ? 0
                    : static_cast<uint32_t>(p.working.times *
                                            (__ldcg(p.working.last) + 1));
    for (int i = 0; i < a.slots; ++i) {
      BarrierInit(full(i), 1);
      BarrierInit(empty(i), 1);
    }
    BarrierInitFence();
  }
  __syncthreads();
  const int role = static_cast<int>(ticket[0]);
  const uint32_t epoch = ticket[1];
  const int late = static_cast<int>(ticket[3]);
  LaunchDependents();

  // Whether what is before is done: soon after it is.
  const auto released = [&] {
    return *static_cast<volatile uint32_t*>(ticket + 2) != 0;
  };

  if (warp >= kWarps) {
    ReleaseRegisters<40>();
    if (warp == kWarps + kCopyWarps) {
      WaitForPrevious();
      if (lane == 0) *static_cast<volatile uint32_t*>(ticket + 2) = 1;
    }
    if (warp >= kWarps + kCopyWarps) return;

    CopyShare(a, role, late, warp - kWarps, SharedAddress(memory), barriers,
              released);
    return;
  }

  ClaimRegisters<232>();
  float4 up_norm[kFours], next_norm[kFours];
  LoadNorm(p.up_norm, static_cast<int>(p.width), up_norm);
  LoadNorm(p.next_norm, static_cast<int>(p.width), next_norm);

  // ldmatrix: rows 0-7 and 8-15 of a chunk, then of the next; of the row, which
  // all eight columns are, a chunk after the other.
  const int w_row = lane % 16;
  const int w_chunk = lane / 16;
  const uint32_t x_lane = SharedAddress(row) + lane / 8 * 16;
  const auto load_weights = [&](int slot, int i, uint32_t(&w)[4]) {
    LoadMatrices(w, SharedAddress(memory) + slot * kStageBytes + w_row * 128 +
                        i / 4 * kChunkBytes +
                        ((2 * (i % 4) + w_chunk) ^ w_row % 8) * 16);
  };
  // As long as there is no row, the first product's weights go to registers.
  const Share first = ShareOf(a, kOut, role, late);
  int kept = 0;
  uint32_t weights[kChainKeptRounds][kStageSteps][4];
#pragma unroll
  for (int round = 0; round < kChainKeptRounds; ++round) {
    if (first.lanes == 0 || round >= first.rounds ||
        __any_sync(0xffffffffu, released())) {
      break;
    }
    const int slot = warp + kWarps * round;
    BarrierWait(full(slot), 0);
#pragma unroll
    for (int i = 0; i < kStageSteps; ++i) {
      load_weights(slot, i, weights[round][i]);
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(empty(slot));
    kept = round + 1;
  }
  WaitForPrevious();
  // An output of the residual, in the first and the third product.
  const int out = role * kTile + static_cast<int>(threadIdx.x);
  const bool keeps = threadIdx.x < kTile && out < p.width;
  float residual = keeps ? p.residual[out] : 0.0f;

  float acc[4] = {};
  if (first.lanes > 0) {
    AttendedRow(static_cast<const T*>(p.x), static_cast<int>(p.x_cols),
                static_cast<int>(p.out_inputs), row);
    ConsumerBarrier();
    const int begin = PartBegin(a.chunks[kOut], warp);
    const int chunks = PartBegin(a.chunks[kOut], warp + 1) - begin;
#pragma unroll
    for (int round = 0; round < kChainKeptRounds; ++round) {
#pragma unroll
      for (int c = 0; c < kStageChunks; ++c) {
        if (round >= kept || round * kStageChunks + c >= chunks) break;
        const uint32_t at =
            x_lane + 2 * kChunk * (begin + round * kStageChunks + c);
        uint32_t x[2][4];
        LoadMatrices(x[0], at);
        LoadMatrices(x[1], at + 64);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          Half<T>::Mma(acc, weights[round][4 * c + j], x[j / 2][2 * (j % 2)],
                       x[j / 2][2 * (j % 2) + 1]);
        }
      }
    }
  }
  int base = 0, lap = 0;  // of the product's first stage
#pragma unroll 1
  for (int phase = 0; phase < kPhases; ++phase) {
    const Share share = ShareOf(a, phase, role, late);
    if (share.lanes == 0) continue;
    const int chunks = a.chunks[phase];
    const int begin = phase == kUp ? 0 : PartBegin(chunks, warp);
    const int end = phase == kUp ? chunks : PartBegin(chunks, warp + 1);
    const int behind = phase == kOut ? kept : 0;  // rounds that are done
    const int rounds = share.rounds - behind;
    int slot = base + warp + behind * kWarps;
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
    if (phase == kDown) {
      HiddenRow(a.hidden_words, static_cast<int>(p.down_cols),
                static_cast<int>(p.down_inputs), epoch, row);
    } else if (phase != kOut) {
      const bool up = phase == kUp;
      float4 weight[kFours];
#pragma unroll
      for (int i = 0; i < kFours; ++i)
        weight[i] = up ? up_norm[i] : next_norm[i];
      NormedRow<T>(up ? a.out_words : a.down_words, static_cast<int>(p.width),
                   static_cast<int>(up ? p.up_inputs : p.next_inputs), weight,
                   up ? p.up_eps : p.next_eps, epoch, row, partial);
    }
    if (phase != kOut) {
      ConsumerBarrier();
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[i] = 0.0f;
    }

    // ---- multiplying ----
    if (warp < share.lanes && rounds > 0) {
      uint32_t x_at = x_lane + 2 * kChunk * (begin + behind * kStageChunks);
      // A stage's fragments come in eight steps, beside a product each of those
      // before. All eight warps reading a stage at once and multiplying at once
      // would take as long as both together.
      const auto read_step = [&](Fragments& f, int i) {
        load_weights(slot, i, f.w[i / 4][i % 4]);
        if (i % 2 == 0) LoadMatrices(f.x[i / 4][i % 4 / 2], x_at + 32 * i);
      };
      const auto end_read = [&] {
        __syncwarp();
        if (lane == 0) BarrierArrive(empty(slot));
        x_at += 2 * kChunk * kStageChunks;
        slot += share.lanes;
        if (slot >= a.slots) {
          slot -= a.slots;
          parity ^= 1;
        }
      };
      const auto multiply_step = [&](const Fragments& f, int i) {
        const uint32_t(&x)[4] = f.x[i / 4][i % 4 / 2];
        Half<T>::Mma(acc, f.w[i / 4][i % 4], x[2 * (i % 2)],
                     x[2 * (i % 2) + 1]);
      };
      const auto read = [&](Fragments& f) {
        BarrierWait(full(slot), parity);
#pragma unroll
        for (int i = 0; i < kStageSteps; ++i) read_step(f, i);
        end_read();
      };
      const auto multiply_and_read = [&](const Fragments& f, Fragments& next) {
        BarrierWait(full(slot), parity);
#pragma unroll
        for (int i = 0; i < kStageSteps; ++i) {
          read_step(next, i);
          multiply_step(f, i);
        }
        end_read();
      };
      // Of the last stage there may be the first chunk only.
      const auto multiply_last = [&](const Fragments& f) {
        const bool whole = begin + share.rounds * kStageChunks == end;
        const bool half = begin + share.rounds * kStageChunks == end + 1;
#pragma unroll
        for (int i = 0; i < kStageSteps; ++i) {
          if (i < kStageSteps / 2 ? whole || half : whole) multiply_step(f, i);
        }
      };
      Fragments even, odd;
      read(even);
      int left = rounds - 1;
#pragma unroll 1
      for (; left >= 2; left -= 2) {
        multiply_and_read(even, odd);
        multiply_and_read(odd, even);
      }
      if (left > 0) {
        multiply_and_read(even, odd);
        multiply_last(odd);
      } else {
        multiply_last(even);
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
  int major = 0;
  *count = 0;
  cudaError_t error =
      DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error != cudaSuccess || major != 9) return error;
  int mps = 0;
  error = DeviceAttribute(cudaDevAttrMpsEnabled, &mps);
  if (error != cudaSuccess) {
    // A driver that does not know: it may, so no. Nor must the next launch be
    // told of it.
    (void)cudaGetLastError();
    return error;
  }
  if (mps != 0) return cudaSuccess;
  return DeviceAttribute(cudaDevAttrMultiProcessorCount, count);
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
  error = AllowSharedMemory(kernel, bytes);
  if (error != cudaSuccess) return error;
  error = LaunchDependent(kernel, dim3(static_cast<unsigned>(multiprocessors)),
                          kBlockThreads, static_cast<size_t>(bytes), stream, a);
  if (error == cudaSuccess) ++launches;
  return error;
}

int64_t ProductChainLaunches() { return launches; }

}  // namespace recurve
