#include "tests/gpu/linear_gpu_testing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/kernels/activation_oracle.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
std::vector<float> LinearGpuConfig::Decay() const {
  if (!decay.empty()) return decay;
  std::vector<float> of_heads(heads);
  for (int64_t h = 0; h < heads; ++h) {
    of_heads[h] = h == 0 ? 1.0f : std::exp(-0.01f * static_cast<float>(h * h));
  }
  return of_heads;
}

std::vector<uint64_t> LinearPhases(const LinearGpuConfig& c) {
  std::vector<uint64_t> phases;
  for (int64_t h = 0; h < (c.angles_by_head ? c.heads : 1); ++h) {
    const std::vector<uint64_t> of_head =
        LrpePhaseSteps(LrpeTheta(c.position, c.head_dim, c.base(h)));
    phases.insert(phases.end(), of_head.begin(), of_head.end());
  }
  if (phases.empty()) phases.push_back(0);
  return phases;
}

std::vector<float> LinearToken(const LinearGpuConfig& c, int64_t sequence,
                               int64_t step) {
  std::vector<float> token =
      RandomTensor(1000 * sequence + step + 1, c.token_elements(), -2.0f, 2.0f);
  for (size_t i = 0; i < token.size(); ++i) {
    token[i] += static_cast<float>(i % 37) / 37.0f +
                0.05f * static_cast<float>(step % 5);
  }
  return Rounded(c.io, token);
}

std::vector<float> LinearFirstState(const LinearGpuConfig& c,
                                    int64_t sequence) {
  return Rounded(c.state, RandomTensor(7000 + sequence, c.state_elements()));
}

LinearGpuOracle::LinearGpuOracle(const LinearGpuConfig& config,
                                 int64_t sequence)
    : config_(config),
      sequence_(sequence),
      out_(config.heads * config.value_dim),
      scale_(config.heads) {
  const std::vector<float> first = LinearFirstState(config, sequence);
  state_.assign(first.begin(), first.end());
}

void LinearGpuOracle::Step() {
  const LinearGpuConfig& c = config_;
  const std::vector<float> token = LinearToken(c, sequence_, steps_);
  const std::vector<float> decay = c.Decay();
  const size_t d = c.head_dim;
  const size_t e = c.value_dim;
  const auto encoded = [&](size_t at, Activation activation, int64_t head) {
    return LrpeOracle(c.position,
                      ActivationRowOracle(activation, {&token[at], d}),
                      c.first_position + steps_, c.base(head));
  };
  for (int64_t h = 0; h < c.heads; ++h) {
    const auto q = encoded(h * d, c.q_activation, h);
    const auto k = encoded((c.heads + h) * d, c.k_activation, h);
    const auto v = ActivationRowOracle(c.v_activation,
                                       {&token[2 * c.heads * d + h * e], e});
    double* state = state_.data() + h * c.key_dim() * e;
    scale_[h] = 0.0;
    for (size_t j = 0; j < e; ++j) {
      double out = 0.0;
      double magnitude = 0.0;
      for (int64_t r = 0; r < c.key_dim(); ++r) {
        double& cell = state[r * e + j];
        cell = static_cast<double>(decay[h]) * cell + k[r] * v[j];
        out += cell * q[r] * c.scale;
        magnitude += std::abs(cell * q[r] * c.scale);
      }
      out_[h * e + j] = out;
      scale_[h] = std::max(scale_[h], magnitude);
    }
  }
  ++steps_;
}

LinearGpuBatch::LinearGpuBatch(const LinearGpuConfig& config,
                               std::vector<int64_t> ids)
    : config_(config),
      ids_(std::move(ids)),
      in_stride_(config.token_elements() + kGap),
      out_stride_(config.heads * config.value_dim + kGap),
      slot_stride_(config.state_elements() + kGap),
      tokens_(config.io, Tokens()),
      out_(config.io, std::vector<float>(max_rows() * out_stride_, kCanary)),
      states_(config.state, States()),
      rows_({static_cast<int32_t>(live() + kPadding)}),
      slots_(SlotIndices()),
      positions_(Positions()),
      phases_(LinearPhases(config)),
      decay_(config.Decay()) {}

