#ifndef RECURVE_KERNELS_ATTENTION_ATTENTION_LAYOUT_H_
#define RECURVE_KERNELS_ATTENTION_ATTENTION_LAYOUT_H_

#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// Sizes of one softmax attention layer.
struct AttentionShape {
  int64_t num_heads;     // H, of queries; a multiple of G
  int64_t num_kv_heads;  // G: H is multi-head, 1 multi-query attention
  int64_t head_dim;      // D, of queries and keys
  int64_t value_dim;     // E, of values
};

// Query heads that read the same keys and values: head h reads kv head
// h / AttentionGroup.
RECURVE_HOST_DEVICE constexpr int64_t AttentionGroup(
    const AttentionShape& shape) {
  return shape.num_heads / shape.num_kv_heads;
}

// Tokens in one page of the cache.
inline constexpr int64_t kAttentionPageTokens = 64;

// Order of the elements of a plane (keys or values of one kv head and a page's
// 64 tokens).
//
//   kPlain   token after token, rows not padded: float32 caches.
//   kOctets  for tensor cores: 16-bit elements, D and E padded to a multiple of
//            16 with zeros. Eight neighbouring elements of a token are 16
//            bytes; those of all 64 tokens follow each other, then the next
//            eight elements: [width / 8, 64, 8]. So any 8 tokens by 8 elements
//            are 128 consecutive bytes, which shared memory reads at once and
//            tensor cores take as they are, along tokens or along elements.
enum class AttentionPageOrder { kPlain, kOctets };

// Layout of a page of one layer: for each kv head the plane of its keys, then
// that of its values,
//
//   G times { K [64, D]  V [64, E] }
//
// so that all that one head reads of a page is one run of memory. Offsets and
// sizes are in elements. This is the one definition of the layout, for all
// readers and writers of the cache.
struct AttentionPageLayout {
  AttentionPageOrder order;
  int64_t k_width;  // elements in a row of K, padding included
  int64_t v_width;  // of V
  int64_t k_plane;  // elements in the keys of one kv head
  int64_t block;    // and in its keys and values
  int64_t page_elements;

  RECURVE_HOST_DEVICE constexpr explicit AttentionPageLayout(
      const AttentionShape& shape,
      AttentionPageOrder page_order = AttentionPageOrder::kPlain)
      : order(page_order),
        k_width(Padded(shape.head_dim)),
        v_width(Padded(shape.value_dim)),
        k_plane(kAttentionPageTokens * k_width),
        block(k_plane + kAttentionPageTokens * v_width),
        page_elements(shape.num_kv_heads * block) {}

  // Offset of element `i` of token `m` (of its page) and kv head `g`.
  RECURVE_HOST_DEVICE constexpr int64_t K(int64_t m, int64_t g,
                                          int64_t i) const {
    return g * block + Row(m, k_width, i);
  }
  RECURVE_HOST_DEVICE constexpr int64_t V(int64_t m, int64_t g,
                                          int64_t i) const {
    return g * block + k_plane + Row(m, v_width, i);
  }

 private:
  RECURVE_HOST_DEVICE constexpr int64_t Padded(int64_t size) const {
    return order == AttentionPageOrder::kPlain ? size : (size + 15) / 16 * 16;
  }
  RECURVE_HOST_DEVICE constexpr int64_t Row(int64_t m, int64_t width,
                                            int64_t i) const {
    if (order == AttentionPageOrder::kPlain) return m * width + i;
    return (i / 8 * kAttentionPageTokens + m) * 8 + i % 8;
  }
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_ATTENTION_ATTENTION_LAYOUT_H_
