// Who works on what in a decode step: whatever the lengths, every token is
// attended to once, and merged by those who know of it.

#include "kernels/tpa/decode/tpa_schedule.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/tpa/decode/tpa_chunks.h"
#include "kernels/tpa/decode/tpa_plan.h"
#include "tests/testing/test_random.h"

namespace recurve {
namespace {

constexpr TpaDevice kH200 = {132, 227 << 10, true, 14};
constexpr TpaShape kT6Xl = {78, 64, 64, 6, 2};
constexpr TpaShape kShape = {32, 128, 128, 16, 1};

// A schedule as a launch finds it.
class Schedule {
 public:
  Schedule(const TpaDecodePlan& plan, std::vector<int32_t> lengths,
           int64_t stride)
      : plan_(plan),
        lengths_(std::move(lengths)),
        stride_(stride),
        parts_(TpaScheduleParts(plan, rows(), kTpaPageTokens * stride)),
        memory_(parts_.bytes / 8, -1) {
    // Each row has different pages, and entries after the last one are not
    // read.
    for (int row = 0; row < rows(); ++row) {
      const int64_t pages = (lengths_[row] + 63) / 64;
      for (int64_t i = 0; i < stride; ++i)
        table_.push_back(i < pages ? Page(row, i) : -7);
    }
    made_ = MakeTpaSchedule({lengths_.data(), table_.data(), stride_, rows()},
                            plan_, memory_.data());
  }
  bool made() const { return made_; }
  int rows() const { return static_cast<int>(lengths_.size()); }

  void Check() const {
    ASSERT_TRUE(made_);
    ASSERT_NO_FATAL_FAILURE(CheckBlocks());
    ASSERT_NO_FATAL_FAILURE(CheckRows());
    for (int i = 0; i < rows() * plan_.head_blocks; ++i)
      ASSERT_EQ(At<uint32_t>(parts_.counters)[i], 0U);
  }

  // Tokens of the most heavily loaded block, in whole pages.
  int MostTokens() const {
    int most = 0;
    for (int i = 0; i < plan_.blocks; ++i) {
      int tokens = 0;
      ForEach(i, [&](int row, int begin, int end) {
        tokens += (std::min(TpaChunkBegin(end), lengths_[row]) + 63) / 64 * 64 -
                  TpaChunkBegin(begin);
      });
      most = std::max(most, tokens);
    }
    return most;
  }

 private:
  static int32_t Page(int row, int64_t i) {
    return static_cast<int32_t>(1000 * row + i + 1);
  }
  template <typename T>
  const T* At(int64_t offset) const {
    return reinterpret_cast<const T*>(
        reinterpret_cast<const char*>(memory_.data()) + offset);
  }
  const TpaBlockWork& Block(int i) const {
    return At<TpaBlockWork>(parts_.block_work)[i];
  }
  const TpaRowWork& Row(int row) const {
    return At<TpaRowWork>(parts_.row_work)[row];
  }

  // The rows of a block, with its chunks of each.
  template <typename F>
  void ForEach(int i, F f) const {
    const TpaBlockWork& work = Block(i);
    for (int row = work.first_row; row <= work.last_row; ++row) {
      if (row == work.last_row && work.last_chunk == 0) break;
      f(row, row == work.first_row ? work.first_chunk : 0,
        row == work.last_row ? work.last_chunk : TpaChunkCount(lengths_[row]));
    }
  }

  // One after the other they have all chunks of all rows, and as many partial
  // results as they will write.
  void CheckBlocks() const {
    int row_next = 0;
    int chunk_next = 0;
    int slots = 0;
    for (int i = 0; i < plan_.blocks; ++i) {
      SCOPED_TRACE(testing::Message() << "block " << i);
      const TpaBlockWork& work = Block(i);
      ASSERT_EQ(work.first_slot, slots);
      int last_row = -1;
      ForEach(i, [&](int row, int begin, int end) {
        while (row_next < row &&
               chunk_next == TpaChunkCount(lengths_[row_next])) {
          ++row_next;
          chunk_next = 0;
        }
        ASSERT_EQ(row, row_next);
        ASSERT_EQ(begin, chunk_next);
        ASSERT_LE(end, TpaChunkCount(lengths_[row]));
        chunk_next = end;
        last_row = row;
        const int row_chunks = TpaChunkCount(lengths_[row]);
        const int count = TpaPartialCount(begin, end, row_chunks);
        int chunk = begin;
        for (int n = 0; n < count; ++n) {
          ASSERT_EQ(At<int32_t>(parts_.partial_chunk)[slots++], chunk);
          chunk = TpaPartialEnd(chunk, begin, end, row_chunks);
        }
        ASSERT_EQ(chunk, end);
      });
      if (last_row < 0) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectSame(work.last, Row(last_row)));
      ASSERT_NO_FATAL_FAILURE(ExpectSame(work.first, Row(work.first_row)));
      const int end = work.first_row == work.last_row
                          ? work.last_chunk
                          : TpaChunkCount(lengths_[work.first_row]);
      const int length = lengths_[work.first_row];
      const int first_page = TpaChunkBegin(work.first_chunk) / 64;
      const int pages =
          (std::min(TpaChunkBegin(end), length) + 63) / 64 - first_page;
      for (int p = 0; p < std::min(pages, kTpaEarlyPages); ++p)
        ASSERT_EQ(work.pages[p], Page(work.first_row, first_page + p));
      ASSERT_EQ(work.behind_page,
                pages > 0 ? std::max(length - 64 * (first_page + 1), -1) : -1);
    }
    while (row_next < rows() &&
           chunk_next == TpaChunkCount(lengths_[row_next])) {
      ++row_next;
      chunk_next = 0;
    }
    ASSERT_EQ(row_next, rows());
    ASSERT_LE(slots, parts_.slots);
  }

