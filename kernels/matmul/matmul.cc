#include "kernels/matmul/matmul.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "base/thread_sanitizer.h"

// clang-format off
#include "kernels/common/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/matmul.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/cache_control.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace recurve {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kBlock = PackedMatrix::kBlock;
using D = hn::CappedTag<float, kBlock>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kVectorsPerBlock = static_cast<int>(kBlock) / kLanes;

// A tile is rows of x times blocks of weights; its sums are in registers (32 of
// 16 lanes, else 16). It has several chains of additions, to hide their
// latency, and as many rows as fit, since each row uses a weight that is
// widened once.
constexpr int kMaxTileRows = kVectorsPerBlock > 2 ? 3 : 6;
// Blocks of a tile with one row, with two rows, and with more.
constexpr int kBlocksOfOne = kVectorsPerBlock > 2 ? 2 : 4;
constexpr int kBlocksOfTwo = kVectorsPerBlock > 2 ? 1 : 4 / kVectorsPerBlock;
constexpr int kBlocksOfMore = kVectorsPerBlock > 2 ? 1 : 2 / kVectorsPerBlock;

// The tiles of up to kGroupRows rows pass one after the other over a chunk of
// the weights' inputs, 8 KiB of a block, and their sums wait in memory for the
// next one. So weights come from memory once; and they come while others are in
// use, since each tile asks for its share of the next chunk.
constexpr int64_t kGroupRows = 32;
template <typename T>
constexpr int64_t kChunk = 8192 / (kBlock * sizeof(T));
constexpr int64_t kLineBytes = 64;

// Whether the sums of a block are those of its even outputs, then of its odd
// ones. A bfloat16 is the upper half of a float32: of two in 32 bits, one is in
// place, and the other needs one shift.
template <typename T>
constexpr bool kEvenOdd = sizeof(T) == 2 && kVectorsPerBlock == 2;

// The weights of a block for one input. (The tag is a parameter of the template
// so that a branch compiles only where it is taken.)
template <class F, typename T>
HWY_INLINE void LoadWeights(F d, const T* p, V* w) {
  if constexpr (kEvenOdd<T>) {
    const hn::RebindToUnsigned<F> d32;
    const hn::Repartition<uint16_t, F> d16;
    const auto pairs = hn::BitCast(d32, hn::LoadU(d16, p));
    w[0] = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
    w[1] = hn::BitCast(d, hn::And(pairs, hn::Set(d32, 0xffff0000u)));
    return;
  }
  for (int v = 0; v < kVectorsPerBlock; ++v) {
    if constexpr (sizeof(T) == 2) {
      const hn::RebindToUnsigned<F> d32;
      const hn::Rebind<uint16_t, F> d16;
      const auto wide = hn::PromoteTo(d32, hn::LoadU(d16, p + v * kLanes));
      w[v] = hn::BitCast(d, hn::ShiftLeft<16>(wide));
    } else {
      w[v] = hn::LoadU(d, p + v * kLanes);
    }
  }
}

// Lines of memory that a tile asks for in each of its blocks, spread over its
// inputs.
struct Ahead {
  const char* at = nullptr;
  int64_t lines = 0;
};

