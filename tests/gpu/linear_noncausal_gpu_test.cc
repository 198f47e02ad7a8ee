// Non-causal linear attention on the GPU against float64, the step kernel and
// itself.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/linear_attn/linear_noncausal_cuda.h"
#include "tests/gpu/linear_prefill_gpu_testing.h"
#include "tests/kernels/activation_oracle.h"
#include "tests/kernels/lrpe_oracle.h"
#include "tests/testing/compare.h"
#include "tests/testing/random_tensor.h"

namespace recurve {
namespace {

// Of outputs and of S, ‖error‖ / ‖value‖ of each head.
constexpr double kTolerance = 4e-3;
constexpr int64_t kGap = 8;

struct Config {
  int64_t heads = 2;
  int64_t head_dim = 128;
  int64_t value_dim = 128;
  Activation q = Activation::kNone;
  Activation k = Activation::kNone;
  Activation g = Activation::kNone;
  bool q_sequence = false;
  bool k_sequence = false;
  bool gate = true;
  LrpeType position = LrpeType::kNone;
  int64_t first_position = 0;
  float scale = 1.0f;
  float ramp = 1.0f;         // of features, over 37 of them
  bool head_angles = false;  // each head has its own
  // Added to all features of q, and of k, by tokens in turn; may be empty.
  std::vector<float> q_levels, k_levels;

  double base(int64_t head) const {
    return 10000.0 / static_cast<double>(head_angles ? head + 1 : 1);
  }
  int64_t key_dim() const { return LrpeOutputDim(position, head_dim); }
  int64_t state() const { return heads * key_dim() * value_dim; }
  int64_t token() const { return 2 * heads * (head_dim + value_dim); }
};

// q, k, v and g of a token, side by side, with a ramp.
std::vector<float> Token(const Config& c, int64_t sequence, int64_t t) {
  std::vector<float> token =
      RandomTensor(9000 * sequence + t + 1, c.token(), -2.0f, 2.0f);
  for (size_t i = 0; i < token.size(); ++i) {
    token[i] += c.ramp * static_cast<float>(i % 37) / 37.0f +
                0.05f * static_cast<float>(t % 5);
  }
  const auto keys = token.begin() + c.heads * c.head_dim;
  const auto raise = [&](auto from, auto to, const std::vector<float>& levels) {
    if (levels.empty()) return;
    const float level = levels[static_cast<size_t>(t) % levels.size()];
    for (auto x = from; x != to; ++x) *x += level;
  };
  raise(token.begin(), keys, c.q_levels);
  raise(keys, keys + c.heads * c.head_dim, c.k_levels);
  return Rounded(ElementType::kBFloat16, token);
}

struct Oracle {
  Oracle(const Config& c, int64_t sequence, int64_t count)
      : out(count * c.heads * c.value_dim), state(c.state()) {
    std::vector<std::vector<float>> tokens;
    for (int64_t t = 0; t < count; ++t) tokens.push_back(Token(c, sequence, t));
    for (int64_t h = 0; h < c.heads; ++h) AddHead(c, h, tokens);
  }
  void AddHead(const Config& c, int64_t h,
               const std::vector<std::vector<float>>& tokens) {
    const size_t d = c.head_dim;
    const size_t e = c.value_dim;
    const size_t dk = c.key_dim();
    const int64_t count = static_cast<int64_t>(tokens.size());
    const auto encoded = [&](size_t at, Activation activation, bool sequence) {
      std::vector<double> sum(d, 0.0);
      std::vector<std::vector<double>> all;
      for (int64_t t = 0; t < count; ++t) {
        all.push_back(ActivationRowOracle(
            sequence ? Activation::kExp : activation, {&tokens[t][at], d}));
        for (size_t i = 0; i < d; ++i) sum[i] += all[t][i];
      }
      for (int64_t t = 0; t < count; ++t) {
        for (size_t i = 0; sequence && i < d; ++i) all[t][i] /= sum[i];
        all[t] =
            LrpeOracle(c.position, all[t], c.first_position + t, c.base(h));
      }
      return all;
    };
    const auto q = encoded(h * d, c.q, c.q_sequence);
    const auto k = encoded((c.heads + h) * d, c.k, c.k_sequence);
    double* s = state.data() + h * dk * e;
    for (int64_t t = 0; t < count; ++t) {
      const float* v = &tokens[t][2 * c.heads * d + h * e];
      for (size_t r = 0; r < dk; ++r) {
        for (size_t j = 0; j < e; ++j) s[r * e + j] += k[t][r] * v[j];
      }
    }
    for (int64_t t = 0; t < count; ++t) {
      const float* g = &tokens[t][2 * c.heads * d + (c.heads + h) * e];
      double* o = &out[(t * c.heads + h) * e];
      for (size_t r = 0; r < dk; ++r) {
        for (size_t j = 0; j < e; ++j) o[j] += q[t][r] * s[r * e + j] * c.scale;
      }
      for (size_t j = 0; c.gate && j < e; ++j) {
        o[j] *= ActivationOracle(c.g, g[j]);
      }
    }
  }
  std::vector<double> out;    // [count, H, E]
  std::vector<double> state;  // [H, Dk, E]
};

// Rows on the device, then one in the sink and one beyond the count of rows,
// whose tokens are NaN.
class Batch {
 public:
  Batch(const Config& config, const std::vector<int64_t>& counts,
        int64_t first_sequence = 1)
      : c_(config),
        counts_(counts),
        stride_(c_.token() + kGap),
        out_stride_(c_.heads * c_.value_dim + kGap),
        slot_stride_(c_.state() + kGap),
        starts_(Starts()),
        tokens_(ElementType::kBFloat16, Tokens(first_sequence)),
        out_(ElementType::kBFloat16,
             std::vector<float>(starts_.back() * out_stride_, kCanary)),
        states_(std::vector<float>((counts.size() + 3) * slot_stride_, kNaN)),
        query_start_(starts_),
        rows_({static_cast<int32_t>(counts.size() + 1)}),
        slots_(Slots()),
        positions_(std::vector<int64_t>(counts.size() + 2, c_.first_position)),
        phases_(Phases()),
        workspace_(Workspace()) {}

