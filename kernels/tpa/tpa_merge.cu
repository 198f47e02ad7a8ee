#include <algorithm>

#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/tpa_decode.cuh"
#include "kernels/tpa/tpa_fold.cuh"

namespace recurve {
namespace {

constexpr int kMaxWarps = 16;
constexpr int64_t kManyHeads = 1024;
constexpr int64_t kFewHeads = 128;
constexpr int64_t kSharedWanted = 65536;  // bytes a block

// ----------------------------------------------------------------------------
// CUDA kernels

// Partial results of one head, as TpaScratchLayout lays them out.
struct Partials {
  const float2* max_log_sum;  // [slots, slot_rows]
  const float* outputs;       // [slots, slot_rows, width]
  int64_t slot_rows;
  int width;
  int64_t head;  // row of a slot
};

// What a block works with, in shared memory.
struct Work {
  float* results;   // [segments, width]
  float2* max_sum;  // [segments] {maximum, sum}
  float2* scales;   // [segments] FoldScales
  int* begins;      // [segments + 1] first item of a segment
  int32_t* items;   // [chunks] slots of partial results, in order
  int32_t* slots;   // [chunks] as noted, what is stale included
};

// A row's partial results: of a whole segment one, of another one for each
// chunk. By one warp.
__device__ __forceinline__ void ListItems(int row_chunks, int segments,
                                          int whole_slots, const Work& work) {
  const int lane = threadIdx.x % 32;
  int count = 0;
  for (int first = 0; first < row_chunks; first += 32) {
    const int chunk = first + lane;
    bool exists = chunk < row_chunks;
    bool starts = false;
    int segment = 0;
    int32_t slot = 0;
    if (exists) {
      segment = TpaSegmentOf(TpaChunkBegin(chunk));
      const int first_chunk = TpaChunkOf(TpaSegmentBegin(segment));
      starts = chunk == first_chunk;
      slot = work.slots[chunk];
      // What a whole segment's other chunks say is of an earlier launch.
      exists = starts || work.slots[first_chunk] >= whole_slots;
    }
    const uint32_t mask = __ballot_sync(0xffffffffu, exists);
    const int at = count + __popc(mask & ((1u << lane) - 1));
    if (exists) work.items[at] = slot;
    if (starts) work.begins[segment] = at;
    count += __popc(mask);
  }
  if (lane == 0) work.begins[segments] = count;
}

// Merges segments `first` up to without `last`, to work.results. By one warp;
// a lane has 4 features of each 128.
template <int kQuads>
__device__ __forceinline__ void MergeSegments(const Partials& partials,
                                              const Work& work, int first,
                                              int last) {
  constexpr int kBatch = 8;  // loads in flight
  const int lane = threadIdx.x % 32;
  const int end = work.begins[last];
  int segment = first;
  float2 total = {};
  float4 out[kQuads];
#pragma unroll 1
  for (int base = work.begins[first]; base < end; base += kBatch) {
    float2 max_sum[kBatch];
    float4 next[kBatch][kQuads];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int item = min(base + i, end - 1);
      const int64_t at = work.items[item] * partials.slot_rows + partials.head;
      max_sum[i] = partials.max_log_sum[at];
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const int feature = 4 * lane + 128 * q;
        if (feature < partials.width) {
          next[i][q] = *reinterpret_cast<const float4*>(
              partials.outputs + at * partials.width + feature);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int item = base + i;
      if (item >= end) break;
      if (item == work.begins[segment]) {
        total = max_sum[i];
#pragma unroll
        for (int q = 0; q < kQuads; ++q) out[q] = next[i][q];
      } else {
        const float max = fmaxf(total.x, max_sum[i].x);
        const FoldScales scales = ScalesFor(total.x, max_sum[i].x, max);
        total = {max, Fold(total.y, max_sum[i].y, scales)};
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          out[q].x = Fold(out[q].x, next[i][q].x, scales);
          out[q].y = Fold(out[q].y, next[i][q].y, scales);
          out[q].z = Fold(out[q].z, next[i][q].z, scales);
          out[q].w = Fold(out[q].w, next[i][q].w, scales);
        }
      }
      if (item + 1 < work.begins[segment + 1]) continue;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const int feature = 4 * lane + 128 * q;
        if (feature < partials.width) {
          *reinterpret_cast<float4*>(work.results + segment * partials.width +
                                     feature) = out[q];
        }
      }
      if (lane == 0) work.max_sum[segment] = total;
      ++segment;
    }
  }
}

