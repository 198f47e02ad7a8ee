#ifndef RECURVE_KV_CACHE_ID_POOL_H_
#define RECURVE_KV_CACHE_ID_POOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace recurve {

// Names one tenure of one id: `generation` tells this owner's tenure from every
// earlier and later one, also of the same owner.
struct OwnedId {
  int32_t id = 0;
  uint32_t generation = 0;
};

// Tracks the owner of each of the ids 1..total; common to slots and blocks of
// host memory. Id 0 is the sink and has no owner.
//
// Invariants: an id is either on the free list with owner 0, or off it with one
// owner other than 0. Its generation rises at each change of owner, to and from
// free (it wraps after 2^32 changes; the owner is compared as well).
//
// The free list is last in, first out: a server touches no more memory than its
// busiest moment needed, and a stale table soon meets a new owner, so that
// tests detect it.
//
// Misuse of ids is an Internal status and changes nothing.
//
// Thread safety: none; the engine's step thread owns it.
class IdPool {
 public:
  // `kind` ("slot", "host block") appears in messages. REQUIRES: total >= 0.
  IdPool(absl::string_view kind, int32_t total);
  IdPool(const IdPool&) = delete;
  IdPool& operator=(const IdPool&) = delete;

  int32_t total() const { return static_cast<int32_t>(tags_.size()) - 1; }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t used() const { return total() - free(); }

  // 0 when the id is free, or is the sink. REQUIRES: 0 <= id <= total().
  uint64_t owner(int32_t id) const { return tags_[id].owner; }

  // The ids that the next `count` calls of Take return, the last of them first;
  // they can be written to while still free. Valid until the pool changes.
  // REQUIRES: 0 <= count <= free().
  absl::Span<const int32_t> NextFree(int32_t count) const;

  // Hands the next free id to `owner`. REQUIRES: free() > 0, owner != 0.
  OwnedId Take(uint64_t owner);

  // Makes the id free again. Internal when it is not `owner`'s.
  absl::Status Give(OwnedId id, uint64_t owner);

  // Internal unless this tenure of the id is current and `owner`'s.
  absl::Status CheckOwned(OwnedId id, uint64_t owner) const;

  // Internal unless the free list and the owners agree.
  absl::Status CheckInvariants() const;

  // Internal, naming one holder, unless every id is free.
  absl::Status CheckIdle() const;

 private:
  friend class CachePeer;  // tests break invariants on purpose

  struct Tag {
    uint64_t owner = 0;
    uint32_t generation = 0;
  };

  const std::string kind_;
  std::vector<Tag> tags_;      // [total + 1], by id
  std::vector<int32_t> free_;  // the next id to hand out is the last
};

}  // namespace recurve

#endif  // RECURVE_KV_CACHE_ID_POOL_H_
