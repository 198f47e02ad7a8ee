#ifndef RECURVE_BENCH_CUDA_TPA_BENCH_H_
#define RECURVE_BENCH_CUDA_TPA_BENCH_H_

#include <vector>

#include "bench/cuda/gpu_timer.h"

namespace recurve {
namespace bench {

// TPA decode: the planner's choice at the shapes that targets name, ragged and
// contiguous batches, alone (its queries are formed), with the append in the
// same launch (tpa_layer; where that cannot be, as the next) and in one before
// it (tpa_layer_apart), and each form over batch and length. In two launches
// every case is first checked against float64, and the forms against each
// other; a wrong result ends the program. That one launch has the same bits is
// gpu_tpa_test's to say. A quick run leaves out the sweep of the forms.
std::vector<Result> BenchTpa(const BenchOptions& options);

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_TPA_BENCH_H_
