// Blocks a sample, and the part of its row that each has. Pure functions of
// sizes.
#ifndef RECURVE_KERNELS_SAMPLING_SAMPLING_PLAN_H_
#define RECURVE_KERNELS_SAMPLING_SAMPLING_PLAN_H_

#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// Most blocks of a sample: devices guarantee clusters of at most 8.
inline constexpr int kSampleMostBlocks = 8;
// Fewest ids of a block that shares a sample: such blocks wait for each other a
// few times, each of which takes as long as some thousand ids.
inline constexpr int64_t kSampleFewestIds = 2048;

// Blocks a sample on a device with clusters: 1, 2, 4 or 8, as many as leave
// each block a multiprocessor of its own. (Two blocks fit on one: the device
// need not hold that many clusters on separate multiprocessors.)
RECURVE_HOST_DEVICE constexpr int SampleBlocks(int64_t samples, int64_t vocab,
                                               int multiprocessors) {
  int blocks = kSampleMostBlocks;
  while (blocks > 1 && (samples * blocks > multiprocessors ||
                        vocab < blocks * kSampleFewestIds)) {
    blocks /= 2;
  }
  return blocks;
}

// Block i of `blocks` has this many ids, or what is left of them, from i times
// this on; possibly none.
RECURVE_HOST_DEVICE constexpr int32_t SamplePart(int32_t vocab, int blocks) {
  constexpr int32_t kStep = 128;
  return ((vocab + blocks - 1) / blocks + kStep - 1) / kStep * kStep;
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_SAMPLING_SAMPLING_PLAN_H_
