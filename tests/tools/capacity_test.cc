#include "tools/recurve_model/capacity.h"

#include "gtest/gtest.h"
#include "tests/engine/checkpoint_files.h"

namespace recurve {
namespace {

// 100 bytes of weights, pages of 640 bytes, states of 7.
constexpr MemoryNeeds kNeeds = {
    .weights = 100, .cache_per_token = 10, .state_per_sequence = 7};

TEST(FitSequencesTest, PagesAreWhole) {
  for (const auto& [length, pages] :
       {std::pair<int64_t, int64_t>{1, 1}, {63, 1}, {64, 1}, {65, 2}}) {
    const auto fit = FitSequences(kNeeds, 1'000'000, length);
    ASSERT_TRUE(fit.ok()) << fit.status();
    EXPECT_EQ(fit->pages_per_sequence, pages);
    EXPECT_EQ(fit->page_bytes, 640);
    EXPECT_EQ(fit->sequence_bytes, pages * 640 + 7);
    EXPECT_EQ(fit->spare_bytes, 647);
  }
}

TEST(FitSequencesTest, ToTheByte) {
  // Weights, the spare page and slot, two sequences.
  const int64_t two = 100 + 647 + 2 * 647;
  EXPECT_EQ(FitSequences(kNeeds, two, 64)->sequences, 2);
  EXPECT_EQ(FitSequences(kNeeds, two - 1, 64)->sequences, 1);
  EXPECT_EQ(FitSequences(kNeeds, 100, 64)->sequences, 0);
  EXPECT_THAT(FitSequences(kNeeds, 99, 64).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "--memory is 99",
                        "100 bytes"));
}

TEST(FitSequencesTest, StateAloneDoesNotGrowWithLength) {
  const MemoryNeeds needs = {.weights = 0, .state_per_sequence = 50};
  for (const int64_t length : {1, 1000000}) {
    const auto fit = FitSequences(needs, 550, length);
    ASSERT_TRUE(fit.ok()) << fit.status();
    EXPECT_EQ(fit->pages_per_sequence, 0);
    EXPECT_EQ(fit->sequences, 10);
  }
}

}  // namespace
}  // namespace recurve
