#include "kernels/attention/decode/attention_plan.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention/prefill/attention_prefill_plan.h"

namespace recurve {
namespace {

constexpr AttentionDevice kHopper = {132, 232448, true};

TEST(AttentionPlanTest, SupportsWhatTheHeaderSays) {
  EXPECT_TRUE(AttentionSupports({1, 1, 16, 16}));
  EXPECT_TRUE(AttentionSupports({128, 128, 256, 256}));
  EXPECT_TRUE(AttentionSupports({16, 1, 64, 256}));
  EXPECT_FALSE(AttentionSupports({0, 1, 64, 64}));
  EXPECT_FALSE(AttentionSupports({129, 129, 64, 64}));
  EXPECT_FALSE(AttentionSupports({17, 1, 64, 64}));
  EXPECT_FALSE(AttentionSupports({5, 2, 64, 64}));
  EXPECT_FALSE(AttentionSupports({4, 0, 64, 64}));
  EXPECT_FALSE(AttentionSupports({4, 4, 8, 64}));
  EXPECT_FALSE(AttentionSupports({4, 4, 64, 272}));
  EXPECT_FALSE(AttentionSupports({4, 4, 72, 64}));
}

TEST(AttentionPlanTest, FitsSharedMemory) {
  for (int64_t dim = 16; dim <= 256; dim += 16) {
    for (int64_t value_dim = 16; value_dim <= 256; value_dim += 16) {
      for (int64_t group : {1, 8, 9, 16}) {
        const AttentionPlan plan = PlanAttention(
            {2 * group, 2, dim, value_dim}, WeightType::kBFloat16, kHopper);
        ASSERT_GT(plan.blocks, 0);
        ASSERT_TRUE(plan.tensor);
        ASSERT_GE(plan.stages, 2);
        ASSERT_LE(plan.stages, 8);
        const int per = plan.blocks / kHopper.multiprocessors;
        ASSERT_LE(per * (plan.shared_bytes + 1024),
                  kHopper.shared_memory + 1024);
        ASSERT_EQ(plan.octets, group > 8 ? 2 : 1);
        ASSERT_GE(plan.width, std::max(dim, value_dim));
      }
    }
  }
  EXPECT_EQ(
      PlanAttention({16, 4, 256, 256}, WeightType::kBFloat16, kHopper).stages,
      3);
}

TEST(AttentionPlanTest, ChunksCoverEachRow) {
  for (int64_t kv_heads : {1, 2, 4, 8, 30, 128}) {
    const AttentionShape shape = {kv_heads, kv_heads, 64, 64};
    for (int64_t length = 0; length < 70000; length += length < 600 ? 1 : 61) {
      const int chunks = AttentionChunks(shape, length);
      const int each = AttentionChunkPages(shape, length);
      const int pages = AttentionPages(length);
      ASSERT_LE(chunks, kAttentionMostChunks);
      ASSERT_LE(chunks, AttentionChunkLimit(shape));
      ASSERT_GE(chunks * each, pages);
      if (length > 0) {
        ASSERT_LT((chunks - 1) * each, pages);
      }
    }
  }
}

// Walks through a schedule as the kernel does.
void ExpectComplete(const AttentionPlan& plan,
                    const std::vector<int32_t>& lengths) {
  const int rows = static_cast<int>(lengths.size());
  const AttentionScheduleLayout parts = AttentionScheduleParts(plan, rows);
  std::vector<char> memory(parts.bytes, 'x');
  const int64_t stride = 1100;
  std::vector<int32_t> table(rows * stride);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  ASSERT_TRUE(MakeAttentionSchedule(
      {lengths.data(), nullptr, rows, table.data(), stride}, plan,
      memory.data()));
  const auto* blocks = reinterpret_cast<const AttentionBlockWork*>(
      memory.data() + parts.block_work);
  const auto* row_work =
      reinterpret_cast<const AttentionRowWork*>(memory.data() + parts.row_work);
  for (int64_t i = parts.counters; i < parts.bytes; ++i) {
    ASSERT_EQ(memory[i], 0);
  }
  int row = 0;
  int head = 0;
  int chunk = 0;
  int64_t slot = 0;
  int64_t most = 0;
  int64_t all = 0;
  int64_t largest = 0;
  for (int b = 0; b < plan.blocks; ++b) {
    int64_t cost = 0;
    for (int i = 0; i < blocks[b].items; ++i) {
      if (i == 0) {
        ASSERT_EQ(blocks[b].row, row);
        ASSERT_EQ(blocks[b].head, head);
        ASSERT_EQ(blocks[b].chunk, chunk);
      }
      ASSERT_LT(row, rows);
      const AttentionRowWork& work = row_work[row];
      if (i == 0) {
        ASSERT_EQ(blocks[b].first.length, work.length);
        ASSERT_EQ(blocks[b].first.first_slot, work.first_slot);
        ASSERT_EQ(
            blocks[b].page_count,
            std::min(kAttentionEarlyPages,
                     std::min(work.chunk_pages, AttentionPages(work.length) -
                                                    chunk * work.chunk_pages)));
        for (int j = 0; j < blocks[b].page_count; ++j) {
          ASSERT_EQ(blocks[b].pages[j],
                    row * stride + chunk * work.chunk_pages + j);
        }
      }
      ASSERT_EQ(work.length, lengths[row]);
      ASSERT_EQ(work.sequence, row);
      ASSERT_EQ(work.chunks, AttentionChunks(plan.shape, lengths[row]));
      ASSERT_EQ(work.first_slot + head * work.chunks + chunk, slot);
      ++slot;
      const int64_t of_item = AttentionItemCost(
          plan, std::min(work.chunk_pages, AttentionPages(work.length) -
                                               chunk * work.chunk_pages));
      largest = std::max(largest, of_item);
      cost += of_item;
      if (++chunk == work.chunks) {
        chunk = 0;
        if (++head == plan.shape.num_kv_heads) {
          head = 0;
          ++row;
        }
      }
    }
    most = std::max(most, cost);
    all += cost;
  }
  ASSERT_EQ(row, rows);
  const int64_t capacity = AttentionScratch(plan, rows, 1 << 20).partials / 8;
  ASSERT_LE(slot * AttentionGroup(plan.shape), capacity);
  // No block has more than its share and the largest item.
  const int64_t used = std::min<int64_t>(plan.blocks, slot);
  ASSERT_LE(most, (all + used - 1) / used + largest);
}

// An item of few pages takes as long as one of some more: blocks with short
// rows have fewer pages.
TEST(AttentionPlanTest, ShortItemsCostMoreThanTheirPages) {
  const AttentionPlan wide =
      PlanAttention({16, 4, 256, 256}, WeightType::kBFloat16, kHopper);
  EXPECT_EQ(AttentionItemCost(wide, 1), 142 << 10);
  EXPECT_EQ(AttentionItemCost(wide, 2), 156 << 10);
  EXPECT_EQ(AttentionItemCost(wide, 3), 192 << 10);
  EXPECT_EQ(AttentionItemCost(wide, 16), 1024 << 10);
  // Two blocks a multiprocessor, and half the bytes.
  const AttentionPlan narrow =
      PlanAttention({32, 8, 128, 128}, WeightType::kBFloat16, kHopper);
  EXPECT_EQ(AttentionItemCost(narrow, 3), AttentionItemCost(wide, 3));
}

TEST(AttentionPlanTest, SchedulesEachChunkOnce) {
  for (int64_t kv_heads : {1, 3, 4, 30}) {
    for (int multiprocessors : {1, 2, 5, 132}) {
      const AttentionPlan plan =
          PlanAttention({4 * kv_heads, kv_heads, 128, 128},
                        WeightType::kFloat16, {multiprocessors, 232448, true});
      for (const std::vector<int32_t>& lengths :
           {std::vector<int32_t>{0}, std::vector<int32_t>{1},
            std::vector<int32_t>{2048}, std::vector<int32_t>{32768, 0, 0, 65},
            std::vector<int32_t>(32, 8192), std::vector<int32_t>(300, 63),
            std::vector<int32_t>{7, 70000, 64, 64, 129, 4097}}) {
        ExpectComplete(plan, lengths);
      }
    }
  }
}

TEST(AttentionPlanTest, FewItemsAreOnDifferentBlocks) {
  const AttentionPlan plan =
      PlanAttention({16, 4, 256, 256}, WeightType::kBFloat16, kHopper);
  const int32_t length = 32768;
  std::vector<char> memory(AttentionScheduleParts(plan, 1).bytes);
  ASSERT_TRUE(MakeAttentionSchedule({&length, nullptr, 1, nullptr, 512}, plan,
                                    memory.data()));
  const auto* blocks = reinterpret_cast<const AttentionBlockWork*>(
      memory.data() + AttentionScheduleParts(plan, 1).block_work);
  for (int b = 0; b < plan.blocks; ++b) {
    EXPECT_EQ(blocks[b].items, b < 128 ? 1 : 0) << b;
  }
}

TEST(AttentionPlanTest, RefusesWhatTheHeaderRulesOut) {
  const AttentionPlan plan =
      PlanAttention({4, 4, 64, 64}, WeightType::kBFloat16, kHopper);
  std::vector<char> memory(AttentionScheduleParts(plan, 2).bytes);
  const int32_t lengths[] = {64, 65};
  const int32_t negative[] = {-1, 65};
  EXPECT_TRUE(MakeAttentionSchedule({lengths, nullptr, 2, nullptr, 2}, plan,
                                    memory.data()));
  EXPECT_FALSE(MakeAttentionSchedule({lengths, nullptr, 2, nullptr, 1}, plan,
                                     memory.data()));
  EXPECT_FALSE(MakeAttentionSchedule({lengths, nullptr, 0, nullptr, 2}, plan,
                                     memory.data()));
  EXPECT_FALSE(MakeAttentionSchedule({negative, nullptr, 2, nullptr, 2}, plan,
                                     memory.data()));
  EXPECT_FALSE(MakeAttentionSchedule({lengths, negative, 2, nullptr, 2}, plan,
                                     memory.data()));
  EXPECT_FALSE(MakeAttentionSchedule({lengths, nullptr, 2, nullptr, 2}, {},
                                     memory.data()));
  EXPECT_EQ(
      PlanAttention({5, 2, 64, 64}, WeightType::kBFloat16, kHopper).blocks, 0);
}

TEST(AttentionPlanTest, PrefillTilesSuffice) {
  for (int64_t dim : {16, 64, 80, 128, 256}) {
    const AttentionPrefillPlan plan = PlanAttentionPrefill(
        {4, 2, dim, dim}, WeightType::kBFloat16, {3, 1000});
    const int64_t worst = 3 + 1000 / plan.query_tile;
    EXPECT_GE(plan.query_tiles, worst);
    EXPECT_EQ(plan.scratch_bytes,
              4 * int64_t{2} * plan.query_tiles * plan.query_tile * plan.width);
    EXPECT_EQ(plan.key_tile % kAttentionPageTokens, 0);
  }
  EXPECT_EQ(PlanAttentionPrefill({4, 2, 64, 64}, WeightType::kFloat32, {1, 1})
                .query_tiles,
            1);
  EXPECT_EQ(PlanAttentionPrefill({4, 2, 64, 64}, WeightType::kFloat32, {0, 1})
                .query_tiles,
            0);
  EXPECT_EQ(PlanAttentionPrefill({4, 3, 64, 64}, WeightType::kFloat32, {1, 1})
                .query_tiles,
            0);
}

}  // namespace
}  // namespace recurve
