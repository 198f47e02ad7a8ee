// Decode that appends its rows' tokens and forms their queries, against
// LaunchTpaAppend and LaunchTpaDecode behind each other: bit for bit.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/gpu/tpa_gpu_testing.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

struct Case {
  TpaShape shape;
  TpaElement element = TpaElement::kBFloat16;
  LrpeType position = LrpeType::kRotate;
  Activation activation = Activation::kNone;
};

class TpaAppendingDecodeGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(GetTpaDevice(&device_), cudaSuccess);
  }

  TpaDecodePlan Plan(const Case& c, TpaDecodeForm form, int rows,
                     TpaContexts contexts = TpaContexts::kMany) const {
    return PlanTpaDecode(c.shape, form, rows, 1, device_, contexts);
  }

  // Rows of these lengths, the last token of each new. The launches compared
  // with the one of `whole_plan` are those of `apart`, or of the same plan.
  void Compare(const Case& c, const std::vector<int32_t>& lengths,
               const TpaDecodePlan& whole_plan,
               const TpaDecodePlan* apart = nullptr) {
    ASSERT_GT(whole_plan.blocks, 0);
    ASSERT_TRUE(TpaDecodeAppends(c.shape, whole_plan));
    const TpaShape& s = c.shape;
    const auto rows = static_cast<int>(lengths.size());
    const TpaPageLayout layout(s, TpaPageOrder::kOctets);
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    const int64_t stride = std::max<int64_t>((longest + 63) / 64, 1);
    // Pages of all rows, last ones first, and an unowned one.
    std::vector<int32_t> table(rows * stride, 0);
    int32_t page = 0;
    for (int row = rows - 1; row >= 0; --row) {
      for (int64_t i = (lengths[row] + 63) / 64 - 1; i >= 0; --i)
        table[row * stride + i] = ++page;
    }
    const int64_t page_stride = layout.page_elements + 8;
    std::vector<uint16_t> pages((page + 1) * page_stride);
    const auto values =
        RandomTensor(1, static_cast<int64_t>(pages.size()), -1.0f, 1.0f);
    for (size_t i = 0; i < pages.size(); ++i)
      pages[i] = ToBits(c.element, values[i]);
    // The memory after a row's old tokens is unwritten, and padding of width is
    // zero.
    for (int row = 0; row < rows; ++row) {
      for (int64_t m = lengths[row] - 1; m < (lengths[row] + 63) / 64 * 64;
           ++m) {
        if (m < 0) continue;
        const int64_t at = page_stride * table[row * stride + m / 64];
        for (int64_t r = 0; r < s.kv_rank; ++r) {
          const auto bad = [&](int64_t i) {
            pages[at + i] = ToBits(c.element, kNaN);
          };
          for (int64_t i = 0; i < layout.a_width; ++i) {
            bad(layout.AK(m % 64, r, i));
            bad(layout.AV(m % 64, r, i));
          }
          for (int64_t i = 0; i < layout.b_k_width; ++i)
            bad(layout.BK(m % 64, r, i));
          for (int64_t i = 0; i < layout.b_v_width; ++i)
            bad(layout.BV(m % 64, r, i));
        }
      }
    }
    for (int64_t p = 0; p <= page; ++p) {
      for (int64_t r = 0; r < s.kv_rank; ++r) {
        for (int64_t m = 0; m < 64; ++m) {
          for (int64_t i = s.num_heads; i < layout.a_width; ++i) {
            pages[p * page_stride + layout.AK(m, r, i)] = 0;
            pages[p * page_stride + layout.AV(m, r, i)] = 0;
          }
        }
      }
    }
    const int64_t a = s.kv_rank * s.num_heads;
    const int64_t b = s.kv_rank * (s.head_dim + s.value_dim);
    const int64_t a_q = s.q_rank * s.num_heads;
    const int64_t b_q = std::max<int64_t>(s.q_rank, 1) * s.head_dim *
                        (s.q_rank > 0 ? 1 : s.num_heads);
    const int64_t width = 2 * a + b + a_q + b_q + 3;
    DeviceBuffer<float> factors(RandomTensor(2, rows * width, -2.0f, 2.0f));
    DeviceBuffer<float> cos(RandomTensor(3, rows * s.head_dim / 2));
    DeviceBuffer<float> sin(RandomTensor(4, rows * s.head_dim / 2));
    DeviceBuffer<int32_t> device_table(table);
    std::vector<int32_t> sequences(rows);
    std::iota(sequences.begin(), sequences.end(), 0);
    DeviceBuffer<int32_t> row_sequence(sequences);
    std::vector<int64_t> last(lengths.begin(), lengths.end());
    for (int64_t& position : last) --position;
    DeviceBuffer<int64_t> positions(last);
    DeviceBuffer<char> queries(
        std::vector<char>(TpaQueryBytes(s, rows), char{-1}));
    const float* x = factors.data();

    TpaCudaDecodeParams decode = {};
    decode.shape = s;
    decode.rows = rows;
    decode.new_tokens = 1;
    decode.fresh_tokens = 1;
    decode.out_type = WeightType::kFloat32;
    decode.out_stride = s.num_heads * s.value_dim;
    const TpaCudaFactors all = {x,
                                x + 2 * a,
                                x + a,
                                x + 2 * a + s.kv_rank * s.head_dim,
                                width,
                                c.position,
                                cos.data(),
                                sin.data(),
                                c.activation,
                                x + 2 * a + b,
                                x + 2 * a + b + a_q,
                                width};
    std::vector<uint16_t> want_pages;
    std::vector<float> want;
    for (const bool whole : {false, true}) {
      const TpaDecodePlan& plan =
          whole || apart == nullptr ? whole_plan : *apart;
      std::vector<char> shared(TpaScheduleBytes(plan, rows, stride));
      ASSERT_TRUE(MakeTpaSchedule({lengths.data(), table.data(), stride, rows},
                                  plan, shared.data()));
      DeviceBuffer<char> schedule(shared);
      decode.schedule = schedule.data();
      DeviceBuffer<uint16_t> memory(pages);
      DeviceBuffer<float> out(
          std::vector<float>(rows * decode.out_stride, kNaN));
      decode.cache = {c.element, memory.data(), page_stride,
                      device_table.data(), stride};
      decode.scratch_bytes = TpaDecodeScratchBytes(decode, plan);
      DeviceBuffer<float> scratch(
          std::vector<float>(decode.scratch_bytes / 4 + 1, kNaN));
      decode.scratch = scratch.data();
      decode.out = out.data();
      if (whole) {
        decode.queries = nullptr;
        decode.factors = all;
      } else {
        decode.queries = queries.data();
        ASSERT_EQ(LaunchTpaAppend(
                      {s, decode.cache, row_sequence.data(), positions.data(),
                       rows, all, queries.data(), 0, rows},
                      nullptr),
                  cudaSuccess);
      }
      ASSERT_EQ(LaunchTpaDecode(decode, plan, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      if (whole) RefusesWhatItCannotAppend(decode, plan);
      const std::vector<uint16_t> got_pages = memory.Read();
      const std::vector<float> got = out.Read();
      if (!whole) {
        want_pages = got_pages;
        want = got;
        continue;
      }
      for (size_t i = 0; i < got_pages.size(); ++i) {
        ASSERT_EQ(got_pages[i], want_pages[i])
            << "page " << i / page_stride << " element " << i % page_stride;
      }
      for (size_t i = 0; i < got.size(); ++i) {
        const auto d = static_cast<int64_t>(i);
        ASSERT_EQ(got[i], want[i])  // NaN is not equal, either
            << "row " << d / decode.out_stride << " head "
            << d % decode.out_stride / s.value_dim << " feature "
            << d % s.value_dim;
      }
    }
  }

  static void RefusesWhatItCannotAppend(const TpaCudaDecodeParams& good,
                                        const TpaDecodePlan& plan) {
    using Change = void (*)(TpaCudaDecodeParams&);
    for (const Change change :
         {Change([](auto& p) { p.factors.activation = Activation::kSilu; }),
          Change([](auto& p) { p.factors.position = LrpeType::kCosine; }),
          Change([](auto& p) { p.factors.b_k = nullptr; }),
          Change([](auto& p) { p.factors.a_q = nullptr; }),
          Change([](auto& p) { p.fresh_tokens = 0; }),
          Change([](auto& p) { p.new_tokens = 2; })}) {
      TpaCudaDecodeParams params = good;
      change(params);
      EXPECT_EQ(LaunchTpaDecode(params, plan, nullptr), cudaErrorInvalidValue);
    }
    if (plan.cluster_blocks == 0) return;
    TpaCudaDecodeParams params = good;
    params.fresh_tokens = 2;
    EXPECT_EQ(LaunchTpaDecode(params, plan, nullptr), cudaErrorInvalidValue);
    TpaDecodePlan narrow = plan;
    narrow.stages = static_cast<int>(4 * good.shape.kv_rank) - 1;
    EXPECT_EQ(LaunchTpaDecode(good, narrow, nullptr), cudaErrorInvalidValue);
  }

  TpaDevice device_ = {};
};

const std::vector<int32_t>& Lengths() {
  static const auto* const lengths = new std::vector<int32_t>(
      {1, 0, 63, 64, 65, 127, 128, 129, 640, 0, 2048, 2049, 4097, 2, 0});
  return *lengths;
}

TEST_F(TpaAppendingDecodeGpuTest, Forms) {
  for (const TpaShape& shape :
       {TpaShape{32, 128, 128, 6, 1}, TpaShape{78, 64, 64, 6, 2},
        TpaShape{61, 64, 64, 6, 2}}) {
    for (TpaDecodeForm form :
         {TpaDecodeForm::kParallelB, TpaDecodeForm::kParallelBh,
          TpaDecodeForm::kParallelBn}) {
      SCOPED_TRACE(testing::Message()
                   << shape.num_heads << " heads, " << Name(form));
      const Case c = {shape};
      Compare(c, Lengths(), Plan(c, form, static_cast<int>(Lengths().size())));
    }
  }
}

TEST_F(TpaAppendingDecodeGpuTest, Shapes) {
  for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
    for (LrpeType position : {LrpeType::kNone, LrpeType::kRotate}) {
      for (const TpaShape& shape :
           {TpaShape{5, 64, 64, 1, 1}, TpaShape{47, 64, 64, 6, 2},
            TpaShape{61, 64, 64, 9, 2}, TpaShape{64, 64, 64, 32, 2},
            TpaShape{128, 64, 64, 12, 1}, TpaShape{33, 128, 128, 3, 1},
            TpaShape{78, 128, 128, 6, 2}}) {
        const Case c = {shape, element, position, Activation::kNone};
        for (TpaContexts contexts : {TpaContexts::kAny, TpaContexts::kMany}) {
          SCOPED_TRACE(testing::Message()
                       << shape.num_heads << " heads of " << shape.head_dim
                       << ", contexts " << static_cast<int>(contexts));
          if (contexts == TpaContexts::kMany &&
              TpaManyChunks(shape, device_) == 0)
            continue;
          const TpaDecodePlan plan =
              Plan(c, TpaDecodeForm::kParallelBn,
                   static_cast<int>(Lengths().size()), contexts);
          Compare(c, Lengths(), plan);
        }
      }
    }
  }
}

