#include "kernels/short_conv/short_conv.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/common/activation.h"
#include "kernels/common/element_row.h"

namespace recurve {
namespace {

constexpr int64_t kBlock = 256;  // channels of an item of work

// Channels first ... first + n of all of a sequence's tokens. The window keeps
// the last W inputs, input t in row t mod W.
void ConvolveBlock(const ShortConvParams& p, int64_t sequence, int64_t first,
                   int64_t n) {
  const int64_t begin = p.query_start[sequence];
  const int64_t end = p.query_start[sequence + 1];
  if (begin >= end) return;
  const int64_t width = p.width;
  float window[kShortConvMaxWidth][kBlock];
  float sum[kBlock];
  const int64_t state = p.slots[sequence] * p.slot_stride + first;
  // Input −j is in row W − j, so the state's row i, input i − (W − 1), in
  // i + 1.
  for (int64_t i = 0; i + 1 < width; ++i) {
    LoadElements(p.type, p.states, state + i * p.channels, n, window[i + 1]);
  }
  for (int64_t row = begin; row < end; ++row) {
    const int64_t t = row - begin;
    LoadElements(p.type, p.x, row * p.x_stride + first, n, window[t % width]);
    for (int64_t c = 0; c < n; ++c) {
      sum[c] = p.bias == nullptr ? 0.0f : p.bias[first + c];
    }
    for (int64_t j = 0; j < width; ++j) {
      const float* input = window[(t + 1 + j) % width];
      const float* weight = p.weight + first * width + j;
      for (int64_t c = 0; c < n; ++c) sum[c] += weight[c * width] * input[c];
    }
    for (int64_t c = 0; c < n; ++c) {
      sum[c] = Activate(Activation::kSilu, sum[c]);
    }
    StoreElements(p.type, sum, n, p.y, row * p.y_stride + first);
  }
  for (int64_t i = 0; i + 1 < width; ++i) {
    StoreElements(p.type, window[(end - begin + 1 + i) % width], n, p.states,
                  state + i * p.channels);
  }
}

}  // namespace

void ShortConv(const ShortConvParams& p, ThreadPool& pool) {
  const int64_t blocks = (p.channels + kBlock - 1) / kBlock;
  pool.ParallelFor(p.sequences * blocks, [&](int64_t item) {
    const int64_t first = item % blocks * kBlock;
    ConvolveBlock(p, item / blocks, first,
                  std::min(kBlock, p.channels - first));
  });
}

}  // namespace recurve
