// Warpgroup products (wgmma) on bfloat16 tiles of 64 x 64 in shared memory.
// Device code only, only for sm_90a.
//
// A tile has 64 rows of 128 bytes and begins at a multiple of 1024 bytes;
// 16-byte piece p of row r is at p ^ (r % 8), the 128-byte swizzle, so that
// neither rows nor columns have bank conflicts.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_WGMMA_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_WGMMA_CUH_

#include <cstdint>

#include "kernels/common/wgmma.cuh"

namespace recurve {
namespace wgmma {

constexpr int kTile = 64;  // rows and columns
constexpr int kTileBytes = kTile * 128;
constexpr int kSteps = kTile / 16;  // products of depth 16 in a tile

// Byte offset of 16-byte piece `piece` of row `row`.
__device__ __forceinline__ uint32_t PieceOffset(int row, int piece) {
  return row * 128 + ((piece ^ (row & 7)) << 4);
}

// A descriptor of 16 elements of a tile's depth, `step` of kSteps. In `ByRows`
// the depth runs along a row; in `ByColumns` each row is one of the depth (the
// operand is transposed as it is read), the tile may have any number of rows,
// and one of 128 columns is two tiles `next` bytes apart.
__device__ __forceinline__ uint64_t Descriptor(uint32_t address, int next) {
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | kEightRows | static_cast<uint64_t>(next >> 4) << 16 |
         ((address & 0x3ffffu) >> 4);
}
constexpr int kRowStep = 32;  // bytes from a step to the next
constexpr int kColumnStep = 2048;
__device__ __forceinline__ uint64_t ByRows(uint32_t tile, int step) {
  return Descriptor(tile + step * kRowStep, kTileBytes);
}
__device__ __forceinline__ uint64_t ByColumns(uint32_t tile, int step,
                                              int next = kTileBytes) {
  return Descriptor(tile + step * kColumnStep, next);
}

// c = a b, or c += a b if `add`, 16 deep, c in Wgmma's layout: of 64 rows, by
// rows or (kColumns) by columns of b. First with both in shared memory by rows,
// then with a in registers.
template <int kCount>
__device__ __forceinline__ void Multiply(float (&c)[kCount], uint64_t a,
                                         uint64_t b, bool add) {
  Wgmma<kMajorK, kMajorK>(c, a, b, add, __nv_bfloat16());
}
template <bool kColumns, int kCount>
__device__ __forceinline__ void Multiply(float (&c)[kCount],
                                         const uint32_t (&a)[4], uint64_t b,
                                         bool add) {
  WgmmaOfRegisters<kColumns ? kMajorMN : kMajorK>(c, a, b, add,
                                                  __nv_bfloat16());
}

// c += a b with both in shared memory by columns.
template <int kCount>
__device__ __forceinline__ void MultiplyColumns(float (&c)[kCount], uint64_t a,
                                                uint64_t b) {
  Wgmma<kMajorMN, kMajorMN>(c, a, b, true, __nv_bfloat16());
}

// Four 8x8 matrices of 16-bit elements, as LoadMatrices of common/mma.cuh.
__device__ __forceinline__ void StoreMatrices(uint32_t address,
                                              const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
          address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
#endif
}
// Two, each transposed.
__device__ __forceinline__ void StoreMatricesTransposed(uint32_t address,
                                                        uint32_t r0,
                                                        uint32_t r1) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(
          address),
      "r"(r0), "r"(r1)
      : "memory");
#endif
}

}  // namespace wgmma
}  // namespace recurve

#endif  // RECURVE_KERNELS_LINEAR_ATTN_LINEAR_WGMMA_CUH_
