#ifndef RECURVE_KERNELS_TPA_TPA_LAYOUT_H_
#define RECURVE_KERNELS_TPA_TPA_LAYOUT_H_

#include <cstdint>

#include "kernels/common/host_device.h"

namespace recurve {

// Sizes of one tensor product attention layer.
struct TpaShape {
  int64_t num_heads;  // H
  int64_t head_dim;   // D, of queries and keys
  int64_t value_dim;  // E, of values
  int64_t q_rank;     // Rq; 0: queries are whole, one of D features a head
  int64_t kv_rank;    // R, of keys and values
};

// Tokens in one page of the factor cache.
inline constexpr int64_t kTpaPageTokens = 64;

// Order of the elements of a plane (one factor of a page's 64 tokens).
//
//   kPlain     token after token, rows not padded: the CPU's float32 cache.
//   kOctets    for tensor cores: 16-bit elements, H padded to a multiple of 8,
//              D and E to one of 16, with zeros. Eight neighbouring elements of
//              a token are 16 bytes; those of all 64 tokens follow each other,
//              then the next eight elements: [width / 8, 64, 8]. So any 8
//              tokens by 8 elements are 128 consecutive bytes, which shared
//              memory reads at once and tensor cores take as they are, along
//              tokens or along elements; and some heads of a plane are one run.
enum class TpaPageOrder { kPlain, kOctets };

// Layout of a token's factors within a page of one layer. Each rank has its own
// planes, A before B, keys before values:
//
//   R times { A_k [64, H]  B_k [64, D] }   R times { A_v [64, H]  B_v [64, E] }
//
// so that the keys (or values) of one rank are one run of memory. Offsets and
// sizes are in elements. This is the one definition of the layout, for all
// readers and writers of the cache.
struct TpaPageLayout {
  TpaPageOrder order;
  int64_t a_width;    // elements in a row of A_k or A_v, padding included
  int64_t b_k_width;  // of B_k
  int64_t b_v_width;  // of B_v
  int64_t k_block;    // elements in the two key planes of one rank
  int64_t v_block;    // and in the two value planes
  int64_t values;     // offset of the value planes of rank 0
  int64_t page_elements;

  RECURVE_HOST_DEVICE constexpr explicit TpaPageLayout(
      const TpaShape& shape, TpaPageOrder page_order = TpaPageOrder::kPlain)
      : order(page_order),
        a_width(Padded(shape.num_heads, 8)),
        b_k_width(Padded(shape.head_dim, 16)),
        b_v_width(Padded(shape.value_dim, 16)),
        k_block(kTpaPageTokens * (a_width + b_k_width)),
        v_block(kTpaPageTokens * (a_width + b_v_width)),
        values(shape.kv_rank * k_block),
        page_elements(values + shape.kv_rank * v_block) {}

  // Offset of element `i` of token `m` (of its page) and rank `r`.
  RECURVE_HOST_DEVICE constexpr int64_t AK(int64_t m, int64_t r,
                                           int64_t i) const {
    return r * k_block + Row(m, a_width, i);
  }
  RECURVE_HOST_DEVICE constexpr int64_t BK(int64_t m, int64_t r,
                                           int64_t i) const {
    return r * k_block + kTpaPageTokens * a_width + Row(m, b_k_width, i);
  }
  RECURVE_HOST_DEVICE constexpr int64_t AV(int64_t m, int64_t r,
                                           int64_t i) const {
    return values + r * v_block + Row(m, a_width, i);
  }
  RECURVE_HOST_DEVICE constexpr int64_t BV(int64_t m, int64_t r,
                                           int64_t i) const {
    return values + r * v_block + kTpaPageTokens * a_width +
           Row(m, b_v_width, i);
  }

 private:
  RECURVE_HOST_DEVICE constexpr int64_t Padded(int64_t size,
                                               int64_t multiple) const {
    return order == TpaPageOrder::kPlain
               ? size
               : (size + multiple - 1) / multiple * multiple;
  }
  RECURVE_HOST_DEVICE constexpr int64_t Row(int64_t m, int64_t width,
                                            int64_t i) const {
    if (order == TpaPageOrder::kPlain) return m * width + i;
    return (i / 8 * kTpaPageTokens + m) * 8 + i % 8;
  }
};

// Queries as decode reads them: whole, with position, times all factors of a
// score, and split into terms of the cache's 16-bit type that add up to them,
// the largest first. Each group of 8 heads of a token has
//
//   [terms, D / 8, 8 heads, 8 features]
//
// with D padded to a multiple of 16 and H to one of 8, by zeros: the tensor
// cores' layout. Groups of a token follow each other, then tokens.
inline constexpr int kTpaQueryTerms = 2;

// Elements of one group.
RECURVE_HOST_DEVICE constexpr int64_t TpaQueryOctetElements(
    const TpaShape& shape) {
  return kTpaQueryTerms * 8 * ((shape.head_dim + 15) / 16 * 16);
}
// Bytes of `tokens` tokens' queries.
RECURVE_HOST_DEVICE constexpr int64_t TpaQueryBytes(const TpaShape& shape,
                                                    int64_t tokens) {
  return 2 * tokens * ((shape.num_heads + 7) / 8) *
         TpaQueryOctetElements(shape);
}

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_LAYOUT_H_