  // What those who merge a row look at.
  void CheckRows() const {
    for (int row = 0; row < rows(); ++row) {
      SCOPED_TRACE(testing::Message() << "row " << row);
      ASSERT_EQ(Row(row).length, lengths_[row]);
      if (lengths_[row] == 0) continue;
      std::set<int> working;
      int first_slot = -1;
      int end_slot = -1;
      int slot = 0;
      for (int i = 0; i < plan_.blocks; ++i) {
        ForEach(i, [&](int of, int begin, int end) {
          const int count =
              TpaPartialCount(begin, end, TpaChunkCount(lengths_[of]));
          if (of == row && begin < end) {
            working.insert(i);
            if (first_slot < 0) first_slot = slot;
            end_slot = slot + count;
          }
          slot += count;
        });
      }
      ASSERT_FALSE(working.empty());
      ASSERT_EQ(Row(row).first_slot, first_slot);
      ASSERT_EQ(Row(row).end_slot, end_slot);
      ASSERT_EQ(Row(row).first_block, *working.begin());
      if (plan_.cluster_blocks > 0) {
        ASSERT_EQ(Row(row).last_block, (row + 1) * kTpaClusterBlocks - 1);
        ASSERT_LE(*working.rbegin(), Row(row).last_block);
        ASSERT_EQ(*working.begin(), row * kTpaClusterBlocks);
      } else {
        ASSERT_EQ(Row(row).last_block, *working.rbegin());
      }
    }
  }

  static void ExpectSame(const TpaRowWork& a, const TpaRowWork& b) {
    ASSERT_EQ(std::memcmp(&a, &b, sizeof(a)), 0);
  }

