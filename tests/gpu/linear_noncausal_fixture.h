// Batches for the GPU tests of non-causal linear attention, and their float64
// reference.
#ifndef RECURVE_TESTS_GPU_LINEAR_NONCAUSAL_FIXTURE_H_
#define RECURVE_TESTS_GPU_LINEAR_NONCAUSAL_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/linear_attn/noncausal/linear_noncausal_cuda.h"
#include "kernels/seeds/linear_noncausal/linear_noncausal_seed_cuda.h"
#include "tests/gpu/linear_prefill_gpu_testing.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace linear_noncausal_testing {

// For outputs and S: ‖error‖ / ‖value‖ of each head.
inline constexpr double kTolerance = 4e-3;
inline constexpr int64_t kGap = 8;

struct Config {
  int64_t heads = 2;
  int64_t head_dim = 128;
  int64_t value_dim = 128;
  Activation q = Activation::kNone;
  Activation k = Activation::kNone;
  Activation g = Activation::kNone;
  bool q_sequence = false;
  bool k_sequence = false;
  bool gate = true;
  LrpeType position = LrpeType::kNone;
  int64_t first_position = 0;
  float scale = 1.0f;
  float ramp = 1.0f;         // over features, with period 37
  bool head_angles = false;  // each head has different angles
  // Added to all features of q, and of k, by tokens in turn; may be empty.
  std::vector<float> q_levels, k_levels;

  double base(int64_t head) const {
    return 10000.0 / static_cast<double>(head_angles ? head + 1 : 1);
  }
  int64_t key_dim() const { return LrpeOutputDim(position, head_dim); }
  int64_t state() const { return heads * key_dim() * value_dim; }
  int64_t token() const { return 2 * heads * (head_dim + value_dim); }
};

// q, k, v and g of a token, adjacent, with a ramp.
inline std::vector<float> Token(const Config& c, int64_t sequence, int64_t t) {
  std::vector<float> token =
      RandomTensor(9000 * sequence + t + 1, c.token(), -2.0f, 2.0f);
  for (size_t i = 0; i < token.size(); ++i) {
    token[i] += c.ramp * static_cast<float>(i % 37) / 37.0f +
                0.05f * static_cast<float>(t % 5);
  }
  const auto keys = token.begin() + c.heads * c.head_dim;
  const auto raise = [&](auto from, auto to, const std::vector<float>& levels) {
    if (levels.empty()) return;
    const float level = levels[static_cast<size_t>(t) % levels.size()];
    for (auto x = from; x != to; ++x) *x += level;
  };
  raise(token.begin(), keys, c.q_levels);
  raise(keys, keys + c.heads * c.head_dim, c.k_levels);
  return Rounded(ElementType::kBFloat16, token);
}

struct Oracle {
  Oracle(const Config& c, int64_t sequence, int64_t count)
      : out(count * c.heads * c.value_dim), state(c.state()) {
    std::vector<std::vector<float>> tokens;
    for (int64_t t = 0; t < count; ++t) tokens.push_back(Token(c, sequence, t));
    for (int64_t h = 0; h < c.heads; ++h) AddHead(c, h, tokens);
  }
  void AddHead(const Config& c, int64_t h,
               const std::vector<std::vector<float>>& tokens) {
    const size_t d = c.head_dim;
    const size_t e = c.value_dim;
    const size_t dk = c.key_dim();
    const int64_t count = static_cast<int64_t>(tokens.size());
    const auto encoded = [&](size_t at, Activation activation, bool sequence) {
      std::vector<double> most(d, -std::numeric_limits<double>::infinity());
      for (int64_t t = 0; t < count; ++t) {
        for (size_t i = 0; i < d; ++i) {
          most[i] = std::max<double>(most[i], tokens[t][at + i]);
        }
      }
      std::vector<double> sum(d, 0.0);
      std::vector<std::vector<double>> all;
      for (int64_t t = 0; t < count; ++t) {
        all.push_back(ActivationRowOracle(activation, {&tokens[t][at], d}));
        for (size_t i = 0; sequence && i < d; ++i) {
          all[t][i] = std::exp(tokens[t][at + i] - most[i]);
          sum[i] += all[t][i];
        }
      }
      for (int64_t t = 0; t < count; ++t) {
        for (size_t i = 0; sequence && i < d; ++i) all[t][i] /= sum[i];
        all[t] =
            LrpeOracle(c.position, all[t], c.first_position + t, c.base(h));
      }
      return all;
    };
    const auto q = encoded(h * d, c.q, c.q_sequence);
    const auto k = encoded((c.heads + h) * d, c.k, c.k_sequence);
    double* s = state.data() + h * dk * e;
    for (int64_t t = 0; t < count; ++t) {
      const float* v = &tokens[t][2 * c.heads * d + h * e];
      for (size_t r = 0; r < dk; ++r) {
        for (size_t j = 0; j < e; ++j) s[r * e + j] += k[t][r] * v[j];
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      const float* g = &tokens[t][2 * c.heads * d + (c.heads + h) * e];
      double* o = &out[(t * c.heads + h) * e];
      for (size_t r = 0; r < dk; ++r) {
        for (size_t j = 0; j < e; ++j) o[j] += q[t][r] * s[r * e + j] * c.scale;
      }
      for (size_t j = 0; c.gate && j < e; ++j) {
        o[j] *= ActivationOracle(c.g, g[j]);
      }
    }
  }
  std::vector<double> out;    // [count, H, E]
  std::vector<double> state;  // [H, Dk, E]
};

// Rows on the device, then one in the sink and one beyond the number of rows,
// whose tokens are NaN.
class Batch {
 public:
  Batch(const Config& config, const std::vector<int64_t>& counts,
        int64_t first_sequence = 1)
      : c_(config),
        counts_(counts),
        stride_(c_.token() + kGap),
        out_stride_(c_.heads * c_.value_dim + kGap),
        slot_stride_(c_.state() + kGap),
        starts_(Starts()),
        tokens_(ElementType::kBFloat16, Tokens(first_sequence)),
        out_(ElementType::kBFloat16,
             std::vector<float>(starts_.back() * out_stride_, kCanary)),
        states_(std::vector<float>((counts.size() + 3) * slot_stride_, kNaN)),
        query_start_(starts_),
        rows_({static_cast<int32_t>(counts.size() + 1)}),
        slots_(Slots()),
        positions_(std::vector<int64_t>(counts.size() + 2, c_.first_position)),
        phases_(Phases()),
        workspace_(Workspace()) {}

