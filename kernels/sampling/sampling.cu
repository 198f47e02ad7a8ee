// One block a sample. It reads its row some ten times where a truncation asks
// for it; after the first time it is in the L1 cache, or the L2.

#include <cstdint>

#include "kernels/common/dependent_launch.cuh"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_weight.h"

namespace recurve {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = 2 * kThreads;  // two a thread
constexpr int kBinBits = 11;
constexpr unsigned kAll = 0xffffffffu;

__constant__ double kExpTable[kSampleExpEntries] = RECURVE_SAMPLE_EXP_TABLE;

// A larger logit is a larger key, and among equals the smaller id is. No
// possible token has key 0.
__device__ __forceinline__ uint64_t KeyOf(float logit, int32_t id) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 equals +0
  const uint32_t order = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{order} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
__device__ __forceinline__ int32_t IdOf(uint64_t key) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}
__device__ __forceinline__ float LogitOf(uint64_t key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((order >> 31) != 0 ? order ^ 0x80000000u : ~order);
}

struct Shared {
  double exp_table[kSampleExpEntries];
  uint64_t reduce[kWarps];
  uint64_t warp_sums[kWarps];
  uint32_t low[kBins];   // a bin's sum, lower half
  uint32_t high[kBins];  // upper half
  uint64_t above;        // sum before the bin that was found
  int32_t found;
  int32_t token;
  uint64_t top[kSampleMaxTop];
  int32_t num_top;
};

struct Sum {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Max {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
    return a > b ? a : b;
  }
};
struct Min {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const {
    return a < b ? a : b;
  }
};

// `value` of all threads together, in all threads.
template <typename Op>
__device__ uint64_t Reduce(uint64_t value, Op op, Shared& s) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(kAll, value, offset));
  __syncthreads();  // the last one's reads are done
  if (threadIdx.x % 32 == 0) s.reduce[threadIdx.x / 32] = value;
  __syncthreads();
  value = s.reduce[threadIdx.x % 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = op(value, __shfl_xor_sync(kAll, value, offset));
  return value;
}

// The sum of `value` over this thread and those before it; the sum over all in
// *total.
__device__ uint64_t Scan(uint64_t value, Shared& s, uint64_t* total) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t before = __shfl_up_sync(kAll, value, offset);
    if (lane >= offset) value += before;
  }
  __syncthreads();
  if (lane == 31) s.reduce[warp] = value;
  __syncthreads();
  uint64_t sums = s.reduce[lane];
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const uint64_t before = __shfl_up_sync(kAll, sums, offset);
    if (lane >= offset) sums += before;
  }
  *total = __shfl_sync(kAll, sums, 31);
  const uint64_t before = __shfl_sync(kAll, sums, warp > 0 ? warp - 1 : 0);
  return warp > 0 ? value + before : value;
}

// The row as it is sampled.
struct Row {
  const float* logits;
  int32_t vocab;
  bool aligned;

  // f(logit, id) for every id from `begin` on and below `end`, by threads
  // `thread`, + `threads`, ...; `begin` is a multiple of 4.
  template <typename F>
  __device__ void Each(int32_t begin, int32_t end, int thread, int threads,
                       F f) const {
    const int32_t whole = aligned ? begin + (end - begin) / 4 * 4 : begin;
#pragma unroll 2
    for (int32_t id = begin + 4 * thread; id < whole; id += 4 * threads) {
      const float4 four = *reinterpret_cast<const float4*>(logits + id);
      f(four.x, id);
      f(four.y, id + 1);
      f(four.z, id + 2);
      f(four.w, id + 3);
    }
    for (int32_t id = whole + thread; id < end; id += threads)
      f(logits[id], id);
  }
  template <typename F>
  __device__ void Each(F f) const {
    Each(0, vocab, threadIdx.x, kThreads, f);
  }
};

struct Weigher {
  double max;
  double inverse_temperature;
  const double* table;

  __device__ double Exact(float logit) const {
    return SampleExp(SampleMul(SampleAdd(logit, -max), inverse_temperature),
                     table);
  }
  __device__ uint64_t operator()(float logit) const {
    return SampleFixed(Exact(logit));
  }
};

