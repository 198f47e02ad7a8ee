// Launcher of TPA prefill: for each group of heads that scratch memory holds,
// one launch of tpa_prefill_prepare.cu, then one of the kernel in
// tpa_prefill_attend.cuh.
// Shapes: queries [T, H, D], contexts of L tokens in pages of rank R, out
// [T, H, E].
// Floor: compute bound: 2 · H · (D + E) flops for each pair of a query and a
// token that it sees.
#include <algorithm>

#include "kernels/common/alignment.h"
#include "kernels/common/shared_memory.h"
#include "kernels/tpa/prefill/tpa_prefill_args.cuh"
#include "kernels/tpa/prefill/tpa_prefill_attend.cuh"

namespace recurve {
namespace {

template <typename T, int kWidth>
cudaError_t Launch(const TpaPrefillArgs& args, int blocks,
                   cudaStream_t stream) {
  using S = TpaPrefillSizes<kWidth>;
  const auto kernel = tpa_prefill_attend<T, S>;
  const cudaError_t error = AllowSharedMemory(kernel, S::kBytes);
  if (error != cudaSuccess) return error;
  return LaunchTpaPrefillNext(kernel, dim3(blocks), S::kThreads, S::kBytes,
                              stream, args);
}

template <typename T>
cudaError_t LaunchWidth(const TpaPrefillArgs& args, const TpaPrefillPlan& plan,
                        int blocks, cudaStream_t stream) {
  switch (plan.width) {
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

bool Valid(const TpaPrefillParams& p, const TpaPrefillPlan& plan) {
  if (plan.query_tiles == 0) return false;
  TpaPrefillLimits limits = {plan.max_rows, 1, 1, 0};
  const TpaPrefillPlan same = PlanTpaPrefill(p.shape, limits);
  const TpaPageLayout layout(p.shape, TpaPageOrder::kOctets);
  const bool angles =
      p.position == LrpeType::kNone ||
      (p.position == LrpeType::kRotate && p.cos != nullptr && p.sin != nullptr);
  return same.query_tiles > 0 && same.width == plan.width &&
         plan.head_group >= 1 && plan.head_group <= p.shape.num_heads &&
         p.cache.page_stride % 8 == 0 &&
         p.cache.page_stride >= layout.page_elements &&
         IsThere(p.cache.pages) && p.cache.page_table != nullptr &&
         (p.shape.q_rank == 0 || p.a_q != nullptr) && p.b_q != nullptr &&
         angles && IsThere(p.out) && p.out_stride % 8 == 0 &&
         p.out_stride >= p.shape.num_heads * p.shape.value_dim &&
         IsThere(p.schedule, 128) && IsThere(p.scratch, 128);
}

}  // namespace

cudaError_t LaunchTpaPrefill(const TpaPrefillParams& params,
                             const TpaPrefillPlan& plan, cudaStream_t stream) {
  if (!Valid(params, plan)) return cudaErrorInvalidValue;
  TpaDevice device = {};
  cudaError_t error = GetTpaAttributes(&device);
  if (error != cudaSuccess) return error;
  if (!device.hopper) return cudaErrorNotSupported;
  TpaPrefillArgs args = {
      params,
      TpaPageLayout(params.shape, TpaPageOrder::kOctets),
      TpaPrefillSchedule(plan.query_tiles, plan.key_tiles),
      0,
      0,
      plan.query_tile,
      plan.key_tile,
      plan.width,
      plan.query_tiles,
      plan.query_bytes,
      plan.context_bytes,
      static_cast<char*>(params.scratch) + plan.head_group * plan.query_bytes};
  const int num_heads = static_cast<int>(params.shape.num_heads);
  while (args.first_head < num_heads && error == cudaSuccess) {
    args.heads = std::min(plan.head_group, num_heads - args.first_head);
    error = LaunchTpaPrefillPrepare(args, plan, device.multiprocessors, stream);
    if (error == cudaSuccess) {
      error =
          LaunchTpaPrefillAttend(args, plan, device.multiprocessors, stream);
    }
    args.first_head += args.heads;
  }
  return error;
}

cudaError_t LaunchTpaPrefillAttend(const TpaPrefillArgs& args,
                                   const TpaPrefillPlan& plan,
                                   int multiprocessors, cudaStream_t stream) {
  const int blocks = static_cast<int>(std::min<int64_t>(
      multiprocessors, int64_t{plan.query_tiles} * args.heads));
  return args.p.cache.element == TpaElement::kBFloat16
             ? LaunchWidth<__nv_bfloat16>(args, plan, blocks, stream)
             : LaunchWidth<__half>(args, plan, blocks, stream);
}

}  // namespace recurve
