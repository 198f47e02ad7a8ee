// The products of a decode step of some models.
#ifndef RECURVE_BENCH_CUDA_STEP_PRODUCTS_H_
#define RECURVE_BENCH_CUDA_STEP_PRODUCTS_H_

#include <cstdint>

namespace recurve {
namespace bench {

struct StepProduct {
  const char* name;
  int64_t outputs, inputs, cols;  // inputs: cols, padded
  bool norm, gate, add;
};
inline constexpr int kStepProducts = 4;  // of a layer
struct StepModel {
  const char* name;
  StepProduct layer[kStepProducts];  // in the order of a step
  StepProduct head;
  int layers;  // whose weights no cache holds
  int64_t most_cols;
};
inline constexpr StepModel kT6Xl = {
    "t6-xl",
    {{"factors", 1420, 1600, 1600, true, false, false},
     {"attention out", 1600, 4992, 4992, false, false, true},
     {"gate and up", 8532, 1600, 1600, true, true, false},
     {"down", 1600, 4288, 4266, false, false, true}},
    {"head", 50304, 1600, 1600, false, false, false},
    8,
    8576};
// Its layers with the gated delta rule.
inline constexpr StepModel kQwen9b = {
    "qwen3.5-9b",
    {{"in", 12352, 4096, 4096, true, false, false},
     {"out", 4096, 4096, 4096, false, false, true},
     {"gate and up", 24576, 4096, 4096, true, true, false},
     {"down", 4096, 12288, 12288, false, false, true}},
    {"head", 248320, 4096, 4096, false, false, false},
    3,
    24576};
inline constexpr const StepModel* kStepModels[] = {&kT6Xl, &kQwen9b};

}  // namespace bench
}  // namespace recurve

#endif  // RECURVE_BENCH_CUDA_STEP_PRODUCTS_H_
