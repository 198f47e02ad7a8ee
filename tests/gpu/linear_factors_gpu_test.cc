// The factors of linear attention on the GPU against float64.

#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "kernels/linear_attn/linear_factors_cuda.h"
#include "kernels/seeds/linear_step/linear_step_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/linear_prefill_gpu_testing.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr int64_t kGap = 8;  // elements between tokens

struct Config {
  int64_t tokens = 21;
  int64_t heads = 3;
  int64_t head_dim = 64;
  int64_t value_dim = 64;
  LrpeType position = LrpeType::kNone;
  Activation activation = Activation::kNone;
  int64_t first_position = 0;

  int64_t key_dim() const { return LrpeOutputDim(position, head_dim); }
  int64_t angles() const { return LrpeAngles(position, head_dim); }
};

// f(angle) of each token.
template <typename F>
std::vector<float> Table(const Config& c, F f) {
  std::vector<float> table;
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = 0; i < c.angles(); ++i) {
      const double theta =
          std::pow(10000.0, -2.0 * static_cast<double>(i) /
                                static_cast<double>(c.head_dim));
      table.push_back(static_cast<float>(
          f(static_cast<double>(c.first_position + t) * theta)));
    }
  }
  if (table.empty()) table.push_back(kNaN);
  return table;
}

// Tables on the device, and the parameters of a launch.
class Launch {
 public:
  explicit Launch(const Config& c)
      : stride_(c.heads * (2 * c.head_dim + c.value_dim) + kGap),
        factors_stride_(c.heads * (2 * c.key_dim() + c.value_dim) + kGap),
        x_(Input(c)),
        in_(x_),
        cos_(Table(c, [](double a) { return std::cos(a); })),
        sin_(Table(c, [](double a) { return std::sin(a); })),
        out_(ElementType::kBFloat16,
             std::vector<float>((c.tokens + 1) * factors_stride_, kCanary)) {
    p_.tokens = c.tokens;
    p_.num_heads = c.heads;
    p_.head_dim = c.head_dim;
    p_.value_dim = c.value_dim;
    p_.q = in_.data();
    p_.k = p_.q + c.heads * c.head_dim;
    p_.v = p_.k + c.heads * c.head_dim;
    p_.stride = stride_;
    p_.q_activation = p_.k_activation = p_.v_activation = c.activation;
    p_.position = c.position;
    p_.cos = cos_.data();
    p_.sin = sin_.data();
    p_.q_factors = static_cast<uint16_t*>(out_.data());
    p_.k_factors = p_.q_factors + c.heads * c.key_dim();
    p_.v_factors = p_.k_factors + c.heads * c.key_dim();
    p_.factors_stride = factors_stride_;
  }

  LinearFactorsParams& params() { return p_; }
  // A token's q, k and v, and their factors.
  const float* In(int64_t token) const { return &x_[token * stride_]; }
  int64_t factors_stride() const { return factors_stride_; }
  std::vector<float> Factors() const { return out_.Read(); }

 private:
  std::vector<float> Input(const Config& c) const {
    std::vector<float> x =
        RandomTensor(7, (c.tokens + 1) * stride_, -3.0f, 3.0f);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] += 3.0f * static_cast<float>(i) / static_cast<float>(x.size());
      const int64_t column = static_cast<int64_t>(i) % stride_;
      const int64_t token = static_cast<int64_t>(i) / stride_;
      if (column >= stride_ - kGap || token == c.tokens) x[i] = kNaN;
    }
    return x;
  }
  int64_t stride_, factors_stride_;
  std::vector<float> x_;
  DeviceBuffer<float> in_, cos_, sin_;
  DeviceTensor out_;
  LinearFactorsParams p_ = {};
};

