#include "kernels/linear_attn/gated_delta/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/common/element_row.h"

// clang-format off
#include "kernels/common/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear_attn/gated_delta/gated_delta.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

#include "kernels/common/vector_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve {
namespace HWY_NAMESPACE {

// Tokens prepared at a time. Then a few columns of the state go through all of
// them, in the innermost cache.
constexpr int64_t kDeltaTokens = 16;

// What the updates of one head read and write for a run of tokens.
struct DeltaRun {
  explicit DeltaRun(const GatedDeltaParams& p)
      : dim(p.head_dim), width(p.value_dim) {
    for (std::vector<float>* rows : {&q, &k, &faded, &decay}) {
      rows->resize(kDeltaTokens * dim);
    }
    value.resize(kDeltaTokens * width);
    out.resize(kDeltaTokens * width);
    beta.resize(kDeltaTokens);
  }

  int64_t dim, width;
  int64_t tokens = 0;
  std::vector<float> q;      // [tokens, D] q̂
  std::vector<float> k;      // [tokens, D] k̂
  std::vector<float> decay;  // [tokens, D] e^g
  std::vector<float> faded;  // [tokens, D] e^g k̂
  std::vector<float> value;  // [tokens, E]
  std::vector<float> beta;   // [tokens]
  std::vector<float> out;    // [tokens, E]
};

// x ← scale · x / ‖x‖.
void MakeUnit(float eps, float scale, float* x, int64_t n) {
  const float factor = scale / std::sqrt(Dot(x, x, n) + eps);
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Token `i` of the run: row `row` of the inputs.
void PrepareToken(const GatedDeltaParams& p, int64_t head, int64_t row,
                  int64_t i, DeltaRun& run) {
  const int64_t dim = run.dim;
  const int64_t key_head = head / (p.value_heads / p.key_heads);
  float* const q = run.q.data() + i * dim;
  float* const k = run.k.data() + i * dim;
  float* const decay = run.decay.data() + i * dim;
  LoadElements(p.type, p.q, row * p.stride + key_head * dim, dim, q);
  LoadElements(p.type, p.k, row * p.stride + key_head * dim, dim, k);
  LoadElements(p.type, p.v, row * p.stride + head * run.width, run.width,
               run.value.data() + i * run.width);
  MakeUnit(p.unit_eps, p.scale, q, dim);
  MakeUnit(p.unit_eps, 1.0f, k, dim);
  float b;
  LoadElements(p.type, p.b, row * p.b_stride + head, 1, &b);
  run.beta[i] = DeltaBeta(p.gate, b);
  const float speed = DeltaSpeed(p.gate, head);
  if (p.gate.by_channel) {
    LoadElements(p.type, p.a, row * p.a_stride + head * dim, dim, decay);
    for (int64_t r = 0; r < dim; ++r) {
      decay[r] =
          std::exp(DeltaLogDecay(p.gate, speed, head * dim + r, decay[r]));
    }
  } else {
    float a;
    LoadElements(p.type, p.a, row * p.a_stride + head, 1, &a);
    std::fill_n(decay, dim, std::exp(DeltaLogDecay(p.gate, speed, head, a)));
  }
  for (int64_t r = 0; r < dim; ++r) {
    run.faded[i * dim + r] = decay[r] * k[r];
  }
}

// kCount vectors of columns, from column c, through all tokens of the run. A
// pass for d, then one for the update and the output.
template <int kCount, class D>
HWY_INLINE void UpdateColumns(D d, DeltaRun& run, float* state, int64_t c) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = run.width;
  for (int64_t i = 0; i < run.tokens; ++i) {
    const float* q = run.q.data() + i * run.dim;
    const float* k = run.k.data() + i * run.dim;
    const float* decay = run.decay.data() + i * run.dim;
    const float* faded = run.faded.data() + i * run.dim;
    const float* value = run.value.data() + i * width + c;
    hn::Vec<D> delta[kCount];
    hn::Vec<D> sum[kCount];
    for (int j = 0; j < kCount; ++j) sum[j] = hn::Zero(d);
    for (int64_t r = 0; r < run.dim; ++r) {
      const float* s = state + r * width + c;
      const auto key = hn::Set(d, faded[r]);
      for (int j = 0; j < kCount; ++j) {
        sum[j] = hn::MulAdd(key, hn::LoadU(d, s + j * lanes), sum[j]);
      }
    }
    const auto beta = hn::Set(d, run.beta[i]);
    for (int j = 0; j < kCount; ++j) {
      delta[j] =
          hn::Mul(beta, hn::Sub(hn::LoadU(d, value + j * lanes), sum[j]));
      sum[j] = hn::Zero(d);
    }
    for (int64_t r = 0; r < run.dim; ++r) {
      float* s = state + r * width + c;
      const auto key = hn::Set(d, k[r]);
      const auto query = hn::Set(d, q[r]);
      const auto lambda = hn::Set(d, decay[r]);
      for (int j = 0; j < kCount; ++j) {
        const auto updated = hn::MulAdd(lambda, hn::LoadU(d, s + j * lanes),
                                        hn::Mul(key, delta[j]));
        hn::StoreU(updated, d, s + j * lanes);
        sum[j] = hn::MulAdd(query, updated, sum[j]);
      }
    }
    for (int j = 0; j < kCount; ++j) {
      hn::StoreU(sum[j], d, run.out.data() + i * width + c + j * lanes);
    }
  }
}

void DeltaHead(const GatedDeltaParams& p, int64_t sequence, int64_t head) {
  DeltaRun run(p);
  const hn::CappedTag<float, 16> d;
  constexpr int kColumns = 4;
  const int64_t wide = kColumns * static_cast<int64_t>(hn::Lanes(d));
  float* state =
      p.states + p.slots[sequence] * p.slot_stride + head * run.dim * run.width;
  const int64_t end = p.query_start[sequence + 1];
  for (int64_t row = p.query_start[sequence]; row < end; row += run.tokens) {
    run.tokens = std::min(kDeltaTokens, end - row);
    for (int64_t i = 0; i < run.tokens; ++i) {
      PrepareToken(p, head, row + i, i, run);
    }
    int64_t c = 0;
    for (; c + wide <= run.width; c += wide) {
      UpdateColumns<kColumns>(d, run, state, c);
    }
    ForEachVector(run.width - c, [&](auto dt, int64_t i) HWY_ATTR {
      UpdateColumns<1>(dt, run, state, c + i);
    });
    for (int64_t i = 0; i < run.tokens; ++i) {
      StoreElements(p.out_type, run.out.data() + i * run.width, run.width,
                    p.out, (row + i) * p.out_stride + head * run.width);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace recurve
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve {

HWY_EXPORT(DeltaHead);

void GatedDelta(const GatedDeltaParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.sequences * params.value_heads, [&](int64_t item) {
    HWY_DYNAMIC_DISPATCH(DeltaHead)
    (params, item / params.value_heads, item % params.value_heads);
  });
}

}  // namespace recurve
#endif  // HWY_ONCE
