#include "tests/gpu/linear_prefill_gpu_testing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tests/kernels/activation_oracle.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

std::vector<float> FirstStates(const LinearGpuConfig& config,
                               const std::vector<PromptPart>& parts,
                               int64_t slot_stride, bool fresh) {
  const int64_t live = static_cast<int64_t>(parts.size());
  std::vector<float> states((2 * live + 2) * slot_stride, kNaN);
  if (fresh) return states;
  for (int64_t i = 0; i < live; ++i) {
    const std::vector<float> first =
        LinearFirstState(config, parts[i].sequence);
    std::copy(first.begin(), first.end(),
              states.begin() + 2 * (live - i) * slot_stride);
  }
  return states;
}

}  // namespace

PrefillOracle::PrefillOracle(const LinearGpuConfig& config,
                             const PromptPart& part, bool fresh) {
  const LinearGpuConfig& c = config;
  const size_t d = c.head_dim;
  const size_t e = c.value_dim;
  const size_t dk = c.key_dim();
  state.assign(c.state_elements(), 0.0);
  if (!fresh) {
    const std::vector<float> first = LinearFirstState(c, part.sequence);
    state.assign(first.begin(), first.end());
  }
  out.assign(part.count * c.heads * e, 0.0);
  const std::vector<float> decay = c.Decay();
  for (int64_t t = 0; t < part.count; ++t) {
    const std::vector<float> token =
        LinearToken(c, part.sequence, part.first + t);
    const auto encoded = [&](size_t at, Activation activation, int64_t head) {
      return LrpeOracle(c.position,
                        ActivationRowOracle(activation, {&token[at], d}),
                        c.first_position + part.first + t, c.base(head));
    };
    for (int64_t h = 0; h < c.heads; ++h) {
      const auto q = encoded(h * d, c.q_activation, h);
      const auto k = encoded((c.heads + h) * d, c.k_activation, h);
      const auto v = ActivationRowOracle(c.v_activation,
                                         {&token[2 * c.heads * d + h * e], e});
      double* s = state.data() + h * dk * e;
      double* o = out.data() + (t * c.heads + h) * e;
      const double lambda = decay[h];
      for (size_t r = 0; r < dk; ++r) {
        const double query = q[r] * c.scale;
        for (size_t j = 0; j < e; ++j) {
          s[r * e + j] = lambda * s[r * e + j] + k[r] * v[j];
          o[j] += s[r * e + j] * query;
        }
      }
    }
  }
}

double WorstHeadError(const std::vector<float>& got,
                      const std::vector<double>& want, int64_t heads,
                      int64_t inner) {
  if (got.size() != want.size()) {
    return std::numeric_limits<double>::infinity();
  }
  double worst = 0.0;
  const int64_t size = static_cast<int64_t>(want.size());
  for (int64_t h = 0; h < heads; ++h) {
    double error = 0.0;
    double norm = 0.0;
    for (int64_t first = h * inner; first < size; first += heads * inner) {
      for (int64_t i = first; i < first + inner; ++i) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
      }
    }
    if (norm == 0.0 && error == 0.0) continue;
    const double relative = std::sqrt(error / norm);
    if (!(relative <= worst)) worst = relative;
    if (std::isnan(worst)) return std::numeric_limits<double>::infinity();
  }
  return worst;
}

LinearPrefillBatch::LinearPrefillBatch(const LinearGpuConfig& config,
                                       std::vector<PromptPart> parts,
                                       Options options)
    : config_(config),
      parts_(std::move(parts)),
      options_(options),
      in_stride_(config.token_elements() + kGap),
      out_stride_(config.heads * config.value_dim + kGap),
      slot_stride_(config.state_elements() + kGap),
      states_(FirstStates(config, parts_, slot_stride_, options.fresh)),
      decay_(config.Decay()),
      phases_(LinearPhases(config)) {
  Upload();
}

void LinearPrefillBatch::Next(std::vector<PromptPart> parts) {
  ASSERT_EQ(parts.size(), parts_.size());
  parts_ = std::move(parts);
  options_.fresh = false;
  Upload();
}

int64_t LinearPrefillBatch::tokens() const {
  int64_t count = 2 * kTrapTokens;
  for (const PromptPart& part : parts_) count += part.count;
  return count;
}

