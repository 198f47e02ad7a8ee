#ifndef RECURVE_KERNELS_COMMON_PAGED_CACHE_H_
#define RECURVE_KERNELS_COMMON_PAGED_CACHE_H_

#include <cstdint>

namespace recurve {

// The paged cache of one layer, and the rows (tokens) of this step: what
// operations of the CPU over such a cache have in common.
struct PagedCacheView {
  float* pages;               // page p begins at pages + p · page_stride
  int64_t page_stride;        // elements; at least a page's of the layer
  const int32_t* page_table;  // [sequences, page_table_stride]
  int64_t page_table_stride;
  const int32_t* row_sequence;  // [rows] which sequence a row belongs to
  const int64_t* positions;     // [rows] position of the row's token in it
  int64_t rows;

  // The pages of the row's sequence, in order.
  const int32_t* PagesOf(int64_t row) const {
    return page_table + row_sequence[row] * page_table_stride;
  }
};

}  // namespace recurve

#endif  // RECURVE_KERNELS_COMMON_PAGED_CACHE_H_
