#ifndef RECURVE_BENCH_CUDA_SMALL_OPS_BENCH_H_
#define RECURVE_BENCH_CUDA_SMALL_OPS_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// LRPE over whole sequences, each encoding with each activation.
std::vector<Result> BenchLrpe(const BenchOptions& options);
// RMSNorm, the gated norm and the GLU gate at the sizes of a decode step.
std::vector<Result> BenchNorm(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_SMALL_OPS_BENCH_H_
