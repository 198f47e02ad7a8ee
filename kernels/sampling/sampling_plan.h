// How many thread blocks draw a sample, and what each has of its row. Pure
// code: sizes in, a plan out.
#ifndef RECURVE_KERNELS_SAMPLING_SAMPLING_PLAN_H_
#define RECURVE_KERNELS_SAMPLING_SAMPLING_PLAN_H_

#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// Of a sample, at most: more than 8 are more than a device promises a cluster.
inline constexpr int kSampleMostBlocks = 8;
// Ids that a block has at least, unless it is a sample's only one: blocks that
// share a sample wait for each other a few times, of which each takes as long
// as some thousand ids.
inline constexpr int64_t kSampleFewestIds = 2048;

// Blocks that draw each of so many samples, on a device with clusters: 1, 2, 4
// or 8, as many as leave each block a multiprocessor of its own. (They are so
// small that two fit on one: a device need not have room for that many clusters
// side by side.)
RECURVE_HOST_DEVICE constexpr int SampleBlocks(int64_t samples, int64_t vocab,
                                               int multiprocessors) {
  int blocks = kSampleMostBlocks;
  while (blocks > 1 && (samples * blocks > multiprocessors ||
                        vocab < blocks * kSampleFewestIds)) {
    blocks /= 2;
  }
  return blocks;
}

// Block i of `blocks` has the ids from i times this on, so many or what is left
// of them: possibly none.
RECURVE_HOST_DEVICE constexpr int32_t SamplePart(int32_t vocab, int blocks) {
  constexpr int32_t kStep = 128;
  return ((vocab + blocks - 1) / blocks + kStep - 1) / kStep * kStep;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_SAMPLING_PLAN_H_
