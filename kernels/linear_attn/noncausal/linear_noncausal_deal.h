// Distribution of non-causal linear attention over blocks: tiles of heads of
// rows. For the host and the device.
//
// One block sums S of a head, tile after tile, so that its bits do not depend
// on the batch. Any block may make outputs: a block with more to sum than
// others leaves outputs of its first heads to blocks with less, which read S
// from global memory.
//
// Tiles of all heads of all rows, in this order, form a line. A block has the
// heads whose middle is in its part of the line, that is, some blocks have one
// more than others; or, with fewer heads than blocks, one or none.
#ifndef RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_DEAL_H_
#define RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_DEAL_H_

#include <cstdint>

#ifdef __CUDACC__
#define RECURVE_DEAL_FUNCTION __host__ __device__ __forceinline__
#else
#define RECURVE_DEAL_FUNCTION inline
#endif

namespace recurve {

// Number of a block's heads, the first ones, whose outputs it may leave to
// others. Each has a place for S in global memory.
constexpr uint32_t kNoncausalPlaces = 2;
// Costs, in one unit, of summing a tile, of its outputs, and of each head; by
// trial.
constexpr uint32_t kNoncausalSumCost = 2;
constexpr uint32_t kNoncausalOutCost = 2;
constexpr uint32_t kNoncausalHeadCost = 8;
// Outputs are left to others only if blocks have at least this many tiles on
// average: finding the blocks that take them takes time, too.
constexpr uint32_t kNoncausalSharedTiles = 2;

// A head on the line.
struct NoncausalHead {
  uint32_t row, head, tiles;
  uint32_t at;  // where it begins
};

// The line. RowTiles(row) is the number of tiles of a row: 0 if there is no
// work. heads times the tiles of all rows is at most 2^28: heads times rows is
// half of that (LinearNoncausalParams), and as many whole tiles are 137 GB each
// of q, k, v and out.
template <typename RowTiles>
class NoncausalLine {
 public:
  RECURVE_DEAL_FUNCTION NoncausalLine(const RowTiles& row_tiles, uint32_t rows,
                                      uint32_t heads, uint32_t blocks)
      : row_tiles_(row_tiles), heads_(heads), blocks_(blocks) {
    for (uint32_t row = 0; row < rows; ++row) {
      const uint32_t tiles = row_tiles_(row);
      tiles_ += heads * tiles;
      if (tiles > 0) all_heads_ += heads;
    }
  }
  RECURVE_DEAL_FUNCTION uint32_t blocks() const { return blocks_; }
  RECURVE_DEAL_FUNCTION uint32_t tiles() const { return tiles_; }
  RECURVE_DEAL_FUNCTION uint32_t heads() const { return all_heads_; }

  // Where the heads of `block` begin; `block` is at most `blocks`.
  RECURVE_DEAL_FUNCTION uint32_t First(uint32_t block) const {
    if (all_heads_ <= blocks_) {
      return block < all_heads_ ? HeadAt(block) : tiles_;
    }
    // The first whose middle is not before the block's part, in 32 bits:
    const uint32_t part =
        tiles_ / blocks_ * block + tiles_ % blocks_ * block / blocks_;
    if (part >= tiles_) return tiles_;
    const NoncausalHead head = At(part);
    return head.at + head.tiles / 2 >= part ? head.at : head.at + head.tiles;
  }
  // The head of tile `at` of the line.
  RECURVE_DEAL_FUNCTION NoncausalHead At(uint32_t at) const {
    if (at < near_at_) near_row_ = near_at_ = 0;
    NoncausalHead head;
    uint32_t left = at - near_at_;
    for (head.row = near_row_;; ++head.row) {
      head.tiles = row_tiles_(head.row);
      if (left < heads_ * head.tiles) break;
      left -= heads_ * head.tiles;
    }
    near_row_ = head.row;
    near_at_ = at - left;
    head.head = left / head.tiles;
    head.at = near_at_ + head.head * head.tiles;
    return head;
  }

