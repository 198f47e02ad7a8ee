#include "engine/models/tpa/tpa_launches.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/tpa/decode/tpa_schedule.h"
#include "kernels/tpa/prefill/tpa_prefill_plan.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TpaShape kShapes[] = {
    {32, 128, 128, 6, 2}, {3, 8, 200, 0, 4}, {128, 64, 64, 12, 1}};

// A step with these runs, and the length of each one's sequence up to its end.
class Step {
 public:
  void Add(int32_t sequence, bool step, int64_t count, int64_t length) {
    const int64_t begin = num_tokens();
    runs_.push_back({sequence, step ? TokenKind::kStep : TokenKind::kPrompt,
                     begin, begin + count});
    for (int64_t i = 0; i < count; ++i)
      batch_.positions.push_back(length - count + i);
  }
  int64_t num_tokens() const {
    return static_cast<int64_t>(batch_.positions.size());
  }
  const StepBatch& batch() const { return batch_; }
  const std::vector<StepRun>& runs() const { return runs_; }

 private:
  StepBatch batch_;
  std::vector<StepRun> runs_;
};

// Chunks of 128 tokens up to 2048, of 256 behind; T6-XL on an H200.
TEST(TpaLaunchesTest, FewAreNoMoreChunksThanBlocks) {
  const int chunks =
      TpaFewChunks({78, 64, 64, 6, 2}, {132, 227 << 10, true, 14});
  const auto few = [&](const std::vector<int64_t>& positions) {
    const int64_t rows = std::bit_ceil(positions.size());
    return TpaContextsOf(positions, rows, {chunks, 0, 0}) == TpaContexts::kFew;
  };
  EXPECT_TRUE(few({0}));
  EXPECT_TRUE(few({2047}));
  EXPECT_FALSE(few({2048}));
  EXPECT_TRUE(few({2048, 0}));
  EXPECT_TRUE(few(std::vector<int64_t>(64, 127)));
  EXPECT_FALSE(few(std::vector<int64_t>(65, 127)));  // of 128, with padding
  EXPECT_TRUE(few(std::vector<int64_t>(62, 127)));
  EXPECT_TRUE(few(std::vector<int64_t>(33, 255)));
  EXPECT_FALSE(few(std::vector<int64_t>(33, 256)));
  EXPECT_TRUE(few({2047 + 49 * 256, 0}));  // 65 and one
  EXPECT_FALSE(few({2048 + 49 * 256, 0}));
  // Without a shape, or with one whose heads are always one block.
  EXPECT_EQ(TpaContextsOf({0}, 1, {}), TpaContexts::kAny);
}

// Up to two rows of T6-XL, each with at most 24 chunks; padding counts.
TEST(TpaLaunchesTest, ShortRowsAreClusters) {
  const TpaShape shape = {78, 64, 64, 6, 2};
  const TpaDevice device = {132, 227 << 10, true, 14};
  const int chunks = TpaFewChunks(shape, device);
  const int most = TpaShortRows(shape, device);
  const auto contexts = [&](const std::vector<int64_t>& positions) {
    const int64_t rows = std::bit_ceil(positions.size());
    return TpaContextsOf(positions, rows, {chunks, 0, most});
  };
  EXPECT_EQ(contexts({0}), TpaContexts::kShort);
  EXPECT_EQ(contexts({4095}), TpaContexts::kShort);
  EXPECT_EQ(contexts({4096}), TpaContexts::kAny);
  EXPECT_EQ(contexts({4095, 4095}), TpaContexts::kShort);
  EXPECT_EQ(contexts({0, 4096}), TpaContexts::kFew);
  EXPECT_EQ(contexts({0, 0, 0}), TpaContexts::kFew);
}

// T6-large: more than four chunks a multiprocessor, of however many rows.
TEST(TpaLaunchesTest, ManyAreMoreThanFourChunksABlock) {
  const TpaShape shape = {61, 64, 64, 6, 2};
  const TpaDevice device = {132, 227 << 10, true, 14};
  const TpaContextLimits limits = {TpaFewChunks(shape, device),
                                   TpaManyChunks(shape, device),
                                   TpaShortRows(shape, device)};
  EXPECT_EQ(limits.many_chunks, 528);
  const auto contexts = [&](const std::vector<int64_t>& positions) {
    const int64_t rows = std::bit_ceil(positions.size());
    return TpaContextsOf(positions, rows, limits);
  };
  EXPECT_EQ(contexts({0}), TpaContexts::kShort);
  EXPECT_EQ(contexts(std::vector<int64_t>(33, 2047)), TpaContexts::kAny);
  EXPECT_EQ(contexts(std::vector<int64_t>(33, 2048)), TpaContexts::kMany);
  EXPECT_EQ(contexts(std::vector<int64_t>(256, 255)), TpaContexts::kAny);
  EXPECT_EQ(contexts(std::vector<int64_t>(256, 256)), TpaContexts::kMany);
  EXPECT_EQ(contexts({131071 + 8 * 1024}), TpaContexts::kAny);  // 520 and 8
  EXPECT_EQ(contexts({131072 + 8 * 1024}), TpaContexts::kMany);
}

