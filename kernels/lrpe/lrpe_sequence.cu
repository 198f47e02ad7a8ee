#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/lrpe/lrpe_check.h"
#include "kernels/lrpe/lrpe_cuda.h"
#include "kernels/lrpe/lrpe_device.cuh"
#include "kernels/lrpe/lrpe_stats.cuh"

namespace recurve {
namespace {

using lrpe::kHeadsPerThread;
using lrpe::kThreads;
using lrpe::Softmax;
using lrpe::Workspace;

static_assert(kThreads == lrpe::kStatsThreads, "blocks do either");

#ifndef LRPE_SLICE
#define LRPE_SLICE 28
#endif
// Of x, between the pass that makes its statistics and the one that uses them:
// what stays in the L2 cache, beside what streams through it.
constexpr int64_t kSliceBytes = int64_t{LRPE_SLICE} << 20;

// Some heads of some sequences.
struct Slice {
  int first_sequence;
  int sequences;
  int first_head;
  int heads;
};

// ----------------------------------------------------------------------------
// CUDA kernels

// The first `stats_blocks` blocks make the statistics of one slice, the others
// encode another slice, whose statistics an earlier launch has made.
template <typename T, int kVector, bool kRotate>
__global__ void __launch_bounds__(kThreads)
    lrpe_sequence_kernel(const __grid_constant__ CudaLrpeParams p,
                         const __grid_constant__ Workspace w,
                         const __grid_constant__ Slice stats,
                         const __grid_constant__ int stats_blocks,
                         const __grid_constant__ Slice encode,
                         const __grid_constant__ int lanes) {
  int block = blockIdx.x;
  if (block < stats_blocks) {
    const int chunks = static_cast<int>((p.length + lrpe::kStatsChunk - 1) /
                                        lrpe::kStatsChunk);
    const int group = block / chunks;
    lrpe::ChunkStats<T>(p, w, stats.first_sequence + group / stats.heads,
                        stats.first_head + group % stats.heads, block % chunks,
                        chunks);
    return;
  }
  block -= stats_blocks;
  const int runs = (encode.heads + kHeadsPerThread - 1) / kHeadsPerThread;
  const int first_head = encode.first_head + block % runs * kHeadsPerThread;
  const int length = static_cast<int>(p.length);
  lrpe::EncodeToken<T, kVector, kRotate, Softmax::kSequence>(
      p, lanes,
      encode.first_sequence * length + block / runs * (kThreads / lanes) +
          static_cast<int>(threadIdx.x) / lanes,
      (encode.first_sequence + encode.sequences) * length, first_head,
      min(encode.first_head + encode.heads, first_head + kHeadsPerThread),
      w.stats);
}

// ----------------------------------------------------------------------------
// Launchers

Workspace SplitWorkspace(const CudaLrpeParams& p, void* workspace) {
  Workspace w;
  w.stats = static_cast<float2*>(workspace);
  w.partial = w.stats + p.batch * p.num_heads * p.dim;
  w.arrivals = reinterpret_cast<unsigned int*>(
      w.partial + p.batch * p.num_heads * p.dim * lrpe::StatsChunks(p));
  return w;
}

// The slices that cover everything: whole sequences while several fit, else
// equal parts of the heads of each.
class Slices {
 public:
  Slices(const CudaLrpeParams& p, int64_t element_bytes)
      : batch_(static_cast<int>(p.batch)),
        heads_(static_cast<int>(p.num_heads)) {
    const int64_t head_bytes = p.length * p.dim * element_bytes;
    const int64_t fitting = std::max<int64_t>(1, kSliceBytes / head_bytes);
    parts_ = static_cast<int>((p.num_heads + fitting - 1) / fitting);
    sequences_ = static_cast<int>(
        std::clamp<int64_t>(fitting / p.num_heads, 1, p.batch));
  }
  int count() const { return (batch_ + sequences_ - 1) / sequences_ * parts_; }
  Slice At(int i) const {
    const int first = i / parts_ * sequences_;
    const int first_head = heads_ * (i % parts_) / parts_;
    return {first, std::min(sequences_, batch_ - first), first_head,
            heads_ * (i % parts_ + 1) / parts_ - first_head};
  }

 private:
  int batch_, heads_;
  int parts_;      // of the heads
  int sequences_;  // of a slice
};

template <typename T, int kVector, bool kRotate>
cudaError_t Launch(const CudaLrpeParams& p, const Workspace& w,
                   cudaStream_t stream) {
  const int lanes = lrpe::LanesPerToken(p.dim, kVector);
  const int64_t tokens_a_block = kThreads / lanes;
  const Slices slices(p, sizeof(T));
  for (int i = 0; i <= slices.count(); ++i) {
    Slice stats = {};
    Slice encode = {};
    int64_t stats_blocks = 0;
    int64_t encode_blocks = 0;
    if (i < slices.count()) {
      stats = slices.At(i);
      stats_blocks = lrpe::StatsChunks(p) * stats.sequences * stats.heads;
    }
    if (i > 0) {
      encode = slices.At(i - 1);
      encode_blocks = (encode.sequences * p.length + tokens_a_block - 1) /
                      tokens_a_block *
                      ((encode.heads + kHeadsPerThread - 1) / kHeadsPerThread);
    }
    lrpe_sequence_kernel<T, kVector, kRotate>
        <<<static_cast<unsigned>(stats_blocks + encode_blocks), kThreads, 0,
           stream>>>(p, w, stats, static_cast<int>(stats_blocks), encode,
                     lanes);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <bool kRotate>
cudaError_t LaunchType(const CudaLrpeParams& p, const Workspace& w,
                       cudaStream_t stream) {
  return p.type == ElementType::kFloat32
             ? Launch<float, 4, kRotate>(p, w, stream)
             : Launch<__nv_bfloat16, lrpe::kBFloat16Vector, kRotate>(p, w,
                                                                     stream);
}

}  // namespace

int64_t LrpeSequenceWorkspaceBytes(const CudaLrpeParams& p) {
  const int64_t groups = p.batch * p.num_heads;
  return groups * p.dim * (1 + lrpe::StatsChunks(p)) *
             static_cast<int64_t>(sizeof(float2)) +
         groups * static_cast<int64_t>(sizeof(unsigned int));
}

cudaError_t LaunchLrpeSequenceSoftmax(const CudaLrpeParams& p, void* workspace,
                                      cudaStream_t stream) {
  if (!ValidLrpe(p) || workspace == nullptr) return cudaErrorInvalidValue;
  if (p.batch * p.length == 0) return cudaSuccess;
  const Workspace w = SplitWorkspace(p, workspace);
  return p.position == LrpeType::kRotate ? LaunchType<true>(p, w, stream)
                                         : LaunchType<false>(p, w, stream);
}

}  // namespace recurve
