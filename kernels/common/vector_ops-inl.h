// Short vector loops shared by the CPU kernels, compiled once for each
// instruction set (a Highway "-inl" header: include after hwy/highway.h).
//
// The order of each result's arithmetic depends on the length alone.
#if defined(RECURVE_KERNELS_COMMON_VECTOR_OPS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_KERNELS_COMMON_VECTOR_OPS_INL_H_
#undef RECURVE_KERNELS_COMMON_VECTOR_OPS_INL_H_
#else
#define RECURVE_KERNELS_COMMON_VECTOR_OPS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace recurve {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls body(tag, i) for vectors covering [0, n): full ones, then single lanes.
template <typename Body>
HWY_INLINE void ForEachVector(int64_t n, const Body& body) {
  const hn::CappedTag<float, 16> full;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(full));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(full, i);
  for (; i < n; ++i) body(one, i);
}

// Σ_i x[i] · y[i]: one partial sum a lane, then across lanes, then the tail.
HWY_INLINE float Dot(const float* x, const float* y, int64_t n) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    sum = hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), sum);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}

// y[i] += scale · x[i].
HWY_INLINE void AddScaled(float scale, const float* x, float* y, int64_t n) {
  ForEachVector(n, [=](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(
        hn::MulAdd(hn::Set(d, scale), hn::LoadU(d, x + i), hn::LoadU(d, y + i)),
        d, y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace recurve
HWY_AFTER_NAMESPACE();

#endif  // include guard
