#include "kernels/tpa/decode/tpa_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/tpa/decode/tpa_chunks.h"
#include "kernels/tpa/decode/tpa_schedule.h"

namespace recurve {
namespace {

constexpr TpaDevice kH200 = {132, 232448, true, 14};
constexpr TpaDevice kA100 = {108, 166912, false, 0};

// Every head has a column, no block is without one, and it all fits.
void CheckPlan(const TpaShape& shape, TpaDecodeForm form, int new_tokens,
               const TpaDevice& device, TpaContexts contexts) {
  const TpaDecodePlan plan =
      PlanTpaDecode(shape, form, 9, new_tokens, device, contexts);
  SCOPED_TRACE(testing::Message()
               << shape.num_heads << " heads of " << shape.head_dim << ", "
               << new_tokens << " new tokens, " << Name(form) << ", contexts "
               << static_cast<int>(contexts));
  ASSERT_GT(plan.blocks, 0);
  const TpaVariant& variant = kTpaVariants[plan.variant];
  const int octets = new_tokens * TpaHeadOctets(shape);
  EXPECT_GE(plan.groups * plan.group_octets * plan.head_blocks, octets);
  EXPECT_LT(plan.groups * plan.group_octets * (plan.head_blocks - 1), octets);
  EXPECT_LE(plan.groups * plan.lanes, kTpaMaxWarpgroups);
  EXPECT_GE(plan.lanes, 1);
  EXPECT_LE(8 * plan.group_octets, variant.columns);
  EXPECT_EQ(plan.threads, 128 * (plan.groups * plan.lanes + 1));
  EXPECT_GE(64 * variant.value_tiles, shape.value_dim);
  EXPECT_GE(plan.stages, 3);
  EXPECT_LE(plan.shared_bytes, device.shared_memory);
  EXPECT_EQ(plan.hopper, device.hopper);
  if (form == TpaDecodeForm::kParallelBn) {
    EXPECT_LE(plan.blocks * plan.head_blocks, device.multiprocessors);
  }
}

TEST(TpaPlanTest, CoversEveryHeadAndFitsTheDevice) {
  for (const TpaDevice& device : {kH200, kA100}) {
    for (int64_t heads : {1, 16, 17, 32, 47, 61, 78, 80, 81, 128}) {
      for (int64_t dim : {8, 32, 64, 72, 128, 256}) {
        // An A100 has no room for the widest.
        if (!device.hopper && dim == 256) continue;
        for (int new_tokens : {1, 3, 8}) {
          for (TpaDecodeForm form :
               {TpaDecodeForm::kParallelB, TpaDecodeForm::kParallelBh,
                TpaDecodeForm::kParallelBn}) {
            for (TpaContexts contexts :
                 {TpaContexts::kAny, TpaContexts::kFew, TpaContexts::kMany}) {
              CheckPlan({heads, dim, 64, 32, 4}, form, new_tokens, device,
                        contexts);
              CheckPlan({heads, dim, 64, 32, 2}, form, new_tokens, device,
                        contexts);
            }
          }
        }
      }
    }
  }
}

// Every head a column, in the kernel with the fewest columns that do.
TEST(TpaPlanTest, TakesTheLeastColumns) {
  const auto plan = [](int64_t heads, int64_t dim, TpaContexts contexts) {
    return PlanTpaDecode({heads, dim, dim, 6, 2}, TpaDecodeForm::kParallelBn, 1,
                         1, kH200, contexts);
  };
  struct Case {
    int64_t heads, dim;
    int columns, groups, head_blocks;  // of kAny
    int few_columns, few_groups, few_head_blocks;
  };
  for (const Case& c :
       {Case{32, 64, 32, 1, 1, 32, 1, 1}, Case{40, 64, 40, 1, 1, 40, 1, 1},
        Case{41, 64, 24, 2, 1, 24, 2, 1}, Case{47, 64, 24, 2, 1, 24, 2, 1},
        Case{61, 64, 32, 2, 1, 24, 2, 2}, Case{78, 64, 40, 2, 1, 24, 2, 2},
        Case{128, 64, 32, 2, 2, 24, 2, 3}, Case{47, 128, 32, 2, 1, 32, 2, 1},
        Case{78, 128, 40, 2, 1, 40, 2, 1}}) {
    SCOPED_TRACE(testing::Message() << c.heads << " heads of " << c.dim);
    const TpaDecodePlan any = plan(c.heads, c.dim, TpaContexts::kAny);
    EXPECT_EQ(kTpaVariants[any.variant].columns, c.columns);
    EXPECT_EQ(any.groups, c.groups);
    EXPECT_EQ(any.head_blocks, c.head_blocks);
    const TpaDecodePlan few = plan(c.heads, c.dim, TpaContexts::kFew);
    EXPECT_EQ(kTpaVariants[few.variant].columns, c.few_columns);
    EXPECT_EQ(few.groups, c.few_groups);
    EXPECT_EQ(few.head_blocks, c.few_head_blocks);
    EXPECT_EQ(few.blocks, 132 / c.few_head_blocks);
    EXPECT_EQ(TpaFewChunks({c.heads, c.dim, c.dim, 6, 2}, kH200),
              c.few_head_blocks > c.head_blocks ? few.blocks : 0);
  }
}

// 41 to 64 heads of 64 features and ranks up to 2 are rows where there is much
// to attend to.
TEST(TpaPlanTest, HeadsAreRowsOfManyChunks) {
  const auto plan = [](const TpaShape& shape, TpaContexts contexts,
                       TpaDecodeForm form = TpaDecodeForm::kParallelBn,
                       int new_tokens = 1, const TpaDevice& device = kH200) {
    return PlanTpaDecode(shape, form, 64, new_tokens, device, contexts);
  };
  for (int64_t heads : {41, 47, 48, 61, 64}) {
    for (int64_t rank : {1, 2}) {
      const TpaShape shape = {heads, 64, 64, 6, rank};
      for (TpaDecodeForm form :
           {TpaDecodeForm::kParallelB, TpaDecodeForm::kParallelBn}) {
        const TpaDecodePlan many = plan(shape, TpaContexts::kMany, form);
        EXPECT_EQ(kTpaVariants[many.variant].columns, kTpaHeadRowsHeads);
        EXPECT_EQ(many.early_keys, kTpaInOrder);
        EXPECT_EQ(many.groups, 1);
        EXPECT_EQ(many.lanes, 2);
        EXPECT_EQ(many.head_blocks, 1);
        EXPECT_EQ(many.threads, 384);
      }
      EXPECT_EQ(TpaManyChunks(shape, kH200), 4 * 132);
    }
  }
  // Others, and others' plans, are as with kAny.
  const auto columns = [&](const TpaShape& shape,
                           TpaDecodeForm form = TpaDecodeForm::kParallelBn,
                           int new_tokens = 1,
                           const TpaDevice& device = kH200) {
    const TpaDecodePlan any =
        plan(shape, TpaContexts::kAny, form, new_tokens, device);
    const TpaDecodePlan many =
        plan(shape, TpaContexts::kMany, form, new_tokens, device);
    EXPECT_EQ(many.variant, any.variant);
    EXPECT_EQ(many.stages, any.stages);
    EXPECT_EQ(many.early_keys, any.early_keys);
    return kTpaVariants[many.variant].columns;
  };
  EXPECT_EQ(columns({40, 64, 64, 6, 2}), 40);
  EXPECT_EQ(columns({65, 64, 64, 6, 2}), 40);
  EXPECT_EQ(columns({61, 64, 64, 6, 3}), 32);
  EXPECT_EQ(columns({61, 64, 48, 6, 2}), 32);
  EXPECT_EQ(columns({61, 128, 128, 6, 2}), 32);
  EXPECT_EQ(columns({61, 64, 64, 6, 2}, TpaDecodeForm::kParallelBh), 40);
  EXPECT_LT(columns({61, 64, 64, 6, 2}, TpaDecodeForm::kParallelBn, 2), 64);
  EXPECT_LT(columns({61, 64, 64, 6, 2}, TpaDecodeForm::kParallelBn, 1, kA100),
            64);
  EXPECT_EQ(TpaManyChunks({78, 64, 64, 6, 2}, kH200), 0);
  EXPECT_EQ(TpaManyChunks({61, 64, 64, 6, 2}, kA100), 0);
}

// Every chunk is some lane's of a cluster, and none has more than 256 tokens.
TEST(TpaPlanTest, ClustersShareChunksOut) {
  for (int chunks = 1; chunks <= kTpaClusterChunks; ++chunks) {
    EXPECT_EQ(TpaClusterFirst(chunks, 0), 0);
    EXPECT_GE(TpaClusterFirst(chunks, kTpaClusterBlocks), chunks);
    for (int block = 0; block < kTpaClusterBlocks; ++block) {
      const int first = TpaClusterFirst(chunks, block);
      const int end = std::min(TpaClusterFirst(chunks, block + 1), chunks);
      for (int lane = 0; lane < kTpaClusterLanes; ++lane) {
        int tokens = 0;
        for (int c = first + lane; c < end; c += kTpaClusterLanes)
          tokens += TpaChunkBegin(c + 1) - TpaChunkBegin(c);
        EXPECT_LE(tokens, 256) << chunks << " chunks, block " << block;
      }
      // Pages that a block knows of before all others (kTpaEarlyPages).
      EXPECT_LE(TpaChunkBegin(end) - TpaChunkBegin(std::min(first, end)),
                8 * kTpaPageTokens);
    }
  }
}

// Rows that are clusters: a block for two lanes and 24 heads.
TEST(TpaPlanTest, ShortRowsAreClusters) {
  struct Case {
    int64_t heads, rank;
    int head_blocks, most_rows;
  };
  for (const Case& c :
       {Case{1, 1, 1, 12}, Case{24, 2, 1, 12}, Case{47, 2, 2, 6},
        Case{61, 2, 3, 4}, Case{78, 2, 4, 3}, Case{128, 1, 6, 2}}) {
    const TpaShape shape = {c.heads, 64, 64, 6, c.rank};
    SCOPED_TRACE(testing::Message() << c.heads << " heads");
    const auto plan = [&](int rows) {
      return PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, rows, 1, kH200,
                           TpaContexts::kShort);
    };
    EXPECT_EQ(TpaShortRows(shape, kH200), c.most_rows);
    EXPECT_EQ(plan(c.most_rows + 1).blocks, 0);
    for (int rows : {1, c.most_rows}) {
      const TpaDecodePlan p = plan(rows);
      EXPECT_EQ(p.blocks, 8 * rows);
      EXPECT_EQ(p.cluster_blocks, 8);
      EXPECT_EQ(p.head_blocks, c.head_blocks);
      EXPECT_EQ(kTpaVariants[p.variant].columns, 24);
      EXPECT_EQ(p.groups, 1);
      EXPECT_EQ(p.lanes, 2);
      EXPECT_LE(8 * p.group_octets, 24);
      EXPECT_GE(8 * p.group_octets * p.head_blocks, c.heads);
      EXPECT_LT(8 * p.group_octets * (p.head_blocks - 1), c.heads);
      EXPECT_LE(p.shared_bytes, kH200.shared_memory);
      EXPECT_TRUE(TpaDecodeAppends(shape, p));
      EXPECT_GE(p.stages, 8);  // keys and values of two ranks and two pages
    }
  }
  // No more than a device has place for.
  EXPECT_EQ(TpaShortRows({78, 64, 64, 6, 2}, {66, 232448, true, 7}), 1);
  EXPECT_EQ(TpaShortRows({78, 64, 64, 6, 2}, {33, 232448, true, 3}), 0);
  // Nor where a ring has no place for two pages.
  for (int64_t rank : {1, 2}) {
    const TpaShape shape = {78, 64, 64, 6, rank};
    for (int memory = 64 << 10; memory <= kH200.shared_memory; memory += 1024) {
      const TpaDecodePlan p =
          PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, 1, 1,
                        {132, memory, true, 8}, TpaContexts::kShort);
      EXPECT_EQ(p.blocks > 0,
                p.lanes == 2 && p.stages >= kTpaClusterPages * 2 * rank)
          << rank << " " << memory;
    }
  }
  // Others have none.
  const auto none = [](const TpaShape& shape, const TpaDevice& device) {
    return TpaShortRows(shape, device) == 0 &&
           PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, 1, 1, device,
                         TpaContexts::kShort)
                   .blocks == 0;
  };
  EXPECT_TRUE(none({78, 64, 64, 6, 2}, kA100));
  EXPECT_TRUE(none({78, 64, 64, 6, 2}, {132, 232448, true, 0}));
  EXPECT_TRUE(none({32, 128, 128, 6, 1}, kH200));
  EXPECT_TRUE(none({32, 64, 48, 6, 1}, kH200));
  EXPECT_TRUE(none({32, 64, 64, 6, 3}, kH200));
  const TpaShape shape = {78, 64, 64, 6, 2};
  EXPECT_EQ(PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, 1, 2, kH200,
                          TpaContexts::kShort)
                .blocks,
            0);
  EXPECT_EQ(PlanTpaDecode(shape, TpaDecodeForm::kParallelB, 1, 1, kH200,
                          TpaContexts::kShort)
                .blocks,
            0);
}