// Adds kRows rows of x times kBlocks consecutive blocks of weights, over inputs
// [begin, end), to `sums` [kRows, kBlocks * 16].
template <int kRows, int kBlocks, typename T>
HWY_INLINE void Tile(const MatmulParams& p, const T* weights, int64_t row,
                     int64_t begin, int64_t end, Ahead ahead,
                     float* HWY_RESTRICT sums) {
  constexpr int kVectors = kBlocks * kVectorsPerBlock;
  constexpr int64_t kStep = 16;
  const D d;
  const int64_t inputs = p.w->inputs();
  const float* x = p.x + row * p.x_stride;
  V acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      acc[r][v] = hn::Load(d, sums + (r * kVectors + v) * kLanes);
  }
  const int64_t steps = (end - begin + kStep - 1) / kStep;
  for (int64_t k = begin, step = 1; k < end; ++step) {
    const char* const asked =
        ahead.at + ahead.lines * (step - 1) / steps * kLineBytes;
    const char* const asked_end =
        ahead.at + ahead.lines * step / steps * kLineBytes;
    for (const char* line = asked; line < asked_end; line += kLineBytes) {
      for (int b = 0; b < kBlocks; ++b)
        hwy::Prefetch(line + b * inputs * kBlock * sizeof(T));
    }
    for (const int64_t stop = std::min(k + kStep, end); k < stop; ++k) {
      V wk[kVectors];
      for (int b = 0; b < kBlocks; ++b) {
        LoadWeights(d, weights + (b * inputs + k) * kBlock,
                    wk + b * kVectorsPerBlock);
      }
      for (int r = 0; r < kRows; ++r) {
        const V xk = hn::Set(d, x[r * p.x_stride + k]);
        for (int v = 0; v < kVectors; ++v)
          acc[r][v] = hn::MulAdd(xk, wk[v], acc[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      hn::Store(acc[r][v], d, sums + (r * kVectors + v) * kLanes);
  }
}

// Tile for a number of rows that is known only now.
template <int kRows, int kBlocks, typename T>
HWY_INLINE void TileOf(int64_t rows, const MatmulParams& p, const T* weights,
                       int64_t row, int64_t begin, int64_t end, Ahead ahead,
                       float* sums) {
  if (rows == kRows)
    return Tile<kRows, kBlocks>(p, weights, row, begin, end, ahead, sums);
  if constexpr (kRows > 1) {
    TileOf<kRows - 1, kBlocks>(rows, p, weights, row, begin, end, ahead, sums);
  }
}

// Writes the sums of a block to its outputs in a row of y.
template <typename T>
HWY_INLINE void WriteBlock(const MatmulParams& p, int64_t row, int64_t block,
                           const float* sums) {
  float ordered[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) {
    ordered[i] = sums[kEvenOdd<T> ? i % 2 * kLanes + i / 2 : i];
  }
  const int64_t output = block * kBlock;
  float* y = p.y + row * p.y_stride + output;
  const int64_t count = std::min<int64_t>(kBlock, p.w->outputs() - output);
  if (p.accumulate) {
    for (int64_t i = 0; i < count; ++i) y[i] += ordered[i];
  } else if (count == kBlock) {  // no call to copy a few bytes
    for (int64_t i = 0; i < kBlock; ++i) y[i] = ordered[i];
  } else {
    for (int64_t i = 0; i < count; ++i) y[i] = ordered[i];
  }
}

// Up to kGroupRows rows of x times kBlocks blocks from `block` on, in tiles of
// at most kRows rows. Unless they are the `last`, as many blocks follow.
template <int kRows, int kBlocks, typename T>
HWY_INLINE void Blocks(const MatmulParams& p, const T* w, int64_t row,
                       int64_t end, int64_t block, bool last) {
  constexpr int64_t kWidth = kBlocks * kBlock;
  HWY_ALIGN float sums[(kRows > 2 ? kGroupRows : kRows) * kWidth];
  const int64_t inputs = p.w->inputs();
  const int64_t rows = end - row;
  const T* const weights = w + block * inputs * kBlock;
  std::fill_n(sums, rows * kWidth, 0.0f);
  const int64_t tiles = (rows + kRows - 1) / kRows;
  // One row is as fast as its weights come.
  const int64_t chunk = kRows == 1 ? inputs : kChunk<T>;
  for (int64_t k = 0; k < inputs; k += chunk) {
    const int64_t k_end = std::min(k + chunk, inputs);
    // The next chunk: of these blocks, or the first of those that follow.
    const bool goes_on = k_end < inputs;
    const T* const next =
        weights + (goes_on ? k_end : kBlocks * inputs) * kBlock;
    const int64_t next_inputs = goes_on ? std::min(chunk, inputs - k_end)
                                : last  ? 0
                                        : std::min(chunk, inputs);
    const int64_t next_lines =
        next_inputs * kBlock * static_cast<int64_t>(sizeof(T)) / kLineBytes;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t first = rows * tile / tiles;
      const int64_t count = rows * (tile + 1) / tiles - first;
      const int64_t asked = next_lines * tile / tiles;
      const int64_t asked_end = next_lines * (tile + 1) / tiles;
      TileOf<kRows, kBlocks>(
          count, p, weights, row + first, k, k_end,
          {reinterpret_cast<const char*>(next) + asked * kLineBytes,
           asked_end - asked},
          sums + first * kWidth);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int b = 0; b < kBlocks; ++b) {
      WriteBlock<T>(p, row + r, block + b, sums + r * kWidth + b * kBlock);
    }
  }
}

template <int kRows, int kBlocks, typename T>
HWY_INLINE void AllBlocks(const MatmulParams& p, const T* w, int64_t row,
                          int64_t end, int64_t block, int64_t block_end) {
  for (; block + kBlocks <= block_end; block += kBlocks) {
    const bool last = block + 2 * kBlocks > block_end;
    Blocks<kRows, kBlocks>(p, w, row, end, block, last);
  }
  for (; block < block_end; ++block) {
    const bool last = block + 1 == block_end;
    Blocks<kRows, 1>(p, w, row, end, block, last);
  }
}

template <typename T>
RECURVE_UNSEEN_BY_TSAN void Panel(const MatmulParams& p, const T* w,
                                  int64_t row, int64_t end, int64_t block,
                                  int64_t block_end) {
  switch (end - row) {
    case 1:
      return AllBlocks<1, kBlocksOfOne>(p, w, row, end, block, block_end);
    case 2:
      return AllBlocks<2, kBlocksOfTwo>(p, w, row, end, block, block_end);
    default:
      return AllBlocks<kMaxTileRows, kBlocksOfMore>(p, w, row, end, block,
                                                    block_end);
  }
}

// Panel's memory accesses. Weights are left out: they are written before there
// is a second thread.
void SayAccesses(const MatmulParams& p, int64_t row, int64_t end, int64_t block,
                 int64_t block_end) {
  const int64_t first = block * kBlock;
  const int64_t count = std::min(block_end * kBlock, p.w->outputs()) - first;
  for (; row < end; ++row) {
    SayRead(p.x + row * p.x_stride, p.w->inputs() * sizeof(float));
    SayWritten(p.y + row * p.y_stride + first, count * sizeof(float));
  }
}

void MatmulPanel(const MatmulParams& p, int64_t row, int64_t end, int64_t block,
                 int64_t block_end) {
  SayAccesses(p, row, end, block, block_end);
  if (p.w->storage() == DType::kBFloat16) {
    Panel(p, p.w->bfloats().data(), row, end, block, block_end);
  } else {
    Panel(p, p.w->floats().data(), row, end, block, block_end);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace recurve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve {

HWY_EXPORT(MatmulPanel);

void Matmul(const MatmulParams& params, ThreadPool& pool) {
  // One item is a panel of outputs for some rows: its weights stay in cache
  // while its rows pass over them.
  constexpr int64_t kPanelBlocks = 4;
  constexpr int64_t kPanelRows = 32;  // kGroupRows
  const int64_t blocks =
      (params.w->outputs() + PackedMatrix::kBlock - 1) / PackedMatrix::kBlock;
  const int64_t panels = (blocks + kPanelBlocks - 1) / kPanelBlocks;
  const int64_t row_groups = (params.rows + kPanelRows - 1) / kPanelRows;
  pool.ParallelFor(panels * row_groups, [&](int64_t item) {
    const int64_t block = (item / row_groups) * kPanelBlocks;
    const int64_t row = (item % row_groups) * kPanelRows;
    HWY_DYNAMIC_DISPATCH(MatmulPanel)
    (params, row, std::min(row + kPanelRows, params.rows), block,
     std::min(block + kPanelBlocks, blocks));
  });
}

}  // namespace recurve
#endif  // HWY_ONCE
