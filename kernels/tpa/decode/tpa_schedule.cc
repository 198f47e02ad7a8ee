#include "kernels/tpa/decode/tpa_schedule.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/tpa/tpa_layout.h"

namespace recurve {
namespace {

constexpr int kPage = static_cast<int>(kTpaPageTokens);

// Where a block's share begins: before this chunk of this row.
struct Place {
  int row;
  int chunk;
};

// How the launch's work is shared out (tpa_chunks.h).
struct Sharing {
  int share;      // tokens, where rows have blocks of their own; else 0
  int rows_each;  // where blocks have whole rows; else 0
};

class Sharer {
 public:
  Sharer(const TpaScheduleParams& params, const TpaDecodePlan& plan)
      : p_(params), plan_(plan), row_begin_(params.rows + 1, 0) {
    for (int row = 0; row < p_.rows; ++row) {
      row_begin_[row + 1] =
          row_begin_[row] + (Length(row) + kPage - 1) / kPage * kPage;
      // Rows after the last one with tokens belong to no block: each would cost
      // the block with the last tokens a read of its length, and a padded batch
      // may double its rows.
      if (Length(row) > 0) used_rows_ = row + 1;
    }
    if (plan_.form != TpaDecodeForm::kParallelBn || plan_.cluster_blocks > 0)
      return;
    sharing_ = Choose();
    if (sharing_.share == 0) return;
    row_block_.assign(p_.rows + 1, 0);
    for (int row = 0; row < p_.rows; ++row) {
      row_block_[row + 1] =
          row_block_[row] + TpaRowBlocks(Length(row), sharing_.share);
    }
  }

  int Length(int row) const { return p_.lengths[row]; }
  int Chunks(int row) const { return TpaChunkCount(Length(row)); }

  // Where block i begins, 0 <= i <= plan.blocks.
  Place Cut(int i) const {
    if (plan_.form != TpaDecodeForm::kParallelBn || i == 0) return {i, 0};
    const Place place =
        plan_.cluster_blocks > 0 ? CutClusters(i)
        : sharing_.rows_each > 0
            ? Place{static_cast<int>(std::min<int64_t>(
                        int64_t{i} * sharing_.rows_each, used_rows_)),
                    0}
        : sharing_.share > 0 ? CutRows(i)
                             : CutLine(i);
    // The end of a row is the beginning of the next one.
    if (place.chunk > 0 && place.chunk >= Chunks(place.row))
      return {place.row + 1, 0};
    return place;
  }

 private:
  // The best for these lengths.
  Sharing Choose() const {
    const int rows_each = (p_.rows + plan_.blocks - 1) / plan_.blocks;
    const int tokens = row_begin_[p_.rows];
    const int line = TpaLineLoad(TpaStep(tokens, plan_.blocks));
    if (rows_each > 1) {
      int load = 0;
      for (int row = 0; row < p_.rows; row += rows_each) {
        load = std::max(load, row_begin_[std::min(row + rows_each, p_.rows)] -
                                  row_begin_[row]);
      }
      return {0, load < line ? rows_each : 0};
    }
    // The least share that suffices: a larger one never takes more blocks.
    const auto suffices = [&](int i) {
      const int share = TpaShare(tokens, plan_.blocks, i);
      int count = 0;
      for (int row = 0; row < used_rows_; ++row)
        count += TpaRowBlocks(Length(row), share);
      return count <= plan_.blocks;
    };
    int best = 0;
    for (int end = kTpaShares; best < end;) {
      const int middle = (best + end) / 2;
      if (suffices(middle)) {
        end = middle;
      } else {
        best = middle + 1;
      }
    }
    if (best == kTpaShares) return {0, 0};
    const int share = TpaShare(tokens, plan_.blocks, best);
    int load = 0;
    int longest = 0;
    for (int row = 0; row < used_rows_; ++row) {
      load = std::max(
          load, TpaRowLoad(Length(row), TpaRowBlocks(Length(row), share)));
      longest = std::max(longest, Length(row));
    }
    // No block of the line has less than a chunk, however short its piece: it
    // has that or nothing, and the row more blocks than it needs.
    if (load >= line && load > TpaLastChunk(longest)) return {0, 0};
    return {share, 0};
  }

  Place CutClusters(int i) const {
    const int row = i / kTpaClusterBlocks;
    if (row >= used_rows_) return {used_rows_, 0};
    return {row, TpaClusterFirst(Chunks(row), i % kTpaClusterBlocks)};
  }

  // Rows with their own blocks.
  Place CutRows(int i) const {
    if (i >= row_block_[p_.rows]) return {used_rows_, 0};
    const int row = LastAtMost(row_block_, i);
    const int first = row_block_[row];
    if (i == first) return {row, 0};
    return {row,
            TpaRowCut(Length(row), row_block_[row + 1] - first, i - first)};
  }

  // All tokens in one line.
  Place CutLine(int i) const {
    const int tokens = row_begin_[p_.rows];
    const int step = TpaStep(tokens, plan_.blocks);
    const int64_t target = int64_t{i} * step;
    if (target >= tokens) return {used_rows_, 0};
    const int row = LastAtMost(row_begin_, static_cast<int>(target));
    const int position =
        std::min(static_cast<int>(target) - row_begin_[row], Length(row) - 1);
    return {row, TpaCutChunk(Length(row), position, step / 8)};
  }

