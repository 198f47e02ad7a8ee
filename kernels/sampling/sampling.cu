// Draws a sample from a row of logits: one block a sample or, with few samples,
// a cluster of 2 to 8 blocks that share the row's ids. Truncation by histograms
// of logits, then of keys, until at most 256 candidates are left to rank.
// Shapes: logits [rows, V] float32; counts [slots, V]; results [samples].
// Floor: 4 · V bytes a sample; with bias 8 · V (adjusted logits written), with
// penalties 12 · V (counts read, too). Later passes, five to ten with
// truncation, hit L1 or L2.
// All sums over blocks are of integers, so the division into blocks does not
// change a bit.

#include <cstdint>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/device_attribute.h"
#include "kernels/common/hopper_kernel.h"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_cut.cuh"
#include "kernels/sampling/sampling_plan.h"
#include "kernels/sampling/sampling_row.cuh"
#include "kernels/sampling/sampling_team.cuh"
#include "kernels/sampling/sampling_weight.h"

namespace recurve {
namespace sampling {
namespace {

__constant__ double kExpTable[kSampleExpEntries] = RECURVE_SAMPLE_EXP_TABLE;

// In place of a token that another block of the cluster found.
constexpr int32_t kElsewhere = -1;

// Logit after penalties, for a token with this entry in the table of counts.
__device__ __forceinline__ float Penalized(float l, uint32_t seen,
                                           const CudaSampleRow& r) {
  if (seen == 0) return l;
  l = l > 0 ? __fdiv_rn(l, r.repetition_penalty)
            : __fmul_rn(l, r.repetition_penalty);
  const uint32_t in_output = seen & ~kSampleInPrompt;
  if (in_output > 0) {
    l = __fsub_rn(l, r.presence_penalty);
    l = __fsub_rn(
        l, __fmul_rn(r.frequency_penalty, static_cast<float>(in_output)));
  }
  return l;
}

// Step 1: writes the block's part of the sample's row, with penalties and bias,
// to *to, which only this block reads.
template <bool kCluster>
__device__ __forceinline__ void Adjust(const CudaSampleParams& p,
                                       const CudaSampleRow& r,
                                       const Row<kCluster>& row, float* to) {
  constexpr int kBlock = kThreads<kCluster>;
  const uint32_t* counts = p.counts + r.slot * p.counts_stride;
  // Several ids at a time: loads do not wait for each other, as they would
  // after a store.
  constexpr int kIds = 4;
  for (int32_t first = row.begin + static_cast<int32_t>(threadIdx.x);
       first < row.end; first += kIds * kBlock) {
    float l[kIds];
    uint32_t seen[kIds];
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      const int32_t id = first + i * kBlock;
      l[i] = id < row.end ? row.logits[id] : 0.0f;
      seen[i] = id < row.end && r.penalties != 0 ? counts[id] : 0;
    }
#pragma unroll
    for (int i = 0; i < kIds; ++i) {
      const int32_t id = first + i * kBlock;
      if (id < row.end) to[id] = Penalized(l[i], seen[i], r);
    }
  }
  __syncthreads();
  // Each id belongs to one thread, which adds its entries in order.
  const CudaBias* bias = p.bias + int64_t{r.slot} * kSampleMaxBias;
  for (int i = 0; i < r.num_bias; ++i) {
    const CudaBias entry = bias[i];
    if (row.Has(entry.id) && entry.id % kBlock == static_cast<int>(threadIdx.x))
      to[entry.id] = __fadd_rn(to[entry.id], entry.bias);
  }
  __syncthreads();
}

// Sum of `value` over this and all earlier threads of the block. Once a sample.
template <bool kCluster>
__device__ __forceinline__ uint64_t ScanBlock(uint64_t value) {
  Memory<kCluster>& s = BlockMemory<kCluster>();
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  value = ScanLanes(value);
  if (lane == 31) s.warp_sums[warp] = value;
  __syncthreads();
  return value + ReduceLanes<32>(lane < warp ? s.warp_sums[lane] : 0, Sum());
}

// Steps 5 to 8: returns the token, in the block that holds it.
template <bool kCluster>
__device__ __forceinline__ int32_t Draw(Team<kCluster>& team,
                                        const CudaSampleRow& r, int32_t vocab,
                                        const Row<kCluster>& row, float max,
                                        float spread) {
  Memory<kCluster>& s = BlockMemory<kCluster>();
  const Weigher<kCluster> weigh = {max, r.inverse_temperature};
  uint64_t floor = 0;
  if (r.top_k > 0 && r.top_k < vocab)
    floor = FindCut<kCluster, false>(team, row, weigh, spread, {0, r.top_k, 0});
  if (!(r.top_p >= 1)) {
    // Logits further from the maximum have weight 0.
    const auto reach =
        static_cast<float>(-1.01 * kSampleExpMin / r.inverse_temperature);
    floor = FindCut<kCluster, true>(team, row, weigh, fminf(spread, reach),
                                    {floor, 0, r.top_p});
  }
  const double min_p = r.min_p;
  const auto kept = [&](float logit, int32_t id) {
    return floor == 0 || KeyOf(logit, id) >= floor;
  };
  const auto weight_of = [&](float logit) -> uint64_t {
    const double weight = weigh.Exact(logit);
    return weight >= min_p ? SampleFixed(weight) : 0;
  };
  // Each group sums a part of the block's ids.
  constexpr int kStep = 4 * kLanes<kCluster>;
  const int32_t ids = row.end - row.begin;
  const int32_t part =
      ((ids + kGroups - 1) / kGroups + kStep - 1) / kStep * kStep;
  const int32_t begin = min(row.end, row.begin + team.Group() * part);
  uint64_t sum = 0;
  row.EachWanted(begin, min(row.end, begin + part), team.Lane(),
                 kLanes<kCluster>, kept, weight_of,
                 [&](float, int32_t, uint64_t weight) { sum += weight; });
  sum = ReduceLanes<kLanes<kCluster>>(sum, Sum());
  const typename Team<kCluster>::Pairs all = team.Exchange({sum, 0});
  // Every thread searches for the part of the token; a lane has neighbouring
  // parts.
  const int each = team.blocks();
  const Pair* const parts = all[0];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  sum = 0;
  for (int i = 0; i < each; ++i) sum += parts[each * lane + i].a;
  const uint64_t total = ReduceLanes<32>(sum, Sum());
  // All weights are 0: min_p was out of its range.
  if (total == 0) return team.rank() == 0 ? 0 : kElsewhere;
  uint64_t target = SampleTarget(r.uniform, total);
  const Place place = FindLane(sum, target + 1);
  target -= place.before;
  int chosen = each * place.lane;
  while (parts[chosen].a <= target) target -= parts[chosen++].a;
  if (chosen / kGroups != team.rank()) return kElsewhere;
  // All threads of that part's block search it, each some neighbouring ids.
  const int32_t first = min(row.end, row.begin + chosen % kGroups * part);
  const int32_t last = min(row.end, first + part);
  const int32_t of_thread =
      (part + kThreads<kCluster> - 1) / kThreads<kCluster>;
  const int32_t from =
      min(last, first + static_cast<int32_t>(threadIdx.x) * of_thread);
  const int32_t to = min(last, from + of_thread);
  const auto weight_at = [&](int32_t id) -> uint64_t {
    const float logit = row.logits[id];
    return kept(logit, id) ? weight_of(logit) : 0;
  };
  uint64_t own = 0;
#pragma unroll 1
  for (int32_t id = from; id < to; ++id) own += weight_at(id);
  uint64_t running = ScanBlock<kCluster>(own) - own;
  if (running <= target && running + own > target) {
#pragma unroll 1
    for (int32_t id = from; id < to; ++id) {
      running += weight_at(id);
      if (running > target) {
        s.token = id;
        break;
      }
    }
  }
  __syncthreads();
  return s.token;
}

// Step 2, without the logarithm.
template <bool kCluster>
__device__ __forceinline__ void AddLogprobs(
    Team<kCluster>& team, const CudaSampleRow& r, const Row<kCluster>& row,
    float max, float spread, CudaTopToken* top,
    CudaSampleResult* const (&results)[2]) {
  Memory<kCluster>& s = BlockMemory<kCluster>();
  const Weigher<kCluster> weigh = {max, 1};
  uint64_t sum = 0;
  row.EachWanted([](float, int32_t) { return true; }, weigh,
                 [&](float, int32_t, uint64_t weight) { sum += weight; });
  sum = ReduceLanes<kLanes<kCluster>>(sum, Sum());
  int own = 0;  // of the best that are reported
  if (r.num_logprobs > 0) {
    const uint64_t last = FindCut<kCluster, false>(team, row, weigh, spread,
                                                   {0, r.num_logprobs, 0});
    if (threadIdx.x == 0) s.num_collected = s.num_top = 0;
    __syncthreads();
    row.Each([&](float logit, int32_t id) {
      if (!(logit > -INFINITY)) return;
      const uint64_t key = KeyOf(logit, id);
      if (key >= last) Collect<kCluster>(key);
    });
    __syncthreads();
    own = s.num_collected;
  }
  static_assert(kSampleMaxTop <= kGroups &&
                kSampleMaxTop <= kCollected<kCluster>);
  const int group = team.Group();
  const typename Team<kCluster>::Pairs all =
      team.Exchange({sum, group < own ? s.collected[group] : 0});
  if (team.rank() != 0) return;
  sum = ReduceLanes<32>(team.OfBlocks(all, Sum(), Max()).a, Sum());
  const int thread = static_cast<int>(threadIdx.x);
  int num_top = 0;
  if (r.num_logprobs > 0) {
    if (thread < team.blocks() * kGroups) {
      const uint64_t key = all[0][thread].b;
      if (key != 0) s.top[atomicAdd(&s.num_top, 1)] = key;
    }
    __syncthreads();
    num_top = s.num_top;
    if (thread < num_top) {
      const uint64_t key = s.top[thread];
      int rank = 0;
      for (int i = 0; i < num_top; ++i) rank += s.top[i] > key;
      top[rank] = {IdOf(key), LogitOf(key)};
    }
  }
  if (thread == 0) {
    for (CudaSampleResult* result : results) {
      if (result == nullptr) continue;
      result->sum = sum;
      result->num_top = num_top;
    }
  }
}

// One sample.
template <bool kCluster>
__device__ __forceinline__ void Sample(Team<kCluster>& team,
                                       const CudaSampleParams& p) {
  const CudaSampleRow r = p.samples[team.sample()];
  if (r.row < 0) return;
  const auto vocab = static_cast<int32_t>(p.vocab);
  const int32_t part = SamplePart(vocab, team.blocks());
  const int32_t begin = min(vocab, team.rank() * part);
  Row<kCluster> row = {
      p.logits + r.row * p.stride, begin, min(vocab, begin + part),
      p.stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.logits) % 16 == 0};
  if (r.penalties != 0 || r.num_bias > 0) {
    float* const adjusted = p.adjusted + team.sample() * p.stride;
    Adjust(p, r, row, adjusted);
    row.logits = adjusted;
    row.aligned =
        p.stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.adjusted) % 16 == 0;
  }
  uint64_t best = 0;
  uint64_t worst = ~uint64_t{0};
  row.EachOfMemory([&](float logit, int32_t id) {
    if (!(logit < INFINITY)) best = kBroken;
    if (!(logit > -INFINITY)) return;
    const uint64_t key = KeyOf(logit, id);
    best = key > best ? key : best;
    worst = key < worst ? key : worst;
  });
  const Pair ends = team.Extremes(best, worst);
  best = ends.a;
  // Also to the host if `copy` is set. Two blocks of a cluster may write
  // fields.
  CudaSampleResult* const results[2] = {p.results + team.sample(), r.copy};
  if (best == kBroken || best == 0) {
    if (team.rank() == 0 && threadIdx.x == 0) {
      for (CudaSampleResult* result : results) {
        if (result != nullptr) result->token = kNonFiniteLogits;
      }
    }
    return;
  }
  const float max = LogitOf(best);
  const float spread = max - LogitOf(ends.b);
  int32_t token = row.Has(IdOf(best)) ? IdOf(best) : kElsewhere;
  if (r.inverse_temperature > 0) token = Draw(team, r, vocab, row, max, spread);
  if (r.num_logprobs >= 0) {
    AddLogprobs(team, r, row, max, spread,
                p.top + team.sample() * kSampleMaxTop, results);
  }
  if (token == kElsewhere || threadIdx.x != 0) return;
  const float logit = row.logits[token];
  for (CudaSampleResult* result : results) {
    if (result == nullptr) continue;
    result->token = token;
    result->logit = logit;
    result->max = max;
  }
  if (r.penalties != 0) ++p.counts[r.slot * p.counts_stride + token];
}

