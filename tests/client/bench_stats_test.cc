#include "client/loadgen/bench_stats.h"

#include <chrono>
#include <cmath>

#include "client/loadgen/bench_latency.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace recurve {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;

TEST(PercentileTest, InterpolatesBetweenClosestRanks) {
  // As numpy.percentile([1, 2, 4, 8], ...).
  const std::vector<double> sample = {1, 2, 4, 8};
  EXPECT_DOUBLE_EQ(Percentile(sample, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile(sample, 25), 1.75);
  EXPECT_DOUBLE_EQ(Percentile(sample, 50), 3);
  EXPECT_DOUBLE_EQ(Percentile(sample, 90), 6.8);
  EXPECT_DOUBLE_EQ(Percentile(sample, 100), 8);
}

TEST(PercentileTest, OneValueIsEveryPercentile) {
  for (const double percent : {0.0, 50.0, 99.9, 100.0}) {
    EXPECT_EQ(Percentile({7}, percent), 7);
  }
}

TEST(SummarizeTest, SortsFirst) {
  std::vector<double> sample;
  for (int i = 1000; i >= 0; --i) sample.push_back(i);
  const Summary summary = Summarize(sample);
  EXPECT_EQ(summary.count, 1001u);
  EXPECT_DOUBLE_EQ(summary.mean, 500);
  EXPECT_DOUBLE_EQ(summary.median, 500);
  EXPECT_DOUBLE_EQ(summary.p90, 900);
  EXPECT_DOUBLE_EQ(summary.p95, 950);
  EXPECT_DOUBLE_EQ(summary.p99, 990);
  EXPECT_NEAR(summary.p999, 999, 1e-9);
  EXPECT_NEAR(summary.std_dev, std::sqrt((1001.0 * 1001 - 1) / 12), 1e-9);
}

TEST(SummarizeTest, EmptyAndSingle) {
  EXPECT_EQ(Summarize({}).count, 0u);
  const Summary one = Summarize({3});
  EXPECT_EQ(one.count, 1u);
  EXPECT_EQ(one.mean, 3);
  EXPECT_EQ(one.std_dev, 0);
  EXPECT_EQ(one.p999, 3);
}

class LatencyTest : public testing::Test {
 protected:
  static BenchClock::time_point At(int ms) {
    return BenchClock::time_point() + std::chrono::milliseconds(ms);
  }
};

TEST_F(LatencyTest, WeighsGapsByTokens) {
  const RequestLatency latency = ComputeLatency(
      At(100), {{At(150), 1}, {At(170), 2}, {At(200), 1}}, At(210));
  EXPECT_DOUBLE_EQ(latency.ttft_ms.value(), 50);
  EXPECT_THAT(latency.itl_ms,
              ElementsAre(DoubleNear(10, 1e-9), DoubleNear(10, 1e-9),
                          DoubleNear(30, 1e-9)));
  EXPECT_NEAR(latency.tpot_ms.value(), 50.0 / 3, 1e-9);
  EXPECT_DOUBLE_EQ(latency.e2el_ms, 110);
}

TEST_F(LatencyTest, OneTokenHasNoTimePerToken) {
  const RequestLatency latency = ComputeLatency(At(0), {{At(5), 1}}, At(6));
  EXPECT_DOUBLE_EQ(latency.ttft_ms.value(), 5);
  EXPECT_FALSE(latency.tpot_ms.has_value());
  EXPECT_TRUE(latency.itl_ms.empty());
}

TEST_F(LatencyTest, NoTokens) {
  const RequestLatency latency = ComputeLatency(At(0), {}, At(6));
  EXPECT_FALSE(latency.ttft_ms.has_value());
  EXPECT_FALSE(latency.tpot_ms.has_value());
  EXPECT_DOUBLE_EQ(latency.e2el_ms, 6);
}

}  // namespace
}  // namespace recurve
