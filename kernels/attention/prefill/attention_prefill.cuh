// Launch steps shared by the files of prefill attention.
#ifndef RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_CUH_
#define RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_CUH_

#include "kernels/attention/prefill/attention_prefill_shared.cuh"

namespace recurve {

// Writes queries into scratch memory: norm, position, times all factors of a
// score; and zeroes the counter of items.
cudaError_t LaunchAttentionPrefillPrepare(const AttentionPrefillArgs& args,
                                          cudaStream_t stream);
// Attends in plain arithmetic, without scratch memory.
cudaError_t LaunchAttentionPrefillPlain(const AttentionPrefillArgs& args,
                                        cudaStream_t stream);

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_PREFILL_ATTENTION_PREFILL_CUH_
