#ifndef RECURVE_KERNELS_TPA_DECODE_TPA_CHUNKS_H_
#define RECURVE_KERNELS_TPA_DECODE_TPA_CHUNKS_H_

#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// How attention on the GPU cuts a context. Positions are cut into chunks, and
// chunks grouped into segments, at fixed positions:
//
//   position                0 ... 2048 ... 131072 ...
//   tokens in a chunk         128     256        1024
//   tokens in a segment       512    2048        8192
//
// A chunk gives a partial result, whose scores are relative to a number of its
// own for each column (tpa_softmax.cuh): its "maximum", though that need not be
// the greatest. Partials of a segment merge in order into the segment's, and
// the segments' into the row's. The float32 arithmetic is the same in registers
// and from memory: so the choice of thread blocks changes no bit.
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
// Most chunks of a segment.
inline constexpr int kTpaSegmentChunks = 8;

// Size in tokens of the last chunk of a context of `length` tokens.
RECURVE_HOST_DEVICE constexpr int TpaLastChunk(int length) {
  const int chunks = TpaChunkCount(length);
  return chunks == 0 ? 0 : TpaChunkBegin(chunks) - TpaChunkBegin(chunks - 1);
}

// First and end chunk, in the row's chunks, of segment `segment` of a row of
// `row_chunks` chunks.
RECURVE_HOST_DEVICE constexpr int TpaSegmentFirst(int segment) {
  return TpaChunkOf(TpaSegmentBegin(segment));
}
RECURVE_HOST_DEVICE constexpr int TpaSegmentEnd(int segment, int row_chunks) {
  const int end = TpaSegmentFirst(segment + 1);
  return end < row_chunks ? end : row_chunks;
}

// A block that attends to chunks [begin, end) of a row of `row_chunks` writes a
// partial result for each segment inside them, and one for each other chunk.
// TpaPartialEnd is the end of the partial that begins with `chunk`.
RECURVE_HOST_DEVICE constexpr int TpaPartialEnd(int chunk, int begin, int end,
                                                int row_chunks) {
  const int segment = TpaSegmentOf(TpaChunkBegin(chunk));
  const int first = TpaSegmentFirst(segment);
  const int last = TpaSegmentEnd(segment, row_chunks);
  return first >= begin && last <= end ? last : chunk + 1;
}
// The number of these partials. For tests: a schedule must have as many slots
// for partials, in this order.
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

// A launch's work is shared out in one of three ways, whichever is estimated to
// give the most heavily loaded block the least (tpa_schedule.cc):
//
// - Rows have their own blocks, as many as keep every block's part at most one
//   share. A block then has one row, its queries and mostly whole segments. If
//   there are no more rows than blocks.
// - Blocks have the same number of whole rows. If there are more.
// - All rows' tokens form one line, each row rounded up to tiles of 64; block i
//   begins at the cut nearest to i · TpaStep.

// Load of a block of `step` tokens of the third way, in tokens: it includes the
// cost of a second row, and of chunks outside whole segments, whose results are
// written and read one by one. (T6-XL, 32 rows, 512 tokens a block: 31 pages a
// row took 9 us a layer longer than 32.)
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
// Own blocks of a row of `length` tokens.
RECURVE_HOST_DEVICE constexpr int TpaRowBlocks(int length, int share) {
  const int blocks = length <= 0 ? 0 : (length - 1) / share + 1;
  const int chunks = TpaChunkCount(length);
  return blocks < chunks ? blocks : chunks;
}
// Approximate load of the most heavily loaded of them: an even share, rounded
// up to whole chunks of the row's middle.
RECURVE_HOST_DEVICE constexpr int TpaRowLoad(int length, int blocks) {
  if (blocks <= 1) return length;
  const int middle = TpaChunkOf(length / 2);
  const int unit = TpaChunkBegin(middle + 1) - TpaChunkBegin(middle);
  const int even = (length - 1) / blocks + 1;
  return (even + unit - 1) / unit * unit;
}

// Tokens a block, at least `tokens` / `blocks`: rounded up to the ends of
// chunks and segments where that costs under an eighth.
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

// The first chunk of block `i` of the row's own `blocks`: 0 < i < blocks.
RECURVE_HOST_DEVICE constexpr int TpaRowCut(int length, int blocks, int i) {
  if (blocks == TpaChunkCount(length)) return i;
  const int position =
      static_cast<int>(static_cast<int64_t>(length) * i / blocks);
  return TpaCutChunk(length, position, length / blocks / 8);
}

// The first chunk of block `block` of a cluster (TpaContexts::kShort) in a row
// of `row_chunks` chunks: at most 256 tokens a lane. The chunk may not exist.
RECURVE_HOST_DEVICE constexpr int TpaClusterFirst(int row_chunks, int block) {
  if (row_chunks <= 16) return 2 * block;
  return block < 4 ? 4 * block : 16 + 2 * (block - 4);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_DECODE_TPA_CHUNKS_H_