// Step 1: the sample's row with penalties and bias, in *to.
__device__ void Adjust(const CudaSampleParams& p, const CudaSampleRow& r,
                       const Row& row, float* to) {
  const uint32_t* counts = p.counts + r.slot * p.counts_stride;
  for (int32_t id = threadIdx.x; id < row.vocab; id += kThreads) {
    float l = row.logits[id];
    const uint32_t seen = r.penalties != 0 ? counts[id] : 0;
    if (seen != 0) {
      l = l > 0 ? __fdiv_rn(l, r.repetition_penalty)
                : __fmul_rn(l, r.repetition_penalty);
      const uint32_t in_output = seen & ~kSampleInPrompt;
      if (in_output > 0) {
        l = __fsub_rn(l, r.presence_penalty);
        l = __fsub_rn(
            l, __fmul_rn(r.frequency_penalty, static_cast<float>(in_output)));
      }
    }
    to[id] = l;
  }
  __syncthreads();
  // An id belongs to one thread, so that its entries are added in their order.
  const CudaBias* bias = p.bias + int64_t{r.slot} * kSampleMaxBias;
  for (int i = 0; i < r.num_bias; ++i) {
    const CudaBias entry = bias[i];
    if (entry.id % kThreads == static_cast<int>(threadIdx.x))
      to[entry.id] = __fadd_rn(to[entry.id], entry.bias);
  }
  __syncthreads();
}

// Adds `amount` to a bin.
__device__ __forceinline__ void AddToBin(Shared& s, int bin, uint64_t amount) {
  const auto low = static_cast<uint32_t>(amount);
  auto high = static_cast<uint32_t>(amount >> 32);
  const uint32_t before = atomicAdd(&s.low[bin], low);
  if (before + low < before) ++high;
  if (high != 0) atomicAdd(&s.high[bin], high);
}

__device__ __forceinline__ void ClearBins(Shared& s) {
  __syncthreads();
  for (int i = threadIdx.x; i < kBins; i += kThreads) s.low[i] = s.high[i] = 0;
  __syncthreads();
}

// What may be cut: by how many tokens, or by their weights.
struct Cut {
  bool by_weight;
  uint64_t floor;  // only tokens with this key or a larger one
  int64_t top_k;   // !by_weight: so many are kept
  float top_p;     // by_weight
};

// The key of the last token, in rank order, that `cut` keeps: that with which
// the sum of amounts reaches its target. `range` is how far below the largest
// logit the last that counts may be.
//
// First the bin of the logit, of equal widths, in which it is; then, as long as
// that holds more than one token, narrower bins of keys.
__device__ uint64_t FindCut(const Row& row, const Weigher& weigh, float peak,
                            float range, const Cut& cut, Shared& s) {
  const auto amount_of = [&](float logit) -> uint64_t {
    return cut.by_weight ? weigh(logit) : uint64_t{1};
  };
  const float scale = static_cast<float>(kBins) / range;
  // Of a NaN, from a range of 0 or without bounds, this is 0.
  const auto bin_of = [&](float logit) {
    return min(kBins - 1, __float2int_rz((peak - logit) * scale));
  };
  uint64_t target = 0;  // of the amounts from `above` on
  // Sets s.found and s.above, and target the first time.
  const auto find = [&](bool first) -> bool {
    __syncthreads();
    const int bin = 2 * threadIdx.x;
    const uint64_t a = uint64_t{s.high[bin]} << 32 | s.low[bin];
    const uint64_t b = uint64_t{s.high[bin + 1]} << 32 | s.low[bin + 1];
    uint64_t total;
    const uint64_t sum = Scan(a + b, s, &total);
    if (first) {
      if (cut.by_weight) {
        target = SampleThreshold(cut.top_p, total);
      } else {
        target = static_cast<uint64_t>(cut.top_k);
        if (total <= target) return false;
      }
    }
    const uint64_t before = sum - a - b;
    if (before < target && sum >= target) {
      const bool second = before + a < target;
      s.found = bin + second;
      s.above = second ? before + a : before;
    }
    __syncthreads();
    target -= s.above;
    return true;
  };

  ClearBins(s);
  row.Each([&](float logit, int32_t id) {
    if (!(logit > -INFINITY) || KeyOf(logit, id) < cut.floor) return;
    const uint64_t amount = amount_of(logit);
    if (amount != 0) AddToBin(s, bin_of(logit), amount);
  });
  if (!find(true)) return cut.floor > 0 ? cut.floor : 1;  // all are kept

  const int first_bin = s.found;
  uint64_t high = ~uint64_t{0};
  uint64_t low = cut.floor > 0 ? cut.floor : 1;
  bool first = true;
  while (true) {
    // The interval shrinks to the tokens in it.
    uint64_t largest = 0;
    uint64_t smallest = ~uint64_t{0};
    row.Each([&](float logit, int32_t id) {
      if (!(logit > -INFINITY)) return;
      const uint64_t key = KeyOf(logit, id);
      if (key < low || key > high) return;
      if (first && bin_of(logit) != first_bin) return;
      largest = key > largest ? key : largest;
      smallest = key < smallest ? key : smallest;
    });
    high = Reduce(largest, Max(), s);
    low = Reduce(smallest, Min(), s);
    first = false;
    if (low >= high) return high;
    const int shift = max(0, 64 - __clzll(high - low) - kBinBits);
    ClearBins(s);
    row.Each([&](float logit, int32_t id) {
      if (!(logit > -INFINITY)) return;
      const uint64_t key = KeyOf(logit, id);
      if (key < low || key > high) return;
      const uint64_t amount = amount_of(logit);
      if (amount != 0)
        AddToBin(s, static_cast<int>((high - key) >> shift), amount);
    });
    find(false);
    high -= static_cast<uint64_t>(s.found) << shift;
    const uint64_t width = (uint64_t{1} << shift) - 1;
    if (high - low > width) low = high - width;
    if (low == high) return high;
  }
}