void LinearPrefillBatch::Upload() {
  std::vector<float> values(tokens() * in_stride_, kNaN);
  std::vector<int32_t> starts = {0}, slots, fresh;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < parts(); ++i) {
    const PromptPart& part = parts_[i];
    for (int64_t t = 0; t < part.count; ++t) {
      const std::vector<float> token =
          LinearToken(config_, part.sequence, part.first + t);
      std::copy(token.begin(), token.end(),
                values.begin() + (starts.back() + t) * in_stride_);
    }
    starts.push_back(static_cast<int32_t>(starts.back() + part.count));
    slots.push_back(Slot(i));
    fresh.push_back(options_.fresh ? 1 : 0);
    positions.push_back(config_.first_position + part.first);
  }
  for (int32_t slot : {0, 1}) {  // the sink, and beyond the count of rows
    starts.push_back(static_cast<int32_t>(starts.back() + kTrapTokens));
    slots.push_back(slot);
    fresh.push_back(0);
    positions.push_back(3);
  }
  tokens_ = std::make_unique<DeviceTensor>(config_.io, values);
  out_ = std::make_unique<DeviceTensor>(
      out_type(), std::vector<float>(tokens() * out_stride_, kCanary));
  query_start_ = std::make_unique<DeviceBuffer<int32_t>>(starts);
  rows_ = std::make_unique<DeviceBuffer<int32_t>>(
      std::vector<int32_t>{static_cast<int32_t>(parts() + 1)});
  slots_ = std::make_unique<DeviceBuffer<int32_t>>(slots);
  fresh_ = std::make_unique<DeviceBuffer<int32_t>>(fresh);
  positions_ = std::make_unique<DeviceBuffer<int64_t>>(positions);
}

LinearPrefillParams LinearPrefillBatch::Params() {
  const LinearGpuConfig& c = config_;
  const auto at = [&](int64_t offset) -> const void* {
    const int64_t size = c.io == ElementType::kFloat32 ? 4 : 2;
    return static_cast<const char*>(tokens_->data()) + offset * size;
  };
  LinearPrefillParams p = {};
  p.num_heads = c.heads;
  p.head_dim = c.head_dim;
  p.value_dim = c.value_dim;
  p.io_type = c.io;
  p.out_type = out_type();
  p.q = at(0);
  p.k = at(c.heads * c.head_dim);
  p.v = at(2 * c.heads * c.head_dim);
  p.stride = in_stride_;
  p.out = out_->data();
  p.out_stride = out_stride_;
  p.query_start = query_start_->data();
  p.max_rows = parts() + 2;
  p.rows = rows_->data();
  p.slots = slots_->data();
  p.positions = positions_->data();
  p.fresh = fresh_->data();
  p.q_activation = c.q_activation;
  p.k_activation = c.k_activation;
  p.v_activation = c.v_activation;
  p.position = c.position;
  p.phase_steps = phases_.data();
  p.phase_head_stride =
      c.angles_by_head ? LrpeAngles(c.position, c.head_dim) : 0;
  p.scale = c.scale;
  p.decay = options_.no_decay ? nullptr : decay_.data();
  p.states = states_.data();
  p.slot_stride = slot_stride_;
  return p;
}

void LinearPrefillBatch::Run() {
  std::vector<float> before = states_.Read();
  ASSERT_EQ(LaunchLinearPrefill(Params(), nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  // Only the states of the parts may have changed, and of an empty one not
  // even that.
  const std::vector<float> after = states_.Read();
  for (int64_t i = 0; i < parts(); ++i) {
    if (parts_[i].count == 0) continue;
    const int64_t first = Slot(i) * slot_stride_;
    std::copy_n(after.begin() + first, config_.state_elements(),
                before.begin() + first);
  }
  ASSERT_TRUE(SameBits(after, before)) << "a slot of no row changed";
  const std::vector<float> out = out_->Read();
  const float canary = Rounded(out_type(), {kCanary})[0];
  const int64_t width = out_stride_ - kGap;
  for (int64_t t = 0; t < tokens(); ++t) {
    const bool sink = t >= tokens() - 2 * kTrapTokens;
    const bool beyond = t >= tokens() - kTrapTokens;
    for (int64_t i = sink && !beyond ? 0 : width; i < out_stride_; ++i) {
      const float want = i < width ? 0.0f : canary;
      ASSERT_EQ(out[t * out_stride_ + i], want) << "token " << t << " at " << i;
    }
    for (int64_t i = 0; beyond && i < out_stride_; ++i) {
      ASSERT_EQ(out[t * out_stride_ + i], canary) << "a row beyond the count";
    }
  }
}

std::vector<float> LinearPrefillBatch::Out(int64_t part) const {
  const std::vector<float> all = out_->Read();
  int64_t first = 0;
  for (int64_t i = 0; i < part; ++i) first += parts_[i].count;
  std::vector<float> out;
  for (int64_t t = first; t < first + parts_[part].count; ++t) {
    const auto row = all.begin() + t * out_stride_;
    out.insert(out.end(), row, row + out_stride_ - kGap);
  }
  return out;
}

std::vector<float> LinearPrefillBatch::State(int64_t part) const {
  const std::vector<float> states = states_.Read();
  const auto first = states.begin() + Slot(part) * slot_stride_;
  return {first, first + config_.state_elements()};
}

}  // namespace recurve
