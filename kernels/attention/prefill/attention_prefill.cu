// Launcher of prefill attention: attention_prefill_prepare.cu, then the kernel
// in attention_prefill_attend.cuh; or attention_prefill_plain.cu alone.
// Shapes: q [T, H, D], contexts of L tokens in pages, out [T, H, E].
// Floor: compute bound: 2 · H · (D + E) flops for each pair of a query and a
// token that it sees.
#include <algorithm>

#include "kernels/attention/attention_encode.cuh"
#include "kernels/attention/prefill/attention_prefill.cuh"
#include "kernels/attention/prefill/attention_prefill_attend.cuh"
#include "kernels/common/alignment.h"
#include "kernels/common/dependent_launch.cuh"
#include "kernels/common/shared_memory.h"

namespace recurve {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

template <typename T, int kWidth>
cudaError_t Launch(const AttentionPrefillArgs& args, int blocks,
                   cudaStream_t stream) {
  using S = AttentionPrefillSizes<kWidth>;
  const auto kernel = attention_prefill_attend<T, S>;
  const cudaError_t error = AllowSharedMemory(kernel, S::kBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, dim3(static_cast<unsigned>(blocks)),
                         S::kThreads, S::kBytes, stream, args);
}

template <typename T>
cudaError_t LaunchWidth(const AttentionPrefillArgs& args, int blocks,
                        cudaStream_t stream) {
  switch (args.width) {
    case 64:
      return Launch<T, 64>(args, blocks, stream);
    case 128:
      return Launch<T, 128>(args, blocks, stream);
    case 256:
      return Launch<T, 256>(args, blocks, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

bool Valid(const AttentionPrefillParams& p, const AttentionPrefillPlan& plan,
           const AttentionPageLayout& layout) {
  const AttentionShape& s = p.shape;
  return plan.query_tiles > 0 && s.num_heads == plan.shape.num_heads &&
         s.num_kv_heads == plan.shape.num_kv_heads &&
         s.head_dim == plan.shape.head_dim &&
         s.value_dim == plan.shape.value_dim &&
         p.cache.element == plan.element && p.cache.page_stride % 8 == 0 &&
         p.cache.page_stride >= layout.page_elements &&
         IsThere(p.cache.pages) && p.cache.page_table != nullptr &&
         p.q != nullptr && AttentionPositionComplete(p.position) &&
         AttentionOutputValid(s, p.out) && IsThere(p.schedule, 128) &&
         (plan.scratch_bytes == 0 || IsThere(p.scratch, 128));
}

}  // namespace

cudaError_t LaunchAttentionPrefill(const AttentionPrefillParams& params,
                                   const AttentionPrefillPlan& plan,
                                   cudaStream_t stream) {
  const AttentionPageLayout layout(params.shape,
                                   AttentionOrderOf(params.cache.element));
  if (!Valid(params, plan, layout)) return cudaErrorInvalidValue;
  AttentionDevice device = {};
  cudaError_t error = GetAttentionDevice(&device);
  if (error != cudaSuccess) return error;
  const AttentionPrefillArgs args = {
      params,
      layout,
      AttentionPrefillSchedule(plan.query_tiles),
      plan.query_tile,
      plan.width,
      static_cast<int>(AttentionGroup(params.shape)),
      plan.query_tiles,
      plan.query_bytes,
      params.scale * kLog2E,
      IsAligned(params.q) && params.stride % 4 == 0};
  if (params.cache.element == WeightType::kFloat32 || !device.hopper) {
    return LaunchAttentionPrefillPlain(args, stream);
  }
  error = LaunchAttentionPrefillPrepare(args, stream);
  if (error != cudaSuccess) return error;
  const int blocks = static_cast<int>(std::min<int64_t>(
      device.multiprocessors, plan.query_tiles * params.shape.num_heads));
  return params.cache.element == WeightType::kBFloat16
             ? LaunchWidth<__nv_bfloat16>(args, blocks, stream)
             : LaunchWidth<__half>(args, blocks, stream);
}

}  // namespace recurve
