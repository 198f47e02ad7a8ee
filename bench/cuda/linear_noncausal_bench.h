#ifndef RECURVE_BENCH_CUDA_LINEAR_NONCAUSAL_BENCH_H_
#define RECURVE_BENCH_CUDA_LINEAR_NONCAUSAL_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// Non-causal linear attention with an output gate, checked against float64
// first.
std::vector<Result> BenchLinearNoncausal(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_LINEAR_NONCAUSAL_BENCH_H_
