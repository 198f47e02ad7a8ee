// Instruction sets that Highway compiles the vector kernels for; include before
// any Highway header. The best one of the machine is chosen once at run time,
// so the same code computes every row of a process.
//
// Left out: sets that add nothing here, and those with vectors of unknown
// length, which cannot be elements of the kernels' arrays of accumulators.
#ifndef RECURVE_KERNELS_COMMON_SIMD_TARGETS_H_
#define RECURVE_KERNELS_COMMON_SIMD_TARGETS_H_

#define HWY_DISABLED_TARGETS                                                  \
  (HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)

#endif  // RECURVE_KERNELS_COMMON_SIMD_TARGETS_H_