template <bool kCluster>
__device__ __forceinline__ void SampleBlock(const CudaSampleParams& p,
                                            int blocks) {
  if (threadIdx.x < kSampleExpEntries)
    BlockMemory<kCluster>().exp_table[threadIdx.x] = kExpTable[threadIdx.x];
  Team<kCluster> team(blocks);
  __syncthreads();
  WaitForPrevious();
  Sample(team, p);
  team.End();
}

// Grid: samples.
__global__ void __launch_bounds__(kThreads<false>)
    sample_kernel(const __grid_constant__ CudaSampleParams p) {
  SampleBlock<false>(p, 1);
}

// Grid: clusters of `blocks` blocks, one a sample. Two blocks fit on a
// multiprocessor.
__global__ void __launch_bounds__(kThreads<true>, 2)
    sample_cluster_kernel(const __grid_constant__ CudaSampleParams p,
                          int blocks) {
#if __CUDA_ARCH__ >= 900
  SampleBlock<true>(p, blocks);
#endif
}

}  // namespace
}  // namespace sampling

namespace {

// Grid: kCountThreads tokens a block.
constexpr int kCountThreads = 256;

__global__ void __launch_bounds__(kCountThreads)
    count_kernel(const __grid_constant__ CudaCountParams p) {
  const int64_t i = int64_t{blockIdx.x} * kCountThreads + threadIdx.x;
  if (i >= p.count) return;
  const uint32_t token = p.tokens[i];
  if ((token & kSampleInPrompt) != 0) {
    atomicOr(p.counts + (token & ~kSampleInPrompt), kSampleInPrompt);
  } else {
    atomicAdd(p.counts + token, 1u);
  }
}

}  // namespace

