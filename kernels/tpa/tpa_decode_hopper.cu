// The decode kernel with wgmma and bulk copies: sm_90a.
#include "kernels/tpa/tpa_kernel.cuh"

namespace recurve {
namespace {

template <typename T, int kColumns, int kTiles, int kSteps>
__global__ void __launch_bounds__(kTpaMaxThreads, 1)
    tpa_decode_kernel(const __grid_constant__ TpaDecodeArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TpaDecodeBlock<T, kColumns, kTiles,
                 TpaWgmmaProducts<T, kColumns, kTiles, kSteps>>(args);
#else
  __trap();  // never launched: LaunchTpaDecode checks the device
#endif
}

template <typename T>
cudaError_t LaunchVariant(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                          cudaStream_t stream) {
  // Common sizes have instances of their own: D = E = 64 or 128.
  const TpaShape& shape = args.p.shape;
  const bool square = shape.head_dim == shape.value_dim;
  const bool is_64 = square && shape.head_dim == 64;
  const bool is_128 = square && shape.head_dim == 128;
  const auto launch = [&](auto kernel) {
    return LaunchTpaKernel(kernel, args, plan, stream);
  };
  switch (plan.variant) {
    case 0:
      return is_64 ? launch(tpa_decode_kernel<T, 16, 1, 4>)
                   : launch(tpa_decode_kernel<T, 16, 1, 0>);
    case 1:
      return is_128 ? launch(tpa_decode_kernel<T, 16, 2, 8>)
                    : launch(tpa_decode_kernel<T, 16, 2, 0>);
    case 2:
      return launch(tpa_decode_kernel<T, 16, 4, 0>);
    case 3:
      return is_64 ? launch(tpa_decode_kernel<T, 40, 1, 4>)
                   : launch(tpa_decode_kernel<T, 40, 1, 0>);
    case 4:
      return is_128 ? launch(tpa_decode_kernel<T, 40, 2, 8>)
                    : launch(tpa_decode_kernel<T, 40, 2, 0>);
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
