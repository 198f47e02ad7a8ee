#ifndef RECURVE_BENCH_CUDA_ATTENTION_BENCH_H_
#define RECURVE_BENCH_CUDA_ATTENTION_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// Softmax attention: decode alone, decode with the append before it
// (attention_layer), and prefill, over pages in bfloat16. Every case is first
// checked against float64; a wrong result ends the program. A quick run has
// only the shapes with targets.
std::vector<Result> BenchAttention(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_ATTENTION_BENCH_H_
