#include "kernels/tpa/decode/tpa_plan.h"

#include <algorithm>

#include "kernels/tpa/decode/tpa_chunks.h"
#include "kernels/tpa/decode/tpa_schedule.h"

namespace recurve {
namespace {

// More are useless: the copies in flight cover memory latency by far.
constexpr int kMaxStages = 12;
// In use at once: the next keys, the last values, and the ones in flight.
constexpr int kMinStages = 3;
// Products read value features by 64, beyond the last ones.
constexpr int kReadBehind = 8192;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
int CeilDiv(int value, int divisor) { return (value + divisor - 1) / divisor; }

int MostClusters(const TpaDevice& device) {
  return std::min(device.clusters, kTpaMostClusters);
}

// Shared memory other than the stages, in the layout of TpaDecodeBlock: terms
// of the query, weights, exchanges between warps, barriers, and the kept result
// of a segment or, in a cluster, the results from its blocks.
int64_t FixedBytes(const TpaShape& shape, const TpaDecodePlan& plan) {
  const TpaVariant& variant = kTpaVariants[plan.variant];
  const int64_t columns = int64_t{variant.columns} * plan.groups;
  const int64_t dim = RoundUp(shape.head_dim, 16);
  const int64_t terms = 2 * kTpaQueryTerms * columns * dim;
  const bool head_rows = variant.columns == kTpaHeadRowsHeads;
  const int64_t weights =
      head_rows ? TpaStagingBytes(shape, plan.groups * plan.group_octets)
                : 2 * 2 * kTpaPageTokens * columns * plan.lanes;
  const int64_t exchange = head_rows ? 0 : 2 * 4 * 4 * columns * plan.lanes;
  const int64_t kept =
      2 * 8 * columns + static_cast<int64_t>(sizeof(TpaBlockWork));
  const int64_t kept_outputs =
      head_rows                 ? 0
      : plan.cluster_blocks > 0 ? TpaClusterBytes(static_cast<int>(columns) / 8)
                                : 4 * 64 * variant.value_tiles * columns;
  return std::max<int64_t>(terms + weights + exchange + kept +
                               16 * (kMaxStages * plan.lanes + 1) +
                               RoundUp(kept_outputs, 128),
                           kReadBehind);
}

}  // namespace

const char* Name(TpaDecodeForm form) {
  switch (form) {
    case TpaDecodeForm::kParallelB:
      return "parallel_b";
    case TpaDecodeForm::kParallelBh:
      return "parallel_bh";
    case TpaDecodeForm::kParallelBn:
      return "parallel_bn";
  }
  return "";
}

bool TpaDecodeSupports(const TpaShape& s) {
  const auto within = [](int64_t value, int64_t low, int64_t high) {
    return value >= low && value <= high;
  };
  const auto dim = [&](int64_t value) {
    return within(value, kTpaDimStep, kTpaMaxDim) && value % kTpaDimStep == 0;
  };
  return within(s.num_heads, 1, kTpaMaxHeads) && dim(s.head_dim) &&
         dim(s.value_dim) && within(s.q_rank, 0, kTpaMaxQueryRank) &&
         within(s.kv_rank, 1, kTpaMaxRank);
}

TpaDecodeForm ChooseTpaDecodeForm(const TpaShape& shape, int rows,
                                  int new_tokens, int64_t length,
                                  const TpaDevice& device) {
  // Blocks that need no merge pay while there is little to read, or a sequence
  // for every multiprocessor.
  const int octets = new_tokens * TpaHeadOctets(shape);
  if (length <= 256) return TpaDecodeForm::kParallelBh;
  if (length <= 512 && rows * octets >= 2 * device.multiprocessors) {
    return TpaDecodeForm::kParallelBh;
  }
  if (rows % device.multiprocessors == 0) return TpaDecodeForm::kParallelB;
  return TpaDecodeForm::kParallelBn;
}

TpaDecodePlan PlanTpaDecode(const TpaShape& shape, TpaDecodeForm form, int rows,
                            int new_tokens, const TpaDevice& device,
                            TpaContexts contexts) {
  TpaDecodePlan plan = {};
  plan.form = form;
  if (!TpaDecodeSupports(shape) || rows < 1 || rows > kTpaMaxRows ||
      new_tokens < 1 || new_tokens > 8) {
    return plan;
  }
  plan.hopper = device.hopper;
  const int octets = new_tokens * TpaHeadOctets(shape);
  // More than 32 columns. These instances have registers and shared memory for
  // up to 128 features.
  const bool wide = plan.hopper && octets > 4 &&
                    std::max(shape.head_dim, shape.value_dim) <= 128;
  const int tiles = shape.value_dim <= 64 ? 1 : shape.value_dim <= 128 ? 2 : 4;
  const bool by_heads = form == TpaDecodeForm::kParallelBh;
  const bool few = contexts == TpaContexts::kFew && wide && octets > 6 &&
                   tiles == 1 && new_tokens == 1 &&
                   form == TpaDecodeForm::kParallelBn;
  const bool clusters = contexts == TpaContexts::kShort;
  if (clusters &&
      (!plan.hopper || form != TpaDecodeForm::kParallelBn || new_tokens > 1 ||
       shape.head_dim != 64 || shape.value_dim != 64 || shape.kv_rank > 2)) {
    return plan;
  }
  plan.cluster_blocks = clusters ? kTpaClusterBlocks : 0;
  const bool common = plan.hopper && shape.head_dim == shape.value_dim &&
                      (shape.head_dim == 64 || shape.head_dim == 128) &&
                      shape.kv_rank <= 2;
  // With less than 41 heads, each lane has a warpgroup anyway.
  const bool head_rows = contexts == TpaContexts::kMany && common &&
                         tiles == 1 && new_tokens == 1 && !by_heads &&
                         octets > 5 && octets <= kTpaHeadRowsHeads / 8;
  const int max_groups = by_heads || clusters ? 1 : kTpaMaxWarpgroups;
  const int max_octets = head_rows         ? octets
                         : by_heads        ? (wide ? 5 : 2)
                         : few || clusters ? 3 * max_groups
                                           : (wide ? 5 : 4) * max_groups;
  // The fewest columns that suffice for a warpgroup.
  int columns = wide ? 40 : 32;
  if (clusters) {
    columns = 24;
  } else if (head_rows) {
    columns = kTpaHeadRowsHeads;
  } else if (wide && !by_heads) {
    const int block_octets = CeilDiv(octets, CeilDiv(octets, max_octets));
    const int groups = CeilDiv(block_octets, few ? 3 : 5);
    columns = std::max(8 * CeilDiv(block_octets, groups), tiles == 1 ? 24 : 32);
  }
  while (kTpaVariants[plan.variant].columns != columns ||
         kTpaVariants[plan.variant].value_tiles != tiles) {
    ++plan.variant;
  }
  const int most = columns / 8;
  const TpaPageLayout layout(shape, TpaPageOrder::kOctets);
  // Columns shared out evenly; fewer in a block if its other memory leaves too
  // little room for factors.
  const int all = CeilDiv(octets, max_octets);
  // With heads as rows, values of a page are held while the next one's keys
  // arrive.
  const int min_stages =
      head_rows ? std::max(kMinStages, 2 * static_cast<int>(shape.kv_rank))
                : kMinStages;
  for (int block_octets = CeilDiv(octets, all);; --block_octets) {
    plan.groups = std::min(CeilDiv(block_octets, most), max_groups);
    plan.group_octets = CeilDiv(block_octets, plan.groups);
    plan.head_blocks = CeilDiv(octets, plan.groups * plan.group_octets);
    // Blocks with some heads of one token copy only those.
    const int64_t a_width =
        new_tokens == 1 ? std::min<int64_t>(layout.a_width,
                                            8 * plan.groups * plan.group_octets)
                        : layout.a_width;
    plan.stage_bytes = static_cast<int>(
        2 * kTpaPageTokens *
        (a_width + std::max(layout.b_k_width, layout.b_v_width)));
    // As many lanes as leave room for a ring buffer each.
    int64_t fixed = 0;
    for (plan.lanes = kTpaMaxWarpgroups / plan.groups;; --plan.lanes) {
      fixed = FixedBytes(shape, plan);
      plan.stages = static_cast<int>(std::min<int64_t>(
          kMaxStages,
          (device.shared_memory - fixed) / plan.stage_bytes / plan.lanes));
      if (plan.stages >= min_stages || plan.lanes == 1) break;
    }
    plan.shared_bytes =
        static_cast<int>(fixed) + plan.lanes * plan.stages * plan.stage_bytes;
    if (plan.stages >= min_stages) break;
    if (block_octets == 1 || head_rows) return plan;
  }
  // The next page's first keys are held as well as all values of this one, and
  // one more stage is in flight.
  const int rank = static_cast<int>(shape.kv_rank);
  const int early = TpaEarlyRanks(tiles, rank);
  if (head_rows) {
    plan.early_keys = kTpaInOrder;
  } else if (common && plan.stages > rank + early - 1) {
    plan.early_keys = early;
  }
  plan.threads = 128 * (plan.groups * plan.lanes + 1);
  if (clusters) {
    if (rows * plan.head_blocks <= MostClusters(device) &&
        plan.lanes == kTpaClusterLanes && plan.early_keys > 0 &&
        plan.stages >= kTpaClusterPages * 2 * rank) {
      plan.blocks = rows * kTpaClusterBlocks;
    }
    return plan;
  }
  plan.blocks = form == TpaDecodeForm::kParallelBn
                    ? std::max(1, device.multiprocessors / plan.head_blocks)
                    : rows;
  return plan;
}

bool TpaDecodeAppends(const TpaShape& shape, const TpaDecodePlan& plan) {
  // Factors of queries are staged in the memory of the weights; with heads as
  // rows in memory of their own.
  const int64_t weights = int64_t{4} * kTpaPageTokens *
                          kTpaVariants[plan.variant].columns * plan.groups *
                          plan.lanes;
  const bool room =
      plan.early_keys == kTpaInOrder ||
      TpaStagingBytes(shape, plan.groups * plan.group_octets) <= weights;
  return plan.hopper && plan.blocks > 0 && plan.early_keys != 0 &&
         shape.q_rank > 0 && room;
}

int TpaFewChunks(const TpaShape& shape, const TpaDevice& device) {
  const auto plan = [&](TpaContexts contexts) {
    return PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, 1, 1, device,
                         contexts);
  };
  const TpaDecodePlan few = plan(TpaContexts::kFew);
  return few.head_blocks > plan(TpaContexts::kAny).head_blocks ? few.blocks : 0;
}