  LinearNoncausalParams Params() {
    const auto at = [&](int64_t offset) {
      return static_cast<const void*>(static_cast<char*>(tokens_.data()) +
                                      2 * offset);
    };
    const int64_t keys = c_.heads * c_.head_dim;
    LinearNoncausalParams p = {};
    p.num_heads = c_.heads;
    p.head_dim = c_.head_dim;
    p.value_dim = c_.value_dim;
    p.q = at(0);
    p.k = at(keys);
    p.v = at(2 * keys);
    p.g = c_.gate ? at(2 * keys + c_.heads * c_.value_dim) : nullptr;
    p.stride = stride_;
    p.out_type = ElementType::kBFloat16;
    p.out = out_.data();
    p.out_stride = out_stride_;
    p.query_start = query_start_.data();
    p.max_rows = static_cast<int64_t>(counts_.size()) + 2;
    p.rows = rows_.data();
    p.slots = slots_.data();
    p.positions = positions_.data();
    p.q_activation = c_.q;
    p.k_activation = c_.k;
    p.g_activation = c_.g;
    p.q_sequence_softmax = c_.q_sequence;
    p.k_sequence_softmax = c_.k_sequence;
    p.position = c_.position;
    p.phase_steps = phases_.data();
    p.phase_head_stride = c_.head_angles ? PhasesOf(0).size() : 0;
    p.scale = c_.scale;
    p.states = states_.data();
    p.slot_stride = slot_stride_;
    p.workspace =
        shared_workspace_ != nullptr ? shared_workspace_ : workspace_.data();
    return p;
  }
  // Of another batch, large enough, in place of its own.
  void UseWorkspace(void* workspace) { shared_workspace_ = workspace; }
  void Run() {
    ASSERT_EQ(LaunchLinearNoncausal(Params(), nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const std::vector<float> out = out_.Read();
    const float canary = Rounded(ElementType::kBFloat16, {kCanary})[0];
    const int64_t width = out_stride_ - kGap;
    const size_t live = counts_.size();
    for (int64_t t = 0; t < starts_.back(); ++t) {
      for (int64_t i = 0; i < out_stride_; ++i) {
        const float x = out[t * out_stride_ + i];
        if (i >= width || t >= starts_[live + 1]) {
          ASSERT_EQ(x, canary) << "token " << t << " at " << i;
        } else if (t >= starts_[live]) {
          ASSERT_EQ(x, 0.0f) << "the sink, token " << t;
        }
      }
    }
    const std::vector<float> states = states_.Read();
    for (size_t i = 0; i < states.size(); ++i) {
      const size_t slot = i / slot_stride_;
      const bool used = slot >= 2 && slot < 2 + live && counts_[slot - 2] > 0 &&
                        static_cast<int64_t>(i % slot_stride_) < c_.state();
      if (!used) {
        ASSERT_TRUE(std::isnan(states[i])) << "slot " << slot;
      }
    }
  }
  std::vector<float> Out(int64_t row) const {
    const std::vector<float> all = out_.Read();
    std::vector<float> out;
    for (int64_t t = starts_[row]; t < starts_[row + 1]; ++t) {
      const auto at = all.begin() + t * out_stride_;
      out.insert(out.end(), at, at + out_stride_ - kGap);
    }
    return out;
  }
  std::vector<float> State(int64_t row) const {
    const std::vector<float> states = states_.Read();
    const auto at = states.begin() + (row + 2) * slot_stride_;
    return {at, at + c_.state()};
  }

 private:
  std::vector<int32_t> Starts() const {
    std::vector<int32_t> starts = {0};
    for (int64_t count : counts_) {
      starts.push_back(static_cast<int32_t>(starts.back() + count));
    }
    for (int trap = 0; trap < 2; ++trap) starts.push_back(starts.back() + 9);
    return starts;
  }
  std::vector<float> Tokens(int64_t first_sequence) const {
    std::vector<float> values(starts_.back() * stride_, kNaN);
    for (size_t row = 0; row < counts_.size(); ++row) {
      for (int64_t t = 0; t < counts_[row]; ++t) {
        const std::vector<float> token =
            Token(c_, first_sequence + static_cast<int64_t>(row), t);
        std::copy(token.begin(), token.end(),
                  values.begin() + (starts_[row] + t) * stride_);
      }
    }
    return values;
  }
  std::vector<int32_t> Slots() const {
    std::vector<int32_t> slots;
    for (size_t row = 0; row < counts_.size(); ++row) {
      slots.push_back(static_cast<int32_t>(row + 2));
    }
    slots.push_back(0);
    slots.push_back(1);
    return slots;
  }
  std::vector<uint64_t> PhasesOf(int64_t head) const {
    return LrpePhaseSteps(LrpeTheta(c_.position, c_.head_dim, c_.base(head)));
  }
  std::vector<uint64_t> Phases() const {
    std::vector<uint64_t> phases;
    for (int64_t h = 0; h < (c_.head_angles ? c_.heads : 1); ++h) {
      const std::vector<uint64_t> more = PhasesOf(h);
      phases.insert(phases.end(), more.begin(), more.end());
    }
    if (phases.empty()) phases.push_back(0);
    return phases;
  }

  // Sums are left there, so it begins as zeros, and nothing else is asked.
  std::vector<char> Workspace() const {
    LinearNoncausalParams p = {};
    p.position = c_.position;
    p.q_sequence_softmax = c_.q_sequence;
    p.k_sequence_softmax = c_.k_sequence;
    return std::vector<char>(LinearNoncausalWorkspaceBytes(p) + 1, 0);
  }

  Config c_;
  std::vector<int64_t> counts_;
  int64_t stride_, out_stride_, slot_stride_;
  std::vector<int32_t> starts_;
  DeviceTensor tokens_, out_;
  DeviceBuffer<float> states_;
  DeviceBuffer<int32_t> query_start_, rows_, slots_;
  DeviceBuffer<int64_t> positions_;
  DeviceBuffer<uint64_t> phases_;
  DeviceBuffer<char> workspace_;
  void* shared_workspace_ = nullptr;
};

class LinearNoncausalGpuTest : public GpuTest {
 protected:
  static void ExpectOracle(const Config& c,
                           const std::vector<int64_t>& counts) {
    Batch batch(c, counts);
    ASSERT_NO_FATAL_FAILURE(batch.Run());
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      const Oracle want(c, static_cast<int64_t>(i) + 1, counts[i]);
      const double out =
          WorstHeadError(batch.Out(i), want.out, c.heads, c.value_dim);
      const double state = WorstHeadError(batch.State(i), want.state, c.heads,
                                          c.key_dim() * c.value_dim);
      EXPECT_LE(out, counts[i] < 16 ? 2 * kTolerance : kTolerance)
          << "out, length " << counts[i]
          << RelativelyNear(batch.Out(i), want.out, kTolerance).message();
      EXPECT_LE(state, kTolerance)
          << "state, length " << counts[i]
          << RelativelyNear(batch.State(i), want.state, kTolerance).message();
    }
  }
  // Rows of `all`, whose sequences are those from `first` on, have the bits of
  // a batch of their own.
  static void ExpectAsAlone(const Config& c, const Batch& all,
                            const std::vector<int64_t>& counts,
                            const std::vector<int64_t>& rows, int64_t first) {
    for (const int64_t row : rows) {
      SCOPED_TRACE(testing::Message() << "row " << row);
      Batch alone(c, {counts[row]}, first + row);
      ASSERT_NO_FATAL_FAILURE(alone.Run());
      EXPECT_TRUE(SameBits(all.Out(row), alone.Out(0)));
      EXPECT_TRUE(SameBits(all.State(row), alone.State(0)));
    }
  }
};

TEST_F(LinearNoncausalGpuTest, MatchesFloat64AtEveryLength) {
  Config c;
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(
      c, {1, 0, 2, 63, 64, 65, 127, 128, 129, 513, 640, 1025, 4097, 31}));
}

// Tiles are 64 tokens.
TEST_F(LinearNoncausalGpuTest, MatchesFloat64AtEveryLengthMade) {
  Config c;
  c.q = Activation::kSoftmax;
  c.k = c.g = Activation::kSilu;
  for (LrpeType position : {LrpeType::kNone, LrpeType::kCosine}) {
    c.position = position;
    ASSERT_NO_FATAL_FAILURE(
        ExpectOracle(c, {1, 0, 63, 64, 65, 129, 192, 193, 255, 256, 257, 640,
                         1025, 2049, 4097}));
  }
}

TEST_F(LinearNoncausalGpuTest, MatchesFloat64InEveryShape) {
  for (const auto& [heads, d, e] :
       {std::tuple(1, 16, 8), std::tuple(3, 32, 40), std::tuple(5, 64, 32),
        std::tuple(2, 80, 128), std::tuple(1, 96, 72),
        std::tuple(3, 128, 64)}) {
    for (LrpeType position :
         {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
      SCOPED_TRACE(testing::Message()
                   << heads << " heads " << d << " x " << e << " position "
                   << static_cast<int>(position));
      Config c;
      c.heads = heads;
      c.head_dim = d;
      c.value_dim = e;
      c.position = position;
      c.scale = 0.25f;
      c.first_position = 5;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {200, 700}));
    }
  }
}

TEST_F(LinearNoncausalGpuTest, MatchesFloat64WithEveryActivation) {
  for (LrpeType position :
       {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
    for (int which = 0; which < 9; ++which) {
      SCOPED_TRACE(testing::Message() << "case " << which << " position "
                                      << static_cast<int>(position));
      Config c;
      c.head_dim = which == 4 ? 48 : 128;
      c.position = position;
      if (which == 0 || which == 6) c.q = Activation::kSilu;
      if (which == 1 || which == 6) c.k = Activation::kSilu;
      if (which == 2 || which == 6 || which == 8) c.g = Activation::kSilu;
      if (which == 3 || which == 4 || which >= 7) c.q = Activation::kSoftmax;
      if (which == 4 || which == 5) c.k = Activation::kSoftmax;
      c.gate = which != 5 && which != 7;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {150, 600}));
    }
  }
}

