// LRPE on the GPU against float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/seeds/lrpe/lrpe_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

constexpr ElementType kTypes[] = {ElementType::kFloat32,
                                  ElementType::kBFloat16};
constexpr LrpeType kPositions[] = {LrpeType::kRotate, LrpeType::kCosine};

struct Config {
  ElementType type = ElementType::kBFloat16;
  LrpeType position = LrpeType::kCosine;
  Activation activation = Activation::kNone;
  bool over_sequence = false;  // the softmax
  bool heads_first = false;    // memory is [batch, H, length, D]
  bool angles_by_head = false;
  float spread = 1.0f;         // of the input
  int64_t first_infinite = 0;  // tokens whose even features are -inf
  int64_t batch = 2, length = 9, heads = 3, dim = 64;
  std::vector<int64_t> offsets = {0, 1000000};

  int64_t out_dim() const { return LrpeOutputDim(position, dim); }
  double base(int64_t h) const { return angles_by_head ? 9000 + 500 * h : 1e4; }
};

std::vector<uint64_t> Phases(const Config& c) {
  std::vector<uint64_t> phases;
  for (int64_t h = 0; h < (c.angles_by_head ? c.heads : 1); ++h) {
    const auto of_head =
        LrpePhaseSteps(LrpeTheta(c.position, c.dim, c.base(h)));
    phases.insert(phases.end(), of_head.begin(), of_head.end());
  }
  return phases;
}

// Strides of a dense [batch, length, H, dim] or [batch, H, length, dim].
struct Strides {
  Strides(const Config& c, int64_t dim)
      : batch(c.length * c.heads * dim),
        token(c.heads_first ? dim : c.heads * dim),
        head(c.heads_first ? c.length * dim : dim) {}
  int64_t At(int64_t b, int64_t t, int64_t h) const {
    return b * batch + t * token + h * head;
  }
  int64_t batch, token, head;
};

std::vector<float> Input(const Config& c) {
  std::vector<float> x =
      RandomTensor(5, c.batch * c.length * c.heads * c.dim, -3.0f, 3.0f);
  for (size_t i = 0; i < x.size(); ++i) {  // a ramp along everything
    x[i] += 3.0f * static_cast<float>(i) / static_cast<float>(x.size());
  }
  for (float& value : x) value *= c.spread;
  const Strides strides(c, c.dim);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t t = 0; t < c.first_infinite; ++t) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t d = 0; d < c.dim; d += 2) {
          x[strides.At(b, t, h) + d] = -INFINITY;
        }
      }
    }
  }
  return Rounded(c.type, x);
}

class LrpeGpuTest : public GpuTest {
 protected:
  static std::vector<float> Run(const Config& c) {
    const Strides in(c, c.dim);
    const Strides out(c, c.out_dim());
    DeviceTensor x(c.type, Input(c));
    DeviceTensor y(c.type, std::vector<float>(c.batch * out.batch, kCanary));
    DeviceBuffer<uint64_t> phases(Phases(c));
    DeviceBuffer<int64_t> offsets(c.offsets);
    CudaLrpeParams p = {};
    p.type = c.type;
    p.position = c.position;
    p.batch = c.batch;
    p.length = c.length;
    p.num_heads = c.heads;
    p.dim = c.dim;
    p.x = x.data();
    p.x_batch_stride = in.batch;
    p.x_token_stride = in.token;
    p.x_head_stride = in.head;
    p.y = y.data();
    p.y_batch_stride = out.batch;
    p.y_token_stride = out.token;
    p.y_head_stride = out.head;
    p.phase_steps = phases.data();
    p.phase_head_stride = c.angles_by_head ? LrpeAngles(c.position, c.dim) : 0;
    p.offsets = offsets.data();
    p.activation = c.activation;
    if (!c.over_sequence) {
      EXPECT_EQ(LaunchLrpe(p, nullptr), cudaSuccess);
      return y.Read();
    }
    DeviceBuffer<char> workspace(
        std::vector<char>(LrpeSequenceWorkspaceBytes(p), 0));
    EXPECT_EQ(LaunchLrpeSequenceSoftmax(p, workspace.data(), nullptr),
              cudaSuccess);
    const std::vector<float> first = y.Read();
    // Again in the same workspace: what is left in it must not matter.
    y.Write(std::vector<float>(c.batch * out.batch, kCanary));
    EXPECT_EQ(LaunchLrpeSequenceSoftmax(p, workspace.data(), nullptr),
              cudaSuccess);
    EXPECT_TRUE(SameBits(y.Read(), first));
    return first;
  }

