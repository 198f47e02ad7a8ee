// Tile choice of gated_matmul.cu. Pure functions of sizes; results do not
// depend on it.
#ifndef RECURVE_KERNELS_MATMUL_GATED_MATMUL_PLAN_H_
#define RECURVE_KERNELS_MATMUL_GATED_MATMUL_PLAN_H_

#include <cstdint>
#include <iterator>

#include "kernels/common/activation.h"
#include "kernels/matmul/decode_matmul_order.h"

namespace recurve {

// Whether gated_matmul.cu takes the gate of a matrix with `outputs` outputs,
// both halves, if results are 16-bit: not of matrices in parts.
constexpr bool IsGatedMatmul(int64_t outputs, int64_t inputs,
                             Activation activation) {
  return activation == Activation::kSilu &&
         DecodeMatmulSplits(outputs, inputs) == 1;
}

// Rows of a cluster, 128 of each of its two blocks; and the fewest rows for
// which it is faster than wide_matmul.cu. (Measured.)
inline constexpr int64_t kGatedRows = 256;
inline constexpr int64_t kGatedLeastRows = 193;

// Features of a block, and the time of a round of tiles in which every
// multiprocessor has one. (Measured with the matrix of T6-XL, in µs;
// docs/kernels/matmul.md.)
struct GatedForm {
  int features;
  double cost;
};
inline constexpr GatedForm kGatedForms[] = {
    {72, 11.2}, {88, 13.2}, {128, 18.1}};

// Index in kGatedForms of the fastest: fewest rounds, weighted by their cost.
constexpr int ChooseGatedForm(int64_t rows, int64_t features,
                              int multiprocessors) {
  const int64_t pairs = (rows + kGatedRows - 1) / kGatedRows;
  const int64_t clusters = multiprocessors / 2;
  int best = 0;
  double least = 0.0;
  for (int i = 0; i < static_cast<int>(std::size(kGatedForms)); ++i) {
    const int64_t tiles = pairs * ((features + kGatedForms[i].features - 1) /
                                   kGatedForms[i].features);
    const int64_t rounds = (tiles + clusters - 1) / clusters;
    const double cost = static_cast<double>(rounds) * kGatedForms[i].cost;
    if (i == 0 || cost < least) {
      best = i;
      least = cost;
    }
  }
  return best;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_GATED_MATMUL_PLAN_H_
