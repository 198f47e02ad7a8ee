#ifndef RECURVE_KV_CACHE_PAGE_POOL_H_
#define RECURVE_KV_CACHE_PAGE_POOL_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kv_cache/id_pool.h"

namespace recurve {

// Pages 1..total of the KV cache, kPageTokens tokens each: who holds
// them, and which of them have the bytes of a block of host memory. Page 0 is
// the sink and never handed out.
//
// A page is handed out to one writer. When its bytes are those of a block, it
// is bound to the block: from then on nothing writes to it, and any number of
// sequences may hold it. It stays bound, also while it is free, until it is
// handed out to be overwritten or the block is given up.
//
// Invariants: a page is on a free list if and only if it has no holders. A page
// with a writer has one holder and is not bound; one without is never written
// to. Page and block are bound to each other only, and have the same bytes. The
// generation of a page tells its tenures apart, as in IdPool: it rises with the
// first holder and with the loss of the last.
//
// Free pages that are not bound are handed out first, the last freed first, for
// the reasons of IdPool; then the bound ones, the first freed first, so that
// their bytes can be shared for as long as possible. All operations but the
// checks take constant time for each page.
//
// Misuse of pages is an Internal status and changes nothing.
//
// Thread safety: none; the engine's step thread owns it.
class PagePool {
 public:
  // Blocks are 1..num_blocks. REQUIRES: neither is negative.
  explicit PagePool(int32_t num_pages, int32_t num_blocks = 0);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int32_t total() const { return static_cast<int32_t>(tags_.size()) - 1; }
  // Bound pages included.
  int32_t free() const { return unbound_.size + bound_.size; }
  int32_t used() const { return total() - free(); }

  // 0 when the page is free. REQUIRES of all `page`: 0 <= page <= total().
  int32_t holders(int32_t page) const { return tags_[page].holders; }
  // 0 when none may write to it.
  uint64_t writer(int32_t page) const { return tags_[page].writer; }

  // The free pages to hand out next, in order. They are not bound any more, so
  // that they can be written to while still free. REQUIRES: 0 <= count <=
  // free().
  std::vector<int32_t> NextFree(int32_t count);

  // Hands a page to `writer`, its only holder. REQUIRES: the page is free and
  // not bound; writer != 0.
  OwnedId Take(int32_t page, uint64_t writer);

  // One more holder of a bound page, or the first of one that is free.
  // REQUIRES: the page is bound.
  OwnedId Share(int32_t page);

  // One holder less, `owner`. Internal as CheckHeld.
  absl::Status Give(OwnedId page, uint64_t owner);

  // The page has the bytes of the block and no writer from now on. REQUIRES:
  // the page has holders; neither is bound.
  void Bind(int32_t page, OwnedId block);
  // Ends that. Returns the page; 0 if the block was not bound. REQUIRES: 1 <=
  // block <= num_blocks.
  int32_t Unbind(int32_t block);

  // The page that is bound to this tenure of the block; 0: none.
  int32_t PageOf(OwnedId block) const;
  // The block that the page is bound to; id 0: none.
  OwnedId BlockOf(int32_t page) const { return tags_[page].block; }

  // Internal unless this tenure of the page is current and another sequence
  // than `owner` is not its writer. The holders of a page without a writer are
  // only counted.
  absl::Status CheckHeld(OwnedId page, uint64_t owner) const;
  // Internal unless `owner` holds the page alone and may write to it.
  absl::Status CheckWritable(OwnedId page, uint64_t owner) const;

  // Internal unless the invariants hold.
  absl::Status CheckInvariants() const;
  // Internal, naming one page, unless every page is free.
  absl::Status CheckIdle() const;

 private:
  friend class CachePeer;  // tests break invariants on purpose

  struct Tag {
    uint64_t writer = 0;
    int32_t holders = 0;
    uint32_t generation = 0;
    OwnedId block;  // bound to; id 0: none
    // Neighbours in a free list; 0: none.
    int32_t previous = 0;
    int32_t next = 0;
  };
  // A list of free pages, linked through the tags.
  struct FreeList {
    int32_t first = 0;
    int32_t last = 0;
    int32_t size = 0;
  };

  FreeList& ListOf(int32_t page) {
    return tags_[page].block.id != 0 ? bound_ : unbound_;
  }
  void Append(FreeList& list, int32_t page);
  void Remove(FreeList& list, int32_t page);
  absl::Status CheckList(const FreeList& list, bool bound,
                         std::vector<bool>* is_free) const;
  absl::Status CheckTag(int32_t page, bool is_free) const;

  std::vector<Tag> tags_;               // [total + 1], by page
  std::vector<int32_t> page_of_block_;  // [num_blocks + 1]; 0: none
  FreeList unbound_;                    // the next page to hand out is the last
  FreeList bound_;                      // and here the first
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_PAGE_POOL_H_
