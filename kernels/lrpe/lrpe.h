#ifndef RECURVE_KERNELS_LRPE_LRPE_H_
#define RECURVE_KERNELS_LRPE_LRPE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace recurve {

class ThreadPool;

// Linearized relative positional encoding (Qin et al., 2023): q and k are
// transformed at position p so that their product depends on the distance only.
//
//   rotate: x = [x₁, x₂] in halves of D/2,
//           y = [x₁ cos(pθ) − x₂ sin(pθ), x₁ sin(pθ) + x₂ cos(pθ)]
//   cosine: y = [x cos(pθ), x sin(pθ)], twice as long as x
enum class LrpeType { kNone, kRotate, kCosine };

// How many angles an encoding of `dim` features has (rotate: dim / 2, cosine:
// dim).
constexpr int64_t LrpeAngles(LrpeType type, int64_t dim) {
  switch (type) {
    case LrpeType::kNone:
      return 0;
    case LrpeType::kRotate:
      return dim / 2;
    case LrpeType::kCosine:
      return dim;
  }
  return 0;
}
// The length of an encoded vector (cosine: 2 · dim).
constexpr int64_t LrpeOutputDim(LrpeType type, int64_t dim) {
  return type == LrpeType::kCosine ? 2 * dim : dim;
}

// θ_k = base^(−2k/dim), for k below LrpeAngles(type, dim).
std::vector<double> LrpeTheta(LrpeType type, int64_t dim, double base);

// θ / 2π in units of 2⁻⁶⁴ turns. Multiplied by a position in 64-bit arithmetic
// it wraps exactly at whole turns, so an angle is as accurate at position
// 1,000,000 as at 1; p · θ in float32 is wrong by 0.02 radians there.
std::vector<uint64_t> LrpePhaseSteps(absl::Span<const double> theta);

// cos and sin of position · θ.
struct LrpeTableParams {
  const uint64_t* phase_steps;  // [angles]
  const int64_t* positions;     // [rows], >= 0
  float* cos;                   // [rows, angles]
  float* sin;                   // [rows, angles]
  int64_t rows;
  int64_t angles;
};
void LrpeTable(const LrpeTableParams& params, ThreadPool& pool);

// Tables of models whose angles are computed in float32, as one product
// position · θ, rounding included; their weights were trained with them. cos
// and sin may then be rounded to bfloat16, and both are multiplied by
// exp(|position · θ| · log_decay), a decay by absolute position (T6).
struct LrpeFloat32TableParams {
  const float* theta;        // [angles] radians a position
  const int64_t* positions;  // [rows], >= 0
  float* cos;                // [rows, angles]
  float* sin;                // [rows, angles]
  int64_t rows;
  int64_t angles;
  float log_decay;  // <= 0 for a decay; 0: none
  bool round_to_bfloat16;
};
void LrpeFloat32Table(const LrpeFloat32TableParams& params, ThreadPool& pool);

// Encodes one vector: y[0..LrpeOutputDim) from x[0..dim). `cos` and `sin` are
// its row of a table. y may be x only when type is kNone.
inline void LrpeApply(LrpeType type, const float* x, const float* cos,
                      const float* sin, int64_t dim, float* y) {
  switch (type) {
    case LrpeType::kNone:
      for (int64_t i = 0; i < dim; ++i) y[i] = x[i];
      return;
    case LrpeType::kRotate: {
      const int64_t half = dim / 2;
      for (int64_t i = 0; i < half; ++i) {
        y[i] = x[i] * cos[i] - x[half + i] * sin[i];
        y[half + i] = x[i] * sin[i] + x[half + i] * cos[i];
      }
      return;
    }
    case LrpeType::kCosine:
      for (int64_t i = 0; i < dim; ++i) {
        y[i] = x[i] * cos[i];
        y[dim + i] = x[i] * sin[i];
      }
      return;
  }
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_LRPE_LRPE_H_
