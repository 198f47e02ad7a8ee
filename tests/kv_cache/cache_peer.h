#ifndef RECURVE_TESTS_KV_CACHE_CACHE_PEER_H_
#define RECURVE_TESTS_KV_CACHE_CACHE_PEER_H_

#include <vector>

#include "kv_cache/cache_manager.h"

namespace recurve {

// Breaks the bookkeeping, so that tests can show that the checks detect it.
class CachePeer {
 public:
  static std::vector<int32_t>& FreeList(IdPool& pool) { return pool.free_; }
  static uint64_t& Owner(IdPool& pool, int32_t id) {
    return pool.tags_[id].owner;
  }
  static uint32_t& Generation(IdPool& pool, int32_t id) {
    return pool.tags_[id].generation;
  }
  static int32_t& Holders(PagePool& pool, int32_t page) {
    return pool.tags_[page].holders;
  }
  static uint64_t& Writer(PagePool& pool, int32_t page) {
    return pool.tags_[page].writer;
  }
  static uint32_t& Generation(PagePool& pool, int32_t page) {
    return pool.tags_[page].generation;
  }
  static OwnedId& Block(PagePool& pool, int32_t page) {
    return pool.tags_[page].block;
  }
  static int32_t& Previous(PagePool& pool, int32_t page) {
    return pool.tags_[page].previous;
  }
  static int32_t& Next(PagePool& pool, int32_t page) {
    return pool.tags_[page].next;
  }
  static int32_t& PageOfBlock(PagePool& pool, int32_t block) {
    return pool.page_of_block_[block];
  }
  static int32_t& UnboundFirst(PagePool& pool) { return pool.unbound_.first; }
  static int32_t& UnboundSize(PagePool& pool) { return pool.unbound_.size; }
  static IdPool& Ids(SlotPool& pool) { return pool.ids_; }
  static int64_t& TokensApplied(SlotPool& pool, int32_t slot) {
    return pool.progress_[slot].tokens_applied;
  }
  static PagePool& Pages(CacheManager& manager) { return manager.pages_; }
  static SlotPool& Slots(CacheManager& manager) { return manager.slots_; }
  static BlockPool& Blocks(CacheManager& manager) {
    return manager.host_blocks_;
  }
  static std::vector<int32_t>& PagesOfSlot(CacheManager& manager,
                                           int32_t slot) {
    return manager.pages_of_slot_[slot];
  }
  static std::vector<int32_t>& LeasePages(SequenceLease& lease) {
    return lease.pages_;
  }
  static OwnedId& LeaseSlot(SequenceLease& lease) { return lease.slot_; }
};

}  // namespace recurve

#endif  // RECURVE_TESTS_KV_CACHE_CACHE_PEER_H_