  const TpaDecodePlan plan_;
  const std::vector<int32_t> lengths_;
  const int64_t stride_;
  const TpaScheduleLayout parts_;
  std::vector<int64_t> memory_;
  std::vector<int32_t> table_;
  bool made_ = false;
};

TpaDecodePlan Plan(const TpaShape& shape, TpaDecodeForm form, size_t rows,
                   TpaContexts contexts = TpaContexts::kAny) {
  const TpaDecodePlan plan =
      PlanTpaDecode(shape, form, static_cast<int>(rows), 1, kH200, contexts);
  EXPECT_GT(plan.blocks, 0);
  return plan;
}

TEST(TpaScheduleTest, EveryTokenHasABlock) {
  const std::vector<std::vector<int32_t>> batches = {
      {0},
      {1},
      {128},
      {129},
      {2048},
      {2049},
      {131072},
      {140000},
      {0, 0, 5, 0},
      {0, 64, 0, 0, 65, 1, 0, 0},
      {131072, 1024, 1024, 1024, 0},
      std::vector<int32_t>(32, 2048),
      std::vector<int32_t>(33, 2049),
      std::vector<int32_t>(132, 700),
      std::vector<int32_t>(133, 700),
      std::vector<int32_t>(1000, 1),
  };
  for (const std::vector<int32_t>& lengths : batches) {
    SCOPED_TRACE(testing::Message()
                 << lengths.size() << " rows of " << lengths[0]);
    const int64_t stride =
        (*std::max_element(lengths.begin(), lengths.end()) + 63) / 64 + 3;
    for (const TpaDecodeForm form :
         {TpaDecodeForm::kParallelB, TpaDecodeForm::kParallelBh,
          TpaDecodeForm::kParallelBn}) {
      SCOPED_TRACE(Name(form));
      for (const TpaShape& shape : {kT6Xl, kShape}) {
        Schedule(Plan(shape, form, lengths.size()), lengths, stride).Check();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TpaScheduleTest, RandomBatches) {
  TestRandom random(11);
  for (int round = 0; round < 2000; ++round) {
    const int64_t longest = round % 3 == 0   ? 300
                            : round % 3 == 1 ? 5000
                                             : 140000;
    std::vector<int32_t> lengths;
    const int64_t rows = random.Uniform(1, round % 5 == 0 ? 400 : 40);
    for (int64_t row = 0; row < rows; ++row) {
      lengths.push_back(random.Uniform(0, 4) == 0
                            ? 0
                            : static_cast<int32_t>(random.Uniform(1, longest)));
    }
    // As a batch is padded, at times.
    if (round % 2 == 0) lengths.resize(2 * lengths.size(), 0);
    SCOPED_TRACE(testing::Message() << "round " << round);
    const TpaContexts contexts =
        round % 7 == 0 ? TpaContexts::kFew : TpaContexts::kAny;
    Schedule(Plan(kT6Xl, TpaDecodeForm::kParallelBn, lengths.size(), contexts),
             lengths, (longest + 63) / 64)
        .Check();
    if (HasFatalFailure()) return;
  }
}

TEST(TpaScheduleTest, ClustersHaveARowEach) {
  const int rows = TpaShortRows(kT6Xl, kH200);
  ASSERT_GE(rows, 2);
  for (int length = 0; length <= TpaChunkBegin(kTpaClusterChunks); ++length) {
    SCOPED_TRACE(testing::Message() << length << " tokens");
    for (const std::vector<int32_t>& lengths :
         {std::vector<int32_t>{length}, std::vector<int32_t>{length, 70},
          std::vector<int32_t>{0, length}}) {
      const TpaDecodePlan plan = Plan(kT6Xl, TpaDecodeForm::kParallelBn,
                                      lengths.size(), TpaContexts::kShort);
      ASSERT_EQ(plan.cluster_blocks, kTpaClusterBlocks);
      const Schedule schedule(plan, lengths, 64);
      schedule.Check();
      if (HasFatalFailure()) return;
      // At most 256 tokens of each of two lanes.
      ASSERT_LE(schedule.MostTokens(), 512);
    }
  }
}

// Work is shared out evenly, as far as chunks allow.
TEST(TpaScheduleTest, NoBlockHasMuchMore) {
  const auto most = [](const std::vector<int32_t>& lengths) {
    const Schedule schedule(
        Plan(kT6Xl, TpaDecodeForm::kParallelBn, lengths.size()), lengths,
        131072 / 64);
    EXPECT_TRUE(schedule.made());
    return schedule.MostTokens();
  };
  EXPECT_EQ(most({2048}), 128);  // a chunk each
  EXPECT_EQ(most({4096}), 256);
  EXPECT_EQ(most(std::vector<int32_t>(32, 2048)), 512);  // four blocks a row
  EXPECT_EQ(most(std::vector<int32_t>(128, 2048)), 2048);
  EXPECT_EQ(most(std::vector<int32_t>(256, 2048)), 4096);  // two whole rows
  // One long row among short ones: a fair share is 1,234.
  std::vector<int32_t> ragged(32, 1024);
  ragged[7] = 131072;
  EXPECT_LE(most(ragged), 1536);
  // Padding has no block.
  std::vector<int32_t> padded(256, 0);
  std::fill_n(padded.begin(), 129, 2048);
  EXPECT_EQ(most(padded), 2048);
}

TEST(TpaScheduleTest, RefusesWhatIsOutside) {
  const TpaDecodePlan plan = Plan(kT6Xl, TpaDecodeForm::kParallelBn, 2);
  EXPECT_TRUE(Schedule(plan, {0, 256}, 4).made());
  EXPECT_FALSE(Schedule(plan, {257, 1}, 4).made());
  EXPECT_FALSE(Schedule(plan, {1, -1}, 4).made());
  EXPECT_TRUE(Schedule(plan, {0, 0}, 0).made());
  const TpaDecodePlan rows = Plan(kT6Xl, TpaDecodeForm::kParallelB, 3);
  EXPECT_FALSE(Schedule(rows, {1, 1}, 4).made());
  const TpaDecodePlan clusters =
      Plan(kT6Xl, TpaDecodeForm::kParallelBn, 1, TpaContexts::kShort);
  EXPECT_FALSE(Schedule(clusters, {1, 1}, 4).made());
  std::vector<int64_t> memory(1 << 16);
  const std::vector<int32_t> none;
  EXPECT_FALSE(
      MakeTpaSchedule({none.data(), none.data(), 4, 0}, plan, memory.data()));
  const std::vector<int32_t> two = {1, 1};
  EXPECT_FALSE(MakeTpaSchedule({two.data(), two.data(), 1 << 24, 2}, plan,
                               memory.data()));
  EXPECT_FALSE(
      MakeTpaSchedule({two.data(), two.data(), -1, 2}, plan, memory.data()));
}

}  // namespace
}  // namespace recurve