  // The activated features of one head of one token.
  static std::vector<double> Activated(const Config& c,
                                       const std::vector<float>& x, int64_t b,
                                       int64_t t, int64_t h) {
    const Strides in(c, c.dim);
    const float* row = &x[in.At(b, t, h)];
    if (!c.over_sequence) {
      return ActivationRowOracle(c.activation,
                                 {row, static_cast<size_t>(c.dim)});
    }
    std::vector<double> y(c.dim);
    for (int64_t d = 0; d < c.dim; ++d) {
      double max = -INFINITY;
      double sum = 0.0;
      for (int64_t s = 0; s < c.length; ++s) {
        max = std::max<double>(max, x[in.At(b, s, h) + d]);
      }
      for (int64_t s = 0; s < c.length; ++s) {
        sum += std::exp(x[in.At(b, s, h) + d] - max);
      }
      y[d] = std::exp(row[d] - max) / sum;
    }
    return y;
  }

  static void ExpectOracle(const Config& c) {
    const std::vector<float> x = Input(c);
    const std::vector<float> got = Run(c);
    const Strides out(c, c.out_dim());
    // A float32 input is exact to 2^-24 of itself; so is e^x to that, absolute.
    const double tolerance =
        c.type == ElementType::kFloat32 ? 4e-6 * c.spread : 4e-3;
    // Only some tokens of a long sequence: the oracle is slow.
    const int64_t step = std::max<int64_t>(1, c.length / 9);
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t t = 0; t < c.length; t += step) {
        for (int64_t h = 0; h < c.heads; ++h) {
          const std::vector<double> want =
              LrpeOracle(c.position, Activated(c, x, b, t, h), c.offsets[b] + t,
                         c.base(h));
          // What is below the normal numbers of float32 may come out as 0.
          double scale = 1e-37 / tolerance;
          for (double value : want) scale = std::max(scale, std::abs(value));
          ASSERT_TRUE(NearScaled(
              absl::MakeConstSpan(got).subspan(out.At(b, t, h), want.size()),
              want, tolerance, scale))
              << "sequence " << b << " token " << t << " head " << h;
        }
      }
    }
    for (float value : got) ASSERT_NE(value, Rounded(c.type, {kCanary})[0]);
  }
};

TEST_F(LrpeGpuTest, MatchesFloat64InEveryShape) {
  for (int64_t dim : {8, 16, 32, 40, 72, 96, 128, 256}) {
    for (ElementType type : kTypes) {
      for (LrpeType position : kPositions) {
        for (Activation activation :
             {Activation::kNone, Activation::kSilu, Activation::kSoftmax}) {
          SCOPED_TRACE(testing::Message()
                       << dim << " type " << static_cast<int>(type)
                       << " position " << static_cast<int>(position)
                       << " activation " << static_cast<int>(activation));
          Config c;
          c.dim = dim;
          c.type = type;
          c.position = position;
          c.activation = activation;
          c.heads = dim == 96 ? 21 : 5;
          c.heads_first = dim == 128;
          ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
        }
      }
    }
  }
}

TEST_F(LrpeGpuTest, MatchesFloat64WithEveryActivation) {
  for (Activation activation :
       {Activation::kRelu, Activation::kSigmoid, Activation::kOnePlusElu}) {
    for (ElementType type : kTypes) {
      Config c;
      c.type = type;
      c.activation = activation;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
    }
  }
}

