#ifndef RECURVE_BENCH_CUDA_LINEAR_BENCH_H_
#define RECURVE_BENCH_CUDA_LINEAR_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// The cached linear-attention step: both forms, float32 and bfloat16 states.
std::vector<Result> BenchLinear(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_LINEAR_BENCH_H_
