#ifndef RECURVE_BENCH_CUDA_GATED_DELTA_BENCH_H_
#define RECURVE_BENCH_CUDA_GATED_DELTA_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// The gated delta rule's step, alone and with convolution and norm, and prompts
// by chunks, in bfloat16.
std::vector<Result> BenchGatedDelta(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_GATED_DELTA_BENCH_H_