// A block merges `heads` heads (of one row, over its new tokens), each with
// `warps` warps: first these merge some segments each, then all of them the
// segments.
template <int kQuads>
__global__ void __launch_bounds__(32 * kMaxWarps)
    tpa_merge_kernel(const __grid_constant__ TpaDecodeArgs args, int heads,
                     int warps) {
  extern __shared__ float4 shared[];
  const TpaCudaDecodeParams& p = args.p;
  const int num_heads = static_cast<int>(p.shape.num_heads);
  const int row = blockIdx.y;
  const int warp = threadIdx.x / 32;
  const int local = warp / warps;  // head of the block
  const int part = warp % warps;
  const int thread = threadIdx.x % (32 * warps);
  const int index = blockIdx.x * heads + local;  // of new token and head
  const bool exists = index < p.new_tokens * num_heads;
  const int t = exists ? index / num_heads : 0;
  const int head = exists ? index % num_heads : 0;
  const int max_segments = static_cast<int>(args.scratch.max_segments);
  const int value_dim = static_cast<int>(p.shape.value_dim);
  const auto* scratch = static_cast<const char*>(p.scratch);
  const auto* chunk_slots =
      reinterpret_cast<const int32_t*>(scratch + args.scratch.chunk_slot) +
      row * args.scratch.max_chunks;
  const Partials partials = {
      reinterpret_cast<const float2*>(scratch + args.scratch.max_log_sum),
      reinterpret_cast<const float*>(scratch + args.scratch.outputs),
      args.scratch.slot_rows, static_cast<int>(args.scratch.slot_width),
      (t * args.head_groups + head / 16) * 16 + head % 16};
  Work work;
  float* results = reinterpret_cast<float*>(shared);
  work.results = results + local * max_segments * partials.width;
  float2* pairs = reinterpret_cast<float2*>(results + heads * max_segments *
                                                          partials.width);
  work.max_sum = pairs + 2 * local * max_segments;
  work.scales = work.max_sum + max_segments;
  work.begins = reinterpret_cast<int*>(pairs + 2 * heads * max_segments);
  work.items = work.begins + max_segments + 1;
  work.slots = work.items + args.scratch.max_chunks;
  float* out = p.out + (int64_t{row} * p.new_tokens + t) * p.out_stride +
               head * value_dim;
  const int length = RowLength(args, row);
  const int row_chunks = TpaChunkCount(length);
  const int segments = TpaSegmentCount(length);
  WaitForPrevious();
  for (int i = threadIdx.x; i < row_chunks; i += blockDim.x) {
    work.slots[i] = chunk_slots[i];
  }
  __syncthreads();
  if (warp == 0) {
    ListItems(row_chunks, segments, p.rows * max_segments, work);
  }
  __syncthreads();
  if (segments == 0) {
    for (int e = thread; exists && e < value_dim; e += 32 * warps) {
      out[e] = 0.0f;
    }
    return;
  }
  if (work.items[0] == kRowIsDone) return;
  const int share = (segments + warps - 1) / warps;
  const int first = min(part * share, segments);
  MergeSegments<kQuads>(partials, work, first, min(first + share, segments));
  __syncthreads();
  // The running maximum before and after each segment gives its scales.
  for (int s = thread; s < segments; s += 32 * warps) {
    float before = kMinusInfinity;
    for (int i = 0; i < s; ++i) before = fmaxf(before, work.max_sum[i].x);
    const float max = work.max_sum[s].x;
    const FoldScales scale = ScalesFor(before, max, fmaxf(before, max));
    work.scales[s] = {scale.running, scale.next};
  }
  __syncthreads();
  for (int e = thread; exists && e < value_dim; e += 32 * warps) {
    float value = work.results[e];
    float sum = work.max_sum[0].y;
#pragma unroll 4
    for (int s = 1; s < segments; ++s) {
      const FoldScales scale = {work.scales[s].x, work.scales[s].y};
      value = Fold(value, work.results[s * partials.width + e], scale);
      sum = Fold(sum, work.max_sum[s].y, scale);
    }
    out[e] =
        __fmul_rn(value, Normalizer(sum, static_cast<int>(p.shape.kv_rank)));
  }
}

}  // namespace

// ----------------------------------------------------------------------------
// Launchers

cudaError_t LaunchTpaMerge(const TpaDecodeArgs& args, bool dependent_launch,
                           cudaStream_t stream) {
  const int64_t width = args.scratch.slot_width;
  const auto kernel = width <= 128 ? tpa_merge_kernel<1> : tpa_merge_kernel<2>;
  const int64_t segments = args.scratch.max_segments;
  const int64_t heads = args.p.new_tokens * args.p.shape.num_heads;
  // Where there are many heads to merge, some in a block share the list of
  // partial results, and few warps work on each; else latency is what counts,
  // and as many warps as can do.
  const int64_t head_bytes = segments * (4 * width + 16);
  const bool many = args.p.rows * heads >= kManyHeads;
  int64_t in_block = 1;
  while (many && in_block < 4 && 2 * in_block * head_bytes <= kSharedWanted) {
    in_block *= 2;
  }
  // Segments of few heads may come in chunks, a batch of loads for each.
  const int64_t wanted =
      args.p.rows * heads < kFewHeads
          ? segments
          : std::max<int64_t>(segments / 4,
                              many ? 1 : std::min<int64_t>(segments, 4));
  const int64_t warps =
      std::min<int64_t>(std::max<int64_t>(wanted, 1), kMaxWarps / in_block);
  const size_t bytes =
      in_block * head_bytes + 4 * (segments + 1) + 8 * args.scratch.max_chunks;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>((heads + in_block - 1) / in_block),
           static_cast<unsigned>(args.p.rows));
  config.blockDim = dim3(static_cast<unsigned>(32 * warps * in_block));
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = dependent_launch ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args, static_cast<int>(in_block),
                            static_cast<int>(warps));
}

}  // namespace recurve
