// All products of a layer from one attention to the next for 1, 2 or 4 rows, in
// one launch: one block a multiprocessor; producer warps copy the block's part
// of all four matrices by TMA through one ring buffer; 8 consumer warps use
// mma.m16n8k16 with rows as columns (8 columns, so 4 rows cost no more than
// one). Before rows arrive, they hold the first weights in registers. Blocks
// exchange rows through words in global memory.
// Shapes: 16-bit matrices out [W, I], up [2 F, W], down [W, F], next [N, W],
// inputs padded to 64; x [T, I] 16-bit; residual [T, W], y [T, N] float32.
// Floor: 2 · (W · I + 3 · F · W + N · W) bytes of weights, read once.
#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "kernels/common/alignment.h"
#include "kernels/common/async_copy.cuh"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_attribute.h"
#include "kernels/common/device_math.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/shared_memory.h"
#include "kernels/common/tensor_map.h"
#include "kernels/matmul/product_chain_copy.cuh"
#include "kernels/matmul/product_chain_cuda.h"
#include "kernels/matmul/product_chain_multiply.cuh"
#include "kernels/matmul/product_chain_plan.h"
#include "kernels/matmul/product_chain_rows.cuh"

namespace recurve {
namespace {

using chain::AttendedRows;
using chain::ChainArgs;
using chain::ConsumerBarrier;
using chain::CopyShare;
using chain::kAbsent;
using chain::kChunk;
using chain::kCopyWarps;
using chain::kDown;
using chain::kFours;
using chain::kHiddenWords;
using chain::kNext;
using chain::kOut;
using chain::kPhases;
using chain::kRowWords;
using chain::kStageBytes;
using chain::kStageChunks;
using chain::kThreads;
using chain::kTile;
using chain::kUp;
using chain::kWarps;
using chain::LoadNorm;
using chain::Multiplier;
using chain::PartBegin;
using chain::Share;
using chain::ShareOf;
using chain::StoreWord;
using chain::TakeRows;
using chain::WordRows;

// After the consumer warps: the producer warps, and one that waits for the
// previous kernel. A whole warpgroup, for setmaxnreg.
constexpr int kBlockThreads = kThreads + 128;
// Bytes of a row's words. Areas of launches of 1, 2 and 4 rows follow each
// other, so a launch clears only its own rows' words.
constexpr int64_t kExchangeRowBytes = 128 << 10;
static_assert((2 * kProductChainMaxRows - 1) * kExchangeRowBytes ==
              kProductChainExchangeBytes);
static_assert(128 + 2 * 4 * kRowWords <= kExchangeRowBytes);

// Producers run some tens of KB ahead of the arrived copies (ChainPace), as
// other blocks' waits queue behind requests. So weights stream on while blocks
// wait for each other.
//
// A word of 4 bytes holds one or two values. All its bits are set until it is
// written, which no value has: a reader that sees the word has its value.
// Launches alternate between two sets of words: each clears the previous
// launch's. (Other row counts have their own words.)
//
// A block's role is its place in the order of starts. The last blocks, whose
// multiprocessors attention held, have no part of the first matrix and, if they
// are few (ShareChainTiles), none of the second: the others have loaded those
// by then. After clusters they have none of the fourth either, if the others
// suffice (ChainNextTile).
//
// Blocks wait for each other, so all must be resident at once. They are:
// 1. No block of a dependent launch starts before all blocks of the previous
//    kernel have started (every block calls LaunchDependents) or ended; no
//    block of another launch before those have ended. By induction, while a
//    block of this kernel runs, all blocks of earlier kernels of the stream are
//    resident. They wait only for each other and for earlier kernels, so they
//    end and free their places. So this kernel never keeps attention's blocks,
//    which wait for each other, out.
// 2. Likewise no block of a later kernel of the stream starts before all blocks
//    of this one.
// 3. Kernels of other streams (copies of saved sequences) wait for no kernel
//    once they run, and end.
// 4. The grid is one block a multiprocessor, and an empty multiprocessor holds
//    one. So each block has a place when the blocks of 1 and 3 have ended, if
//    not earlier.
// It fails next to another kernel whose blocks wait for each other, each
// holding some of the places: another launch of this kind, or decode attention
// of another stream. So a process runs steps of one engine at a time on a
// device (cuda_executor.h); processes take turns as a whole; under MPS, where
// they do not, this kernel is not used.
template <typename T, int kRows>
__global__ void __launch_bounds__(kBlockThreads, 1)
    product_chain(const __grid_constant__ ChainArgs a) {
  extern __shared__ __align__(1024) char memory[];
  const ProductChainParams& p = a.p;
  char* const row = memory + a.slots * kStageBytes;
  float* const sums = reinterpret_cast<float*>(row + kRows * a.row_bytes);
  float* const partial = sums + kWarps * kRows * kTile;  // of a norm
  const uint32_t barriers = SharedAddress(partial + kWarps * kRows);
  // The role, the launch number, whether the previous kernel is done, and the
  // number of blocks that are late.
  uint32_t* const ticket =
      reinterpret_cast<uint32_t*>(partial + kWarps * kRows) + 4 * a.slots;
  const auto full = [&](int slot) { return barriers + 16 * slot; };
  const auto empty = [&](int slot) { return barriers + 16 * slot + 8; };
  const int warp = Uniform(threadIdx.x / 32);
  const int lane = threadIdx.x % 32;

  if (threadIdx.x == 0) {
    // Before LaunchDependents, as in earlier launches: no other launch's block
    // takes one of these tickets. (This thread waits for the previous kernel
    // later, as all consumers do.) Before the first launch all bits are set.
    const unsigned long long taken = atomicAdd(a.tickets, 1ull) + 1;
    ticket[0] = static_cast<uint32_t>(taken % gridDim.x);
    ticket[1] = static_cast<uint32_t>(taken / gridDim.x);
    ticket[2] = 0;
    // The same for all blocks: written before the previous kernel began.
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
  const uint32_t launch = ticket[1];
  uint32_t* const out_words = a.words + (launch & 1) * kRows * kRowWords;
  uint32_t* const down_words = out_words + kRows * kProductChainMaxWidth;
  uint32_t* const hidden_words = down_words + kRows * kProductChainMaxWidth;
  const int late = static_cast<int>(ticket[3]);
  LaunchDependents();

  // Whether the previous kernel is done; true soon after it is.
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

  // With four rows' words, registers hold no more than three rounds.
  constexpr int kKept = kRows < 4 ? kChainKeptRounds : kChainKeptRounds - 1;
  // The rows repeat over the eight columns of the instruction.
  Multiplier<T, kKept> multiplier(
      SharedAddress(memory), barriers, a.slots,
      SharedAddress(row) + lane % kRows * a.row_bytes + lane / 8 * 16, a.zero);
  const Share first = ShareOf(a, kOut, role, late);
  multiplier.Begin({first.lanes == 0 ? 0 : first.rounds, kWarps, warp, 0});
  while (multiplier.CanKeep() && !__any_sync(0xffffffffu, released()))
    multiplier.Keep();
  WaitForPrevious();
  // An output of a row of the residual, in the first and third product.
  const int my_row = static_cast<int>(threadIdx.x) / kTile;
  const int out = role * kTile + static_cast<int>(threadIdx.x) % kTile;
  const bool keeps = my_row < kRows && out < p.width;
  float* const residual_at = p.residual + my_row * p.residual_stride + out;
  float residual = keeps ? *residual_at : 0.0f;

  // Clears the previous launch's words, which is done, for the next launch.
  uint32_t* const others = a.words + (~launch & 1) * kRows * kRowWords;
  for (int i = 4 * static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
       i < kRows * kRowWords; i += 4 * kThreads * static_cast<int>(gridDim.x)) {
    *reinterpret_cast<uint4*>(others + i) =
        make_uint4(kAbsent, kAbsent, kAbsent, kAbsent);
  }

  int base = 0, lap = 0;  // of the product's first stage
#pragma unroll 1
  for (int phase = 0; phase < kPhases; ++phase) {
    const Share share = ShareOf(a, phase, role, late);
    if (share.lanes == 0) continue;
    const int chunks = a.chunks[phase];
    const int begin = phase == kUp ? 0 : PartBegin(chunks, warp);
    const int end = phase == kUp ? chunks : PartBegin(chunks, warp + 1);
    if (phase != kOut) {
      multiplier.Begin({warp < share.lanes ? share.rounds : 0, share.lanes,
                        base + warp, static_cast<uint32_t>(lap & 1)});
    }
    base += share.lanes * share.rounds;
    while (base >= a.slots) {
      base -= a.slots;
      ++lap;
    }

    // ---- the rows ----
    if (phase == kOut) {
      AttendedRows<T, kRows>(static_cast<const T*>(p.x), p.x_stride,
                             static_cast<int>(p.x_cols),
                             static_cast<int>(p.out_inputs), row, a.row_bytes);
    } else {
      const bool up = phase == kUp;
      const int width = static_cast<int>(p.width);
      const WordRows rows =
          phase == kDown
              ? WordRows{hidden_words,
                         kHiddenWords,
                         (static_cast<int>(p.down_cols) + 1) / 2,
                         static_cast<int>(p.down_inputs),
                         false,
                         0.0f}
              : WordRows{up ? out_words : down_words,
                         static_cast<int>(kProductChainMaxWidth),
                         width,
                         static_cast<int>(up ? p.up_inputs : p.next_inputs),
                         true,
                         up ? p.up_eps : p.next_eps};
      float4 weight[kFours];
#pragma unroll
      for (int i = 0; i < kFours; ++i)
        weight[i] = up ? up_norm[i] : next_norm[i];
      TakeRows<T, kRows>(rows, weight, row, a.row_bytes, partial,
                         [&] { multiplier.KeepIfThere(); });
    }
    ConsumerBarrier();

    // ---- multiplying ----
    float acc[4] = {};
    multiplier.Multiply(begin, end, share.rounds, acc);

    // ---- results: column r has those of row r ----
    const int g = lane / 4;
    constexpr int kColumns = kRows < 2 ? kRows : 2;  // that a lane has
    const int column = 2 * (lane % 4);
    if (phase == kUp) {
      if (warp < share.lanes) {
        const int feature = (share.tile + warp) * (kTile / 2) + g;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          float value = DeviceActivate(p.activation, acc[j]) * acc[j + 2];
          // (Other features do not count in the next product.)
          if (feature >= p.down_cols) value = 0.0f;
          const float other = __shfl_down_sync(0xffffffffu, value, 4);
          if (g % 2 == 0 && column + j < kRows && feature < p.features) {
            StoreWord(hidden_words + (column + j) * kHiddenWords + feature / 2,
                      Half<T>::Pack(value, other));
          }
        }
      }
      // Shared memory is then free for the next row.
      ConsumerBarrier();
      continue;
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (column + j >= kRows) continue;
      float* const to = sums + (warp * kRows + column + j) * kTile + g;
      to[0] = acc[j];
      to[8] = acc[j + 2];
    }
    ConsumerBarrier();
    if (my_row >= kRows) continue;
    float total = sums[threadIdx.x];
#pragma unroll
    for (int s = 1; s < kWarps; ++s)
      total += sums[s * kRows * kTile + threadIdx.x];
    if (phase == kNext) {
      const int output =
          share.tile * kTile + static_cast<int>(threadIdx.x) % kTile;
      if (output < p.next_outputs) p.y[my_row * p.y_stride + output] = total;
    } else if (keeps) {
      residual += total;
      StoreWord((phase == kOut ? out_words : down_words) +
                    my_row * kProductChainMaxWidth + out,
                __float_as_uint(residual));
      if (phase == kDown) *residual_at = residual;
    }
  }
}

// Boxes for CopyStage; zeros beyond the matrix.
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

template <typename T>
auto KernelOf(int64_t rows) {
  switch (rows) {
    case 1:
      return product_chain<T, 1>;
    case 2:
      return product_chain<T, 2>;
    default:
      return product_chain<T, 4>;
  }
}

constexpr int64_t kMaxShared = kProductChainSharedMemory;

std::atomic<int64_t> launches{0};

// Multiprocessors of the current device; 0 unless it is a Hopper without MPS.
cudaError_t Multiprocessors(int* count) {
  int major = 0;
  *count = 0;
  cudaError_t error =
      DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error != cudaSuccess || major != 9) return error;
  int mps = 0;
  error = DeviceAttribute(cudaDevAttrMpsEnabled, &mps);
  if (error != cudaSuccess) {
    // A driver without this attribute: MPS may be on, so refuse. The next
    // launch must not see the error.
    (void)cudaGetLastError();
    return error;
  }
  if (mps != 0) return cudaSuccess;
  return DeviceAttribute(cudaDevAttrMultiProcessorCount, count);
}

ProductChainPlan PlanOf(const ProductChainParams& p, int multiprocessors) {
  if (p.type == WeightType::kFloat32 || p.activation == Activation::kSoftmax ||
      p.x_cols < 0 || p.x_cols > p.out_inputs || !IsAligned(p.x) ||
      (p.rows > 1 && p.x_stride % 8 != 0) || !IsAligned(p.out) ||
      !IsAligned(p.up) || !IsAligned(p.down) || !IsAligned(p.next) ||
      !IsAligned(p.up_norm) || !IsAligned(p.next_norm) ||
      p.down_cols > p.features || p.down_cols > p.down_inputs) {
    return {};
  }
  return PlanProductChain(
      {p.rows, p.width, p.out_inputs, p.features, p.up_inputs, p.down_inputs,
       p.next == nullptr ? 0 : p.next_outputs, p.next_inputs},
      multiprocessors, kMaxShared);
}

// Whether all pointers that the launch uses are set.
bool Complete(const ProductChainParams& p) {
  return p.x != nullptr && p.out != nullptr && p.residual != nullptr &&
         p.up != nullptr && p.down != nullptr && IsThere(p.exchange) &&
         (p.next == nullptr || p.y != nullptr);
}

}  // namespace

bool ProductChainRuns() {
  int multiprocessors = 0;
  return Multiprocessors(&multiprocessors) == cudaSuccess &&
         multiprocessors > 0;
}

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
  if (plan.slots == 0 || !Complete(p)) return cudaErrorInvalidValue;
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
  char* const exchange =
      static_cast<char*>(p.exchange) + (p.rows - 1) * kExchangeRowBytes;
  a.tickets = reinterpret_cast<unsigned long long*>(exchange);
  a.words = reinterpret_cast<uint32_t*>(exchange + 128);
  const auto kernel = p.type == WeightType::kBFloat16
                          ? KernelOf<__nv_bfloat16>(p.rows)
                          : KernelOf<__half>(p.rows);
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
