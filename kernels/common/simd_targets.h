// Which instruction sets Highway compiles the vector kernels for; include
// before any Highway header. The best one the machine has is chosen at run
// time, once, so that every row of a process is computed by the same code.
//
// Left out: sets that add nothing here, and those with vectors of unknown
// length, which cannot sit in the arrays of accumulators that the kernels use.
#ifndef RECURVE_KERNELS_COMMON_SIMD_TARGETS_H_
#define RECURVE_KERNELS_COMMON_SIMD_TARGETS_H_

#define HWY_DISABLED_TARGETS                                                  \
  (HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)

#endif  // RECURVE_KERNELS_COMMON_SIMD_TARGETS_H_
