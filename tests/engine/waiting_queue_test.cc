#include "engine/serving/waiting_queue.h"

#include <map>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/recording_sink.h"

namespace recurve {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class WaitingQueueTest : public testing::Test {
 protected:
  void Add(uint64_t id, int64_t prompt, int32_t priority = 0,
           Flow flow = Flow()) {
    SequenceOptions options;
    options.priority = priority;
    options.flow = flow;
    sequences_.push_back(std::make_unique<Sequence>(
        id, /*arrival=*/id, options, /*close_when_done=*/true,
        /*tokenizer=*/nullptr, absl::Span<const int32_t>(),
        std::make_shared<RecordingSink>(), Clock::now()));
    sequences_.back()->Enqueue({std::vector<int32_t>(prompt, 1), 1});
    ASSERT_TRUE(sequences_.back()->StartNextCommand());
    queue_.Insert(sequences_.back().get());
  }
  std::vector<uint64_t> First(int64_t most, int64_t paced_from = 1 << 20,
                              const std::map<uint32_t, int64_t>& ahead = {}) {
    std::vector<uint64_t> ids;
    for (const Sequence* s :
         queue_.First(most, ahead, [&](const Sequence& sequence) {
           return sequence.prompt_work() >= paced_from;
         })) {
      ids.push_back(s->id());
    }
    return ids;
  }

  std::vector<std::unique_ptr<Sequence>> sequences_;
  WaitingQueue queue_{/*short_tokens=*/100};
};

TEST_F(WaitingQueueTest, GivesTheFirstInRank) {
  EXPECT_THAT(First(4), IsEmpty());
  Add(1, 10);
  Add(2, 10, 5);
  Add(3, 10);
  Add(4, 10, -1);
  EXPECT_THAT(First(4), ElementsAre(2, 1, 3, 4));
  EXPECT_THAT(First(2), ElementsAre(2, 1));
  queue_.Erase(sequences_[1].get());
  queue_.Erase(sequences_[1].get());
  EXPECT_THAT(First(4), ElementsAre(1, 3, 4));
  EXPECT_EQ(queue_.size(), 3);
  queue_.Insert(sequences_[0].get());
  EXPECT_EQ(queue_.size(), 3);
}

TEST_F(WaitingQueueTest, LongPromptsHideNoShortOnes) {
  for (uint64_t id = 1; id <= 100; ++id) Add(id, 101);
  Add(101, 100);
  EXPECT_THAT(First(3), ElementsAre(101, 1, 2, 3));
}

TEST_F(WaitingQueueTest, PacedOnesHideNoOthers) {
  for (uint64_t id = 1; id <= 10; ++id) Add(id, 500);
  for (uint64_t id = 11; id <= 14; ++id) Add(id, 200);
  EXPECT_THAT(First(4, /*paced_from=*/300),
              ElementsAre(1, 2, 3, 4, 11, 12, 13, 14));
  // But more than a step can examine.
  for (uint64_t id = 15; id <= 20; ++id) Add(id, 500, 1);
  EXPECT_THAT(First(4, 300), ElementsAre(15, 16, 17, 18));
}

TEST_F(WaitingQueueTest, FlowsTakeTurns) {
  const Flow a = {1, 1, 0.25};
  const Flow b = {2, 3, 0.75};
  for (uint64_t id = 1; id <= 50; ++id) Add(id, 10, 0, a);
  for (uint64_t id = 51; id <= 60; ++id) Add(id, 10, 0, b);
  EXPECT_THAT(First(8), ElementsAre(1, 51, 52, 53, 2, 54, 55, 56));
  // Behind those that run.
  EXPECT_THAT(First(4, 1 << 20, {{1, 10}, {2, 3}}),
              ElementsAre(51, 52, 53, 54));
  // Priorities come first.
  Add(61, 10, 1, a);
  EXPECT_THAT(First(2), ElementsAre(61, 51));
}

}  // namespace
}  // namespace recurve
