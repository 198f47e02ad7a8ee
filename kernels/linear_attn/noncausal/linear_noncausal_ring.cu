// Non-causal linear attention without rotate, on sm_90a: one persistent block a
// multiprocessor; producer warps (Copiers) fill TMA ring buffers, transform
// warps (Makers) make k̃ and q̃ in place, two consumer warpgroups (Multipliers)
// multiply by wgmma, a store warp (Storer) writes, a scheduler warp (Dealer)
// hands out work items. S of a head is summed by one block; any block may make
// its outputs.
// Shapes: q, k [T, H, D], v, g, out [T, H, E], bfloat16 (out: e bytes), D and E
// up to 128; states [slots, H, Dk, E] float32.
// Floor: T · H · (4 D + (4 + e) E) bytes, and 4 · Dk · E a head and row for its
// state.
#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <atomic>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/hopper_kernel.h"
#include "kernels/common/tensor_map.h"
#include "kernels/linear_attn/linear_boxes.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_deal.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring.h"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_copy.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_deal.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_make.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_multiply.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_shared.cuh"
#include "kernels/linear_attn/noncausal/linear_noncausal_ring_store.cuh"

namespace recurve {
namespace {

using linear_ring::Args;
using linear_ring::Change;
using linear_ring::Copier;
using linear_ring::Dealer;
using linear_ring::Form;
using linear_ring::KeepRowTiles;
using linear_ring::kGroup;
using linear_ring::kMakers;
using linear_ring::kMultipliers;
using linear_ring::kTokens;
using linear_ring::Launches;
using linear_ring::Layout;
using linear_ring::Maker;
using linear_ring::Multiplier;
using linear_ring::Plan;
using linear_ring::Storer;

// ----------------------------------------------------------------------------
// CUDA kernels

// Registers a thread, if there are Makers: two consumer warps, one Maker and
// one other warp have a quarter of the multiprocessor's 65,536.
constexpr int kMultiplierRegisters = 184;
constexpr int kMakerRegisters = 112;
constexpr int kOtherRegisters = 32;
static_assert(32 * (2 * kMultiplierRegisters + kMakerRegisters +
                    kOtherRegisters) <=
                  65536 / 4,
              "");

// Prefetches the descriptor that the copy engine reads first.
__device__ __forceinline__ void PrefetchMap(const CUtensorMap& map) {
#if __CUDA_ARCH__ >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

// Grid: one block a multiprocessor (at most kMaxBlocks), all resident, as they
// wait for each other. NoncausalDeal gives the work of each.
template <Form kForm>
__global__ void __launch_bounds__(Plan<kForm>::kThreads, 1)
    linear_noncausal_ring_kernel(const __grid_constant__ Args args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // Boxes of the copy engine are swizzled by their address.
  extern __shared__ __align__(1024) unsigned char shared[];
  using P = Plan<kForm>;
  const Layout<kForm> layout(SharedAddress(shared));
  if (SharedAddress(shared) % 1024 != 0) __trap();
  if (threadIdx.x == 0) layout.InitBarriers();
  if (threadIdx.x == P::kThreads - 1) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(layout.LaunchesBefore()),
                 "r"(args.launches->ended)
                 : "memory");
  }
  const auto numbers = [&](uint32_t address) {
    return reinterpret_cast<uint32_t*>(shared +
                                       (address - SharedAddress(shared)));
  };
  uint32_t* const row_tiles = numbers(layout.RowTiles());
  KeepRowTiles(args, row_tiles);
  __syncthreads();

  if (threadIdx.x < kMultipliers) {
    if constexpr (P::kMakes) ClaimRegisters<kMultiplierRegisters>();
    Multiplier<kForm> multiplier(args, layout);
    multiplier.Run();
  } else if (P::kMakes && threadIdx.x < kMultipliers + kMakers) {
    if constexpr (P::kMakes) {
      ReleaseRegisters<kMakerRegisters>();
      Maker<kForm> maker(args, layout);
      maker.Run();
    }
  } else {
    const int thread = static_cast<int>(threadIdx.x) - (P::kThreads - kGroup);
    if (thread == 0) {
      PrefetchMap(args.k);
      PrefetchMap(args.v);
      PrefetchMap(args.q);
    }
    // Before the registers are released, which the four warps of a warpgroup do
    // together; the others have no work before the first item.
    Dealer<kForm> dealer(args, layout, row_tiles, numbers(layout.Shares()));
    if (thread / 32 == 2) dealer.TellFirst();
    __syncwarp();
    if constexpr (P::kMakes) ReleaseRegisters<kOtherRegisters>();
    if (thread < 32) {
      Copier<kForm, true> copier{args, layout};
      copier.Run();
    } else if (thread < 64) {
      Storer<kForm> storer{args, layout};
      storer.Run();
    } else if (thread < 96) {
      dealer.Run();
    } else {
      Copier<kForm, false> copier{args, layout};
      copier.Run();
    }
  }
#else
  __trap();  // never launched there
#endif
}

// ----------------------------------------------------------------------------
// Launchers

constexpr int kMaxDevices = 64;  // other devices are queried at each launch

Change ChangeOf(Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return Change::kSilu;
    case Activation::kSoftmax:
      return Change::kSoftmax;
    default:
      return Change::kNone;
  }
}