// What an engine takes for its largest batch holds every smaller one's.
TEST(TpaPlanTest, FewerRowsNeedNoMoreRoom) {
  for (int64_t heads : {8, 47, 61, 70, 78, 128}) {
    const TpaShape shape = {heads, 64, 64, 6, 2};
    for (int most : {1, 2, 64, 256}) {
      int64_t schedule = 0;
      int64_t scratch = 0;
      const auto bytes = [&](int rows, TpaContexts contexts,
                             const auto& visit) {
        const TpaDecodePlan plan = PlanTpaDecode(
            shape, TpaDecodeForm::kParallelBn, rows, 1, kH200, contexts);
        visit(TpaScheduleParts(plan, rows, 8192).bytes,
              TpaDecodeScratch(shape, plan, rows, 1, 8192).bytes);
      };
      const int most_short = std::min(most, TpaShortRows(shape, kH200));
      for (TpaContexts contexts : {TpaContexts::kAny, TpaContexts::kFew,
                                   TpaContexts::kMany, TpaContexts::kShort}) {
        const int rows = contexts == TpaContexts::kShort ? most_short : most;
        bytes(rows, contexts, [&](int64_t a, int64_t b) {
          schedule = std::max(schedule, a);
          scratch = std::max(scratch, b);
        });
      }
      for (int rows = 1; rows <= most; rows *= 2) {
        for (TpaContexts contexts : {TpaContexts::kAny, TpaContexts::kFew,
                                     TpaContexts::kMany, TpaContexts::kShort}) {
          if (contexts == TpaContexts::kShort && rows > most_short) continue;
          bytes(rows, contexts, [&](int64_t a, int64_t b) {
            EXPECT_LE(a, schedule) << heads << " " << rows << " of " << most;
            EXPECT_LE(b, scratch) << heads << " " << rows << " of " << most;
          });
        }
      }
    }
  }
}