  LinearNoncausalParams Params() {
    const auto at = [&](int64_t offset) {
      return static_cast<const void*>(static_cast<char*>(tokens_.data()) +
                                      2 * offset);
    };
    const int64_t keys = c_.heads * c_.head_dim;
    LinearNoncausalParams p = {};
    p.num_heads = c_.heads;
    p.head_dim = c_.head_dim;
    p.value_dim = c_.value_dim;
    p.q = at(0);
    p.k = at(keys);
    p.v = at(2 * keys);
    p.g = c_.gate ? at(2 * keys + c_.heads * c_.value_dim) : nullptr;
    p.stride = stride_;
    p.out_type = ElementType::kBFloat16;
    p.out = out_.data();
    p.out_stride = out_stride_;
    p.query_start = query_start_.data();
    p.max_rows = static_cast<int64_t>(counts_.size()) + 2;
    p.rows = rows_.data();
    p.slots = slots_.data();
    p.positions = positions_.data();
    p.q_activation = c_.q;
    p.k_activation = c_.k;
    p.g_activation = c_.g;
    p.q_sequence_softmax = c_.q_sequence;
    p.k_sequence_softmax = c_.k_sequence;
    p.position = c_.position;
    p.phase_steps = phases_.data();
    p.phase_head_stride = c_.head_angles ? PhasesOf(0).size() : 0;
    p.scale = c_.scale;
    p.states = states_.data();
    p.slot_stride = slot_stride_;
    p.workspace =
        shared_workspace_ != nullptr ? shared_workspace_ : workspace_.data();
    return p;
  }
  // Uses another batch's workspace, which must be large enough.
  void UseWorkspace(void* workspace) { shared_workspace_ = workspace; }
  void Run() {
    ASSERT_EQ(LaunchLinearNoncausalSeed(Params(), nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> out = out_.Read();
    const float canary = Rounded(ElementType::kBFloat16, {kCanary})[0];
    const int64_t width = out_stride_ - kGap;
    const size_t live = counts_.size();
    for (int64_t t = 0; t < starts_.back(); ++t) {
      for (int64_t i = 0; i < out_stride_; ++i) {
        const float x = out[t * out_stride_ + i];
        if (i >= width || t >= starts_[live + 1]) {
          ASSERT_EQ(x, canary) << "token " << t << " at " << i;
        } else if (t >= starts_[live]) {
          ASSERT_EQ(x, 0.0f) << "the sink, token " << t;
        }
      }
    }
    const std::vector<float> states = states_.Read();
    for (size_t i = 0; i < states.size(); ++i) {
      const size_t slot = i / slot_stride_;
      const bool used = slot >= 2 && slot < 2 + live && counts_[slot - 2] > 0 &&
                        static_cast<int64_t>(i % slot_stride_) < c_.state();
      if (!used) {
        ASSERT_TRUE(std::isnan(states[i])) << "slot " << slot;
      }
    }
  }
  std::vector<float> Out(int64_t row) const {
    const std::vector<float> all = out_.Read();
    std::vector<float> out;
    for (int64_t t = starts_[row]; t < starts_[row + 1]; ++t) {
      const auto at = all.begin() + t * out_stride_;
      out.insert(out.end(), at, at + out_stride_ - kGap);
    }
    return out;
  }
  std::vector<float> State(int64_t row) const {
    const std::vector<float> states = states_.Read();
    const auto at = states.begin() + (row + 2) * slot_stride_;
    return {at, at + c_.state()};
  }

 private:
  std::vector<int32_t> Starts() const {
    std::vector<int32_t> starts = {0};
    for (int64_t count : counts_) {
      starts.push_back(static_cast<int32_t>(starts.back() + count));
    }
    for (int trap = 0; trap < 2; ++trap) starts.push_back(starts.back() + 9);
    return starts;
  }
  std::vector<float> Tokens(int64_t first_sequence) const {
    std::vector<float> values(starts_.back() * stride_, kNaN);
    for (size_t row = 0; row < counts_.size(); ++row) {
      for (int64_t t = 0; t < counts_[row]; ++t) {
        const std::vector<float> token =
            Token(c_, first_sequence + static_cast<int64_t>(row), t);
        std::copy(token.begin(), token.end(),
                  values.begin() + (starts_[row] + t) * stride_);
      }
    }
    return values;
  }
  std::vector<int32_t> Slots() const {
    std::vector<int32_t> slots;
    for (size_t row = 0; row < counts_.size(); ++row) {
      slots.push_back(static_cast<int32_t>(row + 2));
    }
    slots.push_back(0);
    slots.push_back(1);
    return slots;
  }
  std::vector<uint64_t> PhasesOf(int64_t head) const {
    return LrpePhaseSteps(LrpeTheta(c_.position, c_.head_dim, c_.base(head)));
  }
  std::vector<uint64_t> Phases() const {
    std::vector<uint64_t> phases;
    for (int64_t h = 0; h < (c_.head_angles ? c_.heads : 1); ++h) {
      const std::vector<uint64_t> more = PhasesOf(h);
      phases.insert(phases.end(), more.begin(), more.end());
    }
    if (phases.empty()) phases.push_back(0);
    return phases;
  }

  // The kernel leaves its sums there, so it must begin as zeros; no other
  // content is required.
  std::vector<char> Workspace() const {
    LinearNoncausalParams p = {};
    p.position = c_.position;
    p.q_sequence_softmax = c_.q_sequence;
    p.k_sequence_softmax = c_.k_sequence;
    return std::vector<char>(LinearNoncausalWorkspaceBytes(p) + 1, 0);
  }

  Config c_;
  std::vector<int64_t> counts_;
  int64_t stride_, out_stride_, slot_stride_;
  std::vector<int32_t> starts_;
  DeviceTensor tokens_, out_;
  DeviceBuffer<float> states_;
  DeviceBuffer<int32_t> query_start_, rows_, slots_;
  DeviceBuffer<int64_t> positions_;
  DeviceBuffer<uint64_t> phases_;
  DeviceBuffer<char> workspace_;
  void* shared_workspace_ = nullptr;
};

class LinearNoncausalGpuTest : public GpuTest {
 protected:
  static void ExpectOracle(const Config& c,
                           const std::vector<int64_t>& counts) {
    Batch batch(c, counts);
    ASSERT_NO_FATAL_FAILURE(batch.Run());
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      const Oracle want(c, static_cast<int64_t>(i) + 1, counts[i]);
      const double out =
          WorstHeadError(batch.Out(i), want.out, c.heads, c.value_dim);
      const double state = WorstHeadError(batch.State(i), want.state, c.heads,
                                          c.key_dim() * c.value_dim);
      EXPECT_LE(out, counts[i] < 16 ? 2 * kTolerance : kTolerance)
          << "out, length " << counts[i]
          << RelativelyNear(batch.Out(i), want.out, kTolerance).message();
      EXPECT_LE(state, kTolerance)
          << "state, length " << counts[i]
          << RelativelyNear(batch.State(i), want.state, kTolerance).message();
    }
  }
  // Rows of `all`, whose sequences are those from `first` on, have the same
  // bits as in a separate batch.
  static void ExpectAsAlone(const Config& c, const Batch& all,
                            const std::vector<int64_t>& counts,
                            const std::vector<int64_t>& rows, int64_t first) {
    for (const int64_t row : rows) {
      SCOPED_TRACE(testing::Message() << "row " << row);
      Batch alone(c, {counts[row]}, first + row);
      ASSERT_NO_FATAL_FAILURE(alone.Run());
      EXPECT_TRUE(SameBits(all.Out(row), alone.Out(0)));
      EXPECT_TRUE(SameBits(all.State(row), alone.State(0)));
    }
  }
};

}  // namespace linear_noncausal_testing
}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_LINEAR_NONCAUSAL_FIXTURE_H_