// Steps 5 to 8.
__device__ int32_t Draw(const CudaSampleRow& r, const Row& row, float max,
                        float spread, Shared& s) {
  const Weigher weigh = {max, r.inverse_temperature, s.exp_table};
  uint64_t floor = 0;
  if (r.top_k > 0 && r.top_k < row.vocab) {
    floor = FindCut(row, weigh, max, spread, {false, 0, r.top_k, 0}, s);
  }
  if (!(r.top_p >= 1)) {
    // What is further away than this weighs nothing.
    const auto reach =
        static_cast<float>(-1.01 * kSampleExpMin / r.inverse_temperature);
    floor = FindCut(row, weigh, max, fminf(spread, reach),
                    {true, floor, 0, r.top_p}, s);
  }
  const double min_p = r.min_p;
  const auto weight_of = [&](float logit, int32_t id) -> uint64_t {
    if (floor != 0 && KeyOf(logit, id) < floor) return 0;
    const double weight = weigh.Exact(logit);
    return weight >= min_p ? SampleFixed(weight) : 0;
  };
  // Each warp adds up a part of the row.
  const int32_t part = ((row.vocab + kWarps - 1) / kWarps + 127) / 128 * 128;
  const int warp = threadIdx.x / 32;
  const int32_t begin = min(row.vocab, warp * part);
  uint64_t sum = 0;
  row.Each(begin, min(row.vocab, begin + part), threadIdx.x % 32, 32,
           [&](float logit, int32_t id) { sum += weight_of(logit, id); });
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    sum += __shfl_xor_sync(kAll, sum, offset);
  if (threadIdx.x % 32 == 0) s.warp_sums[warp] = sum;
  if (threadIdx.x == 0) s.token = 0;
  __syncthreads();
  uint64_t total = 0;
  for (int w = 0; w < kWarps; ++w) total += s.warp_sums[w];
  uint64_t target = SampleTarget(r.uniform, total);
  int chosen = 0;
  while (chosen < kWarps - 1 && s.warp_sums[chosen] <= target)
    target -= s.warp_sums[chosen++];
  // All threads go through the part in which it is, some ids each.
  const int32_t first = min(row.vocab, chosen * part);
  const int32_t last = min(row.vocab, first + part);
  const int32_t each = (part + kThreads - 1) / kThreads;
  const int32_t from =
      min(last, first + static_cast<int32_t>(threadIdx.x) * each);
  const int32_t to = min(last, from + each);
  uint64_t own = 0;
  for (int32_t id = from; id < to; ++id) own += weight_of(row.logits[id], id);
  uint64_t scanned;
  uint64_t running = Scan(own, s, &scanned) - own;
  if (running <= target && running + own > target) {
    for (int32_t id = from; id < to; ++id) {
      running += weight_of(row.logits[id], id);
      if (running > target) {
        s.token = id;
        break;
      }
    }
  }
  __syncthreads();
  return s.token;
}