// Keys that come early must leave room for all values of a page.
TEST(TpaPlanTest, KeysComeEarlyWhereThereIsRoom) {
  const auto plan = [](const TpaShape& shape, int shared_memory) {
    return PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, 4, 1,
                         {132, shared_memory, true, 0}, TpaContexts::kMany);
  };
  const int all = kH200.shared_memory;
  EXPECT_EQ(plan({78, 64, 64, 6, 2}, all).early_keys, 2);
  EXPECT_EQ(plan({32, 128, 128, 16, 1}, all).early_keys, 1);
  EXPECT_EQ(plan({32, 128, 128, 16, 2}, all).early_keys, 1);
  EXPECT_EQ(plan({32, 128, 128, 16, 3}, all).early_keys, 0);
  for (int memory = 100 << 10; memory <= all; memory += 4 << 10) {
    for (int64_t dim : {64, 128}) {
      for (int64_t rank : {1, 2}) {
        const TpaDecodePlan few = plan({78, dim, dim, 6, rank}, memory);
        if (few.early_keys > 0) {
          EXPECT_GE(few.stages, rank + few.early_keys);
        }
      }
    }
    // With heads as rows values of a page are held while keys come.
    for (int64_t rank : {1, 2}) {
      const TpaDecodePlan rows = plan({61, 64, 64, 6, rank}, memory);
      EXPECT_EQ(rows.early_keys, kTpaInOrder);
      EXPECT_GE(rows.stages, 2 * rank);
    }
  }
}