// What CudaTpa takes for the launches' schedules.
struct ScheduleBytes {
  int64_t pieces = 0;
  int64_t prefills = 0;
};
ScheduleBytes BytesOfSchedules(const Step& step, const TpaShape& shape,
                               const TpaDevice& device,
                               const TpaStepLimits& limits) {
  ScheduleBytes bytes;
  for (const TpaPieceRows& piece : CutTpaPieces(step.runs(), limits)) {
    const int rows = static_cast<int>(piece.rows.size());
    const TpaDecodePlan plan =
        PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, rows,
                      static_cast<int>(piece.tokens), device);
    EXPECT_GT(plan.blocks, 0);
    bytes.pieces += AlignTpaSchedule(
        TpaScheduleParts(plan, rows, kTpaPageTokens * limits.max_pages).bytes);
  }
  for (const TpaPrefillRuns& launch :
       CutTpaPrefills(step.batch(), step.runs(), limits)) {
    const TpaPrefillPlan plan = PlanTpaPrefill(
        shape,
        {static_cast<int>(launch.rows), launch.tokens, launch.context, 0});
    EXPECT_GT(plan.query_tiles, 0);
    bytes.prefills += AlignTpaSchedule(plan.schedule_bytes);
  }
  return bytes;
}

// What CudaTpa adds to a step, in its order, from the most unfortunate place
// on.
int64_t BytesOfStep(const Step& step, const TpaDevice& device,
                    const TpaStepLimits& limits) {
  int64_t used = kTpaScheduleAlignment - 1;
  const auto add = [&](int64_t bytes, int64_t alignment = 16) {
    used = (used + alignment - 1) / alignment * alignment + bytes;
  };
  const std::vector<TpaPieceRows> pieces = CutTpaPieces(step.runs(), limits);
  int64_t tokens = 0;
  for (const TpaPieceRows& piece : pieces)
    tokens += static_cast<int64_t>(piece.rows.size()) * piece.tokens;
  add(8 * tokens);  // positions
  for (const TpaPieceRows& piece : pieces) {
    const auto rows = static_cast<int64_t>(piece.rows.size());
    add(4 * rows * piece.tokens);      // indices
    add(4 * rows * limits.max_pages);  // pages
    for (const TpaShape& shape : kShapes) {
      add(TpaScheduleParts(
              PlanTpaDecode(shape, TpaDecodeForm::kParallelBn,
                            static_cast<int>(rows),
                            static_cast<int>(piece.tokens), device),
              static_cast<int>(rows), kTpaPageTokens * limits.max_pages)
              .bytes,
          kTpaScheduleAlignment);
    }
  }
  for (const TpaPrefillRuns& launch :
       CutTpaPrefills(step.batch(), step.runs(), limits)) {
    add(4 * (launch.rows + 1));               // where rows begin
    add(4 * launch.rows);                     // lengths
    add(4 * launch.rows * limits.max_pages);  // pages
  }
  return used;
}