  // The last of the rows whose beginning is at most `target`: of several that
  // begin there, the one with tokens.
  static int LastAtMost(const std::vector<int>& begins, int target) {
    return static_cast<int>(
        std::upper_bound(begins.begin(), begins.end() - 1, target) -
        begins.begin() - 1);
  }

  const TpaScheduleParams& p_;
  const TpaDecodePlan& plan_;
  std::vector<int> row_begin_;  // [rows + 1] tokens, by whole pages
  int used_rows_ = 0;           // up to the last one with tokens
  Sharing sharing_ = {0, 0};
  std::vector<int> row_block_;  // [rows + 1] the first block of each row, where
                                // they have blocks of their own
};

bool Valid(const TpaScheduleParams& p, const TpaDecodePlan& plan) {
  if (p.rows < 1 || p.rows > kTpaMaxRows || plan.blocks < 1 ||
      (plan.form != TpaDecodeForm::kParallelBn && plan.blocks != p.rows) ||
      (plan.cluster_blocks > 0 && plan.blocks != p.rows * kTpaClusterBlocks) ||
      p.page_table_stride < 0 ||
      p.page_table_stride > INT32_MAX / kTpaPageTokens / p.rows) {
    return false;
  }
  const int64_t most = kTpaPageTokens * p.page_table_stride;
  return std::all_of(p.lengths, p.lengths + p.rows, [&](int32_t length) {
    return length >= 0 && length <= most;
  });
}

}  // namespace

bool MakeTpaSchedule(const TpaScheduleParams& params, const TpaDecodePlan& plan,
                     void* schedule) {
  if (!Valid(params, plan)) return false;
  const TpaScheduleLayout layout = TpaScheduleParts(
      plan, params.rows, kTpaPageTokens * params.page_table_stride);
  char* const out = static_cast<char*>(schedule);
  auto* const blocks = reinterpret_cast<TpaBlockWork*>(out + layout.block_work);
  auto* const row_work = reinterpret_cast<TpaRowWork*>(out + layout.row_work);
  auto* const partial_chunk =
      reinterpret_cast<int32_t*>(out + layout.partial_chunk);
  std::fill_n(row_work, params.rows, TpaRowWork{});
  std::memset(out + layout.counters, 0,
              static_cast<size_t>(layout.partial_chunk - layout.counters));

  const Sharer sharer(params, plan);
  int slot = 0;
  // A row's first block records its beginning, its last block its end.
  for (int i = 0; i < plan.blocks; ++i) {
    const Place from = sharer.Cut(i);
    const Place to = sharer.Cut(i + 1);
    TpaBlockWork& block = blocks[i];
    block = {};
    block.first_row = from.row;
    block.first_chunk = from.chunk;
    block.last_row = to.row;
    block.last_chunk = to.chunk;
    block.first_slot = slot;
    for (int row = from.row; row <= to.row && row < params.rows; ++row) {
      if (row == to.row && to.chunk == 0) break;
      const int row_chunks = sharer.Chunks(row);
      const int begin = row == from.row ? from.chunk : 0;
      const int end = row == to.row ? to.chunk : row_chunks;
      TpaRowWork& work = row_work[row];
      if (begin == 0) {
        work.length = sharer.Length(row);
        work.first_slot = slot;
        work.first_block = i;
      }
      for (int chunk = begin; chunk < end;) {
        partial_chunk[slot++] = chunk;
        chunk = TpaPartialEnd(chunk, begin, end, row_chunks);
      }
      if (end == row_chunks) {
        work.end_slot = slot;
        work.last_block = i;
      }
    }
  }

  // All blocks of a cluster work to its end. (Those of rows without tokens end
  // at once, but other rows may follow them.)
  if (plan.cluster_blocks > 0) {
    for (int row = 0; row < params.rows; ++row)
      row_work[row].last_block = (row + 1) * kTpaClusterBlocks - 1;
  }

  // The rows are complete now.
  for (int i = 0; i < plan.blocks; ++i) {
    TpaBlockWork& block = blocks[i];
    block.behind_page = -1;
    const int last = block.last_chunk > 0 ? block.last_row : block.last_row - 1;
    if (last >= 0) block.last = row_work[last];
    if (block.first_row >= params.rows) continue;
    block.first = row_work[block.first_row];
    const int length = block.first.length;
    const int end = block.first_row == block.last_row ? block.last_chunk
                                                      : TpaChunkCount(length);
    if (block.first_chunk >= end) continue;
    const int first_page = TpaChunkBegin(block.first_chunk) / kPage;
    const int last_page =
        (std::min(TpaChunkBegin(end), length) + kPage - 1) / kPage;
    block.behind_page = std::max(length - kPage * (first_page + 1), -1);
    std::copy_n(params.page_table + block.first_row * params.page_table_stride +
                    first_page,
                std::min(last_page - first_page, kTpaEarlyPages), block.pages);
  }
  return true;
}

}  // namespace recurve