cudaError_t LaunchSampleOf(int blocks, const CudaSampleParams& p,
                           cudaStream_t stream) {
  using namespace sampling;
  if (p.num_samples < 0 || p.num_samples > INT32_MAX / kSampleMostBlocks ||
      p.vocab < 1 || p.vocab > kMaxSampleVocab || p.stride < p.vocab ||
      blocks < 1 || blocks > kSampleMostBlocks ||
      (blocks & (blocks - 1)) != 0) {
    return cudaErrorInvalidValue;
  }
  if (p.num_samples == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(p.num_samples * blocks);
  if (blocks == 1) {
    return LaunchDependent(sample_kernel, dim3(grid), kThreads<false>, 0,
                           stream, p);
  }
  const cudaError_t error = PrepareHopperKernel(sample_cluster_kernel, 0);
  if (error != cudaSuccess) return error;
  return LaunchDependentCluster(sample_cluster_kernel, dim3(grid),
                                kThreads<true>, 0, blocks, stream, p, blocks);
}

cudaError_t LaunchSample(const CudaSampleParams& p, cudaStream_t stream) {
  int major = 0;
  int multiprocessors = 0;
  cudaError_t error =
      DeviceAttribute(cudaDevAttrComputeCapabilityMajor, &major);
  if (error == cudaSuccess)
    error = DeviceAttribute(cudaDevAttrMultiProcessorCount, &multiprocessors);
  if (error != cudaSuccess) return error;
  return LaunchSampleOf(
      major == 9 ? SampleBlocks(p.num_samples, p.vocab, multiprocessors) : 1, p,
      stream);
}

cudaError_t LaunchCountTokens(const CudaCountParams& p, cudaStream_t stream) {
  if (p.count < 0 || p.count > INT32_MAX) return cudaErrorInvalidValue;
  if (p.count == 0) return cudaSuccess;
  const auto blocks =
      static_cast<unsigned>((p.count + kCountThreads - 1) / kCountThreads);
  count_kernel<<<blocks, kCountThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace recurve