// One row of every length around the edges of pages and chunks, its heads in
// one block and in several, as columns and as rows.
TEST_F(TpaAppendingDecodeGpuTest, OneRow) {
  for (const auto& [heads, contexts] :
       {std::pair(78, TpaContexts::kAny), std::pair(78, TpaContexts::kFew),
        std::pair(61, TpaContexts::kMany)}) {
    const Case c = {{heads, 64, 64, 6, 2}};
    for (int32_t length :
         {1, 2, 63, 64, 65, 128, 129, 191, 192, 193, 1984, 2048, 2049, 8192}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, " << length);
      Compare(c, {length}, Plan(c, TpaDecodeForm::kParallelBn, 1, contexts));
    }
  }
}

// Rows as clusters, compared with a plan without.
TEST_F(TpaAppendingDecodeGpuTest, Clusters) {
  if (!device_.hopper)
    GTEST_SKIP() << "clusters of blocks are of compute capability 9.0";
  ASSERT_GT(device_.clusters, 0);
  const std::vector<int32_t> batches[] = {
      {1},       {64},     {65},        {129},  {700},        {2048},
      {1300, 1}, {0, 513}, {512, 2049}, {1, 0}, {4096, 2817}, {0, 0}};
  for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
    for (const TpaShape& shape :
         {TpaShape{78, 64, 64, 6, 2}, TpaShape{61, 64, 64, 9, 1},
          TpaShape{5, 64, 64, 1, 2}}) {
      for (const std::vector<int32_t>& lengths : batches) {
        SCOPED_TRACE(testing::Message() << shape.num_heads << " heads, "
                                        << lengths[0] << " tokens");
        const Case c = {shape, element};
        const auto rows = static_cast<int>(lengths.size());
        if (rows > TpaShortRows(shape, device_)) continue;
        const TpaDecodePlan apart = Plan(c, TpaDecodeForm::kParallelBn, rows);
        Compare(c, lengths,
                Plan(c, TpaDecodeForm::kParallelBn, rows, TpaContexts::kShort),
                &apart);
      }
    }
  }
}

// More rows than blocks, most of them short; and padding behind them.
TEST_F(TpaAppendingDecodeGpuTest, ManyRows) {
  std::vector<int32_t> lengths;
  for (int row = 0; row < 300; ++row)
    lengths.push_back(row % 7 == 3 ? 700 + row : 1 + row % 140);
  lengths.resize(512, 0);
  for (int64_t heads : {78, 61}) {
    const Case c = {{heads, 64, 64, 6, 2}};
    Compare(c, lengths, Plan(c, TpaDecodeForm::kParallelBn, 512));
  }
}

}  // namespace
}  // namespace recurve
