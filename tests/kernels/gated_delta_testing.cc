#include "tests/kernels/gated_delta_testing.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"
#include "gtest/gtest.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

std::vector<double> Unit(const float* x, int64_t n, double eps) {
  double squares = eps;
  for (int64_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
  std::vector<double> unit(x, x + n);
  for (double& value : unit) value /= std::sqrt(squares);
  return unit;
}

double SigmoidOf(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double LogDecay(const DeltaTokens& t, int64_t head, int64_t index, double a) {
  const DeltaTestConfig& c = t.config;
  if (c.decay == DeltaDecay::kLog) return a;
  const double x = c.biased ? a + t.bias[index] : a;
  const double speed = std::exp(double{t.a_log[head]});
  if (c.decay == DeltaDecay::kSigmoid) return c.bound * SigmoidOf(speed * x);
  return -speed * (std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
}

// ‖got − want‖ / ‖want‖, where tiny wanted values count as `floor`.
double RelativeError(absl::Span<const float> got, absl::Span<const double> want,
                     double floor) {
  double error = 0.0;
  double norm = floor * floor;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace

DeltaTokens::DeltaTokens(const DeltaTestConfig& c, int64_t n, uint64_t seed)
    : config(c), length(n) {
  q = 0;
  k = q + c.key_heads * c.head_dim;
  v = k + c.key_heads * c.head_dim;
  a = v + c.value_heads * c.value_dim;
  b = a + c.decays();
  stride = (b + c.value_heads + 1 + 7) / 8 * 8;
  data = RandomTensor(seed, length * stride, -2.0f, 2.0f);
  const bool log = c.decay == DeltaDecay::kLog;
  for (int64_t t = 0; t < length; ++t) {
    float* row = data.data() + t * stride;
    for (int64_t i = 0; i < c.key_heads * c.head_dim; ++i) {
      row[k + i] += 0.05f * static_cast<float>(i % c.head_dim + t % 7);
    }
    for (int64_t i = 0; i < c.decays(); ++i) {
      float& raw = row[a + i];
      if (log) raw = -0.1f * (raw + 2.0f);
      if (c.gates == DeltaTestGates::kOpen) raw = log ? 0.0f : -200.0f;
      if (c.gates == DeltaTestGates::kForgetful && t % 3 == 2) {
        raw = log ? -1e5f : 1e6f;
      }
    }
    for (int64_t h = 0; h < c.value_heads; ++h) {
      if (c.gates == DeltaTestGates::kOpen) row[b + h] = 200.0f;
      if (c.gates == DeltaTestGates::kStill && t % 3 != 2) row[b + h] = -200.0f;
    }
    std::fill(row + b + c.value_heads, row + stride, kNaN);
  }
  if (c.type == ElementType::kBFloat16) {
    for (float& value : data) value = BFloat16ToFloat(FloatToBFloat16(value));
  }
  state = RandomTensor(seed + 1000, c.state_elements());
  a_log = RandomTensor(2000, c.value_heads, -3.0f, 0.5f);
  bias = RandomTensor(3000, c.decays());
}

GatedDeltaParams DeltaParams(const DeltaTokens& t) {
  const DeltaTestConfig& c = t.config;
  GatedDeltaParams p = {};
  p.key_heads = c.key_heads;
  p.value_heads = c.value_heads;
  p.head_dim = c.head_dim;
  p.value_dim = c.value_dim;
  p.type = c.type;
  p.stride = p.a_stride = p.b_stride = t.stride;
  p.out_type = ElementType::kFloat32;
  p.gate.decay = c.decay;
  p.gate.by_channel = c.by_channel;
  p.gate.a_log = t.a_log.data();
  p.gate.bias = c.biased ? t.bias.data() : nullptr;
  p.gate.bound = c.bound;
  p.gate.beta_scale = c.beta_scale;
  p.unit_eps = 1e-6f;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  return p;
}

DeltaOracle::DeltaOracle(const DeltaTokens& tokens)
    : config(tokens.config),
      out(tokens.length * config.out_elements()),
      state(tokens.state.begin(), tokens.state.end()) {
  const GatedDeltaParams p = DeltaParams(tokens);
  const int64_t dim = config.head_dim;
  const int64_t cols = config.value_dim;
  std::vector<double> decay(dim);
  std::vector<double> delta(cols);
  for (int64_t t = 0; t < tokens.length; ++t) {
    const float* row = tokens.Row(t);
    for (int64_t h = 0; h < config.value_heads; ++h) {
      const int64_t key = h / (config.value_heads / config.key_heads);
      const auto q = Unit(row + tokens.q + key * dim, dim, p.unit_eps);
      const auto k = Unit(row + tokens.k + key * dim, dim, p.unit_eps);
      const double beta = config.beta_scale * SigmoidOf(row[tokens.b + h]);
      double* const s = state.data() + h * dim * cols;
      for (int64_t r = 0; r < dim; ++r) {
        const int64_t i = config.by_channel ? h * dim + r : h;
        decay[r] = std::exp(LogDecay(tokens, h, i, row[tokens.a + i]));
      }
      for (int64_t e = 0; e < cols; ++e) {
        double answer = 0.0;
        for (int64_t r = 0; r < dim; ++r) {
          s[r * cols + e] *= decay[r];
          answer += s[r * cols + e] * k[r];
        }
        delta[e] = beta * (row[tokens.v + h * cols + e] - answer);
      }
      double* const o = out.data() + (t * config.value_heads + h) * cols;
      for (int64_t r = 0; r < dim; ++r) {
        for (int64_t e = 0; e < cols; ++e) {
          s[r * cols + e] += k[r] * delta[e];
          o[e] += p.scale * q[r] * s[r * cols + e];
        }
      }
    }
  }
}

void DeltaOracle::Expect(absl::Span<const float> got_out,
                         absl::Span<const float> got_state,
                         double tolerance) const {
  ASSERT_EQ(got_out.size(), out.size());
  ASSERT_EQ(got_state.size(), state.size());
  const auto compare = [&](absl::Span<const float> got,
                           absl::Span<const double> want, int64_t size,
                           double floor, const char* what) {
    for (size_t i = 0; i * size < want.size(); ++i) {
      const double error = RelativeError(got.subspan(i * size, size),
                                         want.subspan(i * size, size), floor);
      ASSERT_LE(error, tolerance)  // also false for NaN
          << what << ": token " << i / config.value_heads << " head "
          << i % config.value_heads;
    }
  };
  // An output is a sum of D products that may cancel, of some 0.5 / √D each.
  const double cols = static_cast<double>(config.value_dim);
  compare(got_out, out, config.value_dim, 0.1 * std::sqrt(cols / 32.0), "out");
  compare(got_state, state, config.head_dim * config.value_dim, 1e-3,
          "state (token 0)");
}

}  // namespace recurve
