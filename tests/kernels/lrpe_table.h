#ifndef RECURVE_TESTS_KERNELS_LRPE_TABLE_H_
#define RECURVE_TESTS_KERNELS_LRPE_TABLE_H_

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/lrpe/lrpe.h"

namespace recurve {

// The table of angles for the rows of one step, as a backend computes it.
struct LrpeTestTable {
  LrpeTestTable(LrpeType type, int64_t dim, double base,
                const std::vector<int64_t>& positions, ThreadPool& pool) {
    const std::vector<uint64_t> steps =
        LrpePhaseSteps(LrpeTheta(type, dim, base));
    angles = static_cast<int64_t>(steps.size());
    const int64_t rows = static_cast<int64_t>(positions.size());
    cos.resize(rows * angles);
    sin.resize(rows * angles);
    LrpeTable(
        {steps.data(), positions.data(), cos.data(), sin.data(), rows, angles},
        pool);
  }

  int64_t angles;
  std::vector<float> cos;  // [rows, angles]
  std::vector<float> sin;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_LRPE_TABLE_H_
