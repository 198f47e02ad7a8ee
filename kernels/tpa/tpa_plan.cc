#include "kernels/tpa/tpa_plan.h"

#include <algorithm>

#include "kernels/tpa/tpa_chunks.h"

namespace recurve {
namespace {

// More is of no use: what is in flight covers the latency of memory by far.
constexpr int kMaxStages = 12;
// A tile's pages are read together, and there are at most two.
constexpr int kMinStages = 2;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Shared memory besides the stages, as tpa_decode_kernel lays it out: weights,
// their maxima and sums, terms of the query with what they are formed from
// (later the outputs of a row), barriers.
int64_t FixedBytes(const TpaShape& shape, const TpaVariant& variant,
                   int groups) {
  const int64_t heads = int64_t{16} * groups;
  const int64_t terms = 2 * kTpaQueryTerms * heads * variant.features;
  const int64_t forming = 4 * shape.q_rank * (variant.features + heads);
  const int64_t outputs = 4 * heads * variant.features;
  return int64_t{groups} * (2 * 2048 * variant.pages + 512) + terms +
         RoundUp(std::max(forming, outputs), 128) + 16 * kMaxStages;
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
  return within(s.num_heads, 1, 128) && within(s.head_dim, 8, 256) &&
         s.head_dim % 8 == 0 && within(s.value_dim, 8, 256) &&
         s.value_dim % 8 == 0 && within(s.q_rank, 1, 32) &&
         within(s.kv_rank, 1, 4);
}

TpaDecodeForm ChooseTpaDecodeForm(const TpaShape& shape, int rows,
                                  int new_tokens, int64_t length,
                                  const TpaDevice& device) {
  // Blocks that need no merge pay while there is little to read, or a sequence
  // for every multiprocessor.
  const int blocks = rows * new_tokens * TpaHeadGroups(shape);
  if (length <= 256) return TpaDecodeForm::kParallelBh;
  if (length <= 512 && 2 * blocks >= device.multiprocessors / 2) {
    return TpaDecodeForm::kParallelBh;
  }
  if (rows % device.multiprocessors == 0) return TpaDecodeForm::kParallelB;
  return TpaDecodeForm::kParallelBn;
}

TpaDecodePlan PlanTpaDecode(const TpaShape& shape, TpaDecodeForm form, int rows,
                            int new_tokens, const TpaDevice& device) {
  TpaDecodePlan plan = {};
  plan.form = form;
  if (!TpaDecodeSupports(shape) || rows < 1 || new_tokens < 1 ||
      new_tokens > 8) {
    return plan;
  }
  const int64_t features = std::max(shape.head_dim, shape.value_dim);
  plan.variant = features <= 64 ? 0 : features <= 128 ? 1 : 2;
  const TpaVariant& variant = kTpaVariants[plan.variant];
  const int pairs = new_tokens * TpaHeadGroups(shape);
  plan.head_blocks =
      form == TpaDecodeForm::kParallelBh
          ? pairs
          : (pairs + variant.max_groups - 1) / variant.max_groups;
  const TpaPageLayout layout(shape, TpaPageOrder::kSwizzled);
  plan.stage_bytes =
      static_cast<int>(2 * std::max(layout.k_block, layout.v_block));
  // Fewer heads in a block if their work leaves too little room for factors.
  for (;; ++plan.head_blocks) {
    plan.groups = (pairs + plan.head_blocks - 1) / plan.head_blocks;
    const int64_t fixed = FixedBytes(shape, variant, plan.groups);
    plan.stages = static_cast<int>(std::min<int64_t>(
        kMaxStages, (device.shared_memory - fixed) / plan.stage_bytes));
    plan.shared_bytes =
        static_cast<int>(fixed) + plan.stages * plan.stage_bytes;
    if (plan.stages >= kMinStages) break;
    if (plan.groups == 1) return plan;
  }
  plan.threads = 32 * variant.warps * plan.groups + variant.copy_threads;
  plan.bulk_copies = device.hopper;
  plan.dependent_launch = device.hopper;
  plan.blocks = form == TpaDecodeForm::kParallelBn
                    ? std::max(1, device.multiprocessors / plan.head_blocks)
                    : rows;
  return plan;
}

TpaScratchLayout TpaDecodeScratch(const TpaShape& shape,
                                  const TpaDecodePlan& plan, int rows,
                                  int new_tokens, int64_t max_length) {
  TpaScratchLayout scratch = {};
  if (plan.form != TpaDecodeForm::kParallelBn) return scratch;
  const int length = static_cast<int>(max_length);
  scratch.max_segments = TpaSegmentCount(length);
  scratch.max_chunks = TpaChunkCount(length);
  // Whole segments have a place each; what is left at the two ends of a
  // block's work is less than two segments.
  scratch.slots = rows * scratch.max_segments +
                  int64_t{2} * kTpaSegmentChunks * plan.blocks;
  scratch.slot_rows = int64_t{16} * new_tokens * TpaHeadGroups(shape);
  scratch.slot_width = RoundUp(shape.value_dim, 16);
  const int64_t heads = scratch.slots * scratch.slot_rows;
  scratch.max_log_sum = 0;
  scratch.outputs = RoundUp(8 * heads, 256);
  scratch.chunk_slot =
      scratch.outputs + RoundUp(4 * heads * scratch.slot_width, 256);
  scratch.bytes =
      scratch.chunk_slot + RoundUp(4 * rows * scratch.max_chunks, 256);
  return scratch;
}

}  // namespace recurve
