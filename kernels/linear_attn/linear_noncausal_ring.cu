#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <atomic>

#include "kernels/common/async_copy.cuh"
#include "kernels/common/hopper_kernel.h"
#include "kernels/linear_attn/linear_boxes.cuh"
#include "kernels/linear_attn/linear_noncausal_ring.h"
#include "kernels/linear_attn/linear_noncausal_ring_copy.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_make.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_multiply.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_shared.cuh"
#include "kernels/linear_attn/linear_noncausal_ring_store.cuh"

namespace recurve {
namespace {

using linear_ring::Args;
using linear_ring::Change;
using linear_ring::Copier;
using linear_ring::Form;
using linear_ring::kGroup;
using linear_ring::kMakers;
using linear_ring::kMultipliers;
using linear_ring::kParts;
using linear_ring::kTokens;
using linear_ring::Layout;
using linear_ring::Maker;
using linear_ring::Multiplier;
using linear_ring::Plan;
using linear_ring::Storer;
using linear_ring::WriteZeros;

// ----------------------------------------------------------------------------
// CUDA kernels

// Nobody is sent to who has gone: what was sent has been waited for, but for
// what Storer says of the last state. Once for each role: code that they shared
// after their own would get one number of registers for all.
[[maybe_unused]] __device__ __forceinline__ void Leave() { cluster::Meet(); }
[[maybe_unused]] __device__ __forceinline__ void LeaveAfterSending() {
  __syncwarp();
  cluster::ClusterBarrier();
}

// Of each thread, where there are some who make: two warps that multiply, one
// that makes and one of the others have a quarter of the multiprocessor's
// 65,536.
constexpr int kMultiplierRegisters = 184;
constexpr int kMakerRegisters = 112;
constexpr int kOtherRegisters = 32;
static_assert(32 * (2 * kMultiplierRegisters + kMakerRegisters +
                    kOtherRegisters) <=
                  65536 / 4,
              "");

// Grid: as many clusters of kParts blocks as there is room for; they
// take the heads of the rows in turn. A block makes S of its part of the
// tokens; the parts are added up while it makes outputs, of its part of the
// head before; then come the outputs of this head.
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
  __syncthreads();
  cluster::Meet();  // everybody's barriers are ready

  if (threadIdx.x < kMultipliers) {
    if constexpr (P::kMakes) ClaimRegisters<kMultiplierRegisters>();
    Multiplier<kForm> multiplier(args, layout);
    multiplier.Run();
    Leave();
  } else if (P::kMakes && threadIdx.x < kMultipliers + kMakers) {
    if constexpr (P::kMakes) {
      ReleaseRegisters<kMakerRegisters>();
      Maker<kForm> maker(args, layout);
      maker.Run();
      Leave();
    }
  } else {
    if constexpr (P::kMakes) ReleaseRegisters<kOtherRegisters>();
    const int thread = static_cast<int>(threadIdx.x) - (P::kThreads - kGroup);
    if (thread < 32) {
      Copier<kForm> copier{args, layout};
      copier.template Run<true, !P::kCopiesApart>();
      Leave();
    } else if (thread < 64) {
      Storer<kForm> storer{args, layout};
      storer.Run();
      LeaveAfterSending();
    } else if (P::kCopiesApart && thread < 96) {
      Copier<kForm> copier{args, layout};
      copier.template Run<false, true>();
      Leave();
    } else {
      constexpr int kFirst = P::kCopiesApart ? 96 : 64;
      if (args.p.out_type == ElementType::kFloat32) {
        WriteZeros(args, static_cast<float*>(args.p.out), thread - kFirst,
                   kGroup - kFirst);
      } else {
        WriteZeros(args, static_cast<__nv_bfloat16*>(args.p.out),
                   thread - kFirst, kGroup - kFirst);
      }
      Leave();
    }
  }
#else
  __trap();  // never launched there
#endif
}

// ----------------------------------------------------------------------------
// Launchers

constexpr int kMaxDevices = 64;  // of others it is asked at each launch

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

// How many clusters of the kernel, as `config` launches it, the current device
// holds at a time. A form's `config` is always the same but for the stream, so
// the driver is asked once a device.
template <Form kForm>
cudaError_t MaxClusters(const cudaLaunchConfig_t& config, int* clusters) {
  static std::atomic<int> known[kMaxDevices] = {};  // 0: not yet
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
    return error;
  }
  const bool kept = device < kMaxDevices;
  *clusters = kept ? known[device].load(std::memory_order_relaxed) : 0;
  if (*clusters > 0) return cudaSuccess;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(
      clusters, linear_noncausal_ring_kernel<kForm>, &config);
  if (error != cudaSuccess) return error;
  if (*clusters < 1) return cudaErrorNotSupported;
  // Threads that ask at the same time are told the same.
  if (kept) known[device].store(*clusters, std::memory_order_relaxed);
  return cudaSuccess;
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
  if (error != cudaSuccess) return error;
  args.heads = static_cast<int>(p.num_heads);
  args.head_dim = static_cast<int>(p.head_dim);
  args.value_dim = static_cast<int>(p.value_dim);
  args.q_change = ChangeOf(p.q_activation);
  args.k_change = ChangeOf(p.k_activation);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kParts);
  config.blockDim = dim3(Plan<kForm>::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kParts;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  error = MaxClusters<kForm>(config, &clusters);
  if (error != cudaSuccess) return error;
  const int64_t items = p.max_rows * p.num_heads;
  config.gridDim =
      dim3(kParts * static_cast<unsigned>(std::min<int64_t>(items, clusters)));
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace

bool LinearNoncausalRingDoes(const LinearNoncausalParams& p) {
  return p.position != LrpeType::kRotate && !p.q_sequence_softmax &&
         !p.k_sequence_softmax;
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
