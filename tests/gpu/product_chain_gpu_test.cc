// The products of a layer in one launch, bit for bit those of one launch each.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/matmul/product_chain_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

int64_t Pad(int64_t cols) { return (cols + 63) / 64 * 64; }
// Stride of float rows: 4 to 7 elements of padding.
int64_t Stride(int64_t cols) { return (cols + 3) / 4 * 4 + 4; }

class Layer {
 public:
  struct Sizes {
    int64_t width, attended, features, next;
    int64_t down = 0;  // features that count in the third product; 0: all
    Activation activation = Activation::kSilu;
    int64_t rows = 1;
  };

  Layer(WeightType type, const Sizes& s, bool normed, uint64_t seed)
      : type_(type),
        s_(WithDown(s)),
        normed_(normed),
        random_(seed),
        out_(Matrix(s.width, s.attended)),
        up_(Matrix(2 * s.features, s.width)),
        down_(Matrix(s.width, s_.down)),
        next_(Matrix(s.next, s.width)),
        up_norm_(Floats(s.width)),
        next_norm_(Floats(s.width)) {}

  // What is behind the columns of x is not read.
  std::vector<uint16_t> Attended() {
    std::vector<uint16_t> rows;
    for (int64_t r = 0; r < s_.rows; ++r) {
      const std::vector<uint16_t> row =
          Halves(Floats(s_.attended), Pad(s_.attended), kNaN);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }
  std::vector<float> Residual() {
    std::vector<float> rows;
    for (int64_t r = 0; r < s_.rows; ++r) {
      std::vector<float> x = Floats(s_.width);
      for (float& v : x) v *= 3.0f;
      rows.insert(rows.end(), x.begin(), x.end());
      rows.resize((r + 1) * Stride(s_.width), -7.0f);
    }
    return rows;
  }
  std::vector<float> Next() const {
    return std::vector<float>(s_.rows * Stride(s_.next), kNaN);
  }

  ProductChainParams Chain(DeviceBuffer<uint16_t>& x,
                           DeviceBuffer<float>& residual,
                           DeviceBuffer<float>* y, void* exchange) {
    ProductChainParams p = {};
    p.type = type_;
    p.rows = s_.rows;
    p.width = s_.width;
    p.x = x.data();
    p.x_stride = Pad(s_.attended);
    p.x_cols = s_.attended;
    p.out = out_.data();
    p.out_inputs = Pad(s_.attended);
    p.residual = residual.data();
    p.residual_stride = Stride(s_.width);
    p.up_norm = normed_ ? up_norm_.data() : nullptr;
    p.up_eps = 1e-5f;
    p.up = up_.data();
    p.up_inputs = Pad(s_.width);
    p.features = s_.features;
    p.activation = s_.activation;
    p.down = down_.data();
    p.down_cols = s_.down;
    p.down_inputs = Pad(s_.down);
    if (y != nullptr) {
      p.next_norm = normed_ ? next_norm_.data() : nullptr;
      p.next_eps = 1e-6f;
      p.next = next_.data();
      p.next_outputs = s_.next;
      p.next_inputs = Pad(s_.width);
      p.y = y->data();
      p.y_stride = Stride(s_.next);
    }
    p.exchange = exchange;
    return p;
  }

  // A row after the other, a product after the other.
  void OneByOne(DeviceBuffer<uint16_t>& x, DeviceBuffer<float>& residual,
                DeviceBuffer<float>* y) {
    DeviceBuffer<uint16_t> hidden(
        std::vector<uint16_t>(Pad(s_.features), 0xffff));
    const auto launch = [](const DecodeMatmulParams& p) {
      ASSERT_EQ(LaunchDecodeMatmul(p, nullptr), cudaSuccess);
    };
    for (int64_t r = 0; r < s_.rows; ++r) {
      float* const row = residual.data() + r * Stride(s_.width);
      DecodeMatmulParams p = Product(out_, s_.width, s_.attended);
      p.x = x.data() + r * Pad(s_.attended);
      p.y = row;
      p.add = true;
      launch(p);
      p = Product(up_, 2 * s_.features, s_.width);
      Norm(row, up_norm_, 1e-5f, &p);
      p.y = reinterpret_cast<float*>(hidden.data());
      p.gate = true;
      p.activation = s_.activation;
      p.y_is_half = true;
      launch(p);
      p = Product(down_, s_.width, s_.down);
      p.x = hidden.data();
      p.y = row;
      p.add = true;
      launch(p);
      if (y == nullptr) continue;
      p = Product(next_, s_.next, s_.width);
      Norm(row, next_norm_, 1e-6f, &p);
      p.y = y->data() + r * Stride(s_.next);
      launch(p);
    }
  }

 private:
  static Sizes WithDown(Sizes s) {
    if (s.down == 0) s.down = s.features;
    return s;
  }
  std::vector<float> Floats(int64_t count) {
    std::vector<float> x;
    x.reserve(count);
    for (int64_t i = 0; i < count; ++i)
      x.push_back(static_cast<float>(random_.Uniform(-1000000, 1000000)) *
                  1e-6f);
    return x;
  }
  std::vector<uint16_t> Halves(std::vector<float> x, int64_t to, float behind) {
    x.resize(to, behind);
    std::vector<uint16_t> bits;
    bits.reserve(x.size());
    for (const float v : x) {
      bits.push_back(type_ == WeightType::kBFloat16 ? FloatToBFloat16(v)
                                                    : FloatToFloat16(v));
    }
    return bits;
  }
  // Rows of zeros behind the columns; few numbers, over and over.
  std::vector<uint16_t> Matrix(int64_t rows, int64_t cols) {
    std::vector<float> some = Floats(8191);
    for (float& v : some) v *= 2.0f / std::sqrt(static_cast<float>(cols));
    const std::vector<uint16_t> bits = Halves(some, 8191, 0.0f);
    std::vector<uint16_t> all;
    size_t at = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        all.push_back(bits[at]);
        if (++at == bits.size()) at = 0;
      }
      all.insert(all.end(), Pad(cols) - cols, uint16_t{0});
    }
    return all;
  }
  DecodeMatmulParams Product(DeviceBuffer<uint16_t>& w, int64_t outputs,
                             int64_t cols) {
    DecodeMatmulParams p = {};
    p.type = type_;
    p.w = w.data();
    p.outputs = outputs;
    p.inputs = Pad(cols);
    p.x_cols = cols;
    p.x_stride = Pad(cols);
    p.y_stride = outputs;
    p.rows = 1;
    return p;
  }
  void Norm(const float* x, DeviceBuffer<float>& weight, float eps,
            DecodeMatmulParams* p) {
    p->x = x;
    p->x_is_float = true;
    p->norm = true;
    p->norm_weight = normed_ ? weight.data() : nullptr;
    p->norm_eps = eps;
  }

  const WeightType type_;
  const Sizes s_;
  const bool normed_;
  TestRandom random_;
  DeviceBuffer<uint16_t> out_, up_, down_, next_;
  DeviceBuffer<float> up_norm_, next_norm_;
};

class ProductChainGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (!DecodeMatmulFuses()) GTEST_SKIP() << "this device fuses nothing";
  }
};

// Bits, whatever a NaN's payload is.
void ExpectSameBits(const std::vector<float>& got,
                    const std::vector<float>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(want[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << what << " " << i << ": " << got[i] << ", " << want[i];
  }
}

// Several launches in a row, on words that those before have left.
TEST_F(ProductChainGpuTest, IsTheLaunchesOneByOne) {
  DeviceBuffer<char> exchange(
      std::vector<char>(kProductChainExchangeBytes, '\xff'));
  DeviceBuffer<int32_t> last_blocks(std::vector<int32_t>{-1, 3, 131});
  uint64_t seed = 1;
  for (Layer::Sizes s : {
           Layer::Sizes{1600, 4992, 4266, 1420},  // T6-XL
           Layer::Sizes{1280, 3904, 3413, 1250},  // T6-large
           Layer::Sizes{1024, 3008, 2731, 1110},  // T6-medium
           Layer::Sizes{513, 40, 2049, 1},        // parts without inputs
           Layer::Sizes{2048, 712, 2048, 2112},
           Layer::Sizes{1100, 1150, 5003, 77},
           // An odd number of features that count, and others behind them.
           Layer::Sizes{1600, 704, 4288, 130, 4261, Activation::kSigmoid},
           // All warps of most blocks have a tile of gates.
           Layer::Sizes{1300, 640, 8384, 300, 0, Activation::kRelu},
           // The smallest ring: 40 stages.
           Layer::Sizes{1152, 33536, 2048, 64},
           Layer::Sizes{1152, 8064, 2048, 64},  // of four rows
       }) {
    for (const WeightType type :
         {WeightType::kBFloat16, WeightType::kFloat16}) {
      for (const int64_t rows : {1, 2, 4, -1, -2, -4}) {
        const bool all = rows > 0;  // or no norms' weights, and no y
        s.rows = std::abs(rows);
        SCOPED_TRACE(testing::Message()
                     << s.rows << " rows, " << s.width << ", " << s.attended
                     << ", " << s.features << ", " << s.next << ", type "
                     << static_cast<int>(type) << ", all " << all);
        Layer layer(type, s, /*normed=*/all, ++seed);
        DeviceBuffer<uint16_t> x(layer.Attended());
        const std::vector<float> begin = layer.Residual();
        DeviceBuffer<float> want(begin), got(begin);
        const std::vector<float> nothing = layer.Next();
        DeviceBuffer<float> want_y(nothing), got_y(nothing);
        ProductChainParams p =
            layer.Chain(x, got, all ? &got_y : nullptr, exchange.data());
        // The longest rows, if they are several, leave no room for a ring.
        const int64_t longest =
            std::max(Pad(s.attended), Pad(s.down == 0 ? s.features : s.down));
        ASSERT_EQ(ProductChainTakes(p),
                  s.rows == 1 || s.rows * longest < 33000);
        if (!ProductChainTakes(p)) continue;
        for (int i = 0; i < 3; ++i) {
          // Few blocks of the kernel in front work, none, or all.
          if (i > 0 || !all) {
            p.working = {last_blocks.data() + i, 1 + i % 2,
                         /*clusters=*/(i == 1) == all};
          }
          layer.OneByOne(x, want, all ? &want_y : nullptr);
          ASSERT_EQ(LaunchProductChain(p, nullptr), cudaSuccess);
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        }
        ExpectSameBits(got.Read(), want.Read(), "residual");
        ExpectSameBits(got_y.Read(), want_y.Read(), "y");
        EXPECT_FALSE(std::isnan(got.Read()[0]));
      }
    }
  }
}

// As in a step: a graph of launches that follow each other, each of which may
// start before the ones before have ended, replayed.
TEST_F(ProductChainGpuTest, Replays) {
  constexpr int kLayers = 6;
  DeviceBuffer<char> exchange(
      std::vector<char>(kProductChainExchangeBytes, '\xff'));
  for (const int64_t rows : {1, 4, 2, 1}) {
    for (Layer::Sizes s : {Layer::Sizes{1600, 1152, 2400, 1420},
                           Layer::Sizes{1600, 4992, 4266, 1420}}) {
      SCOPED_TRACE(testing::Message() << rows << " rows, " << s.attended);
      s.rows = rows;
      Layer layer(WeightType::kBFloat16, s, true, 77);
      DeviceBuffer<uint16_t> x(layer.Attended());
      const std::vector<float> begin = layer.Residual();
      DeviceBuffer<float> want(begin), got(begin);
      DeviceBuffer<float> want_y(layer.Next()), got_y(layer.Next());
      constexpr int kReplays = 20;
      for (int i = 0; i < kLayers * kReplays; ++i)
        layer.OneByOne(x, want, &want_y);
      cudaStream_t stream;
      ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
      ASSERT_EQ(
          cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          cudaSuccess);
      for (int i = 0; i < kLayers; ++i) {
        EXPECT_EQ(LaunchProductChain(
                      layer.Chain(x, got, &got_y, exchange.data()), stream),
                  cudaSuccess);
      }
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
      for (int i = 0; i < kReplays; ++i)
        ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      ExpectSameBits(got.Read(), want.Read(), "residual");
      ExpectSameBits(got_y.Read(), want_y.Read(), "y");
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
      cudaStreamDestroy(stream);
    }
  }
}

// A non-finite row terminates, the next row is unaffected, and so is the next
// launch.
TEST_F(ProductChainGpuTest, NotFinite) {
  DeviceBuffer<char> exchange(
      std::vector<char>(kProductChainExchangeBytes, '\xff'));
  for (const WeightType type : {WeightType::kBFloat16, WeightType::kFloat16}) {
    for (const int64_t rows : {1, 2, 4}) {
      Layer::Sizes s{1600, 640, 2048, 100};
      s.rows = rows;
      Layer layer(type, s, true, 5);
      DeviceBuffer<uint16_t> x(layer.Attended());
      const std::vector<float> good = layer.Residual();
      // The last's bits are all set.
      for (const float bad : {kNaN, std::numeric_limits<float>::infinity(),
                              0.0f, std::bit_cast<float>(~0u)}) {
        std::vector<float> begin = good;
        if (bad != 0.0f) begin[1599] = bad;
        DeviceBuffer<float> want(begin), got(begin);
        DeviceBuffer<float> want_y(layer.Next()), got_y(layer.Next());
        layer.OneByOne(x, want, &want_y);
        ASSERT_EQ(LaunchProductChain(
                      layer.Chain(x, got, &got_y, exchange.data()), nullptr),
                  cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ExpectSameBits(got.Read(), want.Read(), "residual");
        ExpectSameBits(got_y.Read(), want_y.Read(), "y");
        EXPECT_EQ(std::isnan(got_y.Read()[0]), bad != 0.0f);
        if (rows > 1) {
          EXPECT_FALSE(std::isnan(got_y.Read()[Stride(s.next)]));
        }
      }
    }
  }
}

TEST_F(ProductChainGpuTest, Refuses) {
  DeviceBuffer<char> exchange(
      std::vector<char>(kProductChainExchangeBytes, '\xff'));
  Layer layer(WeightType::kBFloat16, {1600, 640, 2048, 100}, true, 6);
  DeviceBuffer<uint16_t> x(layer.Attended());
  DeviceBuffer<float> residual(layer.Residual());
  DeviceBuffer<float> y(std::vector<float>(100));
  const ProductChainParams good = layer.Chain(x, residual, &y, exchange.data());
  EXPECT_TRUE(ProductChainTakes(good));
  const auto refused = [&](auto change) {
    ProductChainParams p = good;
    change(p);
    EXPECT_FALSE(ProductChainTakes(p));
    return LaunchProductChain(p, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](auto& p) { p.type = WeightType::kFloat32; }));
  EXPECT_TRUE(refused([](auto& p) { p.activation = Activation::kSoftmax; }));
  EXPECT_TRUE(refused([](auto& p) { p.x_cols = p.out_inputs + 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.down_cols = p.features + 1; }));
  EXPECT_TRUE(refused([](auto& p) { p.out_inputs = 608; }));
  EXPECT_TRUE(refused([](auto& p) { p.width = 512; }));
  EXPECT_TRUE(refused([](auto& p) { p.rows = 0; }));
  EXPECT_TRUE(refused([](auto& p) { p.rows = 3; }));
  EXPECT_TRUE(refused([](auto& p) { p.rows = 8; }));
  EXPECT_TRUE(refused([](auto& p) {
    p.rows = 2;
    p.x_stride += 4;
  }));
  const auto incomplete = [&](auto change) {
    ProductChainParams p = good;
    change(p);
    return LaunchProductChain(p, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(incomplete([](auto& p) { p.x = nullptr; }));
  EXPECT_TRUE(incomplete([](auto& p) { p.down = nullptr; }));
  EXPECT_TRUE(incomplete([](auto& p) { p.residual = nullptr; }));
  EXPECT_TRUE(incomplete([](auto& p) { p.y = nullptr; }));
  EXPECT_TRUE(incomplete([](auto& p) { p.exchange = nullptr; }));
}

}  // namespace
}  // namespace recurve
