// Tile choice of wide_matmul.cu. Pure functions of sizes; results do not depend
// on it.
#ifndef RECURVE_KERNELS_MATMUL_WIDE_MATMUL_PLAN_H_
#define RECURVE_KERNELS_MATMUL_WIDE_MATMUL_PLAN_H_

#include <cstdint>
#include <iterator>

#include "kernels/matmul/decode_matmul_order.h"

namespace recurve {

// Rows and outputs of a block, and the relative time of a wave of such blocks
// among forms of its kind. (Measured with the matrices of T6-XL, in µs;
// docs/kernels/matmul.md. With few rows: outputs, as the bytes.)
struct WideForm {
  int rows;
  int outputs;
  double cost;
};

// For matrices not in parts. The first two are for up to 128 rows, where the
// weights' bytes bound a wave.
inline constexpr WideForm kWholeForms[] = {
    {128, 80, 80.0}, {128, 96, 96.0}, {256, 80, 16.2}, {128, 256, 27.0}};
inline constexpr int kWholeFormsOfFewRows = 2;
// For matrices in parts: the first two have parts side by side, the others one
// after the other. The first is for up to 128 rows; the last four are for up to
// 64 and up to 128 rows of matrices with many outputs, where the weights' bytes
// bound a wave.
inline constexpr WideForm kPartsForms[] = {
    {64, 32, 0.0},    {64, 64, 15.5},   {128, 64, 23.0},
    {128, 128, 32.5}, {128, 160, 39.5}, {64, 32, 32.0},
    {64, 48, 48.0},   {128, 32, 32.0},  {128, 48, 48.0}};
inline constexpr int kFirstTallForm = 5;
inline constexpr int kTallForms = 2;  // for as many rows

// Whether up to 128 rows of a matrix in parts with this number of outputs have
// the last forms. They fill one wave, up to 48 outputs a multiprocessor; the
// blocks of others would bring in more bytes than a multiprocessor takes.
constexpr bool HasTallForms(int64_t outputs, int multiprocessors) {
  return outputs > 16 * multiprocessors;
}

// Whether blocks of kPartsForms[1] are clusters of two by two that share
// copies: with 193 to 256 rows, which are four tiles, if all clusters are
// resident at once. A device holds about ten of eleven clusters that its
// multiprocessors would suffice for (30 of 33 on an H100). (Measured: no gain
// with fewer rows.)
constexpr bool SharesPartsTiles(int64_t rows, int64_t outputs,
                                int multiprocessors) {
  const int64_t side = 2 * kPartsForms[1].outputs;
  const int64_t blocks = 2 * 4 * ((outputs + side - 1) / side);
  return rows > 192 && rows <= 256 && blocks * 11 <= multiprocessors * 10;
}

// Index in kWholeForms, or kPartsForms, of the fastest: fewest waves, weighted
// by their cost.
constexpr int ChooseWideForm(int64_t rows, int64_t outputs, int64_t inputs,
                             int multiprocessors) {
  const bool parts = DecodeMatmulSplits(outputs, inputs) > 1;
  const WideForm* const forms = parts ? kPartsForms : kWholeForms;
  int first = 0, end = 0;
  if (!parts) {
    first = rows <= 128 ? 0 : kWholeFormsOfFewRows;
    end = rows <= 128 ? kWholeFormsOfFewRows
                      : static_cast<int>(std::size(kWholeForms));
  } else if (rows > 128) {
    first = 1;
    end = kFirstTallForm;
  } else if (HasTallForms(outputs, multiprocessors)) {
    first = kFirstTallForm + (rows <= 64 ? 0 : kTallForms);
    end = first + kTallForms;
  } else {
    return 0;
  }
  int best = first;
  double least = 0.0;
  for (int i = first; i < end; ++i) {
    const int64_t blocks =
        (rows + forms[i].rows - 1) / forms[i].rows *
        ((outputs + forms[i].outputs - 1) / forms[i].outputs);
    const int64_t waves = (blocks + multiprocessors - 1) / multiprocessors;
    const double cost = static_cast<double>(waves) * forms[i].cost;
    if (i == first || cost < least) {
      best = i;
      least = cost;
    }
  }
  return best;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_WIDE_MATMUL_PLAN_H_
