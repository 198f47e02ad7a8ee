// TPA decode for sm_80 and newer: as tpa_decode_hopper.cuh, with mma.sync and
// cp.async by one producer warp a lane.
// Shapes: those of tpa_decode_hopper.cuh.
// Floor: pages · 64 · R · (2 H + D + E) · 2 bytes.
#include "kernels/tpa/decode/tpa_kernel.cuh"

namespace recurve {
namespace {

template <typename T, int kTiles>
__global__ void __launch_bounds__(kTpaMaxThreads, 1)
    tpa_decode_kernel(const __grid_constant__ TpaDecodeArgs args) {
  TpaDecodeBlock<T, 32, kTiles, 0, TpaMmaProducts<T, 32, kTiles>>(args);
}

template <typename T>
cudaError_t LaunchVariant(const TpaDecodeArgs& args, const TpaDecodePlan& plan,
                          cudaStream_t stream) {
  switch (plan.variant) {
    case 0:
      return LaunchTpaKernel(tpa_decode_kernel<T, 1>, args, plan, stream);
    case 1:
      return LaunchTpaKernel(tpa_decode_kernel<T, 2>, args, plan, stream);
    case 2:
      return LaunchTpaKernel(tpa_decode_kernel<T, 4>, args, plan, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchTpaPortable(const TpaDecodeArgs& args,
                              const TpaDecodePlan& plan, cudaStream_t stream) {
  return args.p.cache.element == TpaElement::kBFloat16
             ? LaunchVariant<__nv_bfloat16>(args, plan, stream)
             : LaunchVariant<__half>(args, plan, stream);
}

}  // namespace recurve
