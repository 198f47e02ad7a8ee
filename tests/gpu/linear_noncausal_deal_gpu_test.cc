// Non-causal linear attention on the GPU where blocks have several heads, or
// make outputs of each other's.

#include <cstdint>
#include <vector>

#include "tests/gpu/linear_noncausal_fixture.h"

namespace recurve {
namespace linear_noncausal_testing {
namespace {

// More heads of rows than there are blocks, so that each has several, of
// different lengths, one after the other: of factors as they are, made, and
// encoded.
TEST_F(LinearNoncausalGpuTest, ManyRowsHaveTheSameBitsAsAlone) {
  std::vector<int64_t> counts;
  for (int64_t row = 0; row < 90; ++row) counts.push_back(row * 37 % 211);
  counts[10] = 1500;  // several tiles
  counts[33] = 700;
  counts[62] = 1111;
  Config plain;
  Config made;
  made.q = made.k = made.g = Activation::kSilu;
  made.value_dim = 72;
  Config encoded = made;
  encoded.value_dim = 128;
  encoded.position = LrpeType::kCosine;
  Config softmax = encoded;  // of q, as a kernel of its own has it
  softmax.q = Activation::kSoftmax;
  Config softmax_alone = softmax;
  softmax_alone.position = LrpeType::kNone;
  for (const Config& c : {plain, made, encoded, softmax, softmax_alone}) {
    SCOPED_TRACE(testing::Message()
                 << c.value_dim << " columns, q " << static_cast<int>(c.q)
                 << ", position " << static_cast<int>(c.position));
    Batch all(c, counts);
    ASSERT_NO_FATAL_FAILURE(all.Run());
    ASSERT_NO_FATAL_FAILURE(
        ExpectAsAlone(c, all, counts, {1, 5, 10, 33, 40, 61, 62, 88, 89}, 1));
  }
}

// Enough tiles that blocks leave outputs to each other. All batches have one
// workspace, so that each finds there what others, of other kinds and numbers,
// have left; none may take it for its own.
TEST_F(LinearNoncausalGpuTest, OutputsThatOthersMakeHaveTheSameBits) {
  Config plain;
  plain.heads = 12;
  Config encoded = plain;  // waves go on where tiles are not the first
  encoded.head_dim = 48;
  encoded.value_dim = 40;
  encoded.q = Activation::kSoftmax;
  encoded.k = encoded.g = Activation::kSilu;
  encoded.position = LrpeType::kCosine;
  Config made = encoded;
  made.position = LrpeType::kNone;
  struct Case {
    Config config;
    std::vector<int64_t> counts;
    std::vector<int64_t> rows;  // that are looked at
  };
  // In the last case, blocks have many heads of a tile, and some leave two of
  // them.
  std::vector<int64_t> uneven(20, 30);
  for (int64_t row = 0; row < 8; ++row) uneven.push_back(4001);
  const std::vector<Case> cases = {
      {plain, std::vector<int64_t>(12, 1024), {0, 5, 11}},
      {encoded, std::vector<int64_t>(12, 1500), {0, 7, 11}},
      {made, std::vector<int64_t>(13, 1100), {1, 12}},
      {made, uneven, {0, 19, 20, 27}},
  };
  Batch largest(encoded, {1});
  void* const workspace = largest.Params().workspace;
  for (int turn = 0; turn < 2; ++turn) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const Config& c = cases[i].config;
      const std::vector<int64_t>& counts = cases[i].counts;
      SCOPED_TRACE(testing::Message() << "turn " << turn << ", case " << i);
      const int64_t first = 1 + 40 * turn;
      Batch all(c, counts, first);
      all.UseWorkspace(workspace);
      ASSERT_NO_FATAL_FAILURE(all.Run());
      ASSERT_NO_FATAL_FAILURE(
          ExpectAsAlone(c, all, counts, cases[i].rows, first));
      // Without states, and in float32, as the engine has it.
      Batch without(c, counts, first);
      LinearNoncausalParams p = without.Params();
      p.workspace = workspace;
      p.max_rows = static_cast<int64_t>(counts.size());
      p.rows = nullptr;
      p.states = nullptr;
      p.slots = nullptr;
      ASSERT_EQ(LaunchLinearNoncausalSeed(p, nullptr), cudaSuccess);
      int64_t tokens = 0;
      for (const int64_t count : counts) tokens += count;
      const int64_t width = c.heads * c.value_dim;
      DeviceBuffer<float> out(std::vector<float>(tokens * width, kCanary));
      p.out_type = ElementType::kFloat32;
      p.out = out.data();
      p.out_stride = width;
      ASSERT_EQ(LaunchLinearNoncausalSeed(p, nullptr), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      std::vector<float> want;
      for (size_t row = 0; row < counts.size(); ++row) {
        const std::vector<float> part = all.Out(row);
        EXPECT_TRUE(SameBits(without.Out(row), part)) << "row " << row;
        want.insert(want.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(SameBits(out.Read(), want));
    }
  }
}

// More rows than the kernel keeps the tiles of, and none but one in the sink.
TEST_F(LinearNoncausalGpuTest, ThousandsOfRowsOrNone) {
  Config c;
  c.heads = 3;
  c.head_dim = 16;
  c.value_dim = 8;
  c.g = Activation::kSilu;
  std::vector<int64_t> counts;
  for (int64_t row = 0; row < 2500; ++row) counts.push_back(row % 4);
  counts[2300] = 400;
  Batch all(c, counts);
  ASSERT_NO_FATAL_FAILURE(all.Run());
  ASSERT_NO_FATAL_FAILURE(
      ExpectAsAlone(c, all, counts, {1, 2046, 2047, 2049, 2300, 2499}, 1));
  Batch none(c, {});
  ASSERT_NO_FATAL_FAILURE(none.Run());
  ASSERT_NO_FATAL_FAILURE(none.Run());
}

// Two heads, whose outputs all blocks share.
TEST_F(LinearNoncausalGpuTest, OutputsOfFewLongHeadsMatchFloat64) {
  Config c;
  c.g = Activation::kSilu;
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {20011}));
}

}  // namespace
}  // namespace linear_noncausal_testing
}  // namespace recurve
