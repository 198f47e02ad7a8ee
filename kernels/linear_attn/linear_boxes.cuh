// Copies of boxes of 64 features of one head of q, k, v or g to shared memory
// by the tensor copy engine, and positions in ring buffers.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_BOXES_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_BOXES_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/common/tensor_copy.cuh"
#include "kernels/common/tensor_map.h"

namespace recurve {
namespace linear_boxes {

// Boxes of 64 features by one head by `tokens` tokens of bfloat16; features
// beyond a head's read as zeros. The host does not know the number of tokens:
// kernels never request one that does not exist.
inline cudaError_t MakeMap(const void* data, int64_t features, int64_t heads,
                           int64_t stride, int tokens, CUtensorMap* map) {
  return MakeTensorMap(data,
                       {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                        {features, heads, int64_t{1} << 31},
                        {features, stride},
                        {64, 1, tokens}},
                       map);
}

// A box to the same address in each block of `mask`, counted on each one's own
// barrier; one block: to the calling one.
__device__ __forceinline__ void CopyBox(uint32_t to, const CUtensorMap& map,
                                        int feature, int head, int token,
                                        uint32_t barrier, uint32_t mask) {
  if ((mask & (mask - 1)) == 0) {
    recurve::CopyBox(to, map, feature, head, token, barrier);
  } else {
    CopyBoxToAll(to, map, feature, head, token, barrier, mask);
  }
}

// A position in a ring buffer, and the parity of its round.
struct Place {
  int index = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next(int count) {
    if (++index == count) {
      index = 0;
      phase ^= 1;
    }
  }
};

}  // namespace linear_boxes
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_BOXES_CUH_