// Step 2, but for the logarithm.
__device__ void AddLogprobs(const CudaSampleRow& r, const Row& row, float max,
                            float spread, CudaTopToken* top,
                            CudaSampleResult* result, Shared& s) {
  const Weigher weigh = {max, 1, s.exp_table};
  uint64_t sum = 0;
  row.Each([&](float logit, int32_t) { sum += weigh(logit); });
  sum = Reduce(sum, Sum(), s);
  int num_top = 0;
  if (r.num_logprobs > 0) {
    const uint64_t last =
        FindCut(row, weigh, max, spread, {false, 0, r.num_logprobs, 0}, s);
    if (threadIdx.x == 0) s.num_top = 0;
    __syncthreads();
    row.Each([&](float logit, int32_t id) {
      if (!(logit > -INFINITY)) return;
      const uint64_t key = KeyOf(logit, id);
      if (key >= last) s.top[atomicAdd(&s.num_top, 1)] = key;
    });
    __syncthreads();
    num_top = s.num_top;
    if (static_cast<int>(threadIdx.x) < num_top) {
      const uint64_t key = s.top[threadIdx.x];
      int rank = 0;
      for (int i = 0; i < num_top; ++i) rank += s.top[i] > key;
      top[rank] = {IdOf(key), LogitOf(key)};
    }
  }
  if (threadIdx.x == 0) {
    result->sum = sum;
    result->num_top = num_top;
  }
}

// Grid: samples.
__global__ void __launch_bounds__(kThreads)
    sample_kernel(const __grid_constant__ CudaSampleParams p) {
  __shared__ Shared s;
  if (threadIdx.x < kSampleExpEntries)
    s.exp_table[threadIdx.x] = kExpTable[threadIdx.x];
  WaitForPrevious();
  const CudaSampleRow r = p.samples[blockIdx.x];
  if (r.row < 0) return;
  Row row = {
      p.logits + r.row * p.stride, static_cast<int32_t>(p.vocab),
      p.stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.logits) % 16 == 0};
  if (r.penalties != 0 || r.num_bias > 0) {
    float* const adjusted = p.adjusted + blockIdx.x * p.stride;
    Adjust(p, r, row, adjusted);
    row.logits = adjusted;
    row.aligned =
        p.stride % 4 == 0 && reinterpret_cast<uintptr_t>(p.adjusted) % 16 == 0;
  }
  uint64_t best = 0;
  uint64_t worst = ~uint64_t{0};
  bool broken = false;
  row.Each([&](float logit, int32_t id) {
    broken |= !(logit < INFINITY);
    if (!(logit > -INFINITY)) return;
    const uint64_t key = KeyOf(logit, id);
    best = key > best ? key : best;
    worst = key < worst ? key : worst;
  });
  broken = __syncthreads_or(broken) != 0;
  best = Reduce(best, Max(), s);
  CudaSampleResult* const result = p.results + blockIdx.x;
  if (broken || best == 0) {
    if (threadIdx.x == 0) {
      result->token = kNonFiniteLogits;
      if (r.copy != nullptr) r.copy->token = kNonFiniteLogits;
    }
    return;
  }
  worst = Reduce(worst, Min(), s);
  const float max = LogitOf(best);
  const float spread = max - LogitOf(worst);
  int32_t token = IdOf(best);
  if (r.inverse_temperature > 0) token = Draw(r, row, max, spread, s);
  if (r.num_logprobs >= 0) {
    AddLogprobs(r, row, max, spread, p.top + blockIdx.x * kSampleMaxTop, result,
                s);
  }
  if (threadIdx.x != 0) return;
  result->token = token;
  result->logit = row.logits[token];
  result->max = max;
  if (r.copy != nullptr) *r.copy = *result;
  if (r.penalties != 0) ++p.counts[r.slot * p.counts_stride + token];
}

// Grid: so many tokens a block.
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

cudaError_t LaunchSample(const CudaSampleParams& p, cudaStream_t stream) {
  if (p.num_samples < 0 || p.num_samples > INT32_MAX || p.vocab < 1 ||
      p.vocab > kMaxSampleVocab || p.stride < p.vocab) {
    return cudaErrorInvalidValue;
  }
  if (p.num_samples == 0) return cudaSuccess;
  return LaunchDependent(sample_kernel,
                         dim3(static_cast<unsigned>(p.num_samples)), kThreads,
                         0, stream, p);
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