TEST_F(LinearNoncausalGpuTest, MatchesFloat64WithSequenceSoftmax) {
  for (LrpeType position :
       {LrpeType::kNone, LrpeType::kRotate, LrpeType::kCosine}) {
    for (int which = 1; which < 4; ++which) {
      SCOPED_TRACE(testing::Message() << "case " << which << " position "
                                      << static_cast<int>(position));
      Config c;
      c.head_dim = which == 1 ? 64 : 128;
      c.position = position;
      c.q_sequence = which & 1;
      c.k_sequence = which & 2;
      ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {1, 70, 900}));
    }
  }
}

TEST_F(LinearNoncausalGpuTest, AnglesAreRightFarOut) {
  for (LrpeType position : {LrpeType::kRotate, LrpeType::kCosine}) {
    Config c;
    c.position = position;
    c.first_position = 1000003;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {700}));
  }
}

// With cosines some blocks have several heads, and change their angles, and
// waves are begun anew.
TEST_F(LinearNoncausalGpuTest, EachHeadMayHaveItsOwnAngles) {
  for (LrpeType position : {LrpeType::kRotate, LrpeType::kCosine}) {
    Config c;
    c.heads = 70;
    c.head_dim = 48;
    c.value_dim = 16;
    c.position = position;
    c.head_angles = true;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {2200, 65}));
  }
}

