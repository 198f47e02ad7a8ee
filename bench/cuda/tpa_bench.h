#ifndef RECURVE_BENCH_CUDA_TPA_BENCH_H_
#define RECURVE_BENCH_CUDA_TPA_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// TPA decode: the planner's choice at the shapes with targets, ragged and
// contiguous batches, alone (with queries formed), with the append in the same
// launch (tpa_layer; or as the next, where that is not possible) and in a
// separate one before it (tpa_layer_apart), and each form over batch and
// length. Every case is first checked in two launches against float64, and the
// forms against each other; a wrong result ends the program. gpu_tpa_test
// checks the bits of one launch. A quick run leaves out the sweep of the forms.
std::vector<Result> BenchTpa(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_TPA_BENCH_H_