 private:
  // Where head `index` of all begins.
  RECURVE_DEAL_FUNCTION uint32_t HeadAt(uint32_t index) const {
    uint32_t at = 0;
    for (uint32_t row = 0;; ++row) {
      const uint32_t tiles = row_tiles_(row);
      if (tiles == 0) continue;
      if (index < heads_) return at + index * tiles;
      index -= heads_;
      at += heads_ * tiles;
    }
  }

  const RowTiles row_tiles_;
  const uint32_t heads_;  // of a row
  const uint32_t blocks_;
  uint32_t tiles_ = 0;
  uint32_t all_heads_ = 0;  // of rows that have tiles
  // The row requested last, and where it begins: the next one is mostly near.
  mutable uint32_t near_row_ = 0, near_at_ = 0;
};

// Work that blocks have, leave to others and take from them: blocks + 1 running
// totals each, whose differences are the blocks'.
struct NoncausalShares {
  uint32_t* first;  // where a block's heads begin on the line
  uint32_t* room;   // for outputs, in units of cost
  uint32_t* left;   // tiles whose outputs are left to others
  uint32_t* taken;  // and taken from others, of all those left
};

// Finds the shares, by a team of threads (or one) that all call this:
// team.rank() of team.size(); team.Before(x, &sum) is `sum` plus x of lower
// ranks, and adds x of all to `sum`; team.Meet() orders writes.
template <typename RowTiles, typename Team>
RECURVE_DEAL_FUNCTION void FindNoncausalShares(
    const NoncausalLine<RowTiles>& line, const Team& team,
    const NoncausalShares& shares) {
  const uint32_t blocks = line.blocks();
  const uint32_t tiles = line.tiles();
  for (uint32_t i = team.rank(); i <= blocks; i += team.size()) {
    shares.first[i] = line.First(i);
  }
  team.Meet();
  // For now `left` is the end of the tiles whose outputs a block may leave to
  // others, and `taken` its number of heads.
  for (uint32_t i = team.rank(); i < blocks; i += team.size()) {
    const uint32_t end = shares.first[i + 1];
    uint32_t at = shares.first[i];
    uint32_t heads = 0;
    while (at < end && heads < kNoncausalPlaces) {
      at += line.At(at).tiles;
      ++heads;
    }
    shares.left[i] = at;
    // More heads are like the first: they are of the same row, or next to it.
    if (at < end) {
      heads += (end - at) * heads / (at - shares.first[i]);
    }
    shares.taken[i] = heads;
  }
  // Room is the cost of a mean block's work minus that of the block's heads.
  const uint32_t mean = ((kNoncausalSumCost + kNoncausalOutCost) * tiles +
                         kNoncausalHeadCost * line.heads() + blocks - 1) /
                        blocks;
  team.Meet();
  uint32_t room_sum = 0;
  for (uint32_t start = 0; start <= blocks; start += team.size()) {
    const uint32_t i = start + team.rank();
    uint32_t room = 0;
    if (i < blocks) {
      const uint32_t cost =
          kNoncausalSumCost * (shares.first[i + 1] - shares.first[i]) +
          kNoncausalHeadCost * shares.taken[i];
      room = cost < mean ? mean - cost : 0;
    }
    const uint32_t before = team.Before(room, &room_sum);
    if (i <= blocks) shares.room[i] = before;
  }
  team.Meet();
  // Tiles are shared out by room. A block whose share exceeds its own takes the
  // rest from others; one with a smaller share leaves it to them.
  const bool shared = tiles >= kNoncausalSharedTiles * blocks && room_sum > 0;
  const auto bound = [&](uint32_t i) {
    return static_cast<uint32_t>(uint64_t{tiles} * shares.room[i] / room_sum);
  };
  uint32_t left_sum = 0, taken_sum = 0;
  for (uint32_t start = 0; start <= blocks; start += team.size()) {
    const uint32_t i = start + team.rank();
    uint32_t left = 0, taken = 0;
    if (i < blocks && shared) {
      const uint32_t share = bound(i + 1) - bound(i);
      const uint32_t first = shares.first[i];
      const uint32_t own = shares.first[i + 1] - first;
      const uint32_t most = shares.left[i] - first;
      if (share >= own) {
        taken = share - own;
      } else {
        left = own - share < most ? own - share : most;
      }
    }
    const uint32_t left_before = team.Before(left, &left_sum);
    const uint32_t taken_before = team.Before(taken, &taken_sum);
    if (i <= blocks) {
      shares.left[i] = left_before;
      shares.taken[i] = taken_before;
    }
  }
  team.Meet();
}

// Work on a head: S is summed over its first sum_tiles tiles, all of them, and
// left in store_place, if that is not negative; or it is read from load_place,
// which must be waited for. Then come the outputs of tiles [begin, end),
// possibly none.
struct NoncausalWork {
  uint32_t row, head;
  uint32_t sum_tiles;
  int32_t load_place, store_place;
  uint32_t begin, end;
};

// The work of a block, in order. No sum waits for another block.
template <typename RowTiles>
class NoncausalDeal {
 public:
  RECURVE_DEAL_FUNCTION NoncausalDeal(const NoncausalLine<RowTiles>& line,
                                      const NoncausalShares& shares,
                                      uint32_t block)
      : shares_(shares),
        block_(block),
        at_(line.First(block)),
        end_(line.First(block + 1)) {}

