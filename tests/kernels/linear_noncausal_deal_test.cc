#include "kernels/linear_attn/noncausal/linear_noncausal_deal.h"

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace recurve {
namespace {

struct Tiles {
  const std::vector<uint32_t>* rows;
  uint32_t operator()(uint32_t row) const { return (*rows)[row]; }
};

using Tile = std::tuple<uint32_t, uint32_t, uint32_t>;  // row, head, tile

// A team of one.
struct Alone {
  uint32_t rank() const { return 0; }
  uint32_t size() const { return 1; }
  uint32_t Before(uint32_t x, uint32_t* sum) const {
    const uint32_t before = *sum;
    *sum += x;
    return before;
  }
  void Meet() const {}
};

// A team of threads, one of which this is.
class Together {
 public:
  struct Meeting {
    explicit Meeting(uint32_t size) : barrier(size), numbers(size) {}
    std::barrier<> barrier;
    std::vector<uint32_t> numbers;
  };
  Together(uint32_t rank, Meeting* meeting) : rank_(rank), meeting_(meeting) {}
  uint32_t rank() const { return rank_; }
  uint32_t size() const {
    return static_cast<uint32_t>(meeting_->numbers.size());
  }
  uint32_t Before(uint32_t x, uint32_t* sum) const {
    meeting_->numbers[rank_] = x;
    Meet();
    uint32_t before = *sum;
    for (uint32_t i = 0; i < size(); ++i) {
      if (i < rank_) before += meeting_->numbers[i];
      *sum += meeting_->numbers[i];
    }
    Meet();
    return before;
  }
  void Meet() const { meeting_->barrier.arrive_and_wait(); }

 private:
  uint32_t rank_;
  Meeting* meeting_;
};

// Plays a launch: blocks do their work in order and wait where they have to.
// Every head must be added up once, as a whole, and every tile have its outputs
// once, of the S of its head.
class Launch {
 public:
  Launch(std::vector<uint32_t> rows, uint32_t heads, uint32_t blocks)
      : rows_(std::move(rows)), heads_(heads), blocks_(blocks) {}

  // Blocks go on from the first to the last, or from the last to the first, as
  // far as they can.
  void Play(bool backwards) {
    const NoncausalLine<Tiles> line(
        {&rows_}, static_cast<uint32_t>(rows_.size()), heads_, blocks_);
    std::vector<uint32_t> numbers[4];
    for (auto& some : numbers) some.resize(blocks_ + 1);
    const NoncausalShares shares = {numbers[0].data(), numbers[1].data(),
                                    numbers[2].data(), numbers[3].data()};
    FindNoncausalShares(line, Alone(), shares);
    std::vector<std::vector<NoncausalWork>> works(blocks_);
    for (uint32_t block = 0; block < blocks_; ++block) {
      NoncausalDeal<Tiles> deal(line, shares, block);
      NoncausalWork work;
      while (deal.Next(line, &work)) {
        deal.Finish(&work);
        works[block].push_back(work);
      }
    }
    std::vector<size_t> done(blocks_, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t i = 0; i < blocks_; ++i) {
        const uint32_t block = backwards ? blocks_ - 1 - i : i;
        while (done[block] < works[block].size() &&
               Do(block, works[block][done[block]])) {
          ++done[block];
          moved = true;
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
    for (uint32_t block = 0; block < blocks_; ++block) {
      ASSERT_EQ(done[block], works[block].size())
          << "block " << block << " waits for ever";
      time_ = std::max(time_, clock_[block]);
    }
    uint32_t tiles = 0, heads = 0;
    for (const uint32_t row : rows_) {
      tiles += row * heads_;
      if (row > 0) heads += heads_;
    }
    ASSERT_EQ(sums_.size(), heads);
    ASSERT_EQ(outputs_.size(), tiles);
  }
  // When the last block is done, in units of cost, if nothing else takes time.
  uint32_t time() const { return time_; }
  // How many S go through memory, and how often one is read.
  uint32_t stores() const { return stores_; }
  uint32_t loads() const { return loads_; }

 private:
  struct Place {
    Tile head;
    uint32_t time;
  };

  // False if the block has to wait.
  bool Do(uint32_t block, const NoncausalWork& work) {
    if (work.load_place >= 0 && !places_.contains(work.load_place)) {
      return false;
    }
    Check(block, work);
    return true;
  }
  void Check(uint32_t block, const NoncausalWork& work) {
    const Tile head = {work.row, work.head, 0};
    ASSERT_LT(work.head, heads_);
    ASSERT_LE(work.begin, work.end);
    ASSERT_LE(work.end, rows_[work.row]);
    uint32_t& clock = clock_[block];
    if (work.load_place >= 0) {
      ASSERT_EQ(work.sum_tiles, 0u);
      ASSERT_LT(work.store_place, 0);
      ASSERT_LT(work.begin, work.end);
      const Place& place = places_[work.load_place];
      ASSERT_EQ(place.head, head);
      clock = std::max(clock, place.time);
      ++loads_;
    } else {
      ASSERT_EQ(work.sum_tiles, rows_[work.row]);
      ASSERT_TRUE(sums_.insert(head).second);
      clock += kNoncausalSumCost * work.sum_tiles + kNoncausalHeadCost;
    }
    if (work.store_place >= 0) {
      ASSERT_EQ(work.store_place / kNoncausalPlaces, block);
      ASSERT_TRUE(places_.insert({work.store_place, {head, clock}}).second);
      ++stores_;
    }
    clock += kNoncausalOutCost * (work.end - work.begin);
    for (uint32_t t = work.begin; t < work.end; ++t) {
      ASSERT_TRUE(outputs_.insert({work.row, work.head, t}).second);
    }
  }

  std::vector<uint32_t> rows_;
  uint32_t heads_, blocks_;
  std::map<int, Place> places_;
  std::set<Tile> sums_, outputs_;
  std::map<uint32_t, uint32_t> clock_;  // of each block
  uint32_t time_ = 0, stores_ = 0, loads_ = 0;
};

void PlayBoth(const std::vector<uint32_t>& rows, uint32_t heads,
              uint32_t blocks) {
  SCOPED_TRACE(::testing::Message()
               << rows.size() << " rows, the first of " << rows[0] << " tiles, "
               << heads << " heads, " << blocks << " blocks");
  for (const bool backwards : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(Launch(rows, heads, blocks).Play(backwards));
  }
}

TEST(LinearNoncausalDealTest, EveryTileOnceWhateverTheShape) {
  for (const uint32_t blocks : {1u, 2u, 7u, 132u}) {
    for (const uint32_t heads : {1u, 3u, 12u, 70u}) {
      for (const uint32_t tiles : {1u, 2u, 16u, 31u, 32u, 33u, 128u}) {
        for (const uint32_t rows : {1u, 2u, 5u}) {
          ASSERT_NO_FATAL_FAILURE(
              PlayBoth(std::vector<uint32_t>(rows, tiles), heads, blocks));
        }
      }
    }
  }
}

TEST(LinearNoncausalDealTest, RowsOfAllLengths) {
  std::vector<uint32_t> mixed = {1, 0, 40, 0, 0, 3, 200, 2, 31, 32, 0};
  for (const uint32_t blocks : {1u, 3u, 16u, 132u}) {
    for (const uint32_t heads : {1u, 2u, 5u, 16u, 64u}) {
      ASSERT_NO_FATAL_FAILURE(PlayBoth(mixed, heads, blocks));
    }
  }
  // A long row, whose outputs many blocks make, among short ones; and none at
  // all.
  std::vector<uint32_t> rows(300, 1);
  rows[150] = 900;
  ASSERT_NO_FATAL_FAILURE(PlayBoth(rows, 1, 132));
  ASSERT_NO_FATAL_FAILURE(PlayBoth({0, 0}, 3, 132));
}

// The shares are the same, however many threads find them.
TEST(LinearNoncausalDealTest, ATeamFindsWhatOneThreadDoes) {
  std::vector<uint32_t> rows;
  for (uint32_t row = 0; row < 40; ++row) rows.push_back(row * 37 % 61);
  for (const uint32_t blocks : {1u, 31u, 32u, 132u}) {
    for (const uint32_t heads : {1u, 12u}) {
      SCOPED_TRACE(::testing::Message() << blocks << " " << heads);
      std::vector<uint32_t> numbers[2][4];
      const auto find = [&](int which, const auto& team) {
        const NoncausalLine<Tiles> line({&rows}, 40, heads, blocks);
        auto& n = numbers[which];
        FindNoncausalShares(
            line, team, {n[0].data(), n[1].data(), n[2].data(), n[3].data()});
      };
      for (auto& n : numbers) {
        for (auto& some : n) some.resize(blocks + 1);
      }
      find(0, Alone());
      constexpr uint32_t kThreads = 32;
      Together::Meeting meeting(kThreads);
      std::vector<std::thread> threads;
      for (uint32_t rank = 0; rank < kThreads; ++rank) {
        threads.emplace_back([&, rank] { find(1, Together(rank, &meeting)); });
      }
      for (std::thread& thread : threads) thread.join();
      for (int i = 0; i < 4; ++i) EXPECT_EQ(numbers[0][i], numbers[1][i]) << i;
    }
  }
}

// How much longer a launch takes than its work, shared out over 132 blocks.
double Slack(const std::vector<uint32_t>& rows, uint32_t heads) {
  Launch launch(rows, heads, 132);
  launch.Play(false);
  uint32_t cost = 0;
  for (const uint32_t row : rows) {
    cost += heads * ((kNoncausalSumCost + kNoncausalOutCost) * row +
                     kNoncausalHeadCost);
  }
  return launch.time() * 132.0 / cost - 1.0;
}
TEST(LinearNoncausalDealTest, NobodyWaitsForLong) {
  for (const uint32_t rows : {12u, 13u, 17u, 22u, 30u, 50u}) {
    for (const uint32_t tiles : {16u, 31u, 32u, 128u, 512u}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << tiles);
      // The last tiles wait for the second head of a block, which takes two of
      // 1.09 heads: 2% more than all work shared out, and then what is left.
      const double most = rows <= 13 && tiles == 16 ? 0.125 : 0.10;
      EXPECT_LE(Slack(std::vector<uint32_t>(rows, tiles), 12), most);
    }
  }
  std::vector<uint32_t> mixed;
  for (uint32_t row = 0; row < 60; ++row) mixed.push_back(row * 37 % 101);
  EXPECT_LE(Slack(mixed, 12), 0.10);
}

// With 144 heads, those of the twelve blocks that have two, which most others
// share outputs of.
TEST(LinearNoncausalDealTest, FewSumsGoThroughMemory) {
  Launch launch(std::vector<uint32_t>(12, 16), 12, 132);
  launch.Play(false);
  EXPECT_EQ(launch.stores(), 24u);
  EXPECT_LE(launch.loads(), 150u);
}

// With fewer heads than blocks, all blocks share the outputs.
TEST(LinearNoncausalDealTest, OutputsOfFewHeadsAreAllBlocks) {
  Launch launch({128}, 12, 132);
  launch.Play(false);
  EXPECT_LE(launch.time(), kNoncausalSumCost * 128 + kNoncausalHeadCost +
                               kNoncausalOutCost * 14);
}

}  // namespace
}  // namespace recurve
