#ifndef RECURVE_TOOLS_RECURVE_MODEL_PLANNER_H_
#define RECURVE_TOOLS_RECURVE_MODEL_PLANNER_H_

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tools/recurve_model/checkpoint_plan.h"

namespace recurve {

// Standard deviation of the logits; below about 1, sampling is close to
// uniform.
inline constexpr double kLogitDeviation = 3;

// Collects the tensors of a plan.
class Planner {
 public:
  // y = W x with W [rows, cols]: y is `gain` times as large as x.
  void Matrix(const std::string& name, int64_t rows, int64_t cols,
              double gain = 1) {
    tensors_.push_back({name + ".weight",
                        {rows, cols},
                        0,
                        gain / std::sqrt(static_cast<double>(cols))});
  }
  // Near 1, but not 1, so that a weight that is not applied is detected; or
  // near 0, where a family adds 1.
  void Norm(const std::string& name, int64_t size, double mean = 1) {
    tensors_.push_back({name + ".weight", {size}, mean, 0.1});
  }
  void Table(const std::string& name, int64_t rows, int64_t cols,
             double deviation) {
    tensors_.push_back({name + ".weight", {rows, cols}, 0, deviation});
  }
  void Add(PlannedTensor tensor) { tensors_.push_back(std::move(tensor)); }

  std::vector<PlannedTensor> Take() { return std::move(tensors_); }

 private:
  std::vector<PlannedTensor> tensors_;
};

// Each layer adds to the residual stream twice; all additions together have a
// magnitude of about 1.
inline double ResidualGain(int64_t layers) {
  return 1 / std::sqrt(2 * static_cast<double>(layers));
}

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_PLANNER_H_
