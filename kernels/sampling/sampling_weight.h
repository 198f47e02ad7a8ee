#ifndef RECURVE_KERNELS_SAMPLING_SAMPLING_WEIGHT_H_
#define RECURVE_KERNELS_SAMPLING_SAMPLING_WEIGHT_H_

// Weight of a token in the draw (step 4 of sampling.h), with the same bits on
// the CPU and on the GPU: exp by a table and a polynomial, each operation
// rounded separately; sums are of integers, so their order does not matter.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/common/host_device.h"

namespace recurve {

// Unit of weights in a sum: 2^-40. The best token has 2^40 units.
inline constexpr int kSampleWeightBits = 40;
inline constexpr double kSampleWeightOne = int64_t{1} << kSampleWeightBits;
// Keeps sums below 2^63.
inline constexpr int64_t kMaxSampleVocab = int64_t{1} << 23;

// Multiply and add, never fused into one rounding.
RECURVE_HOST_DEVICE inline double SampleMul(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
RECURVE_HOST_DEVICE inline double SampleAdd(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
RECURVE_HOST_DEVICE inline uint64_t SampleBits(double x) {
#ifdef __CUDA_ARCH__
  return static_cast<uint64_t>(__double_as_longlong(x));
#else
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}
RECURVE_HOST_DEVICE inline double SampleFromBits(uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __longlong_as_double(static_cast<long long>(bits));
#else
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

// 2^(i / 32), rounded.
inline constexpr int kSampleExpEntries = 32;
#define RECURVE_SAMPLE_EXP_TABLE                                          \
  {                                                                       \
    0x1.0000000000000p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0,     \
        0x1.11301d0125b51p+0, 0x1.172b83c7d517bp+0, 0x1.1d4873168b9aap+0, \
        0x1.2387a6e756238p+0, 0x1.29e9df51fdee1p+0, 0x1.306fe0a31b715p+0, \
        0x1.371a7373aa9cbp+0, 0x1.3dea64c123422p+0, 0x1.44e086061892dp+0, \
        0x1.4bfdad5362a27p+0, 0x1.5342b569d4f82p+0, 0x1.5ab07dd485429p+0, \
        0x1.6247eb03a5585p+0, 0x1.6a09e667f3bcdp+0, 0x1.71f75e8ec5f74p+0, \
        0x1.7a11473eb0187p+0, 0x1.82589994cce13p+0, 0x1.8ace5422aa0dbp+0, \
        0x1.93737b0cdc5e5p+0, 0x1.9c49182a3f090p+0, 0x1.a5503b23e255dp+0, \
        0x1.ae89f995ad3adp+0, 0x1.b7f76f2fb5e47p+0, 0x1.c199bdd85529cp+0, \
        0x1.cb720dcef9069p+0, 0x1.d5818dcfba487p+0, 0x1.dfc97337b9b5fp+0, \
        0x1.ea4afa2a490dap+0, 0x1.f50765b6e4540p+0                        \
  }

// Below this, exp is less than half of 2^-40.
inline constexpr double kSampleExpMin = -29;

// exp(x) for kSampleExpMin <= x <= 0, within 2^-48 of it; exactly 1 at 0.
// `table` is RECURVE_SAMPLE_EXP_TABLE.
RECURVE_HOST_DEVICE inline double SampleExpInRange(double x,
                                                   const double* table) {
  // x = k · ln 2 / 32 + r. Adding and subtracting 1.5 · 2^52 rounds to k.
  constexpr double kRound = 0x1.8p52;
  const double k =
      SampleAdd(SampleAdd(SampleMul(x, 0x1.71547652b82fep+5), kRound), -kRound);
  const double r = SampleAdd(x, SampleMul(k, -0x1.62e42fefa39efp-6));
  double p = SampleAdd(SampleMul(r, 1.0 / 120), 1.0 / 24);
  p = SampleAdd(SampleMul(r, p), 1.0 / 6);
  p = SampleAdd(SampleMul(r, p), 0.5);
  p = SampleAdd(SampleMul(r, p), 1);
  p = SampleAdd(SampleMul(r, p), 1);
  const int n = static_cast<int>(k);
  const double power =
      SampleFromBits(static_cast<uint64_t>(1023 + (n >> 5)) << 52);
  return SampleMul(SampleMul(p, table[n & 31]), power);
}

// The same for any x <= 0: 0 below kSampleExpMin, at -Inf and for NaN.
RECURVE_HOST_DEVICE inline double SampleExp(double x, const double* table) {
  return x >= kSampleExpMin ? SampleExpInRange(x, table) : 0;
}

// A weight in units of 2^-40. REQUIRES: 0 <= weight < 2^11.
RECURVE_HOST_DEVICE inline uint64_t SampleFixed(double weight) {
  // The bits of 2^52 + n end in n.
  const double sum = SampleAdd(SampleMul(weight, kSampleWeightOne), 0x1p52);
  return SampleBits(sum) & ((uint64_t{1} << 52) - 1);
}

// The least sum that is at least `top_p` of `total`; 1 to total.
RECURVE_HOST_DEVICE inline uint64_t SampleThreshold(float top_p,
                                                    uint64_t total) {
  const double wanted = SampleMul(top_p, static_cast<double>(total));
  if (!(wanted > 1)) return 1;
  if (wanted >= static_cast<double>(total)) return total;
  const auto floor = static_cast<uint64_t>(wanted);
  return floor + (static_cast<double>(floor) < wanted ? 1 : 0);
}

// The token drawn is the first whose running sum exceeds this. `uniform` is u
// as a multiple of 2^-53.
RECURVE_HOST_DEVICE inline uint64_t SampleTarget(uint64_t uniform,
                                                 uint64_t total) {
#ifdef __CUDA_ARCH__
  const uint64_t high = __umul64hi(uniform, total);
#else
  const auto high = static_cast<uint64_t>(
      (static_cast<unsigned __int128>(uniform) * total) >> 64);
#endif
  return high << 11 | (uniform * total) >> 53;
}

// Log of the sum of exp over all logits, from the largest and the sum of
// weights at temperature 1. On the host.
inline double SampleLogSum(float max, uint64_t sum) {
  return static_cast<double>(max) +
         std::log(static_cast<double>(sum) / kSampleWeightOne);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_SAMPLING_WEIGHT_H_
