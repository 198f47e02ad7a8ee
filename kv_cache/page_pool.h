#ifndef RECURVE_KV_CACHE_PAGE_POOL_H_
#define RECURVE_KV_CACHE_PAGE_POOL_H_

#include <cstdint>

#include "kv_cache/id_pool.h"

namespace recurve {

// Pages of the TPA factor cache, kPageTokens tokens each. A page needs no tag
// other than its owner: repeating a write to it is harmless.
//
// Thread safety: none; the engine's step thread owns it.
class PagePool : public IdPool {
 public:
  explicit PagePool(int32_t num_pages) : IdPool("page", num_pages) {}
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_PAGE_POOL_H_
