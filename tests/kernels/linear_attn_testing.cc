#include "tests/kernels/linear_attn_testing.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "gtest/gtest.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/kernels/lrpe_table.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr int64_t kGap = 5;  // elements between slots and between rows

// The slot of a sequence: neither in order nor dense, and never 0.
int64_t SlotOf(size_t sequence, size_t sequences) {
  return 2 * static_cast<int64_t>(sequences - sequence);
}

// The inputs and outputs of one step.
struct Step {
  std::vector<float> in;
  std::vector<int64_t> positions;
  std::vector<int32_t> query_start = {0};
  std::vector<int32_t> slots;
  std::vector<int32_t> whole;
};

Step MakeStep(absl::Span<const LinearTokens* const> sequences,
              const LinearCut& cut, const std::vector<int64_t>& done) {
  Step step;
  for (size_t b = 0; b < sequences.size(); ++b) {
    const LinearTokens& t = *sequences[b];
    step.in.insert(step.in.end(), t.Row(done[b]), t.Row(done[b] + cut[b]));
    for (int64_t i = 0; i < cut[b]; ++i) {
      step.positions.push_back(t.first_position + done[b] + i);
    }
    step.query_start.push_back(static_cast<int32_t>(step.positions.size()));
    step.slots.push_back(static_cast<int32_t>(SlotOf(b, sequences.size())));
    step.whole.push_back(
        done[b] == 0 ? static_cast<int32_t>(std::min(t.config.whole, cut[b]))
                     : 0);
  }
  return step;
}

// Returns [rows, H, E].
std::vector<float> RunStep(const LinearTokens& t, const Step& step,
                           std::vector<float>& states, ThreadPool& pool) {
  const LinearTestConfig& c = t.config;
  const LrpeTestTable lrpe(c.position, c.head_dim, c.base, step.positions,
                           pool);
  const std::vector<float> decay = c.Decay();
  const int64_t width = c.num_heads * c.value_dim;
  const size_t rows = step.positions.size();
  std::vector<float> out(rows * (width + kGap), kCanary);
  LinearAttentionParams p = {};
  p.num_heads = c.num_heads;
  p.head_dim = c.head_dim;
  p.value_dim = c.value_dim;
  p.q = step.in.data() + t.q;
  p.k = step.in.data() + t.k;
  p.v = step.in.data() + t.v;
  p.stride = t.stride;
  p.v_stride = t.stride;
  p.out = out.data();
  p.out_stride = width + kGap;
  p.query_start = step.query_start.data();
  p.sequences = static_cast<int64_t>(step.slots.size());
  p.q_activation = c.q_activation;
  p.k_activation = c.k_activation;
  p.v_activation = c.v_activation;
  p.position = c.position;
  p.cos = lrpe.cos.data();
  p.sin = lrpe.sin.data();
  p.decay = decay.data();
  p.states = states.data();
  p.slot_stride = c.state_elements() + kGap;
  p.slots = step.slots.data();
  p.whole = c.whole == 0 ? nullptr : step.whole.data();
  LinearAttention(p, pool);
  std::vector<float> compact;
  const std::vector<float> gap(kGap, kCanary);
  for (size_t r = 0; r < rows; ++r) {
    const float* row = out.data() + r * (width + kGap);
    compact.insert(compact.end(), row, row + width);
    EXPECT_TRUE(SameBits({row + width, kGap}, gap)) << "gap after row " << r;
  }
  return compact;
}

std::vector<double> Encoded(const LinearTokens& tokens, int64_t token,
                            const float* x, Activation activation) {
  const LinearTestConfig& c = tokens.config;
  return LrpeOracle(
      c.position,
      ActivationRowOracle(activation, {x, static_cast<size_t>(c.head_dim)}),
      tokens.first_position + token, c.base);
}

}  // namespace

std::vector<float> LinearTestConfig::Decay() const {
  std::vector<float> decay(num_heads, 1.0f);
  for (int64_t h = 0; decays && h < num_heads; ++h) {
    decay[h] = std::exp(-0.005f * std::pow(8.0f, static_cast<float>(h)));
  }
  return decay;
}

LinearTokens::LinearTokens(const LinearTestConfig& c, int64_t n, uint64_t seed)
    : config(c), length(n) {
  q = 0;
  k = q + c.num_heads * c.head_dim;
  v = k + c.num_heads * c.head_dim;
  stride = v + c.num_heads * c.value_dim + kGap;
  data = RandomTensor(seed, length * stride, -2.0f, 2.0f);
  for (int64_t t = 0; t < length; ++t) {
    std::fill_n(data.begin() + (t + 1) * stride - kGap, kGap, kNaN);
  }
  state = RandomTensor(seed + 1000, c.state_elements());
}