TEST(TpaPlanTest, RefusesWhatKernelsDoNotTake) {
  const auto blocks = [](const TpaShape& shape, int rows, int new_tokens) {
    return PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, rows, new_tokens,
                         kH200)
        .blocks;
  };
  EXPECT_EQ(blocks({129, 64, 64, 6, 2}, 1, 1), 0);
  EXPECT_EQ(blocks({0, 64, 64, 6, 2}, 1, 1), 0);
  EXPECT_GT(blocks({8, 60, 12, 6, 2}, 1, 1), 0);
  EXPECT_EQ(blocks({8, 62, 64, 6, 2}, 1, 1), 0);
  EXPECT_EQ(blocks({8, 64, 62, 6, 2}, 1, 1), 0);
  EXPECT_EQ(blocks({8, 64, 264, 6, 2}, 1, 1), 0);
  EXPECT_EQ(blocks({8, 64, 64, 33, 2}, 1, 1), 0);
  EXPECT_EQ(blocks({8, 64, 64, -1, 2}, 1, 1), 0);
  EXPECT_EQ(blocks({8, 64, 64, 6, 5}, 1, 1), 0);
  EXPECT_EQ(blocks({8, 64, 64, 6, 2}, 0, 1), 0);
  EXPECT_EQ(blocks({8, 64, 64, 6, 2}, 1, 9), 0);
  EXPECT_GT(blocks({8, 64, 64, 6, 2}, 1, 8), 0);
}

