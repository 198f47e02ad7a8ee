// The decode kernel with wgmma and bulk copies: sm_90a.
#include "kernels/tpa/tpa_kernel.cuh"

namespace recurve {
namespace {

template <typename T, int kColumns, int kTiles>
__global__ void __launch_bounds__(kTpaMaxThreads, 1)
    tpa_decode_kernel(const __grid_constant__ TpaDecodeArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TpaDecodeBlock<T, kColumns, kTiles, TpaWgmmaProducts<T, kColumns, kTiles>>(
      args);
#else
  __trap();  // never launched: LaunchTpaDecode checks the device
#endif
}

template <typename T>
cudaError_t LaunchVariant(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                          cudaStream_t stream) {
  switch (plan.variant) {
    case 0:
      return LaunchTpaKernel(tpa_decode_kernel<T, 16, 1>, args, plan, stream);
    case 1:
      return LaunchTpaKernel(tpa_decode_kernel<T, 16, 2>, args, plan, stream);
    case 2:
      return LaunchTpaKernel(tpa_decode_kernel<T, 16, 4>, args, plan, stream);
    case 3:
      return LaunchTpaKernel(tpa_decode_kernel<T, 40, 1>, args, plan, stream);
    case 4:
      return LaunchTpaKernel(tpa_decode_kernel<T, 40, 2>, args, plan, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchTpaHopper(const TpaDecodeArgs& args,
                            const TpaDecodePlan& plan, cudaStream_t stream) {
  return args.p.cache.element == TpaElement::kBFloat16
             ? LaunchVariant<__nv_bfloat16>(args, plan, stream)
             : LaunchVariant<__half>(args, plan, stream);
}

}  // namespace recurve
