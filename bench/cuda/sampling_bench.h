#ifndef RECURVE_BENCH_CUDA_SAMPLING_BENCH_H_
#define RECURVE_BENCH_CUDA_SAMPLING_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// Drawing a token for each row of logits, as at the end of a step.
std::vector<Result> BenchSampling(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_SAMPLING_BENCH_H_