TEST_F(LinearNoncausalGpuTest, ARowAloneHasTheSameBits) {
  Config c;
  c.position = LrpeType::kCosine;
  c.q = c.k = c.g = Activation::kSilu;
  Batch all(c, {300, 64, 1000, 129});
  Batch alone(c, {1000}, 3);
  ASSERT_NO_FATAL_FAILURE(all.Run());
  ASSERT_NO_FATAL_FAILURE(alone.Run());
  EXPECT_TRUE(SameBits(all.Out(2), alone.Out(0)));
  EXPECT_TRUE(SameBits(all.State(2), alone.State(0)));
}

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
  // Of the last, blocks have many heads of a tile, and some leave two of them.
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
      ASSERT_EQ(LaunchLinearNoncausal(p, nullptr), cudaSuccess);
      int64_t tokens = 0;
      for (const int64_t count : counts) tokens += count;
      const int64_t width = c.heads * c.value_dim;
      DeviceBuffer<float> out(std::vector<float>(tokens * width, kCanary));
      p.out_type = ElementType::kFloat32;
      p.out = out.data();
      p.out_stride = width;
      ASSERT_EQ(LaunchLinearNoncausal(p, nullptr), cudaSuccess);
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

// Features that are large, and of which some are alike: silu and softmax stay
// within what they are to be.
TEST_F(LinearNoncausalGpuTest, LargeFeaturesStayFinite) {
  Config c;
  c.position = LrpeType::kCosine;
  c.q = Activation::kSoftmax;
  c.k = c.g = Activation::kSilu;
  c.ramp = 60.0f;
  ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {70, 300}));
}

