#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_CHUNKS_H_
#define RECURVE_KERNELS_TPA_DECODE_TPA_CHUNKS_H_

#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// How a context is cut when the GPU attends to it. Positions are cut into
// chunks, and chunks gathered into segments, at places that depend on the
// position only:
//
//   position                0 ... 2048 ... 131072 ...
//   tokens in a chunk         128     256        1024
//   tokens in a segment       512    2048        8192
//
// A chunk gives a partial result, whose scores are relative to a number of its
// own for each column (tpa_softmax.cuh): its "maximum", also where that is not
// the greatest of them. Partials of a segment
// merge one after the other into that of the segment, and those of the segments
// into that of the row. It is the same float32 arithmetic
// whether it happens in registers or much later from memory: so which thread
// block works on which chunks changes no bit.
//
// Short contexts need small chunks to fill the machine; long ones need large
// segments, or reading and writing partials would cost more than the cache.

RECURVE_HOST_DEVICE constexpr int TpaChunkOf(int position) {
  return position < 2048     ? position / 128
         : position < 131072 ? 16 + (position - 2048) / 256
                             : 520 + (position - 131072) / 1024;
}
RECURVE_HOST_DEVICE constexpr int TpaChunkBegin(int chunk) {
  return chunk < 16    ? 128 * chunk
         : chunk < 520 ? 2048 + 256 * (chunk - 16)
                       : 131072 + 1024 * (chunk - 520);
}
RECURVE_HOST_DEVICE constexpr int TpaSegmentOf(int position) {
  return position < 2048     ? position / 512
         : position < 131072 ? 4 + (position - 2048) / 2048
                             : 67 + (position - 131072) / 8192;
}
RECURVE_HOST_DEVICE constexpr int TpaSegmentBegin(int segment) {
  return segment < 4    ? 512 * segment
         : segment < 67 ? 2048 + 2048 * (segment - 4)
                        : 131072 + 8192 * (segment - 67);
}

// Chunks and segments of a context of `length` tokens.
RECURVE_HOST_DEVICE constexpr int TpaChunkCount(int length) {
  return length <= 0 ? 0 : TpaChunkOf(length - 1) + 1;
}
RECURVE_HOST_DEVICE constexpr int TpaSegmentCount(int length) {
  return length <= 0 ? 0 : TpaSegmentOf(length - 1) + 1;
}
// No segment has more chunks.
inline constexpr int kTpaSegmentChunks = 8;

// Tokens that the last chunk of such a context has room for.
RECURVE_HOST_DEVICE constexpr int TpaLastChunk(int length) {
  const int chunks = TpaChunkCount(length);
  return chunks == 0 ? 0 : TpaChunkBegin(chunks) - TpaChunkBegin(chunks - 1);
}

// Where segment `segment` of a row of `row_chunks` chunks begins and ends, in
// chunks of the row.
RECURVE_HOST_DEVICE constexpr int TpaSegmentFirst(int segment) {
  return TpaChunkOf(TpaSegmentBegin(segment));
}
RECURVE_HOST_DEVICE constexpr int TpaSegmentEnd(int segment, int row_chunks) {
  const int end = TpaSegmentFirst(segment + 1);
  return end < row_chunks ? end : row_chunks;
}

// A block that attends to chunks [begin, end) of a row of `row_chunks` writes a
// partial result for each segment that lies within, and one for each other
// chunk. TpaPartialEnd is the chunk after the partial that begins with `chunk`.
RECURVE_HOST_DEVICE constexpr int TpaPartialEnd(int chunk, int begin, int end,
                                                int row_chunks) {
  const int segment = TpaSegmentOf(TpaChunkBegin(chunk));
  const int first = TpaSegmentFirst(segment);
  const int last = TpaSegmentEnd(segment, row_chunks);
  return first >= begin && last <= end ? last : chunk + 1;
}
// How many those are. Only tests ask: they hold a launch's schedule against it,
// whose places for partials must be as many, in this order.
RECURVE_HOST_DEVICE constexpr int TpaPartialCount(int begin, int end,
                                                  int row_chunks) {
  if (begin >= end) return 0;
  int segment = TpaSegmentOf(TpaChunkBegin(begin));
  int count = 0;
  if (begin != TpaSegmentFirst(segment)) {
    const int segment_end = TpaSegmentEnd(segment, row_chunks);
    const int loose_end = segment_end < end ? segment_end : end;
    count += loose_end - begin;
    begin = loose_end;
    if (begin == end) return count;
    ++segment;
  }
  const int last = TpaSegmentOf(TpaChunkBegin(end - 1));
  count += last - segment;
  return count + (end == TpaSegmentEnd(last, row_chunks)
                      ? 1
                      : end - TpaSegmentFirst(last));
}