TEST(TpaPlanTest, ScratchHoldsAllPartials) {
  const TpaShape shape = {78, 64, 40, 6, 2};
  for (TpaDecodeForm form :
       {TpaDecodeForm::kParallelB, TpaDecodeForm::kParallelBn}) {
    const TpaDecodePlan plan = PlanTpaDecode(shape, form, 3, 2, kH200);
    const TpaScratchLayout scratch = TpaDecodeScratch(shape, plan, 3, 2, 32768);
    // Every segment, and what is loose at both ends of each block's share.
    const int loose = form == TpaDecodeForm::kParallelB
                          ? 0
                          : 2 * (kTpaSegmentChunks - 1) * plan.blocks;
    EXPECT_GE(scratch.slots, 3 * TpaSegmentCount(32768) + loose);
    EXPECT_EQ(scratch.slot_rows, 2 * 80);
    EXPECT_GE(scratch.slot_width, 40);
    EXPECT_GE(scratch.outputs, 8 * scratch.slots * scratch.slot_rows);
    EXPECT_GE(scratch.bytes - scratch.outputs,
              4 * scratch.slots * scratch.slot_rows * scratch.slot_width);
    const TpaScheduleLayout parts = TpaScheduleParts(plan, 3, 32768);
    EXPECT_EQ(parts.slots, scratch.slots);
    EXPECT_GE(parts.row_work, 128 * plan.blocks);
    EXPECT_GE(parts.counters, parts.row_work + 32 * 3);
    EXPECT_GE(parts.partial_chunk, parts.counters + 4 * 3 * plan.head_blocks);
    EXPECT_GE(parts.bytes, parts.partial_chunk + 4 * parts.slots);
  }
}

TEST(TpaPlanTest, SaysWhichDecodesCanAppend) {
  const auto appends = [](const TpaShape& shape, const TpaDevice& device,
                          TpaContexts contexts = TpaContexts::kAny) {
    const TpaDecodePlan plan = PlanTpaDecode(shape, TpaDecodeForm::kParallelBn,
                                             4, 1, device, contexts);
    EXPECT_GT(plan.blocks, 0);
    // What it stages is where weights are, later.
    const TpaVariant& variant = kTpaVariants[plan.variant];
    const int64_t weights = int64_t{2} * 2 * kTpaPageTokens * variant.columns *
                            plan.groups * plan.lanes;
    const int64_t staged = 4 * shape.q_rank *
                           ((shape.head_dim + 15) / 16 * 16 +
                            int64_t{8} * plan.groups * plan.group_octets);
    // With heads as rows it has a place of its own.
    const bool room = plan.early_keys == kTpaInOrder || staged <= weights;
    EXPECT_EQ(TpaDecodeAppends(shape, plan),
              plan.early_keys != 0 && shape.q_rank > 0 && room);
    return TpaDecodeAppends(shape, plan);
  };
  const TpaShape t6_xl = {78, 64, 64, 6, 2};
  EXPECT_TRUE(appends(t6_xl, kH200));
  EXPECT_TRUE(appends(t6_xl, kH200, TpaContexts::kFew));
  EXPECT_TRUE(appends({32, 128, 128, 16, 1}, kH200));
  EXPECT_TRUE(appends({61, 64, 64, 32, 2}, kH200, TpaContexts::kMany));
  EXPECT_FALSE(appends({61, 64, 64, 0, 2}, kH200, TpaContexts::kMany));
  EXPECT_FALSE(appends({78, 64, 64, 0, 2}, kH200));
  EXPECT_FALSE(appends({80, 128, 128, 32, 1}, kH200));
  EXPECT_FALSE(appends({78, 64, 48, 6, 2}, kH200));
  EXPECT_FALSE(appends({78, 64, 64, 6, 3}, kH200));
  EXPECT_FALSE(appends(t6_xl, kA100));
}

}  // namespace
}  // namespace recurve