  // Whether the block has heads.
  RECURVE_DEAL_FUNCTION bool HasHeads() const { return at_ < end_; }

  // The next work, without store_place and outputs of the block's heads, which
  // Finish adds; false if there is none. Before the shares are known it may be
  // called once, if the block has heads.
  RECURVE_DEAL_FUNCTION bool Next(const NoncausalLine<RowTiles>& line,
                                  NoncausalWork* work) {
    if (!takes_ && at_ == end_) BeginTaking(line.blocks());
    if (at_ == end_) return false;
    if (takes_) {
      Take(line, work);
    } else {
      const NoncausalHead head = line.At(at_);
      *work = {head.row, head.head, head.tiles, -1, -1, 0, head.tiles};
    }
    return true;
  }
  // The rest of it, once the shares are known.
  RECURVE_DEAL_FUNCTION void Finish(NoncausalWork* work) {
    if (takes_) return;
    const uint32_t kept =
        shares_.first[block_] + shares_.left[block_ + 1] - shares_.left[block_];
    if (at_ < kept) {
      work->store_place =
          static_cast<int32_t>(kNoncausalPlaces * block_ + place_);
      work->begin = kept - at_ < work->end ? kept - at_ : work->end;
    }
    ++place_;
    at_ += work->end;
  }

 private:
  RECURVE_DEAL_FUNCTION void BeginTaking(uint32_t blocks) {
    const uint32_t all = shares_.taken[blocks];
    const auto bound = [&](uint32_t i) {
      return all == 0 ? 0
                      : static_cast<uint32_t>(uint64_t{shares_.left[blocks]} *
                                              shares_.taken[i] / all);
    };
    takes_ = true;
    at_ = bound(block_);
    end_ = bound(block_ + 1);
    from_ = 0;
  }
  // at_ and end_ are now among the left tiles, and from_ is the block that
  // leaves them.
  RECURVE_DEAL_FUNCTION void Take(const NoncausalLine<RowTiles>& line,
                                  NoncausalWork* work) {
    while (shares_.left[from_ + 1] <= at_) ++from_;
    const uint32_t first = shares_.first[from_];
    const uint32_t begin = first + at_ - shares_.left[from_];
    const uint32_t left =
        shares_.left[from_ + 1] < end_ ? shares_.left[from_ + 1] : end_;
    const NoncausalHead head = line.At(begin);
    uint32_t end = begin + left - at_;
    if (end > head.at + head.tiles) end = head.at + head.tiles;
    const uint32_t place = kNoncausalPlaces * from_ + (head.at > first ? 1 : 0);
    *work = {head.row,        head.head,    0, static_cast<int32_t>(place), -1,
             begin - head.at, end - head.at};
    at_ += end - begin;
  }

  const NoncausalShares shares_;
  const uint32_t block_;
  uint32_t at_, end_;  // of its heads, then of taken tiles
  uint32_t place_ = 0;
  uint32_t from_ = 0;
  bool takes_ = false;
};

}  // namespace recurve

#undef RECURVE_DEAL_FUNCTION

#endif  // RECURVE_KERNELS_LINEAR_ATTN_NONCAUSAL_LINEAR_NONCAUSAL_DEAL_H_
