// Matrix products of a warpgroup (wgmma) on bfloat16 tiles of 64 x 64 in shared
// memory. Device code only, and only for sm_90a.
//
// A tile has 64 rows of 128 bytes and begins at a multiple of 1024 bytes; the
// 16-byte pieces of row r lie at (piece ^ (r % 8)), the 128-byte swizzle, so
// that neither rows nor columns collide in a bank.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_LINEAR_WGMMA_CUH_
#define RECURVE_KERNELS_LINEAR_ATTN_LINEAR_WGMMA_CUH_

#include <cstdint>

namespace recurve {
namespace wgmma {

constexpr int kTile = 64;  // rows and columns
constexpr int kTileBytes = kTile * 128;
constexpr int kSteps = kTile / 16;  // products of depth 16 in a tile

// Byte offset of 16-byte piece `piece` of row `row`.
__device__ __forceinline__ uint32_t PieceOffset(int row, int piece) {
  return row * 128 + ((piece ^ (row & 7)) << 4);
}

// A descriptor of 16 elements of a tile's depth, `step` of kSteps. In
// `ByRows` the depth runs along a row; in `ByColumns` each row is one of the
// depth (the operand is transposed as it is read), the tile may have any number
// of rows, and one of 128 columns is two tiles `next` bytes apart.
__device__ __forceinline__ uint64_t Descriptor(uint32_t address, int next) {
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | kEightRows | static_cast<uint64_t>(next >> 4) << 16 |
         ((address & 0x3ffffu) >> 4);
}
__device__ __forceinline__ uint64_t ByRows(uint32_t tile, int step) {
  return Descriptor(tile + step * 32, kTileBytes);
}
__device__ __forceinline__ uint64_t ByColumns(uint32_t tile, int step,
                                              int next = kTileBytes) {
  return Descriptor(tile + step * 2048, next);
}

// Before the first product of a run, and after registers that one uses have
// been written.
__device__ __forceinline__ void Fence() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void Commit() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until at most kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void Wait() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
// Keeps the compiler from moving what reads or writes these registers across
// this place, and from giving them to others before it.
template <int kCount>
__device__ __forceinline__ void Hold(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void Hold(uint32_t (&a)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
template <int kRows, int kCount>
__device__ __forceinline__ void Hold(uint32_t (&a)[kRows][kCount]) {
#pragma unroll
  for (int row = 0; row < kRows; ++row) Hold(a[row]);
}

#define RECURVE_WGMMA_ACCUMULATOR                           \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define RECURVE_WGMMA_REGISTERS(c)                                        \
  "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), \
      "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]),        \
      "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),    \
      "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]),    \
      "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]),    \
      "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]),    \
      "+f"(c[31])

// c = a b, or c += a b where `add`: c is 64 x 64, 16 deep. Thread (g, t) =
// (lane / 4, lane % 4) of warp w holds, for each 8 columns n, rows 16w + g and
// 16w + g + 8: c[4n], c[4n + 1] are columns 8n + 2t and 8n + 2t + 1 of the
// first, c[4n + 2], c[4n + 3] of the second.
__device__ __forceinline__ void Multiply(float (&c)[32], uint64_t a, uint64_t b,
                                         bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0;"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16."
      "bf16 " RECURVE_WGMMA_ACCUMULATOR ", %32, %33, p, 1, 1, 0, 0; }"
      : RECURVE_WGMMA_REGISTERS(c)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
#endif
}

// The same with a in registers, as fragments of mma.m16n8k16, and b read by
// rows or (kColumns) by columns.
template <bool kColumns>
__device__ __forceinline__ void Multiply(float (&c)[32], const uint32_t (&a)[4],
                                         uint64_t b, bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16."
      "bf16 " RECURVE_WGMMA_ACCUMULATOR
      ", {%32,%33,%34,%35}, %36, p, 1, 1, %38; }"
      : RECURVE_WGMMA_REGISTERS(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)), "n"(kColumns ? 1 : 0));
#endif
}

#define RECURVE_WGMMA_ACCUMULATOR128                                 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define RECURVE_WGMMA_REGISTERS128(c)                                  \
  RECURVE_WGMMA_REGISTERS(c), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]),   \
      "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), \
      "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), \
      "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]), "+f"(c[49]), \
      "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), \
      "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), \
      "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])

// The same for c of 64 x 128 and b by columns.
__device__ __forceinline__ void Multiply128(float (&c)[64],
                                            const uint32_t (&a)[4], uint64_t b,
                                            bool add) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %69, 0;"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16."
      "bf16 " RECURVE_WGMMA_ACCUMULATOR128
      ", "
      "{%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
      : RECURVE_WGMMA_REGISTERS128(c)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)));
#endif
}

// The same with both factors in shared memory, each by columns.
__device__ __forceinline__ void MultiplyColumns128(float (&c)[64], uint64_t a,
                                                   uint64_t b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16."
      "bf16 " RECURVE_WGMMA_ACCUMULATOR128
      ", "
      "%64, %65, 1, 1, 1, 1, 1;"
      : RECURVE_WGMMA_REGISTERS128(c)
      : "l"(a), "l"(b));
#endif
}

#undef RECURVE_WGMMA_ACCUMULATOR
#undef RECURVE_WGMMA_REGISTERS
#undef RECURVE_WGMMA_ACCUMULATOR128
#undef RECURVE_WGMMA_REGISTERS128

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