LinearOracle::LinearOracle(const LinearTokens& tokens)
    : config(tokens.config),
      out(tokens.length * config.num_heads * config.value_dim),
      out_scale(tokens.length * config.num_heads),
      state(tokens.state.begin(), tokens.state.end()) {
  const std::vector<float> decay = config.Decay();
  const int64_t dim = config.head_dim;
  const int64_t cols = config.value_dim;
  // Those that see each other: updates first, then outputs.
  const int64_t whole = std::min(config.whole, tokens.length);
  for (int64_t i = 0; i < tokens.length + whole; ++i) {
    const int64_t t = i < whole ? i : i - whole;
    const bool updates = i < whole || i >= 2 * whole;
    const bool reads = i >= whole;
    for (int64_t h = 0; h < config.num_heads; ++h) {
      const float* row = tokens.Row(t);
      const std::vector<double> q =
          Encoded(tokens, t, row + tokens.q + h * dim, config.q_activation);
      const std::vector<double> k =
          Encoded(tokens, t, row + tokens.k + h * dim, config.k_activation);
      const std::vector<double> v = ActivationRowOracle(
          config.v_activation,
          {row + tokens.v + h * cols, static_cast<size_t>(cols)});
      double* s = state.data() + h * config.key_dim() * cols;
      double* o = out.data() + (t * config.num_heads + h) * cols;
      for (int64_t e = 0; e < cols; ++e) {
        double magnitude = 0.0;
        for (int64_t d = 0; d < config.key_dim(); ++d) {
          double& cell = s[d * cols + e];
          if (updates) {
            cell = static_cast<double>(decay[h]) * cell + k[d] * v[e];
          }
          if (!reads) continue;
          o[e] += cell * q[d];
          magnitude += std::abs(cell * q[d]);
        }
        double& scale = out_scale[t * config.num_heads + h];
        scale = std::max(scale, magnitude);
      }
    }
  }
}

void LinearOracle::Expect(absl::Span<const float> got_out,
                          absl::Span<const float> got_state,
                          double tolerance) const {
  const absl::Span<const double> want = out;
  const int64_t cols = config.value_dim;
  ASSERT_EQ(got_out.size(), out.size());
  for (size_t i = 0; i < out_scale.size(); ++i) {
    ASSERT_TRUE(NearScaled(got_out.subspan(i * cols, cols),
                           want.subspan(i * cols, cols), tolerance,
                           out_scale[i]))
        << "row " << i / config.num_heads << " head " << i % config.num_heads;
  }
  const int64_t head = config.key_dim() * cols;
  for (int64_t h = 0; h < config.num_heads; ++h) {
    ASSERT_TRUE(RelativelyNear(
        got_state.subspan(h * head, head),
        absl::MakeConstSpan(state).subspan(h * head, head), tolerance))
        << "final state of head " << h;
  }
}

LinearResult RunLinear(absl::Span<const LinearTokens* const> sequences,
                       absl::Span<const LinearCut> cuts, ThreadPool& pool) {
  const LinearTestConfig& config = sequences[0]->config;
  const int64_t size = config.state_elements();
  const int64_t stride = size + kGap;
  const int64_t width = config.num_heads * config.value_dim;
  // Unowned slots, and the gaps, are NaN.
  std::vector<float> states((2 * sequences.size() + 2) * stride, kNaN);
  const auto state_of = [&](size_t b) {
    return states.begin() + SlotOf(b, sequences.size()) * stride;
  };
  for (size_t b = 0; b < sequences.size(); ++b) {
    std::copy(sequences[b]->state.begin(), sequences[b]->state.end(),
              state_of(b));
  }
  LinearResult result;
  result.out.resize(sequences.size());
  std::vector<int64_t> done(sequences.size(), 0);
  for (const LinearCut& cut : cuts) {
    std::vector<float> before = states;
    const Step step = MakeStep(sequences, cut, done);
    const std::vector<float> out = RunStep(*sequences[0], step, states, pool);
    for (size_t b = 0; b < sequences.size(); ++b) {
      result.out[b].insert(result.out[b].end(),
                           out.begin() + step.query_start[b] * width,
                           out.begin() + step.query_start[b + 1] * width);
      done[b] += cut[b];
      if (cut[b] == 0) continue;
      const auto first = state_of(b);  // only here may bits have changed
      std::copy(first, first + size, before.begin() + (first - states.begin()));
    }
    EXPECT_TRUE(SameBits(states, before)) << "a slot without tokens changed";
  }
  for (size_t b = 0; b < sequences.size(); ++b) {
    EXPECT_EQ(done[b], sequences[b]->length);
    result.state.emplace_back(state_of(b), state_of(b) + size);
  }
  return result;
}

}  // namespace recurve
