#ifndef RECURVE_KV_CACHE_BLOCK_PIECES_H_
#define RECURVE_KV_CACHE_BLOCK_PIECES_H_

#include <algorithm>
#include <cstdint>

namespace recurve {

// Splits bytes [begin, begin + bytes) of data stored in consecutive blocks of
// `block_bytes` at the block boundaries: calls f(block, offset in block, offset
// from begin, bytes) for each piece.
template <typename F>
void ForEachBlockPiece(int64_t begin, int64_t bytes, int64_t block_bytes, F f) {
  for (int64_t done = 0; done < bytes;) {
    const int64_t at = begin + done;
    const int64_t offset = at % block_bytes;
    const int64_t count = std::min(bytes - done, block_bytes - offset);
    f(at / block_bytes, offset, done, count);
    done += count;
  }
}

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_BLOCK_PIECES_H_
