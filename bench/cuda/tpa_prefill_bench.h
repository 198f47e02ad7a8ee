#ifndef RECURVE_BENCH_CUDA_TPA_PREFILL_BENCH_H_
#define RECURVE_BENCH_CUDA_TPA_PREFILL_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// TPA over prompts, both forms; a layer's work, and the schedule that its
// layers share. Every case is first checked against float64; a wrong result
// ends the program. A quick run has only the shapes with targets.
std::vector<Result> BenchTpaPrefill(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_TPA_PREFILL_BENCH_H_