TEST_F(LrpeGpuTest, AnglesAreRightAtAnyPosition) {
  for (LrpeType position : kPositions) {
    for (bool by_head : {false, true}) {
      Config c;
      c.type = ElementType::kFloat32;
      c.position = position;
      c.angles_by_head = by_head;
      c.length = 1;
      c.heads = 7;
      c.offsets = {0, 1, 2, 999999, 1000000, int64_t{1} << 40};
      c.batch = static_cast<int64_t>(c.offsets.size());
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
    }
  }
}

TEST_F(LrpeGpuTest, SoftmaxOverTheSequence) {
  for (int64_t length : {1, 63, 64, 65, 255, 256, 257, 1100, 2400}) {
    for (ElementType type : kTypes) {
      for (LrpeType position : kPositions) {
        SCOPED_TRACE(testing::Message()
                     << length << " type " << static_cast<int>(type)
                     << " position " << static_cast<int>(position));
        Config c;
        c.type = type;
        c.position = position;
        c.over_sequence = true;
        c.length = length;
        c.dim = length == 257 ? 40 : 48;
        c.heads_first = length == 65;
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
      }
    }
  }
}

// Scores that rise so far that sums of exponentials need a new base again and
// again, and features that are -inf for a while.
TEST_F(LrpeGpuTest, SoftmaxOverTheSequenceOfLargeScores) {
  for (float spread : {40.0f, 1000.0f}) {
    for (ElementType type : kTypes) {
      for (int64_t length : {65, 1100}) {
        SCOPED_TRACE(testing::Message()
                     << spread << " type " << static_cast<int>(type)
                     << " length " << length);
        Config c;
        c.type = type;
        c.over_sequence = true;
        c.length = length;
        c.spread = spread;
        c.first_infinite = length / 2;
        ASSERT_NO_FATAL_FAILURE(ExpectOracle(c));
      }
    }
  }
}

TEST_F(LrpeGpuTest, RefusesWhatItDoesNotSupport) {
  CudaLrpeParams p = {};
  p.position = LrpeType::kRotate;
  p.batch = p.length = p.num_heads = 1;
  p.dim = 12;
  alignas(16) float anything[4] = {};
  const uint64_t step = 0;
  const int64_t offset = 0;
  p.x = anything;
  p.y = anything;
  p.phase_steps = &step;
  p.offsets = &offset;
  EXPECT_EQ(LaunchLrpe(p, nullptr), cudaErrorInvalidValue);
  p.dim = 264;
  EXPECT_EQ(LaunchLrpe(p, nullptr), cudaErrorInvalidValue);
  p.dim = 64;
  p.position = LrpeType::kNone;
  EXPECT_EQ(LaunchLrpe(p, nullptr), cudaErrorInvalidValue);
  p.position = LrpeType::kRotate;
  for (ElementType type : {ElementType::kFloat32, ElementType::kBFloat16}) {
    CudaLrpeParams odd = p;
    odd.type = type;
    odd.y_token_stride = type == ElementType::kFloat32 ? 66 : 68;
    EXPECT_EQ(LaunchLrpe(odd, nullptr), cudaErrorInvalidValue);
    EXPECT_EQ(LaunchLrpeSequenceSoftmax(odd, anything, nullptr),
              cudaErrorInvalidValue);
    odd.y_token_stride = 64;
    odd.x = Misaligned(odd.x);
    EXPECT_EQ(LaunchLrpe(odd, nullptr), cudaErrorInvalidValue);
  }
  p.batch = 0;
  EXPECT_EQ(LaunchLrpe(p, nullptr), cudaSuccess);
  p.batch = 1;
  EXPECT_EQ(LaunchLrpeSequenceSoftmax(p, nullptr, nullptr),
            cudaErrorInvalidValue);
}

}  // namespace
}  // namespace recurve
