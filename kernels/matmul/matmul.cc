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
// Rows and blocks computed together. Larger tiles reuse each loaded weight
// more; the accumulators must fit the registers (32 of 16 lanes, else 16).
constexpr int kTileRows = kLanes >= 16 ? 4 : 2;
constexpr int kTileBlocks = kLanes >= 16 ? 4 : 2;

HWY_INLINE V LoadWeights(D d, const float* p) { return hn::LoadU(d, p); }
HWY_INLINE V LoadWeights(D d, const uint16_t* p) {
  // A bfloat16 is the upper half of a float32.
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d,
                     hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, p))));
}

// kRows rows of x times kBlocks consecutive blocks of weights.
template <int kRows, int kBlocks, typename T>
HWY_INLINE void Tile(const MatmulParams& p, const T* w, int64_t row,
                     int64_t block) {
  constexpr int kVectors = kBlocks * kVectorsPerBlock;
  const D d;
  const int64_t inputs = p.w->inputs();
  const float* x = p.x + row * p.x_stride;
  const T* weights = w + block * inputs * kBlock;
  V acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
  }
  for (int64_t k = 0; k < inputs; ++k) {
    V wk[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      wk[v] =
          LoadWeights(d, weights + (v / kVectorsPerBlock) * inputs * kBlock +
                             k * kBlock + (v % kVectorsPerBlock) * kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V xk = hn::Set(d, x[r * p.x_stride + k]);
      for (int v = 0; v < kVectors; ++v)
        acc[r][v] = hn::MulAdd(xk, wk[v], acc[r][v]);
    }
  }
  HWY_ALIGN float out[kBlocks * kBlock];
  const int64_t first = block * kBlock;
  const int64_t count =
      std::min<int64_t>(kBlocks * kBlock, p.w->outputs() - first);
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      hn::Store(acc[r][v], d, out + v * kLanes);
    float* y = p.y + (row + r) * p.y_stride + first;
    if (p.accumulate) {
      for (int64_t i = 0; i < count; ++i) y[i] += out[i];
    } else {
      for (int64_t i = 0; i < count; ++i) y[i] = out[i];
    }
  }
}

template <int kBlocks, typename T>
HWY_INLINE void Rows(const MatmulParams& p, const T* w, int64_t row,
                     int64_t end, int64_t block) {
  for (; row + kTileRows <= end; row += kTileRows)
    Tile<kTileRows, kBlocks>(p, w, row, block);
  for (; row < end; ++row) Tile<1, kBlocks>(p, w, row, block);
}

template <typename T>
RECURVE_UNSEEN_BY_TSAN void Panel(const MatmulParams& p, const T* w,
                                  int64_t row, int64_t end, int64_t block,
                                  int64_t block_end) {
  for (; block + kTileBlocks <= block_end; block += kTileBlocks) {
    Rows<kTileBlocks>(p, w, row, end, block);
  }
  for (; block < block_end; ++block) Rows<1>(p, w, row, end, block);
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
  constexpr int64_t kPanelRows = 32;
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
