#ifndef RECURVE_BENCH_CUDA_MATMUL_BENCH_H_
#define RECURVE_BENCH_CUDA_MATMUL_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// Products of a decode step of T6-XL, separately, and those of a layer in
// sequence. Checks results before it times.
std::vector<Result> BenchMatmul(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_MATMUL_BENCH_H_
