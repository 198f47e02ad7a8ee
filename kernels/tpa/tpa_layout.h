#ifndef RECURVE_KERNELS_TPA_TPA_LAYOUT_H_
#define RECURVE_KERNELS_TPA_TPA_LAYOUT_H_

#include <cstdint>

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

// Where the factors of a token lie within a page of one layer. A page holds
// four planes, each with one row a token:
//
//   a_k [64, R, H]   b_k [64, R, D]   a_v [64, R, H]   b_v [64, R, E]
//
// Offsets and sizes are in elements. This is the one definition of the layout:
// whatever reads or writes the cache asks it.
struct TpaPageLayout {
  int64_t a_k_row;  // elements in a row of the plane
  int64_t b_k_row;
  int64_t a_v_row;
  int64_t b_v_row;
  int64_t a_k_plane;  // offset of the plane
  int64_t b_k_plane;
  int64_t a_v_plane;
  int64_t b_v_plane;
  int64_t page_elements;

  explicit TpaPageLayout(const TpaShape& shape)
      : a_k_row(shape.kv_rank * shape.num_heads),
        b_k_row(shape.kv_rank * shape.head_dim),
        a_v_row(shape.kv_rank * shape.num_heads),
        b_v_row(shape.kv_rank * shape.value_dim),
        a_k_plane(0),
        b_k_plane(a_k_plane + kTpaPageTokens * a_k_row),
        a_v_plane(b_k_plane + kTpaPageTokens * b_k_row),
        b_v_plane(a_v_plane + kTpaPageTokens * a_v_row),
        page_elements(b_v_plane + kTpaPageTokens * b_v_row) {}
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_TPA_TPA_LAYOUT_H_
