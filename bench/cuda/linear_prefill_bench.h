#ifndef RECURVE_BENCH_CUDA_LINEAR_PREFILL_BENCH_H_
#define RECURVE_BENCH_CUDA_LINEAR_PREFILL_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// Causal linear attention over prompts, checked against the step kernel first.
std::vector<Result> BenchLinearPrefill(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_LINEAR_PREFILL_BENCH_H_
