#include "kv_cache/id_pool.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace recurve {

IdPool::IdPool(absl::string_view kind, int32_t total)
    : kind_(kind.data(), kind.size()) {
  RECURVE_CHECK(total >= 0);
  tags_.resize(static_cast<size_t>(total) + 1);
  free_.reserve(total);
  for (int32_t id = total; id >= 1; --id) free_.push_back(id);
}

absl::Span<const int32_t> IdPool::NextFree(int32_t count) const {
  RECURVE_CHECK(count >= 0 && count <= free());
  return absl::MakeConstSpan(free_).last(count);
}

OwnedId IdPool::Take(uint64_t owner) {
  RECURVE_CHECK(owner != 0);
  RECURVE_CHECK(!free_.empty());
  const int32_t id = free_.back();
  RECURVE_CHECK(tags_[id].owner == 0);
  free_.pop_back();
  tags_[id].owner = owner;
  ++tags_[id].generation;
  return {id, tags_[id].generation};
}

absl::Status IdPool::Give(OwnedId id, uint64_t owner) {
  RECURVE_RETURN_IF_ERROR(CheckOwned(id, owner));
  tags_[id.id].owner = 0;
  ++tags_[id.id].generation;
  free_.push_back(id.id);
  return absl::OkStatus();
}

absl::Status IdPool::CheckOwned(OwnedId id, uint64_t owner) const {
  if (owner == 0) {
    return absl::InternalError(
        absl::StrCat(kind_, " ", id.id, ": sequence id 0 owns nothing"));
  }
  if (id.id == 0) {
    return absl::InternalError(
        absl::StrCat(kind_, " 0 is the sink of padding rows; sequence ", owner,
                     " cannot own it"));
  }
  if (id.id < 0 || id.id > total()) {
    return absl::InternalError(absl::StrCat(
        kind_, " ", id.id, " does not exist; the last one is ", total()));
  }
  const Tag& tag = tags_[id.id];
  if (tag.owner != owner || tag.generation != id.generation) {
    return absl::InternalError(
        absl::StrCat(kind_, " ", id.id, " is at owner ", tag.owner,
                     " generation ", tag.generation, "; sequence ", owner,
                     " expected owner ", owner, " generation ", id.generation));
  }
  return absl::OkStatus();
}

absl::Status IdPool::CheckInvariants() const {
  std::vector<bool> is_free(tags_.size(), false);
  for (int32_t id : free_) {
    if (id < 1 || id > total()) {
      return absl::InternalError(absl::StrCat(
          kind_, " ", id, " is on the free list; ids are 1 to ", total()));
    }
    if (is_free[id]) {
      return absl::InternalError(
          absl::StrCat(kind_, " ", id, " is on the free list twice"));
    }
    is_free[id] = true;
  }
  if (tags_[0].owner != 0 || tags_[0].generation != 0) {
    return absl::InternalError(
        absl::StrCat(kind_, " 0, the sink, was handed out"));
  }
  for (int32_t id = 1; id <= total(); ++id) {
    if (is_free[id] != (tags_[id].owner == 0)) {
      return absl::InternalError(absl::StrCat(
          kind_, " ", id, " has owner ", tags_[id].owner, " and is ",
          is_free[id] ? "on" : "not on", " the free list"));
    }
  }
  return absl::OkStatus();
}

absl::Status IdPool::CheckIdle() const {
  for (int32_t id = 1; id <= total(); ++id) {
    if (tags_[id].owner != 0) {
      return absl::InternalError(
          absl::StrCat(used(), " of ", total(), " ", kind_, "s in use, ", kind_,
                       " ", id, " by sequence ", tags_[id].owner));
    }
  }
  return absl::OkStatus();
}

}  // namespace recurve