// Tokens of all sizes beside each other: softmax is of differences, and what is
// near 0 is not taken relative to its maximum.
TEST_F(LinearNoncausalGpuTest, SoftmaxIsOfDifferences) {
  for (LrpeType position : {LrpeType::kNone, LrpeType::kCosine}) {
    SCOPED_TRACE(testing::Message()
                 << "position " << static_cast<int>(position));
    Config c;
    c.position = position;
    c.q = c.k = Activation::kSoftmax;
    c.g = Activation::kSilu;
    c.q_levels = {0.0f,   13.0f, 700.0f, -13.0f, -15.0f,
                  -17.0f, -1e4f, 15.0f,  4e9f,   -3e30f};
    c.k_levels = {-900.0f, 0.0f, 14.0f, -17.0f, 3e4f, -5e9f, 2e30f};
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {70, 300}));
    c.head_dim = 48;
    ASSERT_NO_FATAL_FAILURE(ExpectOracle(c, {130}));
  }
}

TEST_F(LinearNoncausalGpuTest, ATokensSoftmaxDependsOnNoOther) {
  for (LrpeType position : {LrpeType::kNone, LrpeType::kCosine}) {
    SCOPED_TRACE(testing::Message()
                 << "position " << static_cast<int>(position));
    Config c;
    c.position = position;
    c.q = Activation::kSoftmax;
    Config beside = c;
    beside.q_levels = {0.0f, 50.0f, 0.0f, 0.0f, -300.0f, 0.0f, 0.0f};
    Batch one(c, {300});
    Batch other(beside, {300});
    ASSERT_NO_FATAL_FAILURE(one.Run());
    ASSERT_NO_FATAL_FAILURE(other.Run());
    const std::vector<float> want = one.Out(0);
    const std::vector<float> got = other.Out(0);
    const int64_t width = c.heads * c.value_dim;
    for (int64_t t = 0; t < 300; ++t) {
      if (beside.q_levels[t % 7] != 0.0f) continue;
      const auto row = [&](const std::vector<float>& out) {
        const auto at = out.begin() + t * width;
        return std::vector<float>(at, at + width);
      };
      ASSERT_TRUE(SameBits(row(got), row(want))) << "token " << t;
    }
  }
}