class LinearFactorsGpuTest : public GpuTest {
 protected:
  static void ExpectOracle(const Config& c) {
    Launch launch(c);
    ASSERT_EQ(LaunchLinearFactors(launch.params(), nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> got = launch.Factors();
    const float canary = Rounded(ElementType::kBFloat16, {kCanary})[0];
    for (int64_t t = 0; t <= c.tokens; ++t) {
      std::vector<double> want;
      for (int64_t i = 0; t < c.tokens && i < 3 * c.heads; ++i) {
        const bool value = i >= 2 * c.heads;
        const int64_t dim = value ? c.value_dim : c.head_dim;
        const float* x = launch.In(t) + (value ? 2 * c.heads * c.head_dim +
                                                     (i - 2 * c.heads) * dim
                                               : i * dim);
        const std::vector<double> y = LrpeOracle(
            value ? LrpeType::kNone : c.position,
            ActivationRowOracle(c.activation, {x, static_cast<size_t>(dim)}),
            c.first_position + t, 10000.0);
        want.insert(want.end(), y.begin(), y.end());
      }
      const float* row = &got[t * launch.factors_stride()];
      for (int64_t i = 0; i < launch.factors_stride(); ++i) {
        if (i < static_cast<int64_t>(want.size())) {
          ASSERT_NEAR(row[i], want[i], 0x1p-8 * std::abs(want[i]) + 2e-5)
              << "token " << t << " at " << i;
        } else {
          ASSERT_EQ(row[i], canary) << "token " << t << " at " << i;
        }
      }
    }
  }
};

TEST_F(LinearFactorsGpuTest, MatchFloat64InEveryShape) {
  for (const auto& [heads, d, e] :
       {std::tuple(1, 8, 8), std::tuple(3, 32, 40), std::tuple(5, 64, 256),
        std::tuple(9, 72, 200), std::tuple(17, 128, 128),
        std::tuple(2, 256, 64), std::tuple(4, 248, 8)}) {
    for (LrpeType position :
         {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
      for (int64_t tokens : {1, 2, 63, 130}) {
        SCOPED_TRACE(testing::Message()
                     << tokens << " tokens, " << heads << " heads " << d
                     << " x " << e << " position "
                     << static_cast<int>(position));
        Config c = {tokens, heads, d, e, position};
        c.first_position = 5;
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
      }
    }
  }
}

TEST_F(LinearFactorsGpuTest, MatchFloat64WithEveryActivation) {
  for (Activation activation :
       {Activation::kSilu, Activation::kRelu, Activation::kSigmoid,
        Activation::kOnePlusElu, Activation::kExp, Activation::kSoftmax}) {
    for (LrpeType position :
         {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
      SCOPED_TRACE(testing::Message()
                   << "activation " << static_cast<int>(activation)
                   << " position " << static_cast<int>(position));
      Config c = {21, 5, 96, 40, position, activation};
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
    }
  }
}

// As the server does it: factors of float32, prompts from them with outputs in
// float32, and steps that go on from the state.
TEST_F(LinearFactorsGpuTest, PromptsFromThemHandOverToTheStep) {
  constexpr double kTolerance = 4e-3;
  constexpr int64_t kSteps = 64;
  for (const auto& [position, d] :
       {std::pair(LrpeType::kNone, 128), std::pair(LrpeType::kRotate, 128),
        std::pair(LrpeType::kCosine, 64), std::pair(LrpeType::kCosine, 128)}) {
    for (const int64_t count : {1, 64, 127, 640}) {
      SCOPED_TRACE(testing::Message()
                   << "position " << static_cast<int>(position) << " of " << d
                   << ", length " << count);
      LinearGpuConfig c;
      c.heads = 3;
      c.head_dim = d;
      c.value_dim = 64;
      c.position = position;
      const int64_t width = c.token_elements();
      std::vector<float> tokens;
      for (int64_t t = 0; t < count; ++t) {
        const std::vector<float> token = LinearToken(c, 1, t);
        tokens.insert(tokens.end(), token.begin(), token.end());
      }
      DeviceBuffer<float> in(tokens);
      const Config shape = {count, c.heads, d, c.value_dim, position};
      DeviceBuffer<float> cos(
          Table(shape, [](double a) { return std::cos(a); }));
      DeviceBuffer<float> sin(
          Table(shape, [](double a) { return std::sin(a); }));
      const int64_t keys = c.heads * c.key_dim();
      const int64_t values = c.heads * c.value_dim;
      DeviceBuffer<uint16_t> factors(
          std::vector<uint16_t>(count * (2 * keys + values)));
      LinearFactorsParams f = {};
      f.tokens = count;
      f.num_heads = c.heads;
      f.head_dim = d;
      f.value_dim = c.value_dim;
      f.q = in.data();
      f.k = f.q + c.heads * d;
      f.v = f.k + c.heads * d;
      f.stride = width;
      f.q_activation = c.q_activation;
      f.k_activation = c.k_activation;
      f.v_activation = c.v_activation;
      f.position = position;
      f.cos = cos.data();
      f.sin = sin.data();
      f.q_factors = factors.data();
      f.k_factors = f.q_factors + keys;
      f.v_factors = f.k_factors + keys;
      f.factors_stride = 2 * keys + values;
      ASSERT_EQ(LaunchLinearFactors(f, nullptr), cudaSuccess);

      DeviceBuffer<float> states(
          std::vector<float>(2 * c.state_elements(), 0.0f));
      DeviceBuffer<float> decay(c.Decay());
      DeviceBuffer<float> out(
          std::vector<float>((count + kSteps) * values, kNaN));
      DeviceBuffer<int32_t> starts({0, static_cast<int32_t>(count)});
      DeviceBuffer<int32_t> slot({1});
      DeviceBuffer<int64_t> first({0});
      LinearPrefillParams p = {};
      p.num_heads = c.heads;
      p.head_dim = c.key_dim();
      p.value_dim = c.value_dim;
      p.io_type = ElementType::kBFloat16;
      p.out_type = ElementType::kFloat32;
      p.q = f.q_factors;
      p.k = f.k_factors;
      p.v = f.v_factors;
      p.stride = f.factors_stride;
      p.out = out.data();
      p.out_stride = values;
      p.query_start = starts.data();
      p.max_rows = 1;
      p.slots = slot.data();
      p.positions = first.data();
      p.q_activation = p.k_activation = p.v_activation = Activation::kNone;
      p.position = LrpeType::kNone;
      p.scale = 1;
      p.decay = decay.data();
      p.states = states.data();
      p.slot_stride = c.state_elements();
      ASSERT_EQ(LaunchLinearPrefill(p, nullptr), cudaSuccess);

      DeviceBuffer<uint64_t> phases(LinearPhases(c));
      for (int64_t t = count; t < count + kSteps; ++t) {
        DeviceBuffer<float> token(LinearToken(c, 1, t));
        DeviceBuffer<int64_t> at({t});
        LinearStepParams step = {};
        step.num_heads = c.heads;
        step.head_dim = d;
        step.value_dim = c.value_dim;
        step.io_type = ElementType::kFloat32;
        step.q = token.data();
        step.k = token.data() + c.heads * d;
        step.v = token.data() + 2 * c.heads * d;
        step.stride = width;
        step.out = out.data() + t * values;
        step.out_stride = values;
        step.max_rows = 1;
        step.slots = slot.data();
        step.positions = at.data();
        step.q_activation = c.q_activation;
        step.k_activation = c.k_activation;
        step.v_activation = c.v_activation;
        step.position = position;
        step.phase_steps = phases.data();
        step.scale = 1;
        step.decay = decay.data();
        step.states = states.data();
        step.slot_stride = c.state_elements();
        ASSERT_EQ(LaunchLinearStep(step, nullptr), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      }
      const PrefillOracle want(c, {1, 0, count + kSteps}, true);
      EXPECT_LE(WorstHeadError(out.Read(), want.out, c.heads, c.value_dim),
                kTolerance);
      const std::vector<float> all = states.Read();
      EXPECT_LE(WorstHeadError({all.begin() + c.state_elements(), all.end()},
                               want.state, c.heads, c.key_dim() * c.value_dim),
                kTolerance);
    }
  }
}

TEST_F(LinearFactorsGpuTest, RefuseWhatIsNotSupported) {
  const Config c = {2, 1, 64, 64, LrpeType::kRotate};
  Launch launch(c);
  const LinearFactorsParams good = launch.params();
  const auto refused = [](const LinearFactorsParams& p) {
    return LaunchLinearFactors(p, nullptr) == cudaErrorInvalidValue;
  };
  for (int64_t dim : {0, 4, 12, 264}) {
    LinearFactorsParams p = good;
    p.head_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
    p = good;
    p.value_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
  }
  LinearFactorsParams p = good;
  p.cos = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.v_factors = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.factors_stride += 4;
  EXPECT_TRUE(refused(p));
  p = good;
  p.k = Misaligned(p.k);
  EXPECT_TRUE(refused(p));
  p = good;
  p.k_factors = Misaligned(p.k_factors);
  EXPECT_TRUE(refused(p));
  p = good;
  p.tokens = 0;
  EXPECT_EQ(LaunchLinearFactors(p, nullptr), cudaSuccess);
}

}  // namespace
}  // namespace recurve