// Every row is in one launch.
void ExpectAllRowsOnce(const Step& step, const TpaStepLimits& limits) {
  std::vector<int> seen(step.num_tokens(), 0);
  for (const TpaPieceRows& piece : CutTpaPieces(step.runs(), limits)) {
    ASSERT_LE(static_cast<int64_t>(piece.rows.size()),
              piece.tokens == 1 ? limits.max_sequences : kTpaPieceRows);
    for (const StepRun& row : piece.rows) {
      ASSERT_GE(row.count(), 1);
      ASSERT_LE(row.count(), piece.tokens);
      for (int64_t i = row.begin; i < row.end; ++i) ++seen[i];
    }
  }
  for (const TpaPrefillRuns& launch :
       CutTpaPrefills(step.batch(), step.runs(), limits)) {
    ASSERT_LE(launch.rows, kTpaPrefillRows);
    int64_t tokens = 0;
    int64_t context = 0;
    for (int64_t r = 0; r < launch.rows; ++r) {
      const StepRun& run = step.runs()[launch.first + r];
      if (run.step()) continue;
      tokens += run.count();
      context += step.batch().positions[run.end - 1] + 1;
      for (int64_t i = run.begin; i < run.end; ++i) ++seen[i];
    }
    ASSERT_EQ(tokens, launch.tokens);
    ASSERT_EQ(context, launch.context);
    ASSERT_LE(context,
              std::max(kTpaPrefillContext, kTpaPageTokens * limits.max_pages));
  }
  ASSERT_THAT(seen, ::testing::Each(1));
}

TEST(TpaLaunchesTest, RunsOfStepsAreCutIntoRows) {
  Step step;
  step.Add(0, true, 1, 5);
  step.Add(1, true, 17, 17);
  step.Add(2, false, 9, 9);
  step.Add(3, true, 1, 7);
  step.Add(4, true, 1, 1);
  const TpaStepLimits limits = {64, 2, 1, true};
  const std::vector<TpaPieceRows> pieces = CutTpaPieces(step.runs(), limits);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].tokens, 1);
  EXPECT_THAT(pieces[0].rows,
              ElementsAre(StepRun{0, TokenKind::kStep, 0, 1},
                          StepRun{3, TokenKind::kStep, 27, 28}));
  EXPECT_EQ(pieces[1].tokens, 1);
  EXPECT_THAT(pieces[1].rows,
              ElementsAre(StepRun{4, TokenKind::kStep, 28, 29}));
  EXPECT_EQ(pieces[2].tokens, kTpaPieceTokens);
  EXPECT_THAT(pieces[2].rows,
              ElementsAre(StepRun{1, TokenKind::kStep, 1, 9},
                          StepRun{1, TokenKind::kStep, 9, 17},
                          StepRun{1, TokenKind::kStep, 17, 18}));
  ExpectAllRowsOnce(step, limits);
  // Without a kernel for prompts they are pieces, too.
  const TpaStepLimits no_prefill = {64, 2, 1, false};
  EXPECT_EQ(CutTpaPieces(step.runs(), no_prefill)[2].rows.size(), 5u);
  EXPECT_THAT(CutTpaPrefills(step.batch(), step.runs(), no_prefill), IsEmpty());
  ExpectAllRowsOnce(step, no_prefill);
}

TEST(TpaLaunchesTest, PromptsAreCutByRowsAndByContext) {
  const TpaStepLimits limits = {4096, 1024, 8, true};
  Step rows;
  rows.Add(0, true, 1, 9);
  for (int32_t i = 1; i <= 300; ++i) rows.Add(i, i % 2 == 0, 2, 50);
  const auto by_rows = CutTpaPrefills(rows.batch(), rows.runs(), limits);
  ASSERT_EQ(by_rows.size(), 2u);
  EXPECT_EQ(by_rows[0].first, 1u);
  EXPECT_EQ(by_rows[0].rows, 255);  // behind them is one of a step
  EXPECT_EQ(by_rows[0].tokens, 256);
  EXPECT_EQ(by_rows[1].first, 257u);
  EXPECT_EQ(by_rows[1].rows, 43);
  ExpectAllRowsOnce(rows, limits);

  Step contexts;
  for (int32_t i = 0; i < 5; ++i) contexts.Add(i, false, 1, 30000);
  const auto by_context =
      CutTpaPrefills(contexts.batch(), contexts.runs(), limits);
  ASSERT_EQ(by_context.size(), 3u);
  EXPECT_EQ(by_context[0].context, 60000);
  EXPECT_EQ(by_context[2].rows, 1);
  ExpectAllRowsOnce(contexts, limits);
}

// The steps that take most launches: sequences as long as they may be, runs as
// short.
class WorstSteps {
 public:
  explicit WorstSteps(const TpaStepLimits& limits)
      : limits_(limits), length_(kTpaPageTokens * limits.max_pages) {}

  // `prompt` tokens of a prompt first and last, `step` tokens between prompts
  // and at both ends; 0: none. Sequences take turns at what is left.
  Step Make(int64_t sequences, int64_t prompt, int64_t step) const {
    Step made;
    int64_t left = limits_.max_tokens;
    for (int64_t s = 0; s < sequences && left > 0; ++s) {
      const int64_t share = std::max<int64_t>(1, left / (sequences - s));
      Sequence(static_cast<int32_t>(s), share, prompt, step, &made);
      left = limits_.max_tokens - made.num_tokens();
    }
    return made;
  }

