// The append kernel against the CPU's.

#include <vector>

#include "base/thread_pool.h"
#include "kernels/common/activation.h"
#include "kernels/tpa/tpa.h"
#include "tests/gpu/tpa_gpu_testing.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

struct AppendCase {
  TpaShape shape;
  TpaElement element;
  LrpeType position;
  Activation activation;
};

class TpaAppendGpuTest : public GpuTest {
 protected:
  static constexpr int64_t kGap = 8;
  static constexpr int kPages = 7;
  static constexpr int64_t kTableStride = 3;

  explicit TpaAppendGpuTest() = default;

  // Two sequences; rows in no order, across a page's end, and one of padding.
  const std::vector<int32_t> table_ = {5, 2, 2147480000, 1, 6, 2147480000};
  const std::vector<int32_t> row_sequence_ = {0, 1, 0, 0, 1, 0, 1};
  const std::vector<int64_t> positions_ = {0, 64, 63, 64, 127, -1, 3};

  // The CPU's pages, in the GPU's order and type.
  std::vector<uint16_t> Expected(const AppendCase& c,
                                 const std::vector<float>& factors,
                                 int64_t stride, const std::vector<float>& cos,
                                 const std::vector<float>& sin) const {
    const TpaShape& s = c.shape;
    const TpaPageLayout plain(s);
    const TpaPageLayout octets(s, TpaPageOrder::kOctets);
    const int64_t page_stride = octets.page_elements + kGap;
    std::vector<uint16_t> want(kPages * page_stride, ToBits(c.element, kNaN));
    const int64_t heads = s.kv_rank * s.num_heads;
    const int64_t b_k = heads;
    const int64_t a_v = b_k + s.kv_rank * s.head_dim;
    const int64_t b_v = a_v + heads;
    std::vector<float> pages(kPages * plain.page_elements, kNaN);
    ThreadPool pool(1);
    for (size_t row = 0; row < positions_.size(); ++row) {
      if (positions_[row] < 0) continue;
      const float* x = factors.data() + row * stride;
      const int64_t angles = LrpeAngles(c.position, s.head_dim);
      TpaAppend({s,
                 {pages.data(), plain.page_elements, table_.data(),
                  kTableStride, &row_sequence_[row], &positions_[row], 1},
                 x,
                 x + b_k,
                 x + a_v,
                 x + b_v,
                 stride,
                 c.position,
                 cos.data() + row * angles,
                 sin.data() + row * angles,
                 c.activation},
                pool);
      const int64_t page = table_[row_sequence_[row] * kTableStride +
                                  positions_[row] / kTpaPageTokens];
      const int64_t m = positions_[row] % kTpaPageTokens;
      const float* from = pages.data() + page * plain.page_elements;
      uint16_t* to = want.data() + page * page_stride;
      for (int64_t r = 0; r < s.kv_rank; ++r) {
        for (int64_t i = 0; i < octets.a_width; ++i) {
          const bool in = i < s.num_heads;
          to[octets.AK(m, r, i)] =
              ToBits(c.element, in ? from[plain.AK(m, r, i)] : 0.0f);
          to[octets.AV(m, r, i)] =
              ToBits(c.element, in ? from[plain.AV(m, r, i)] : 0.0f);
        }
        for (int64_t i = 0; i < octets.b_k_width; ++i) {
          to[octets.BK(m, r, i)] = ToBits(
              c.element, i < s.head_dim ? from[plain.BK(m, r, i)] : 0.0f);
        }
        for (int64_t i = 0; i < octets.b_v_width; ++i) {
          to[octets.BV(m, r, i)] = ToBits(
              c.element, i < s.value_dim ? from[plain.BV(m, r, i)] : 0.0f);
        }
      }
    }
    return want;
  }

  void Check(const AppendCase& c) const {
    const TpaShape& s = c.shape;
    const TpaPageLayout layout(s, TpaPageOrder::kOctets);
    const int64_t page_stride = layout.page_elements + kGap;
    const int64_t rows = static_cast<int64_t>(positions_.size());
    const int64_t a_k = s.kv_rank * s.num_heads;
    const int64_t stride = 2 * a_k + s.kv_rank * (s.head_dim + s.value_dim) + 3;
    const auto factors = RandomTensor(1, rows * stride, -3.0f, 3.0f);
    const auto cos = RandomTensor(2, rows * s.head_dim / 2);
    const auto sin = RandomTensor(3, rows * s.head_dim / 2);
    DeviceBuffer<uint16_t> pages(
        std::vector<uint16_t>(kPages * page_stride, ToBits(c.element, kNaN)));
    DeviceBuffer<int32_t> table(table_);
    DeviceBuffer<int32_t> row_sequence(row_sequence_);
    DeviceBuffer<int64_t> positions(positions_);
    DeviceBuffer<float> device_factors(factors);
    DeviceBuffer<float> device_cos(cos);
    DeviceBuffer<float> device_sin(sin);
    const float* x = device_factors.data();
    const int64_t a_v = a_k + s.kv_rank * s.head_dim;
    const TpaCudaAppendParams params = {
        s,
        {c.element, pages.data(), page_stride, table.data(), kTableStride},
        row_sequence.data(),
        positions.data(),
        static_cast<int>(rows),
        x,
        x + a_k,
        x + a_v,
        x + a_v + a_k,
        stride,
        c.position,
        device_cos.data(),
        device_sin.data(),
        c.activation};
    for (int time = 0; time < 2; ++time) {  // twice does no harm
      ASSERT_EQ(LaunchTpaAppend(params, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      const std::vector<uint16_t> got = pages.Read();
      const std::vector<uint16_t> want = Expected(c, factors, stride, cos, sin);
      for (size_t i = 0; i < want.size(); ++i) {
        if (c.activation == Activation::kNone) {
          ASSERT_EQ(got[i], want[i]) << i;
          continue;
        }
        // exp differs in its last digits: at most one step of the type.
        ASSERT_LE(std::abs(static_cast<int>(got[i]) - want[i]), 1) << i;
      }
    }
  }
};

TEST_F(TpaAppendGpuTest, WritesWhatTheCpuWritesAndNothingElse) {
  for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
    for (LrpeType position : {LrpeType::kNone, LrpeType::kRotate}) {
      for (const TpaShape& shape :
           {TpaShape{32, 128, 128, 16, 1}, TpaShape{78, 64, 64, 6, 2},
            TpaShape{5, 24, 40, 1, 4}}) {
        Check({shape, element, position, Activation::kNone});
      }
    }
  }
}

TEST_F(TpaAppendGpuTest, Activations) {
  for (Activation activation :
       {Activation::kSilu, Activation::kRelu, Activation::kSigmoid,
        Activation::kOnePlusElu}) {
    Check({{78, 64, 64, 6, 2},
           TpaElement::kBFloat16,
           LrpeType::kRotate,
           activation});
  }
}

TEST_F(TpaAppendGpuTest, RefusesWhatItCannotDo) {
  TpaCudaAppendParams params = {};
  params.shape = {4, 64, 64, 6, 2};
  params.cache.page_stride =
      TpaPageLayout(params.shape, TpaPageOrder::kOctets).page_elements;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaSuccess);  // no rows
  params.activation = Activation::kSoftmax;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaErrorInvalidValue);
  params.activation = Activation::kNone;
  params.position = LrpeType::kCosine;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaErrorInvalidValue);
  params.position = LrpeType::kNone;
  params.cache.page_stride -= 8;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace recurve
