#include "kernels/attention/decode/attention_plan.h"

#include <algorithm>
#include <cstring>

namespace recurve {
namespace {

constexpr int64_t kLine = 128;  // bytes

int64_t Aligned(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Adds what the block's first item needs at once.
void BeginShare(const AttentionScheduleParams& params,
                const AttentionRowWork& work, int pages,
                AttentionBlockWork* block) {
  block->first = work;
  if (params.page_table == nullptr) return;
  block->page_count = std::min(pages, kAttentionEarlyPages);
  std::copy_n(params.page_table + work.sequence * params.page_table_stride +
                  block->chunk * work.chunk_pages,
              block->page_count, block->pages);
}

// Whether two blocks share a multiprocessor.
bool IsPaired(const AttentionPlan& plan) {
  return plan.width <= 128 && plan.octets == 1;
}

// Pages of chunk `chunk` of a row.
int PagesOf(const AttentionRowWork& row, int chunk) {
  return std::min(row.chunk_pages,
                  AttentionPages(row.length) - chunk * row.chunk_pages);
}

}  // namespace

bool AttentionSupports(const AttentionShape& s) {
  const auto dim = [](int64_t size) {
    return size >= kAttentionDimStep && size <= kAttentionMaxDim &&
           size % kAttentionDimStep == 0;
  };
  return s.num_kv_heads >= 1 && s.num_heads >= 1 &&
         s.num_heads <= kAttentionMaxHeads &&
         s.num_heads % s.num_kv_heads == 0 &&
         AttentionGroup(s) <= kAttentionMaxGroup && dim(s.head_dim) &&
         dim(s.value_dim);
}

AttentionPlan PlanAttention(const AttentionShape& shape, WeightType element,
                            const AttentionDevice& device) {
  AttentionPlan plan = {};
  if (!AttentionSupports(shape) || device.multiprocessors < 1) return plan;
  plan.shape = shape;
  plan.element = element;
  plan.octets = static_cast<int>((AttentionGroup(shape) + 7) / 8);
  const int64_t widest = std::max(shape.head_dim, shape.value_dim);
  plan.width = widest <= 64 ? 64 : widest <= 128 ? 128 : 256;
  plan.tensor = element != WeightType::kFloat32 && device.hopper;
  if (!plan.tensor) {
    plan.blocks = 4 * device.multiprocessors;
    return plan;
  }
  plan.stage_bytes = static_cast<int>(2 * kAttentionPageTokens *
                                      (shape.head_dim + shape.value_dim));
  const int rest = AttentionSharedLayout(plan.width, plan.octets).ring;
  // Narrow heads: two blocks a multiprocessor, so that one computes while the
  // other exchanges results. A kilobyte of each block is the system's.
  const int per = IsPaired(plan) ? 2 : 1;
  const int share = (device.shared_memory + 1024) / per - 1024;
  plan.stages = std::min(8, (share - rest) / plan.stage_bytes);
  if (plan.stages < 2) {
    plan.blocks = 0;
    return plan;
  }
  plan.shared_bytes = rest + plan.stages * plan.stage_bytes;
  plan.blocks = per * device.multiprocessors;
  return plan;
}

int64_t AttentionItemCost(const AttentionPlan& plan, int pages) {
  // While one block of a pair copies, so does the other.
  const int64_t page = 2 * kAttentionPageTokens *
                       (plan.shape.head_dim + plan.shape.value_dim) *
                       (IsPaired(plan) ? 2 : 1);
  constexpr int64_t kEnd = 128 << 10;
  constexpr int64_t kPage = 14 << 10;
  return std::max(page * pages, kEnd + kPage * pages);
}

AttentionScheduleLayout AttentionScheduleParts(const AttentionPlan& plan,
                                               int rows) {
  AttentionScheduleLayout parts = {};
  parts.block_work = 0;
  parts.row_work =
      Aligned(plan.blocks * static_cast<int64_t>(sizeof(AttentionBlockWork)));
  parts.counters = Aligned(
      parts.row_work + rows * static_cast<int64_t>(sizeof(AttentionRowWork)));
  parts.bytes = Aligned(parts.counters +
                        4 * rows * plan.shape.num_kv_heads * plan.octets);
  return parts;
}

bool MakeAttentionSchedule(const AttentionScheduleParams& params,
                           const AttentionPlan& plan, void* schedule) {
  if (plan.blocks < 1 || params.rows < 1 || params.rows > kAttentionMaxRows ||
      params.lengths == nullptr) {
    return false;
  }
  const int64_t heads = plan.shape.num_kv_heads;
  int64_t items = 0;
  int64_t cost = 0;
  for (int r = 0; r < params.rows; ++r) {
    const int32_t length = params.lengths[r];
    if (length < 0 ||
        length > kAttentionPageTokens * params.page_table_stride ||
        (params.row_sequence != nullptr && params.row_sequence[r] < 0)) {
      return false;
    }
    const int chunks = AttentionChunks(plan.shape, length);
    items += heads * chunks;
    const int each = AttentionChunkPages(plan.shape, length);
    const int last = AttentionPages(length) - (chunks - 1) * each;
    cost += heads * ((chunks - 1) * AttentionItemCost(plan, each) +
                     AttentionItemCost(plan, last));
  }
  if (items > INT32_MAX) return false;
  const AttentionScheduleLayout parts =
      AttentionScheduleParts(plan, params.rows);
  auto* const bytes = static_cast<char*>(schedule);
  auto* const blocks =
      reinterpret_cast<AttentionBlockWork*>(bytes + parts.block_work);
  auto* const rows =
      reinterpret_cast<AttentionRowWork*>(bytes + parts.row_work);
  std::memset(bytes + parts.counters, 0, parts.bytes - parts.counters);
  int64_t slot = 0;
  for (int r = 0; r < params.rows; ++r) {
    const int32_t length = params.lengths[r];
    const int chunks = AttentionChunks(plan.shape, length);
    rows[r] = {length,
               params.row_sequence == nullptr ? r : params.row_sequence[r],
               AttentionChunkPages(plan.shape, length),
               chunks,
               static_cast<int32_t>(slot),
               {}};
    slot += heads * chunks;
  }
  // Block b takes the items that begin in its share of the cost. Where there
  // are fewer items than blocks, the first blocks have one each: neighbouring
  // blocks are on different multiprocessors.
  const int64_t used = std::min<int64_t>(plan.blocks, items);
  int64_t done = 0;  // cost of earlier items
  int64_t block = 0;
  std::fill_n(blocks, plan.blocks, AttentionBlockWork{});
  for (int r = 0; r < params.rows; ++r) {
    for (int32_t head = 0; head < heads; ++head) {
      for (int32_t chunk = 0; chunk < rows[r].chunks; ++chunk) {
        while (block + 1 < used && done >= (block + 1) * cost / used) ++block;
        const int pages = std::max(0, PagesOf(rows[r], chunk));
        if (blocks[block].items == 0) {
          blocks[block] = {r, head, chunk, 0, {}, 0, {}};
          BeginShare(params, rows[r], pages, &blocks[block]);
        }
        ++blocks[block].items;
        done += AttentionItemCost(plan, pages);
      }
    }
  }
  return true;
}

AttentionScratchParts AttentionScratch(const AttentionPlan& plan, int rows,
                                       int64_t pages) {
  const int64_t chunks = std::min<int64_t>(AttentionChunkLimit(plan.shape),
                                           std::max<int64_t>(pages, 1));
  const int64_t partials = rows * chunks * plan.shape.num_heads;
  AttentionScratchParts parts = {};
  parts.partials = Aligned(8 * partials);
  parts.bytes = parts.partials + Aligned(4 * partials * plan.shape.value_dim);
  return parts;
}

}  // namespace recurve
