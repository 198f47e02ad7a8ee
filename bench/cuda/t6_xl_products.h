// The products of a decode step of T6-XL.
#ifndef RECURVE_BENCH_CUDA_T6_XL_PRODUCTS_H_
#define RECURVE_BENCH_CUDA_T6_XL_PRODUCTS_H_

#include <cstdint>

namespace recurve {
namespace bench {

struct StepProduct {
  const char* name;
  int64_t outputs, inputs, cols;  // inputs: cols, padded
  bool norm, gate, add;
};
// Products of a layer, in the order of a step.
inline constexpr StepProduct kT6XlLayer[] = {
    {"factors", 1420, 1600, 1600, true, false, false},
    {"attention out", 1600, 4992, 4992, false, false, true},
    {"gate and up", 8532, 1600, 1600, true, true, false},
    {"down", 1600, 4288, 4266, false, false, true},
};
inline constexpr int kT6XlProducts = 4;
inline constexpr StepProduct kT6XlHead = {"head", 50304, 1600, 1600,
                                          false,  false, false};
// Layers whose weights no cache holds.
inline constexpr int kT6XlBenchLayers = 8;

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_T6_XL_PRODUCTS_H_