// Unowned slots, the sink and the gaps are NaN.
std::vector<float> LinearGpuBatch::States() const {
  std::vector<float> states(slots() * slot_stride_, kNaN);
  for (int64_t r = 0; r < live(); ++r) {
    const std::vector<float> first = LinearFirstState(config_, ids_[r]);
    std::copy(first.begin(), first.end(),
              states.begin() + Slot(r) * slot_stride_);
  }
  return states;
}

std::vector<float> LinearGpuBatch::Tokens() const {
  std::vector<float> tokens(max_rows() * in_stride_, kNaN);
  for (int64_t r = 0; r < live(); ++r) {
    const std::vector<float> token = LinearToken(config_, ids_[r], steps_);
    std::copy(token.begin(), token.end(), tokens.begin() + r * in_stride_);
  }
  return tokens;
}

std::vector<int32_t> LinearGpuBatch::SlotIndices() const {
  std::vector<int32_t> slots(max_rows(), 0);
  for (int64_t r = 0; r < live(); ++r) slots[r] = static_cast<int32_t>(Slot(r));
  slots.back() = 1;  // beyond the number of rows: an unowned slot
  return slots;
}

std::vector<int64_t> LinearGpuBatch::Positions() const {
  return std::vector<int64_t>(max_rows(), config_.first_position + steps_);
}

LinearStepParams LinearGpuBatch::Params() {
  const LinearGpuConfig& c = config_;
  const auto at = [&](int64_t offset) -> const void* {
    const int64_t size = c.io == ElementType::kFloat32 ? 4 : 2;
    return static_cast<const char*>(tokens_.data()) + offset * size;
  };
  LinearStepParams p = {};
  p.num_heads = c.heads;
  p.head_dim = c.head_dim;
  p.value_dim = c.value_dim;
  p.io_type = c.io;
  p.q = at(0);
  p.k = at(c.heads * c.head_dim);
  p.v = at(2 * c.heads * c.head_dim);
  p.stride = in_stride_;
  p.out = out_.data();
  p.out_stride = out_stride_;
  p.max_rows = max_rows();
  p.rows = rows_.data();
  p.slots = slots_.data();
  p.positions = positions_.data();
  p.q_activation = c.q_activation;
  p.k_activation = c.k_activation;
  p.v_activation = c.v_activation;
  p.position = c.position;
  p.phase_steps = phases_.data();
  p.phase_head_stride =
      c.angles_by_head ? LrpeAngles(c.position, c.head_dim) : 0;
  p.scale = c.scale;
  p.decay = decay_.data();
  p.state_type = c.state;
  p.states = states_.data();
  p.slot_stride = slot_stride_;
  p.rounding_seed = c.rounding_seed;
  return p;
}

void LinearGpuBatch::Step() {
  tokens_.Write(Tokens());
  positions_.Write(Positions());
  out_.Write(std::vector<float>(max_rows() * out_stride_, kCanary));
  std::vector<float> before = states_.Read();
  ASSERT_EQ(LaunchLinearStep(Params(), nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ++steps_;

  // Only the states of the live rows may have changed.
  const std::vector<float> after = states_.Read();
  for (int64_t r = 0; r < live(); ++r) {
    const int64_t first = Slot(r) * slot_stride_;
    std::copy_n(after.begin() + first, config_.state_elements(),
                before.begin() + first);
  }
  ASSERT_TRUE(SameBits(after, before)) << "a slot of no row changed";
  const std::vector<float> out = out_.Read();
  const int64_t width = out_stride_ - kGap;
  const float canary = Rounded(config_.io, {kCanary})[0];
  for (int64_t r = 0; r < max_rows(); ++r) {
    const float* row = out.data() + r * out_stride_;
    for (int64_t i = 0; i < out_stride_; ++i) {
      if (i >= width || r == max_rows() - 1) {
        ASSERT_EQ(row[i], canary) << "gap or row beyond the count, row " << r;
      } else if (r >= live()) {
        ASSERT_EQ(row[i], 0.0f) << "padding row " << r;
      }
    }
  }
}

std::vector<float> LinearGpuBatch::Out(int64_t row) const {
  const std::vector<float> out = out_.Read();
  const auto first = out.begin() + row * out_stride_;
  return {first, first + out_stride_ - kGap};
}

std::vector<float> LinearGpuBatch::State(int64_t row) const {
  const std::vector<float> states = states_.Read();
  const auto first = states.begin() + Slot(row) * slot_stride_;
  return {first, first + config_.state_elements()};
}

}  // namespace recurve