// The work of a launch, shared out in one of three ways, whichever should leave
// the most laden block the least (tpa_schedule.cc):
//
//  - Rows have blocks of their own, each row as many as no block of it takes
//    more than a share. A block then has one row, its queries and, most often,
//    whole segments. If there are no more rows than blocks.
//  - Blocks have the same number of whole rows. If there are more.
//  - All rows' tokens stand in one line, each row rounded up to whole tiles of
//    64; block i begins at the cut nearest to i · TpaStep.

// What a block of the third way takes longer for the second row that it has a
// piece of, and for chunks that are no whole segments, whose results are
// written and read one by one: in tokens it could attend to meanwhile, for
// blocks of `step` tokens. (T6-XL, 32 rows, 512 tokens a block: 31 pages a row
// took 9 us a layer longer than 32.)
RECURVE_HOST_DEVICE constexpr int TpaLineLoad(int step) {
  return step + (step < 512 ? step / 2 : 256);
}

// Shares to choose from: 1 to 3 times a fair one.
inline constexpr int kTpaShares = 128;
RECURVE_HOST_DEVICE constexpr int TpaShare(int tokens, int blocks, int i) {
  const int fair = (tokens + blocks - 1) / blocks;
  const int least = fair < 128 ? 128 : fair;
  return least + static_cast<int>(static_cast<int64_t>(least) * i / 64);
}
// Blocks of its own for a row of `length` tokens.
RECURVE_HOST_DEVICE constexpr int TpaRowBlocks(int length, int share) {
  const int blocks = length <= 0 ? 0 : (length - 1) / share + 1;
  const int chunks = TpaChunkCount(length);
  return blocks < chunks ? blocks : chunks;
}
// About what the most laden of them has: an even share, up to whole chunks of
// the row's middle.
RECURVE_HOST_DEVICE constexpr int TpaRowLoad(int length, int blocks) {
  if (blocks <= 1) return length;
  const int middle = TpaChunkOf(length / 2);
  const int unit = TpaChunkBegin(middle + 1) - TpaChunkBegin(middle);
  const int even = (length - 1) / blocks + 1;
  return (even + unit - 1) / unit * unit;
}

// Tokens a block should take, at least `tokens` / `blocks`: rounded up to what
// meets the ends of chunks and segments where that costs under an eighth.
RECURVE_HOST_DEVICE constexpr int TpaStep(int tokens, int blocks) {
  const int fair = (tokens + blocks - 1) / blocks;
  for (int unit = 2048; unit > 128; unit /= 2) {
    const int step = (fair + unit - 1) / unit * unit;
    if (step - fair <= fair / 8) return step;
  }
  return fair <= 128 ? 128 : (fair + 127) / 128 * 128;
}

// The chunk before which a row of `length` tokens is cut for a target of
// `position` (0 <= position < length): the end of a segment or of the row if it
// is within `tolerance` tokens, else the nearest end of a chunk.
// TpaChunkCount(length) means the end of the row. Monotone in `position`.
RECURVE_HOST_DEVICE constexpr int TpaCutChunk(int length, int position,
                                              int tolerance) {
  const int segment = TpaSegmentOf(position);
  const int begin = TpaSegmentBegin(segment);
  const int next = TpaSegmentBegin(segment + 1);
  const int end = next < length ? next : length;
  const int end_chunk =
      next < length ? TpaChunkOf(next) : TpaChunkCount(length);
  const bool lower = position - begin <= end - position;
  if (lower && position - begin <= tolerance) return TpaChunkOf(begin);
  if (!lower && end - position <= tolerance) return end_chunk;
  const int chunk = TpaChunkOf(position);
  const int chunk_begin = TpaChunkBegin(chunk);
  const int chunk_next = TpaChunkBegin(chunk + 1);
  const int chunk_end = chunk_next < length ? chunk_next : length;
  return position - chunk_begin <= chunk_end - position ? chunk : chunk + 1;
}

// The chunk before which block `i` of `blocks` begins that have a row of their
// own: 0 < i < blocks.
RECURVE_HOST_DEVICE constexpr int TpaRowCut(int length, int blocks, int i) {
  if (blocks == TpaChunkCount(length)) return i;
  const int position =
      static_cast<int>(static_cast<int64_t>(length) * i / blocks);
  return TpaCutChunk(length, position, length / blocks / 8);
}

// The chunk with which block `block` of a cluster (TpaContexts::kShort) begins,
// of a row of `row_chunks` chunks: at most 256 tokens a lane. There may be no
// such chunk.
RECURVE_HOST_DEVICE constexpr int TpaClusterFirst(int row_chunks, int block) {
  if (row_chunks <= 16) return 2 * block;
  return block < 4 ? 4 * block : 16 + 2 * (block - 4);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_CHUNKS_H_
