// Which tiles wide_matmul.cu takes. Pure code: sizes in, a form out. No bit of
// a result depends on it.
#ifndef RECURVE_KERNELS_MATMUL_WIDE_MATMUL_PLAN_H_
#define RECURVE_KERNELS_MATMUL_WIDE_MATMUL_PLAN_H_

#include <cstdint>
#include <iterator>

#include "kernels/matmul/decode_matmul_order.h"

namespace recurve {

// Rows and outputs of a block, and about what a wave of such blocks takes next
// to the others of its kind. (Measured with the matrices of T6-XL, in µs;
// docs/kernels/matmul.md.)
struct WideForm {
  int rows;
  int outputs;
  double cost;
};

// Of matrices that are not in parts. The first is for up to 128 rows.
inline constexpr WideForm kWholeForms[] = {
    {128, 80, 0.0}, {256, 80, 16.2}, {128, 256, 27.0}};
// Of matrices in parts: the first two have parts side by side, the others one
// after the other. The first is for up to 128 rows.
inline constexpr WideForm kPartsForms[] = {{64, 32, 0.0},
                                           {64, 64, 15.5},
                                           {128, 64, 23.0},
                                           {128, 128, 32.5},
                                           {128, 160, 39.5}};

// Whether blocks of kPartsForms[1] are clusters of two by two that share what
// they bring in: of 193 to 256 rows, which are four tiles, if all clusters are
// there at once. A device has room for about ten of eleven that its
// multiprocessors would be enough for (30 of 33 on an H100). (Measured: of
// fewer rows it gains nothing.)
constexpr bool SharesPartsTiles(int64_t rows, int64_t outputs,
                                int multiprocessors) {
  const int64_t side = 2 * kPartsForms[1].outputs;
  const int64_t blocks = 2 * 4 * ((outputs + side - 1) / side);
  return rows > 192 && rows <= 256 && blocks * 11 <= multiprocessors * 10;
}

// The place in kWholeForms, or kPartsForms, of what is fastest: the fewest
// waves of blocks, by their cost.
constexpr int ChooseWideForm(int64_t rows, int64_t outputs,
                             int multiprocessors) {
  if (rows <= 128) return 0;
  const bool parts = DecodeMatmulSplits(outputs) > 1;
  const WideForm* const forms = parts ? kPartsForms : kWholeForms;
  const int count =
      static_cast<int>(parts ? std::size(kPartsForms) : std::size(kWholeForms));
  int best = 1;
  double least = 0.0;
  for (int i = 1; i < count; ++i) {
    const int64_t blocks =
        (rows + forms[i].rows - 1) / forms[i].rows *
        ((outputs + forms[i].outputs - 1) / forms[i].outputs);
    const int64_t waves = (blocks + multiprocessors - 1) / multiprocessors;
    const double cost = static_cast<double>(waves) * forms[i].cost;
    if (i == 1 || cost < least) {
      best = i;
      least = cost;
    }
  }
  return best;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_MATMUL_WIDE_MATMUL_PLAN_H_
