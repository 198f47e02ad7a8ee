// Sampling on the GPU against SampleRow: the same tokens, and what
// log-probabilities are made of, bit for bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/sampling_cuda.h"
#include "kernels/sampling/sampling_plan.h"
#include "kernels/sampling/sampling_weight.h"
#include "tests/gpu/device_buffer.h"
#include "tests/kernels/sampling_testing.h"

namespace recurve {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class SamplingGpuTest : public GpuTest {};

// Blocks a sample: all that LaunchSampleOf takes on this device.
std::vector<int> AllBlocks() {
  int major = 0;
  EXPECT_EQ(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
      cudaSuccess);
  if (major != 9) return {1};
  return {1, 2, 4, 8};
}

// The GPU's results for cases with one vocabulary size, with `blocks` blocks a
// sample; 0: as LaunchSample chooses.
struct Drawn {
  CudaSampleResult result;
  std::vector<CudaTopToken> top;
  std::vector<uint32_t> counts;
};
std::vector<Drawn> DrawAll(const std::vector<Case>& cases, int64_t stride,
                           int blocks) {
  const auto count = static_cast<int64_t>(cases.size());
  const auto vocab = static_cast<int64_t>(cases[0].logits.size());
  const int64_t counts_stride = vocab + 5;
  // In reverse order, with idle samples and an unused row between.
  std::vector<float> logits(2 * count * stride, kNan);
  std::vector<CudaBias> bias(count * kSampleMaxBias, {-1, kNan});
  std::vector<CudaSampleRow> rows(2 * count);
  // Two of three have their results copied.
  DeviceBuffer<CudaSampleResult> copies(
      std::vector<CudaSampleResult>(count, {-7, 0, 0, 0, 0}));
  DeviceBuffer<uint32_t> counts(
      std::vector<uint32_t>(count * counts_stride, 0));
  for (int64_t i = 0; i < count; ++i) {
    const Case& c = cases[i];
    const SamplingParams& p = c.params;
    const int64_t at = 2 * (count - 1 - i);
    std::copy(c.logits.begin(), c.logits.end(), logits.begin() + at * stride);
    CudaSampleRow& row = rows[2 * i];
    rows[2 * i + 1].row = -1;
    row.row = static_cast<int32_t>(at);
    row.slot = static_cast<int32_t>(i);
    if (i % 3 != 2) row.copy = copies.data() + i;
    if (p.temperature > 0) {
      row.inverse_temperature = 1.0 / p.temperature;
      row.uniform = SampleUniform(p.seed, c.index);
    }
    row.penalties = HasPenalties(p) ? 1 : 0;
    row.num_bias = static_cast<int32_t>(p.logit_bias.size());
    row.repetition_penalty = p.repetition_penalty;
    row.presence_penalty = p.presence_penalty;
    row.frequency_penalty = p.frequency_penalty;
    row.top_p = p.top_p;
    row.min_p = p.min_p;
    row.top_k = p.top_k;
    row.num_logprobs = p.num_logprobs;
    for (size_t b = 0; b < p.logit_bias.size(); ++b) {
      bias[i * kSampleMaxBias + b] = {p.logit_bias[b].first,
                                      p.logit_bias[b].second};
    }
    std::vector<uint32_t> history;
    for (int32_t id : c.prompt) history.push_back(id | kSampleInPrompt);
    for (int32_t id : c.output) history.push_back(id);
    if (history.empty()) continue;
    DeviceBuffer<uint32_t> tokens(history);
    EXPECT_EQ(
        LaunchCountTokens({tokens.data(), static_cast<int64_t>(history.size()),
                           counts.data() + i * counts_stride},
                          nullptr),
        cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  DeviceBuffer<CudaSampleRow> samples(rows);
  DeviceBuffer<float> in(logits);
  DeviceBuffer<CudaBias> biases(bias);
  DeviceBuffer<float> adjusted(std::vector<float>(2 * count * stride, kNan));
  DeviceBuffer<CudaSampleResult> results(
      std::vector<CudaSampleResult>(2 * count, {-7, 0, 0, 0, 0}));
  DeviceBuffer<CudaTopToken> top(
      std::vector<CudaTopToken>(2 * count * kSampleMaxTop, {-7, kNan}));
  const CudaSampleParams params = {
      samples.data(),  2 * count,      in.data(),     stride,
      vocab,           counts.data(),  counts_stride, biases.data(),
      adjusted.data(), results.data(), top.data()};
  EXPECT_EQ(blocks == 0 ? LaunchSample(params, nullptr)
                        : LaunchSampleOf(blocks, params, nullptr),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const auto got = results.Read();
  const auto got_top = top.Read();
  const auto got_counts = counts.Read();
  const auto got_copies = copies.Read();
  std::vector<Drawn> drawn;
  for (int64_t i = 0; i < count; ++i) {
    EXPECT_EQ(got[2 * i + 1].token, -7) << "an idle sample was drawn";
    Drawn d = {got[2 * i], {}, {}};
    const CudaSampleResult& copy = got_copies[i];
    if (i % 3 == 2) {
      EXPECT_EQ(copy.token, -7);
    } else {
      EXPECT_EQ(copy.token, d.result.token);
      if (copy.token != kNonFiniteLogits) {
        EXPECT_EQ(copy.logit, d.result.logit);
        EXPECT_EQ(copy.max, d.result.max);
      }
      if (copy.token != kNonFiniteLogits && rows[2 * i].num_logprobs >= 0) {
        EXPECT_EQ(copy.sum, d.result.sum);
        EXPECT_EQ(copy.num_top, d.result.num_top);
      }
    }
    const auto first = got_top.begin() + 2 * i * kSampleMaxTop;
    d.top.assign(first, first + kSampleMaxTop);
    const auto counted = got_counts.begin() + i * counts_stride;
    d.counts.assign(counted, counted + counts_stride);
    drawn.push_back(d);
  }
  return drawn;
}

void ExpectAsSampleRow(const Case& c, const Drawn& drawn) {
  SamplingScratch scratch;
  const auto want = SampleRow(c.input(), &scratch);
  if (!want.ok()) {
    EXPECT_EQ(drawn.result.token, kNonFiniteLogits);
    return;
  }
  ASSERT_EQ(drawn.result.token, want->token);
  const int asked = c.params.num_logprobs;
  if (asked >= 0) {
    const double log_sum = SampleLogSum(drawn.result.max, drawn.result.sum);
    ASSERT_EQ(static_cast<float>(drawn.result.logit - log_sum), want->logprob);
    ASSERT_EQ(drawn.result.num_top, static_cast<int>(want->top.size()));
    for (int t = 0; t < drawn.result.num_top; ++t) {
      ASSERT_EQ(drawn.top[t].id, want->top[t].first) << t;
      ASSERT_EQ(static_cast<float>(drawn.top[t].logit - log_sum),
                want->top[t].second);
    }
  }
  if (!HasPenalties(c.params)) return;
  std::vector<uint32_t> counts(drawn.counts.size(), 0);
  for (int32_t id : c.prompt) counts[id] |= kSampleInPrompt;
  for (int32_t id : c.output) ++counts[id];
  ++counts[want->token];
  ASSERT_EQ(drawn.counts, counts);
}

void ExpectAllAsOnTheCpu(const std::vector<Case>& cases, int64_t stride,
                         int blocks) {
  SCOPED_TRACE(testing::Message() << blocks << " blocks, stride " << stride);
  const std::vector<Drawn> drawn = DrawAll(cases, stride, blocks);
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(ExpectAsSampleRow(cases[i], drawn[i]));
  }
}

TEST_F(SamplingGpuTest, RandomRowsAsOnTheCpu) {
  std::mt19937_64 random(77);
  std::map<size_t, std::vector<Case>> by_vocab;
  for (int round = 0; round < 3000; ++round) {
    const Case c = RandomCase(random);
    by_vocab[c.logits.size()].push_back(c);
  }
  for (const auto& [vocab, cases] : by_vocab) {
    SCOPED_TRACE(vocab);
    // Rows that are aligned, and rows that are not.
    for (const int64_t stride : {(static_cast<int64_t>(vocab) + 3) / 4 * 4,
                                 static_cast<int64_t>(vocab) + 1}) {
      for (const int blocks : AllBlocks())
        ASSERT_NO_FATAL_FAILURE(ExpectAllAsOnTheCpu(cases, stride, blocks));
    }
  }
}

// A vocabulary as models have, with rows that are hard to truncate: flat, of
// few values, of two far apart, of one best.
constexpr int64_t kVocab = 50301;

std::vector<Case> LongRows() {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 3);
  std::vector<Case> cases;
  for (int i = 0; i < 120; ++i) {
    Case c;
    for (int64_t id = 0; id < kVocab; ++id) {
      const float l = normal(random);
      c.logits.push_back(i % 6 == 0   ? 1.5f
                         : i % 6 == 1 ? std::round(l)
                         : i % 6 == 2 ? (id % 3 == 0 ? -3e38f : 3e38f)
                         : i % 6 == 3 ? (id == 40000 ? 60.0f : l)
                                      : l);
    }
    SamplingParams& p = c.params;
    p.temperature = std::vector<float>{1, 0.7f, 100, 1e-30f}[i / 6 % 4];
    p.top_p = std::vector<float>{0.95f, 1, 1e-6f, 0.999999f}[i / 7 % 4];
    p.top_k = std::vector<int32_t>{0, 0, 50, 40000}[i / 5 % 4];
    p.min_p = i % 8 == 7 ? 0.02f : 0.0f;
    p.num_logprobs = i % 4 == 0 ? 20 : i % 4 == 1 ? 0 : -1;
    if (i % 9 == 0) p.repetition_penalty = 1.3f;
    if (i % 10 == 0) p.frequency_penalty = 0.5f;
    if (i % 7 == 0) {
      for (int b = 0; b < kSampleMaxBias; ++b) {
        p.logit_bias.emplace_back(static_cast<int32_t>(random() % kVocab),
                                  normal(random));
      }
    }
    for (int n = 0; n < 3000; ++n) {
      c.prompt.push_back(static_cast<int32_t>(random() % kVocab));
      c.output.push_back(static_cast<int32_t>(random() % 700));
    }
    p.seed = random();
    c.index = random();
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST_F(SamplingGpuTest, LongRowsAsOnTheCpu) {
  const std::vector<Case> cases = LongRows();
  for (const int blocks : AllBlocks()) {
    // Rows that are aligned, and rows that are not.
    for (const int64_t stride : {kVocab + 3, kVocab + 4})
      ASSERT_NO_FATAL_FAILURE(ExpectAllAsOnTheCpu(cases, stride, blocks));
  }
}

// As a server launches them, with as many blocks as there are multiprocessors
// for: a launch has twice the samples, half of them idle.
TEST_F(SamplingGpuTest, FewLongRowsAsOnTheCpu) {
  const std::vector<Case> cases = LongRows();
  size_t first = 0;
  for (const size_t count : {1, 3, 8, 9, 16, 20, 32, 40}) {
    SCOPED_TRACE(count);
    std::vector<Case> some;
    for (size_t i = 0; i < count; ++i)
      some.push_back(cases[(first + i) % cases.size()]);
    first += count;
    ASSERT_NO_FATAL_FAILURE(ExpectAllAsOnTheCpu(some, kVocab + 3, 0));
  }
}

// Rows whose edges are where blocks' parts meet: `part` ids each.
std::vector<Case> RowsOfParts(int64_t vocab, int32_t part) {
  std::mt19937_64 random(static_cast<uint64_t>(vocab) * 31 + part);
  std::normal_distribution<float> normal(0, 3);
  std::vector<Case> cases;
  // Draws and reports of a row, greedy and not.
  const auto add = [&](std::vector<float> logits) {
    for (int i = 0; i < 6; ++i) {
      Case c;
      c.logits = logits;
      c.params.temperature = i == 0 ? 0.0f : 1.0f;
      if (i == 2) c.params.top_k = part;  // at a part's edge, or all
      if (i == 3) c.params.top_p = 0.9f;
      if (i == 4) c.params.top_k = 40;
      if (i >= 4) c.params.top_p = 0.5f;
      c.params.num_logprobs = i % 3 == 0 ? kSampleMaxTop : i % 3 == 1 ? 0 : -1;
      if (i == 5) {
        c.params.presence_penalty = 0.5f;
        for (int64_t id = 0; id < vocab; id += part)
          c.output.push_back(static_cast<int32_t>(id));
        c.params.logit_bias = {{static_cast<int32_t>(vocab - 1), 3.0f},
                               {0, -1.0f},
                               {static_cast<int32_t>(vocab - 1), 0.25f}};
      }
      c.params.seed = random();
      cases.push_back(std::move(c));
    }
  };
  std::vector<float> row(vocab);
  for (float& l : row) l = normal(random);
  add(row);
  // The best in each part's first and last token, all the same.
  for (int64_t id = 0; id < vocab; id += part) {
    row[id] = 20;
    row[std::min<int64_t>(vocab, id + part) - 1] = 20;
  }
  add(row);
  // Almost only the last token, and only it.
  row[vocab - 1] = 40;
  add(row);
  row.assign(vocab, -kInf);
  row[vocab - 1] = -3;
  add(row);
  // All the same; and falling, so that top-k ends at an edge.
  add(std::vector<float>(vocab, -2.0f));
  for (int64_t id = 0; id < vocab; ++id)
    row[id] = 5 - 1e-3f * static_cast<float>(id);
  add(row);
  // Broken, in each part.
  for (int64_t id = 0; id < vocab; id += part) {
    std::vector<float> broken = row;
    broken[std::min<int64_t>(vocab - 1, id + part / 2)] =
        id / part % 2 == 0 ? kNan : kInf;
    add(broken);
  }
  return cases;
}

TEST_F(SamplingGpuTest, RowsInPartsAsOnTheCpu) {
  for (const int blocks : AllBlocks()) {
    for (const int32_t vocab : {1, 2, 5, 127, 128, 129, 130, 255, 257, 1023,
                                1024, 1025, 4099, 50301, 50304, 70001}) {
      SCOPED_TRACE(vocab);
      const std::vector<Case> cases =
          RowsOfParts(vocab, SamplePart(vocab, blocks));
      for (const int64_t stride : {(vocab + 3) / 4 * 4, vocab + 1}) {
        ASSERT_NO_FATAL_FAILURE(ExpectAllAsOnTheCpu(cases, stride, blocks));
      }
    }
  }
}

// Launches right behind each other, each with results of its own.
TEST_F(SamplingGpuTest, ManyLaunchesGiveTheSame) {
  constexpr int kLaunches = 300;
  constexpr int64_t kSamples = 16;
  constexpr int64_t kStride = kVocab + 3;
  std::mt19937_64 random(8);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(kSamples * kStride);
  for (float& l : logits) l = normal(random);
  std::vector<CudaSampleRow> rows(kSamples);
  for (int64_t i = 0; i < kSamples; ++i) {
    rows[i].row = static_cast<int32_t>(i);
    rows[i].inverse_temperature = i % 5 == 0 ? 0 : 1 + 0.1 * i;
    rows[i].uniform = random() >> 11;
    rows[i].top_k = i % 3 == 0 ? 50 : 0;
    rows[i].top_p = i % 2 == 0 ? 0.95f : 1.0f;
    rows[i].num_logprobs = i % 4 == 0 ? 20 : -1;
  }
  DeviceBuffer<CudaSampleRow> samples(rows);
  DeviceBuffer<float> in(logits);
  for (const int blocks : AllBlocks()) {
    SCOPED_TRACE(blocks);
    DeviceBuffer<CudaSampleResult> results(
        std::vector<CudaSampleResult>(kLaunches * kSamples));
    DeviceBuffer<CudaTopToken> top(
        std::vector<CudaTopToken>(kLaunches * kSamples * kSampleMaxTop));
    for (int64_t launch = 0; launch < kLaunches; ++launch) {
      CudaSampleParams p = {};
      p.samples = samples.data();
      p.num_samples = kSamples;
      p.logits = in.data();
      p.stride = kStride;
      p.vocab = kVocab;
      p.results = results.data() + launch * kSamples;
      p.top = top.data() + launch * kSamples * kSampleMaxTop;
      ASSERT_EQ(LaunchSampleOf(blocks, p, nullptr), cudaSuccess);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const auto got = results.Read();
    const auto got_top = top.Read();
    for (size_t i = kSamples; i < got.size(); ++i) {
      SCOPED_TRACE(i);
      const CudaSampleResult& first = got[i % kSamples];
      ASSERT_EQ(got[i].token, first.token);
      ASSERT_EQ(got[i].logit, first.logit);
      ASSERT_EQ(got[i].sum, first.sum);
      ASSERT_EQ(got[i].num_top, first.num_top);
      for (int t = 0; t < first.num_top; ++t) {
        ASSERT_EQ(got_top[i * kSampleMaxTop + t].id,
                  got_top[i % kSamples * kSampleMaxTop + t].id);
      }
    }
  }
}

TEST_F(SamplingGpuTest, GreedyAndBrokenRows) {
  const int64_t vocab = 5003;
  struct Row {
    std::vector<std::pair<int64_t, float>> set;
    float rest;
    int32_t want;
  };
  const std::vector<Row> rows = {
      {{{17, 2.0f}, {4000, 2.0f}}, 1.0f, 17},
      {{{5002, 3.0f}}, -1.0f, 5002},
      {{}, 0.5f, 0},
      {{{9, 0.0f}, {3, -0.0f}}, -1.0f, 3},
      {{{44, -2.0f}}, -kInf, 44},
      {{}, -kInf, kNonFiniteLogits},
      {{{5000, kNan}}, 1.0f, kNonFiniteLogits},
      {{{1, kInf}}, 1.0f, kNonFiniteLogits},
      {{{123, -1e-30f}}, -1.0f, 123},
  };
  for (const float temperature : {0.0f, 1.0f}) {
    std::vector<Case> cases;
    for (const Row& row : rows) {
      Case c;
      c.logits.assign(vocab, row.rest);
      for (const auto& [id, value] : row.set) c.logits[id] = value;
      c.params.temperature = temperature;
      c.params.num_logprobs = 3;
      cases.push_back(c);
    }
    for (const int blocks : AllBlocks()) {
      SCOPED_TRACE(blocks);
      const std::vector<Drawn> drawn = DrawAll(cases, vocab + 1, blocks);
      for (size_t i = 0; i < rows.size(); ++i) {
        SCOPED_TRACE(i);
        if (temperature == 0) {
          EXPECT_EQ(drawn[i].result.token, rows[i].want);
        }
        ExpectAsSampleRow(cases[i], drawn[i]);
      }
    }
  }
}

TEST_F(SamplingGpuTest, RefusesWhatItCannotDo) {
  CudaSampleParams params = {};
  params.vocab = params.stride = 10;
  EXPECT_EQ(LaunchSample(params, nullptr), cudaSuccess);  // no samples
  params.num_samples = 1;
  params.vocab = 0;
  EXPECT_EQ(LaunchSample(params, nullptr), cudaErrorInvalidValue);
  params.vocab = params.stride = kMaxSampleVocab + 1;
  EXPECT_EQ(LaunchSample(params, nullptr), cudaErrorInvalidValue);
  params.vocab = 11;
  params.stride = 10;
  EXPECT_EQ(LaunchSample(params, nullptr), cudaErrorInvalidValue);
  params.stride = 11;
  for (const int blocks : {-1, 0, 3, 16})
    EXPECT_EQ(LaunchSampleOf(blocks, params, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace recurve