// Without a state to keep, slots are not looked at.
TEST_F(LinearNoncausalGpuTest, StatesMayBeLeftOut) {
  Config c;
  Batch with(c, {300});
  Batch without(c, {300});
  ASSERT_NO_FATAL_FAILURE(with.Run());
  LinearNoncausalParams p = without.Params();
  p.max_rows = 1;
  p.rows = nullptr;
  p.states = nullptr;
  p.slots = nullptr;
  ASSERT_EQ(LaunchLinearNoncausal(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(SameBits(without.Out(0), with.Out(0)));
}

// The same values, widened: by both kernels.
TEST_F(LinearNoncausalGpuTest, OutputsMayBeFloat32) {
  for (LrpeType position :
       {LrpeType::kNone, LrpeType::kCosine, LrpeType::kRotate}) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(position));
    Config c;
    c.value_dim = 72;
    c.position = position;
    Batch batch(c, {1, 300, 64, 700});
    ASSERT_NO_FATAL_FAILURE(batch.Run());
    LinearNoncausalParams p = batch.Params();
    const int64_t tokens = 1 + 300 + 64 + 700 + 9;  // and those of the sink
    const int64_t width = c.heads * c.value_dim;
    DeviceBuffer<float> out(std::vector<float>(tokens * width + kGap, kCanary));
    p.out_type = ElementType::kFloat32;
    p.out = out.data();
    p.out_stride = width;
    ASSERT_EQ(LaunchLinearNoncausal(p, nullptr), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<float> want;
    for (int64_t row = 0; row < 4; ++row) {
      const std::vector<float> part = batch.Out(row);
      want.insert(want.end(), part.begin(), part.end());
    }
    want.resize(tokens * width, 0.0f);
    want.resize(tokens * width + kGap, kCanary);
    EXPECT_TRUE(SameBits(out.Read(), want));
  }
}

TEST_F(LinearNoncausalGpuTest, RefusesWhatItDoesNotSupport) {
  Config c;
  Batch batch(c, {3});
  const LinearNoncausalParams good = batch.Params();
  const auto refused = [](const LinearNoncausalParams& p) {
    return LaunchLinearNoncausal(p, nullptr) == cudaErrorInvalidValue;
  };
  for (int64_t dim : {0, 4, 12, 136}) {
    LinearNoncausalParams p = good;
    p.head_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
    p = good;
    p.value_dim = dim;
    EXPECT_TRUE(refused(p)) << dim;
  }
  LinearNoncausalParams p = good;
  p.position = LrpeType::kRotate;
  p.head_dim = 24;
  EXPECT_TRUE(refused(p));
  p = good;
  p.q_activation = Activation::kRelu;
  EXPECT_TRUE(refused(p));
  p = good;
  p.g_activation = Activation::kSoftmax;
  EXPECT_TRUE(refused(p));
  for (int missing = 0; missing < 6; ++missing) {
    p = good;
    if (missing == 0) p.q = nullptr;
    if (missing == 1) p.k = nullptr;
    if (missing == 2) p.v = nullptr;
    if (missing == 3) p.out = nullptr;
    if (missing == 4) p.query_start = nullptr;
    if (missing == 5) p.slots = nullptr;
    EXPECT_TRUE(refused(p)) << missing;
  }
  p = good;
  p.position = LrpeType::kCosine;
  p.positions = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.workspace = nullptr;
  EXPECT_TRUE(refused(p));
  p = good;
  p.num_heads = 1 << 16;
  p.max_rows = 2049;
  EXPECT_TRUE(refused(p));
  p = good;
  p.slot_stride += 2;  // a state would not begin at a multiple of 16 bytes
  EXPECT_TRUE(refused(p));
}

}  // namespace
}  // namespace recurve