// Blocks resident on the current device: one a multiprocessor.
cudaError_t Blocks(int* blocks) {
  static std::atomic<int> known[kMaxDevices] = {};  // 0: not yet
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return error;
  }
  const bool kept = device < kMaxDevices;
  *blocks = kept ? known[device].load(std::memory_order_relaxed) : 0;
  if (*blocks > 0) return cudaSuccess;
  const cudaError_t error =
      cudaDeviceGetAttribute(blocks, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  *blocks = std::min(*blocks, linear_ring::kMaxBlocks);
  // Concurrent callers get the same value.
  if (kept) known[device].store(*blocks, std::memory_order_relaxed);
  return cudaSuccess;
}
int64_t Places(int blocks) { return int64_t{kNoncausalPlaces} * blocks; }
// The parts of the workspace: each begins at a multiple of 128 bytes.
constexpr int64_t kLaunchesBytes = 128;
int64_t PlaceLaunchesBytes(int blocks) {
  return (4 * Places(blocks) + 127) / 128 * 128;
}

template <Form kForm>
cudaError_t Launch(const LinearNoncausalParams& p, cudaStream_t stream) {
  const auto kernel = linear_noncausal_ring_kernel<kForm>;
  constexpr int kBytes = Plan<kForm>::kBytes;
  cudaError_t error = PrepareHopperKernel(kernel, kBytes);
  Args args = {};
  args.p = p;
  const auto map = [&](const void* data, int64_t dim, CUtensorMap* to) {
    if (error == cudaSuccess && data != nullptr) {
      error =
          linear_boxes::MakeMap(data, dim, p.num_heads, p.stride, kTokens, to);
    }
  };
  map(p.q, p.head_dim, &args.q);
  map(p.k, p.head_dim, &args.k);
  map(p.v, p.value_dim, &args.v);
  map(p.g, p.value_dim, &args.g);
  if (p.out_type == ElementType::kBFloat16 && error == cudaSuccess) {
    error = linear_boxes::MakeMap(p.out, p.value_dim, p.num_heads, p.out_stride,
                                  kTokens, &args.out);
  }
  if (p.states != nullptr && error == cudaSuccess) {
    const int64_t rows = p.num_heads * Plan<kForm>::kEncodings * p.head_dim;
    error = MakeTensorMap(
        p.states,
        {CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
         {p.value_dim, rows, int64_t{1} << 31},
         {p.value_dim, p.slot_stride},
         {linear_ring::kStateColumns, static_cast<int>(p.head_dim), 1}},
        &args.state);
  }
  if (error != cudaSuccess) return error;
  args.heads = static_cast<int>(p.num_heads);
  args.head_dim = static_cast<int>(p.head_dim);
  args.value_dim = static_cast<int>(p.value_dim);
  args.q_change = ChangeOf(p.q_activation);
  args.k_change = ChangeOf(p.k_activation);
  int blocks = 0;
  error = Blocks(&blocks);
  if (error != cudaSuccess) return error;
  char* const workspace = static_cast<char*>(p.workspace);
  args.launches = reinterpret_cast<Launches*>(workspace);
  args.place_launches = reinterpret_cast<uint32_t*>(workspace + kLaunchesBytes);
  args.factors = reinterpret_cast<uint4*>(workspace + kLaunchesBytes +
                                          PlaceLaunchesBytes(blocks));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(Plan<kForm>::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  config.attrs = &together;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace

bool LinearNoncausalRingDoes(const LinearNoncausalParams& p) {
  return p.position != LrpeType::kRotate && !p.q_sequence_softmax &&
         !p.k_sequence_softmax;
}

int64_t LinearNoncausalRingWorkspaceBytes(const LinearNoncausalParams& p) {
  int device = 0;
  int major = 0;
  int minor = 0;
  int blocks = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                             device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                             device) != cudaSuccess ||
      major != 9 || minor != 0 || Blocks(&blocks) != cudaSuccess) {
    return 0;
  }
  const int64_t factor = p.position == LrpeType::kCosine
                             ? Plan<Form::kCosine>::kFactorBytes
                             : Plan<Form::kPlain>::kFactorBytes;
  return kLaunchesBytes + PlaceLaunchesBytes(blocks) + Places(blocks) * factor;
}

cudaError_t LaunchLinearNoncausalRing(const LinearNoncausalParams& p,
                                      cudaStream_t stream) {
  if (p.position == LrpeType::kCosine) return Launch<Form::kCosine>(p, stream);
  if (p.q_activation == Activation::kNone &&
      p.k_activation == Activation::kNone) {
    return Launch<Form::kPlain>(p, stream);
  }
  return Launch<Form::kMade>(p, stream);
}

}  // namespace recurve