 private:
  void Sequence(int32_t sequence, int64_t share, int64_t prompt, int64_t step,
                Step* made) const {
    const auto add = [&](bool is_step, int64_t count) {
      count = std::min(count, share);
      share -= count;
      if (count > 0) made->Add(sequence, is_step, count, length_);
    };
    add(false, prompt);
    while (share >= int64_t{kMinPromptTokens} + 2 * step + prompt) {
      add(true, step);
      add(false, int64_t{kMinPromptTokens});
      if (step == 0 && prompt == 0) break;
    }
    add(true, step);
    add(false, prompt);
    add(true, step);
  }

  const TpaStepLimits limits_;
  const int64_t length_;
};

TEST(TpaLaunchesTest, ThereIsRoomForTheSchedulesOfEveryStep) {
  for (const TpaStepLimits& sizes : std::vector<TpaStepLimits>{
           {1, 1, 1, true},
           {7, 1, 2, true},
           {64, 4, 1, true},
           {2048, 1, 512, true},
           {2048, 256, 512, true},
           {512, 512, 64, true},
           {8192, 64, 2048, true},
           {1000, 8, 16384, true},
       }) {
    for (const bool prefill : {true, false}) {
      TpaStepLimits limits = sizes;
      limits.prefill = prefill;
      const TpaDevice device = {132, 227 << 10, prefill, 14};
      std::vector<Step> steps;
      const WorstSteps worst(limits);
      for (const int64_t sequences :
           {int64_t{1}, (limits.max_sequences + 1) / 2, limits.max_sequences}) {
        for (const int64_t prompt : {0, 1, 2, 31, 33}) {
          for (const int64_t step : {0, 1, 2, 7, 8, 9}) {
            steps.push_back(worst.Make(sequences, prompt, step));
          }
        }
      }
      // One long run, of either kind.
      for (const bool step : {false, true}) {
        steps.emplace_back().Add(0, step, limits.max_tokens,
                                 kTpaPageTokens * limits.max_pages);
      }
      for (const Step& step : steps) {
        ASSERT_LE(step.num_tokens(), limits.max_tokens);
        ASSERT_LE(static_cast<int64_t>(step.runs().size()), MaxTpaRuns(limits));
        if (step.runs().empty()) continue;
        ExpectAllRowsOnce(step, limits);
        int64_t schedules = 0;
        for (const TpaShape& shape : kShapes)
          schedules += MaxTpaPieceScheduleBytes(shape, device, limits);
        ASSERT_LE(BytesOfStep(step, device, limits),
                  MaxTpaStepBytes(limits, schedules))
            << limits.max_tokens << " tokens, " << limits.max_sequences
            << " sequences, " << step.runs().size() << " runs";
        for (const TpaShape& shape : kShapes) {
          SCOPED_TRACE(testing::Message()
                       << limits.max_tokens << " tokens, "
                       << limits.max_sequences << " sequences, "
                       << step.runs().size() << " runs");
          const ScheduleBytes bytes =
              BytesOfSchedules(step, shape, device, limits);
          ASSERT_LE(bytes.pieces,
                    MaxTpaPieceScheduleBytes(shape, device, limits));
          ASSERT_LE(bytes.prefills, MaxTpaPrefillScheduleBytes(shape, limits));
        }
      }
    }
  }
}

// It is small compared with the rest: for 32 heads of 128 with usual limits,
// and for the largest server.
TEST(TpaLaunchesTest, TheRoomIsBounded) {
  const TpaDevice device = {132, 227 << 10, true, 14};
  for (const auto& [limits, pieces, prefills] :
       {std::tuple(TpaStepLimits{2048, 256, 512, true}, int64_t{2} << 20,
                   int64_t{16} << 20),
        std::tuple(TpaStepLimits{65535, 16384, 2047, true}, int64_t{128} << 20,
                   int64_t{2} << 30)}) {
    EXPECT_LT(MaxTpaPieceScheduleBytes(kShapes[0], device, limits), pieces);
    EXPECT_LT(MaxTpaPrefillScheduleBytes(kShapes[0], limits), prefills);
  }
}

}  // namespace
}  // namespace recurve
