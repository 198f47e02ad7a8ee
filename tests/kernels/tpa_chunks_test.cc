// How factors lie in a page, and how contexts are cut.
#include "kernels/tpa/decode/tpa_chunks.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/tpa/tpa_layout.h"

namespace recurve {
namespace {

TEST(TpaLayoutTest, EveryElementHasAPlaceOfItsOwn) {
  for (TpaPageOrder order : {TpaPageOrder::kPlain, TpaPageOrder::kOctets}) {
    for (const TpaShape& shape :
         {TpaShape{5, 24, 40, 2, 3}, TpaShape{32, 128, 128, 16, 1},
          TpaShape{78, 64, 64, 6, 2}, TpaShape{1, 8, 256, 1, 4}}) {
      const TpaPageLayout layout(shape, order);
      std::set<int64_t> seen;
      int64_t count = 0;
      const auto add = [&](int64_t at) {
        EXPECT_GE(at, 0);
        EXPECT_LT(at, layout.page_elements);
        seen.insert(at);
        ++count;
      };
      for (int64_t m = 0; m < kTpaPageTokens; ++m) {
        for (int64_t r = 0; r < shape.kv_rank; ++r) {
          for (int64_t i = 0; i < layout.a_width; ++i) {
            add(layout.AK(m, r, i));
            add(layout.AV(m, r, i));
          }
          for (int64_t i = 0; i < layout.b_k_width; ++i) {
            add(layout.BK(m, r, i));
          }
          for (int64_t i = 0; i < layout.b_v_width; ++i) {
            add(layout.BV(m, r, i));
          }
        }
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
      EXPECT_EQ(count, layout.page_elements);
    }
  }
}

// Eight tokens by eight elements are 128 bytes in a row: what shared memory
// reads at once and tensor cores take.
TEST(TpaLayoutTest, EightTokensByEightElementsAreOneRun) {
  const TpaPageLayout layout({78, 64, 40, 1, 2}, TpaPageOrder::kOctets);
  for (int64_t octet = 0; octet < layout.a_width / 8; ++octet) {
    for (int64_t m = 0; m < kTpaPageTokens; ++m) {
      for (int64_t i = 0; i < 8; ++i) {
        EXPECT_EQ(layout.AK(m, 1, 8 * octet + i),
                  layout.AK(m / 8 * 8, 1, 8 * octet) + m % 8 * 8 + i);
      }
    }
  }
}

TEST(TpaChunksTest, ChunksAndSegmentsFollowEachOther) {
  int chunk = 0;
  int segment = 0;
  for (int position = 0; position < 300000; position += 64) {
    if (position == TpaChunkBegin(chunk + 1)) ++chunk;
    if (position == TpaSegmentBegin(segment + 1)) {
      ++segment;
      ASSERT_EQ(TpaChunkBegin(chunk), position);
    }
    for (int at : {position, position + 63}) {
      ASSERT_EQ(TpaChunkOf(at), chunk);
      ASSERT_EQ(TpaSegmentOf(at), segment);
    }
  }
  EXPECT_EQ(TpaChunkCount(0), 0);
  EXPECT_EQ(TpaChunkCount(1), 1);
  EXPECT_EQ(TpaChunkCount(128), 1);
  EXPECT_EQ(TpaChunkCount(129), 2);
  EXPECT_EQ(TpaSegmentCount(0), 0);
  EXPECT_EQ(TpaSegmentCount(512), 1);
  EXPECT_EQ(TpaSegmentCount(513), 2);
}

TEST(TpaChunksTest, NoSegmentHasMoreChunksThanItMay) {
  for (int s = 0; s < 160; ++s) {
    EXPECT_LE(
        TpaChunkOf(TpaSegmentBegin(s + 1)) - TpaChunkOf(TpaSegmentBegin(s)),
        kTpaSegmentChunks);
  }
}

// What a block does on the device, in a loop.
std::pair<int, int> Cut(const std::vector<int>& lengths, int64_t target,
                        int step) {
  int64_t begin = 0;
  for (size_t row = 0; row < lengths.size(); ++row) {
    const int padded = (lengths[row] + 63) / 64 * 64;
    if (target < begin + padded) {
      const int position =
          std::min(static_cast<int>(target - begin), lengths[row] - 1);
      const int chunk = TpaCutChunk(lengths[row], position, step / 8);
      if (chunk == TpaChunkCount(lengths[row])) {
        return {static_cast<int>(row) + 1, 0};
      }
      return {static_cast<int>(row), chunk};
    }
    begin += padded;
  }
  return {static_cast<int>(lengths.size()), 0};
}

void ExpectFairCuts(const std::vector<int>& lengths, int blocks) {
  int64_t tokens = 0;
  for (int length : lengths) tokens += (length + 63) / 64 * 64;
  const int step = TpaStep(static_cast<int>(tokens), blocks);
  EXPECT_GE(int64_t{step} * blocks, tokens);
  std::pair<int, int> before = {0, 0};
  for (int block = 1; block <= blocks; ++block) {
    const auto cut = Cut(lengths, int64_t{block} * step, step);
    EXPECT_LE(before, cut);
    // No share is much larger than the step: an eighth at either end, or half
    // a chunk.
    int64_t share = 0;
    for (int row = before.first; row <= cut.first; ++row) {
      if (row == static_cast<int>(lengths.size())) break;
      const int end = row == cut.first ? TpaChunkBegin(cut.second)
                                       : (lengths[row] + 63) / 64 * 64;
      share += std::min(end, (lengths[row] + 63) / 64 * 64) -
               (row == before.first ? TpaChunkBegin(before.second) : 0);
    }
    EXPECT_LE(share, step + std::max(2 * (step / 8), 1024) + 64);
    before = cut;
  }
  EXPECT_EQ(before, (std::pair<int, int>(static_cast<int>(lengths.size()), 0)));
}

TEST(TpaChunksTest, CutsCoverEveryRowInOrder) {
  for (int blocks : {1, 7, 66, 132}) {
    ExpectFairCuts({0}, blocks);
    ExpectFairCuts({1}, blocks);
    ExpectFairCuts({0, 63, 0, 64, 65, 8191, 1, 0}, blocks);
    ExpectFairCuts(std::vector<int>(32, 2048), blocks);
    ExpectFairCuts(std::vector<int>(8, 32768), blocks);
    ExpectFairCuts({32768}, blocks);
    std::vector<int> ragged(32, 1024);
    ragged[5] = 131072;
    ExpectFairCuts(ragged, blocks);
    for (int i = 0; i < 32; ++i) ragged[i] = 37 + 911 * i * i;
    ExpectFairCuts(ragged, blocks);
    ExpectFairCuts(std::vector<int>(500, 300), blocks);
  }
}

TEST(TpaChunksTest, EvenBatchesAreCutAtSegments) {
  EXPECT_EQ(TpaStep(32 * 2048, 132), 512);
  EXPECT_EQ(TpaStep(8 * 2048, 132), 128);
  EXPECT_EQ(TpaStep(8 * 32768, 132), 2048);
  EXPECT_EQ(TpaStep(32768, 132), 256);
  EXPECT_EQ(TpaStep(256, 132), 128);
}

// Tokens of the most heavily loaded block if each row has its own blocks; -1:
// no share suffices.
int LoadOfRowsApart(const std::vector<int>& lengths, int blocks) {
  int64_t tokens = 0;
  for (int length : lengths) tokens += (length + 63) / 64 * 64;
  for (int i = 0; i < kTpaShares; ++i) {
    const int share = TpaShare(static_cast<int>(tokens), blocks, i);
    int used = 0;
    int expected = 0;
    int load = 0;
    for (int length : lengths) {
      const int own = TpaRowBlocks(length, share);
      EXPECT_EQ(own == 0, length == 0);
      used += own;
      expected = std::max(expected, TpaRowLoad(length, own));
      int before = 0;
      for (int block = 1; block <= own; ++block) {
        const int chunks = TpaChunkCount(length);
        const int cut = block == own ? chunks : TpaRowCut(length, own, block);
        EXPECT_GE(cut, before) << length << " by " << own;
        EXPECT_LE(cut, chunks) << length << " by " << own;
        load = std::max(load, std::min(TpaChunkBegin(cut), length) -
                                  std::min(TpaChunkBegin(before), length));
        before = cut;
      }
    }
    if (used > blocks) continue;
    // What is chosen by is right but for a chunk, and for the search for ends
    // of segments.
    EXPECT_LE(load, expected + std::max(expected / 4, 256)) << share;
    return load;
  }
  return -1;
}

TEST(TpaChunksTest, RowsApartAreCutEvenly) {
  // Pages of the most heavily loaded of 132 blocks; in one line 8, 6, 8, 10,
  // 12, 2, 8.
  const auto pages = [](int rows, int length) {
    return LoadOfRowsApart(std::vector<int>(rows, length), 132) / 64.0;
  };
  EXPECT_EQ(pages(32, 2048), 8);
  EXPECT_EQ(pages(32, 1088), 5);
  EXPECT_EQ(pages(32, 1984), 8);
  EXPECT_EQ(pages(32, 2112), 9);
  EXPECT_EQ(pages(32, 2304), 10);
  EXPECT_EQ(pages(8, 2112), 3);
  EXPECT_EQ(pages(1, 2048), 2);
  EXPECT_EQ(pages(1, 8192), 4);
  EXPECT_EQ(pages(128, 2112), 33);
  EXPECT_LT(pages(200, 64), 0);  // too many rows
}

TEST(TpaChunksTest, RowsApartCoverEveryRow) {
  for (int blocks : {7, 66, 132}) {
    LoadOfRowsApart({0}, blocks);
    LoadOfRowsApart({1}, blocks);
    LoadOfRowsApart({0, 63, 0, 64, 65, 8191, 1}, blocks);
    std::vector<int> ragged(32, 1024);
    ragged[5] = 131072;
    LoadOfRowsApart(ragged, blocks);
    for (int i = 0; i < 32; ++i) ragged[i] = 37 + 911 * i * i;
    LoadOfRowsApart(ragged, blocks);
    for (int length = 1; length < 6000; length += 37)
      LoadOfRowsApart(std::vector<int>(blocks / 7, length), blocks);
  }
}

// Partial results of a share, one after the other.
int CountPartials(int begin, int end, int row_chunks) {
  int count = 0;
  for (int chunk = begin; chunk < end;) {
    const int next = TpaPartialEnd(chunk, begin, end, row_chunks);
    EXPECT_GT(next, chunk);
    EXPECT_LE(next, end);
    chunk = next;
    ++count;
  }
  return count;
}

TEST(TpaChunksTest, PartialsOfAShareAreCounted) {
  for (int length : {1, 128, 500, 512, 513, 2048, 2500, 9000, 33000, 140000}) {
    const int chunks = TpaChunkCount(length);
    const int step = chunks > 100 ? 13 : 1;
    for (int begin = 0; begin < chunks; begin += step) {
      for (int end = begin; end <= chunks; end += step) {
        ASSERT_EQ(TpaPartialCount(begin, end, chunks),
                  CountPartials(begin, end, chunks))
            << begin << " to " << end << " of " << length;
      }
    }
    EXPECT_EQ(TpaPartialCount(0, chunks, chunks), TpaSegmentCount(length));
  }
}

}  // namespace
}  // namespace recurve
