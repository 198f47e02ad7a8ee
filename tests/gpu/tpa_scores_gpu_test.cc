// TPA decode on the GPU where scores are large, far apart, or grow.

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tests/gpu/tpa_decode_fixture.h"

namespace recurve {
namespace {

// All scores of a head are its one of `levels`, repeated, in powers of two; but
// for what the cache's type rounds, at most 0.2 of 64.
void SetLevels(const TpaGpuConfig& config, const std::vector<float>& levels,
               TpaSequence& sequence) {
  const auto heads = static_cast<size_t>(config.shape.num_heads);
  const float key = 1.0f / std::sqrt(static_cast<float>(config.shape.head_dim));
  std::fill(sequence.cos.begin(), sequence.cos.end(), 1.0f);
  std::fill(sequence.sin.begin(), sequence.sin.end(), 0.0f);
  std::fill(sequence.b_q.begin(), sequence.b_q.end(), 1.0f);
  for (size_t i = 0; i < sequence.a_q.size(); ++i)
    sequence.a_q[i] = levels[i % heads % levels.size()] * std::log(2.0f);
  sequence.Change(config, [&](int which, float x) {
    return which == 0 ? 1.0f : which == 1 ? key : x;
  });
}

// Whether the reference of a chunk with this greatest score is 0, in bfloat16.
bool NearZero(float level) { return level >= -64.0f && level <= 32.0f; }

// Log-sum-exps of chunks that differ by a lot, growing or falling.
TEST_F(TpaGpuTest, RampedScores) {
  for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
    for (const TpaShape& shape :
         {kShapes[0], kShapes[1], kShapes[3], kHeadRowsShape}) {
      for (const auto& [from, to] :
           {std::pair(0.0f, 60.0f), std::pair(60.0f, 0.0f),
            std::pair(0.0f, 6.0f), std::pair(-80.0f, 80.0f),
            std::pair(80.0f, -80.0f), std::pair(-1e4f, 1e4f),
            std::pair(1e4f, -1e4f)}) {
        const TpaGpuConfig config = {shape, element};
        Sequences sequences = Make(config, {2100, 65, 700});
        for (auto& s : sequences) s->Ramp(config, from, to);
        SCOPED_TRACE(testing::Message() << from << " to " << to);
        Check(config, sequences);
      }
    }
  }
}

// Scores up to ±1e4 without order, some of them close to each other.
TEST_F(TpaGpuTest, LargeRandomScores) {
  for (const TpaShape& shape :
       {kShapes[0], kShapes[1], kShapes[4], kHeadRowsShape}) {
    const TpaGpuConfig config = {shape};
    Sequences sequences = Make(config, {8191, 64, 900, 65});
    for (auto& s : sequences) {
      s->ScaleKeys(config, 3000.0f * static_cast<float>(shape.kv_rank));
    }
    Check(config, sequences);
  }
}

// Scores of a chunk are relative to a number that each of its heads chooses
// (tpa_softmax.cuh): around every bound of that, adjacent. A head's result does
// not depend on the choices of others: for heads that choose 0 it is the same
// if all do and no maximum is computed.
TEST_F(TpaGpuTest, HeadsWithScoresFarApart) {
  const std::vector<float> levels = {0.0f,   -63.5f,  31.5f,  -64.5f,  32.5f,
                                     -66.0f, -1.0f,   -70.0f, 40.0f,   -90.0f,
                                     90.0f,  -900.0f, 9.0f,   -126.0f, 900.0f};
  std::vector<float> near = levels;
  std::vector<float> far = levels;
  for (size_t i = 0; i < levels.size(); ++i)
    (NearZero(levels[i]) ? far : near)[i] = 2.0f;
  for (TpaElement element : {TpaElement::kBFloat16, TpaElement::kFloat16}) {
    for (const TpaShape& shape :
         {kShapes[0], kShapes[1], kShapes[6], kHeadRowsShape}) {
      const TpaGpuConfig config = {shape, element};
      const auto decode = [&](const std::vector<float>& of_heads) {
        Sequences sequences = Make(config, {2100, 65, 1, 700});
        for (auto& s : sequences) SetLevels(config, of_heads, *s);
        return Check(config, sequences);
      };
      const std::vector<float> got = decode(levels);
      const std::vector<float> got_near = decode(near);
      const std::vector<float> got_far = decode(far);
      const auto width = static_cast<size_t>(shape.value_dim);
      for (size_t i = 0; i < got.size() / width; ++i) {
        const size_t head = i % static_cast<size_t>(shape.num_heads);
        const bool is_near = NearZero(levels[head % levels.size()]);
        const std::vector<float>& same = is_near ? got_near : got_far;
        EXPECT_TRUE(SameBits({got.data() + i * width, width},
                             {same.data() + i * width, width}))
            << "head " << head << " of " << Describe(config);
      }
    }
  }
}

}  // namespace
}  // namespace recurve