int TpaManyChunks(const TpaShape& shape, const TpaDevice& device) {
  const TpaDecodePlan many = PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, 1,
                                           1, device, TpaContexts::kMany);
  // A warpgroup takes longer for a page, and two work concurrently: so more
  // than two chunks each (measured; docs/kernels/tpa_decode.md).
  return many.early_keys == kTpaInOrder ? 2 * many.lanes * many.blocks : 0;
}

int TpaShortRows(const TpaShape& shape, const TpaDevice& device) {
  const TpaDecodePlan one = PlanTpaDecode(shape, TpaDecodeForm::kParallelBn, 1,
                                          1, device, TpaContexts::kShort);
  return one.blocks == 0 ? 0 : MostClusters(device) / one.head_blocks;
}

TpaScratchLayout TpaDecodeScratch(const TpaShape& shape,
                                  const TpaDecodePlan& plan, int rows,
                                  int new_tokens, int64_t max_length) {
  TpaScratchLayout scratch = {};
  scratch.slots = TpaScheduleParts(plan, rows, max_length).slots;
  scratch.slot_rows = int64_t{8} * new_tokens * TpaHeadOctets(shape);
  scratch.slot_width = RoundUp(shape.value_dim, 16);
  const int64_t columns = scratch.slots * scratch.slot_rows;
  scratch.max_sum = 0;
  scratch.outputs = RoundUp(8 * columns, 256);
  scratch.bytes =
      scratch.outputs + RoundUp(4 * columns * scratch.slot_width, 256);
  return scratch;
}

TpaScheduleLayout TpaScheduleParts(const TpaDecodePlan& plan, int rows,
                                   int64_t max_length) {
  TpaScheduleLayout parts = {};
  // Whole segments have a slot each; the rest, at the two ends of a block's
  // share, is less than two segments.
  const int64_t loose = plan.form == TpaDecodeForm::kParallelBn
                            ? int64_t{2} * kTpaSegmentChunks * plan.blocks
                            : 0;
  parts.slots =
      rows * int64_t{TpaSegmentCount(static_cast<int>(max_length))} + loose;
  parts.block_work = 0;
  parts.row_work = parts.block_work + int64_t{128} * plan.blocks;
  parts.counters = parts.row_work + int64_t{32} * rows;
  parts.partial_chunk =
      parts.counters + RoundUp(int64_t{4} * rows * plan.head_blocks, 128);
  parts.bytes = parts.partial_chunk + RoundUp(4 * parts.slots, 128);
  return parts;
}

}  // namespace recurve
