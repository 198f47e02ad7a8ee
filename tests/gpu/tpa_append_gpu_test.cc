// The append kernel against the CPU's.

#include <algorithm>
#include <cmath>
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
  std::vector<int32_t> row_sequence_ = {0, 1, 0, 0, 1, 0, 1};
  std::vector<int64_t> positions_ = {0, 64, 63, 64, 127, -1, 3};

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

  void CheckQueries(const AppendCase& c) const;

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
        {x, x + a_k, x + a_v, x + a_v + a_k, stride, c.position,
         device_cos.data(), device_sin.data(), c.activation, nullptr, nullptr,
         0},
        nullptr,
        0,
        0};
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

void TpaAppendGpuTest::CheckQueries(const AppendCase& c) const {
  const TpaShape& s = c.shape;
  const TpaPageLayout layout(s, TpaPageOrder::kOctets);
  const auto rows = static_cast<int64_t>(positions_.size());
  const int64_t a_q = s.q_rank * s.num_heads;
  const int64_t b_q = (s.q_rank > 0 ? s.q_rank : s.num_heads) * s.head_dim;
  const int64_t keys = s.kv_rank * (2 * s.num_heads + s.head_dim + s.value_dim);
  const int64_t stride = a_q + b_q + keys + 1;
  const auto x = RandomTensor(1, rows * stride, -3.0f, 3.0f);
  const auto cos = RandomTensor(2, rows * s.head_dim / 2);
  const auto sin = RandomTensor(3, rows * s.head_dim / 2);
  DeviceBuffer<float> factors(x);
  DeviceBuffer<float> device_cos(cos);
  DeviceBuffer<float> device_sin(sin);
  const int64_t size = TpaQueryBytes(s, rows) / 2;
  const std::vector<uint16_t> nothing(size + kGap, ToBits(c.element, kNaN));
  DeviceBuffer<uint16_t> alone(nothing);
  DeviceBuffer<uint16_t> appended(nothing);
  DeviceBuffer<uint16_t> pages(
      std::vector<uint16_t>(kPages * layout.page_elements));
  DeviceBuffer<int32_t> table(table_);
  DeviceBuffer<int32_t> row_sequence(row_sequence_);
  DeviceBuffer<int64_t> positions(positions_);
  const TpaCudaQueryParams queries = {s,
                                      c.element,
                                      static_cast<int>(rows),
                                      factors.data(),
                                      factors.data() + a_q,
                                      stride,
                                      c.position,
                                      device_cos.data(),
                                      device_sin.data(),
                                      alone.data()};
  ASSERT_EQ(LaunchTpaQueries(queries, nullptr), cudaSuccess);
  TpaCudaAppendParams append = {};
  append.shape = s;
  append.cache = {c.element, pages.data(), layout.page_elements, table.data(),
                  kTableStride};
  append.row_sequence = row_sequence.data();
  append.positions = positions.data();
  append.rows = static_cast<int>(rows);
  append.factors.a_k = append.factors.b_k = append.factors.a_v =
      append.factors.b_v = factors.data() + a_q + b_q;
  append.factors.stride = stride;
  append.factors.position = c.position;
  append.factors.cos = device_cos.data();
  append.factors.sin = device_sin.data();
  append.factors.a_q = queries.a_q;
  append.factors.b_q = queries.b_q;
  append.factors.query_stride = stride;
  append.queries = appended.data();
  append.query_rows = append.rows;
  ASSERT_EQ(LaunchTpaAppend(append, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint16_t> got = alone.Read();
  ASSERT_EQ(got, appended.Read());
  // For some rows only.
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>(0, 1), std::pair<int64_t, int64_t>(1, 2),
        std::pair<int64_t, int64_t>(rows - 1, 1)}) {
    appended.Write(nothing);
    append.first_query = static_cast<int>(first);
    append.query_rows = static_cast<int>(count);
    ASSERT_EQ(LaunchTpaAppend(append, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<uint16_t> want = nothing;
    std::copy_n(got.begin() + first * (size / rows), count * (size / rows),
                want.begin());
    ASSERT_EQ(appended.Read(), want) << first << ", " << count;
  }
  for (int64_t i = size; i < size + kGap; ++i) ASSERT_EQ(got[i], nothing[i]);

  const int64_t octets = (s.num_heads + 7) / 8;
  const int64_t width = layout.b_k_width;
  const int64_t half = s.head_dim / 2;
  const double scale =
      1.4426950408889634 / (std::sqrt(static_cast<double>(s.head_dim)) *
                            static_cast<double>(s.kv_rank));
  for (int64_t i = 0; i < size / 2; ++i) {
    const int64_t h8 = i / (8 * width) % octets;
    const int64_t row = i / (8 * width) / octets;
    const int64_t head = 8 * h8 + i / 8 % 8;
    const int64_t d = i % (8 * width) / 64 * 8 + i % 8;
    // The terms of an octet follow each other.
    const int64_t first = i + (i / (8 * width)) * (8 * width);
    const double value = double{FromBits(c.element, got[first])} +
                         FromBits(c.element, got[first + 8 * width]);
    double want = 0.0;
    double size_of = 0.0;  // what the sum's rounding errors are relative to
    if (head < s.num_heads && d < s.head_dim) {
      const float* q = x.data() + row * stride;
      const bool rotate = c.position == LrpeType::kRotate;
      const int64_t pair = d < half ? d : d - half;
      const double co = rotate ? cos[row * half + pair] : 1.0;
      const double si = rotate ? sin[row * half + pair] : 0.0;
      const int64_t ranks = std::max<int64_t>(s.q_rank, 1);
      for (int64_t r = 0; r < ranks; ++r) {
        const double a = s.q_rank > 0 ? q[r * s.num_heads + head] : 1.0;
        const float* b = q + a_q + (s.q_rank > 0 ? r : head) * s.head_dim;
        const double y = !rotate    ? double{b[d]}
                         : d < half ? b[pair] * co - b[half + pair] * si
                                    : b[pair] * si + b[half + pair] * co;
        want += a * y * scale / static_cast<double>(ranks);
        size_of += 9.0 * std::abs(a) * scale / static_cast<double>(ranks);
      }
    }
    // Two terms hold 16 bits; zeros are zero.
    ASSERT_LE(std::abs(value - want), 2e-5 * size_of + 1e-7 * (size_of > 0.0))
        << "row " << row << " head " << head << " feature " << d;
  }
}

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

// In the same launch, and in one of their own to the same bits.
TEST_F(TpaAppendGpuTest, FormsQueries) {
  for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
    for (LrpeType position : {LrpeType::kNone, LrpeType::kRotate}) {
      for (const TpaShape& shape :
           {TpaShape{32, 128, 128, 16, 1}, TpaShape{78, 64, 64, 6, 2},
            TpaShape{5, 24, 40, 1, 4}, TpaShape{3, 256, 8, 32, 1},
            TpaShape{9, 40, 16, 0, 2}}) {
        CheckQueries({shape, element, position, Activation::kNone});
      }
    }
  }
}

// Blocks then take several groups of heads. Positions are those of missing
// rows: only the queries are requested.
TEST_F(TpaAppendGpuTest, FormsQueriesOfManyRows) {
  for (int rows : {60, 300}) {
    positions_.assign(rows, -1);
    row_sequence_.assign(rows, 0);
    for (const TpaShape& shape :
         {TpaShape{32, 128, 128, 16, 1}, TpaShape{78, 64, 64, 6, 2}}) {
      CheckQueries(
          {shape, TpaElement::kBFloat16, LrpeType::kRotate, Activation::kNone});
    }
  }
}

TEST_F(TpaAppendGpuTest, RefusesWhatItCannotDo) {
  TpaCudaAppendParams params = {};
  params.shape = {4, 64, 64, 6, 2};
  params.cache.page_stride =
      TpaPageLayout(params.shape, TpaPageOrder::kOctets).page_elements;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaSuccess);  // no rows
  params.factors.activation = Activation::kSoftmax;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaErrorInvalidValue);
  params.factors.activation = Activation::kNone;
  params.factors.position = LrpeType::kCosine;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaErrorInvalidValue);
  params.factors.position = LrpeType::kNone;
  params.query_rows = 1;  // of no rows
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaErrorInvalidValue);
  params.query_rows = -1;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaErrorInvalidValue);
  params.query_rows = 0;
  params.cache.page_stride -= 8;
  EXPECT_EQ(LaunchTpaAppend(params, nullptr), cudaErrorInvalidValue);
  params.cache.page_stride += 8;

  // A row that lacks something. None of these is launched.
  alignas(16) float floats[4] = {};
  const int32_t number = 0;
  const int64_t position = 0;
  params.rows = params.query_rows = 1;
  params.cache.pages = params.queries = floats;
  params.cache.page_table = params.row_sequence = &number;
  params.positions = &position;
  params.factors.position = LrpeType::kRotate;
  TpaCudaFactors& f = params.factors;
  f.a_k = f.b_k = f.a_v = f.b_v = f.cos = f.sin = f.a_q = f.b_q = floats;
  using Params = TpaCudaAppendParams;
  const auto refused = [&](auto&& change) {
    Params changed = params;
    change(changed);
    return LaunchTpaAppend(changed, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(refused([](Params& p) { p.cache.pages = nullptr; }));
  EXPECT_TRUE(
      refused([](Params& p) { p.cache.pages = Misaligned(p.cache.pages); }));
  EXPECT_TRUE(refused([](Params& p) { p.cache.page_table = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.row_sequence = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.positions = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.factors.b_v = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.factors.cos = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.factors.a_q = nullptr; }));
  EXPECT_TRUE(refused([](Params& p) { p.queries = Misaligned(p.queries); }));
}

}  // namespace
}  // namespace recurve
