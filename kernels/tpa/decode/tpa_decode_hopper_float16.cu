// TPA decode on sm_90a from float16 pages: shapes, floor and technique are in
// tpa_decode_hopper.cuh.
#include "kernels/tpa/decode/tpa_decode_hopper.cuh"

namespace recurve {

cudaError_t LaunchTpaHopperFloat16(const TpaDecodeArgs& args,
                                   const TpaDecodePlan& plan,
                                   cudaStream_t stream) {
  return LaunchVariant<__half>(args, plan, stream);
}

}  // namespace recurve
