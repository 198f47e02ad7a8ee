#include "kernels/linear_attn/linear_attn.h"

#include <algorithm>
#include <vector>

#include "base/thread_pool.h"

// clang-format off
#include "kernels/common/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_attn/linear_attn.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/common/vector_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve {
namespace HWY_NAMESPACE {

struct StepScratch {
  std::vector<float> activated;  // [D]
  std::vector<float> q;          // [Dk]
  std::vector<float> k;          // [Dk]
  std::vector<float> v;          // [E]
};

// S ← λ S + k vᵀ (with kUpdate) and o = Sᵀ q over a [rows, cols] state, one
// pass over memory. A few vectors of columns at a time keep their part of v and
// o in registers.
template <bool kUpdate>
void UpdateState(const float* q, const float* k, const float* v, float decay,
                 float* state, float* out, int64_t rows, int64_t cols) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int kColumns = 4;
  const auto lambda = hn::Set(d, decay);
  int64_t c = 0;
  for (; c + kColumns * lanes <= cols; c += kColumns * lanes) {
    hn::Vec<decltype(d)> value[kColumns];
    hn::Vec<decltype(d)> sum[kColumns];
    for (int j = 0; j < kColumns; ++j) {
      value[j] = hn::LoadU(d, v + c + j * lanes);
      sum[j] = hn::Zero(d);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* s = state + r * cols + c;
      const auto key = hn::Set(d, k[r]);
      const auto query = hn::Set(d, q[r]);
      for (int j = 0; j < kColumns; ++j) {
        auto updated = hn::LoadU(d, s + j * lanes);
        if constexpr (kUpdate) {
          updated = hn::MulAdd(lambda, updated, hn::Mul(key, value[j]));
          hn::StoreU(updated, d, s + j * lanes);
        }
        sum[j] = hn::MulAdd(query, updated, sum[j]);
      }
    }
    for (int j = 0; j < kColumns; ++j)
      hn::StoreU(sum[j], d, out + c + j * lanes);
  }
  // The remaining columns, with the same arithmetic for each.
  ForEachVector(cols - c, [=](auto dt, int64_t i) HWY_ATTR {
    auto sum = hn::Zero(dt);
    const auto value = hn::LoadU(dt, v + c + i);
    for (int64_t r = 0; r < rows; ++r) {
      float* s = state + r * cols + c + i;
      auto updated = hn::LoadU(dt, s);
      if constexpr (kUpdate) {
        updated = hn::MulAdd(hn::Set(dt, decay), updated,
                             hn::Mul(hn::Set(dt, k[r]), value));
        hn::StoreU(updated, dt, s);
      }
      sum = hn::MulAdd(hn::Set(dt, q[r]), updated, sum);
    }
    hn::StoreU(sum, dt, out + c + i);
  });
}

void ScanHead(const LinearAttentionParams& p, int64_t sequence, int64_t head) {
  thread_local StepScratch s;
  const int64_t key_dim = LrpeOutputDim(p.position, p.head_dim);
  const int64_t angles = LrpeAngles(p.position, p.head_dim);
  s.activated.resize(p.head_dim);
  s.q.resize(key_dim);
  s.k.resize(key_dim);
  s.v.resize(p.value_dim);
  float* state = p.states + p.slots[sequence] * p.slot_stride +
                 head * key_dim * p.value_dim;
  const int64_t begin = p.query_start[sequence];
  const int64_t end = p.query_start[sequence + 1];
  const int64_t whole = p.whole == nullptr ? 0 : p.whole[sequence];
  // The rows of a whole prompt are visited twice: for their updates (`out`
  // written then is overwritten), and for their outputs.
  for (int64_t i = 0; i < end - begin + whole; ++i) {
    const int64_t row = begin + (i < whole ? i : i - whole);
    const bool update = i < whole || i >= 2 * whole;
    const float* cos = p.cos + row * angles;
    const float* sin = p.sin + row * angles;
    const int64_t in = row * p.stride;
    ActivateRow(p.q_activation, p.q + in + head * p.head_dim,
                s.activated.data(), p.head_dim);
    LrpeApply(p.position, s.activated.data(), cos, sin, p.head_dim, s.q.data());
    ActivateRow(p.k_activation, p.k + in + head * p.head_dim,
                s.activated.data(), p.head_dim);
    LrpeApply(p.position, s.activated.data(), cos, sin, p.head_dim, s.k.data());
    ActivateRow(p.v_activation, p.v + row * p.v_stride + head * p.value_dim,
                s.v.data(), p.value_dim);
    const auto step = update ? UpdateState<true> : UpdateState<false>;
    step(s.q.data(), s.k.data(), s.v.data(), p.decay[head], state,
         p.out + row * p.out_stride + head * p.value_dim, key_dim, p.value_dim);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace recurve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve {

HWY_EXPORT(ScanHead);

void LinearAttention(const LinearAttentionParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.sequences * params.num_heads, [&](int64_t item) {
    HWY_DYNAMIC_DISPATCH(ScanHead)
    (params, item / params.num_heads, item % params.num_heads);
  });
}

}  // namespace recurve
#endif  // HWY_ONCE
