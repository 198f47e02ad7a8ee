#include "kernels/common/async_copy.cuh"
#include "kernels/tpa/tpa_decode.cuh"
#include "kernels/tpa/tpa_fold.cuh"

namespace recurve {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

// ----------------------------------------------------------------------------
// CUDA kernels

struct Partial {
  const float2* max_log_sum;  // [slots, slot_rows]
  const float* outputs;       // [slots, slot_rows, width]
  int64_t slot_rows;
  int64_t width;
  int64_t head;  // row of a slot
};

// The result of a segment, in `out` (this lane's 4 features of each 128) and as
// {maximum, sum}: one partial, or those of its chunks merged.
template <int kQuads>
__device__ float2 SegmentResult(const Partial& partial, const int32_t* slots,
                                int chunks, int whole_slots,
                                float4 (&out)[kQuads]) {
  const int lane = threadIdx.x % 32;
  const int slot = lane < chunks ? slots[lane] : 0;
  const int count =
      __shfl_sync(0xffffffffu, slot, 0) < whole_slots ? 1 : chunks;
  float2 max_sum[kTpaSegmentChunks];
  float4 next[kTpaSegmentChunks][kQuads];
#pragma unroll
  for (int i = 0; i < kTpaSegmentChunks; ++i) {
    if (i >= count) break;
    const int64_t at =
        __shfl_sync(0xffffffffu, slot, i) * partial.slot_rows + partial.head;
    max_sum[i] = partial.max_log_sum[at];
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int feature = 4 * lane + 128 * q;
      next[i][q] = feature < partial.width
                       ? *reinterpret_cast<const float4*>(
                             partial.outputs + at * partial.width + feature)
                       : float4{};
    }
  }
  float2 total = max_sum[0];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) out[q] = next[0][q];
#pragma unroll
  for (int i = 1; i < kTpaSegmentChunks; ++i) {
    if (i >= count) break;
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
  return total;
}

// One block a row and head (of one new token): the warps merge a segment each,
// then all threads the segments.
template <int kQuads>
__global__ void __launch_bounds__(kThreads)
    tpa_merge_kernel(const __grid_constant__ TpaDecodeArgs args) {
  extern __shared__ float4 shared[];
  const TpaCudaDecodeParams& p = args.p;
  const int heads = static_cast<int>(p.shape.num_heads);
  const int head = blockIdx.x % heads;
  const int t = blockIdx.x / heads;
  const int row = blockIdx.y;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int length = RowLength(args, row);
  const int row_chunks = TpaChunkCount(length);
  const int segments = TpaSegmentCount(length);
  const int width = static_cast<int>(args.scratch.slot_width);
  float* out = p.out + (int64_t{row} * p.new_tokens + t) * p.out_stride +
               head * p.shape.value_dim;
  const int value_dim = static_cast<int>(p.shape.value_dim);
  const auto* scratch = static_cast<const char*>(p.scratch);
  const auto* slots =
      reinterpret_cast<const int32_t*>(scratch + args.scratch.chunk_slot) +
      row * args.scratch.max_chunks;
  const Partial partial = {
      reinterpret_cast<const float2*>(scratch + args.scratch.max_log_sum),
      reinterpret_cast<const float*>(scratch + args.scratch.outputs),
      args.scratch.slot_rows, width,
      (t * args.head_groups + head / 16) * 16 + head % 16};
  WaitForPrevious();
  if (segments == 0) {
    for (int e = threadIdx.x; e < value_dim; e += kThreads) out[e] = 0.0f;
    return;
  }
  if (slots[0] == kRowIsDone) return;

  float* results = reinterpret_cast<float*>(shared);  // [segments, width]
  float2* max_sums = reinterpret_cast<float2*>(results + segments * width);
  float2* scales = max_sums + segments;
  const int whole_slots = static_cast<int>(p.rows * args.scratch.max_segments);
  for (int s = warp; s < segments; s += kWarps) {
    const int first = TpaChunkOf(TpaSegmentBegin(s));
    const int end = min(TpaChunkOf(TpaSegmentBegin(s + 1)), row_chunks);
    float4 merged[kQuads];
    const float2 max_sum = SegmentResult<kQuads>(
        partial, slots + first, end - first, whole_slots, merged);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int feature = 4 * lane + 128 * q;
      if (feature < width) {
        *reinterpret_cast<float4*>(results + s * width + feature) = merged[q];
      }
    }
    if (lane == 0) max_sums[s] = max_sum;
  }
  __syncthreads();
  // The running maximum before and after each segment gives its scales.
  for (int s = threadIdx.x; s < segments; s += kThreads) {
    float before = kMinusInfinity;
    for (int i = 0; i < s; ++i) before = fmaxf(before, max_sums[i].x);
    const float max = max_sums[s].x;
    const FoldScales scale = ScalesFor(before, max, fmaxf(before, max));
    scales[s] = {scale.running, scale.next};
  }
  __syncthreads();
  for (int e = threadIdx.x; e < value_dim; e += kThreads) {
    float value = results[e];
    float sum = max_sums[0].y;
    for (int s = 1; s < segments; ++s) {
      const FoldScales scale = {scales[s].x, scales[s].y};
      value = Fold(value, results[s * width + e], scale);
      sum = Fold(sum, max_sums[s].y, scale);
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
  const size_t bytes = args.scratch.max_segments * (4 * width + 16);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim =
      dim3(static_cast<unsigned>(args.p.new_tokens * args.p.shape.num_heads),
           static_cast<unsigned>(args.p.rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = dependent_launch ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace recurve
