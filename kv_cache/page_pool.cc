#include "kv_cache/page_pool.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace recurve {

PagePool::PagePool(int32_t num_pages, int32_t num_blocks) {
  RECURVE_CHECK(num_pages >= 0 && num_blocks >= 0);
  tags_.resize(static_cast<size_t>(num_pages) + 1);
  page_of_block_.resize(static_cast<size_t>(num_blocks) + 1);
  for (int32_t page = num_pages; page >= 1; --page) Append(unbound_, page);
}

void PagePool::Append(FreeList& list, int32_t page) {
  tags_[page].previous = list.last;
  tags_[page].next = 0;
  (list.last == 0 ? list.first : tags_[list.last].next) = page;
  list.last = page;
  ++list.size;
}

void PagePool::Remove(FreeList& list, int32_t page) {
  Tag& tag = tags_[page];
  (tag.previous == 0 ? list.first : tags_[tag.previous].next) = tag.next;
  (tag.next == 0 ? list.last : tags_[tag.next].previous) = tag.previous;
  tag.previous = tag.next = 0;
  --list.size;
}

std::vector<int32_t> PagePool::NextFree(int32_t count) {
  RECURVE_CHECK(count >= 0 && count <= free());
  std::vector<int32_t> pages;
  pages.reserve(count);
  const auto wanted = static_cast<size_t>(count);
  for (int32_t page = unbound_.last; page != 0 && pages.size() < wanted;
       page = tags_[page].previous) {
    pages.push_back(page);
  }
  while (pages.size() < wanted) {
    pages.push_back(bound_.first);
    Unbind(tags_[bound_.first].block.id);
  }
  return pages;
}

OwnedId PagePool::Take(int32_t page, uint64_t writer) {
  RECURVE_CHECK(page >= 1 && page <= total() && writer != 0);
  Tag& tag = tags_[page];
  RECURVE_CHECK(tag.holders == 0 && tag.block.id == 0);
  Remove(unbound_, page);
  tag.writer = writer;
  tag.holders = 1;
  return {page, ++tag.generation};
}

OwnedId PagePool::Share(int32_t page) {
  RECURVE_CHECK(page >= 1 && page <= total());
  Tag& tag = tags_[page];
  RECURVE_CHECK(tag.block.id != 0 && tag.writer == 0);
  if (tag.holders++ == 0) {
    Remove(bound_, page);
    ++tag.generation;
  }
  return {page, tag.generation};
}

absl::Status PagePool::Give(OwnedId page, uint64_t owner) {
  RECURVE_RETURN_IF_ERROR(CheckHeld(page, owner));
  Tag& tag = tags_[page.id];
  if (--tag.holders > 0) return absl::OkStatus();
  tag.writer = 0;
  ++tag.generation;
  Append(ListOf(page.id), page.id);
  return absl::OkStatus();
}

void PagePool::Bind(int32_t page, OwnedId block) {
  RECURVE_CHECK(page >= 1 && page <= total());
  Tag& tag = tags_[page];
  RECURVE_CHECK(tag.holders > 0 && tag.block.id == 0);
  RECURVE_CHECK(block.id != 0 && page_of_block_[block.id] == 0);
  tag.writer = 0;
  tag.block = block;
  page_of_block_[block.id] = page;
}

int32_t PagePool::Unbind(int32_t block) {
  const int32_t page = page_of_block_[block];
  if (page == 0) return 0;
  page_of_block_[block] = 0;
  const bool is_free = tags_[page].holders == 0;
  if (is_free) Remove(bound_, page);
  tags_[page].block = OwnedId();
  if (is_free) Append(unbound_, page);
  return page;
}

int32_t PagePool::PageOf(OwnedId block) const {
  const int32_t page = page_of_block_[block.id];
  return tags_[page].block.generation == block.generation ? page : 0;
}

absl::Status PagePool::CheckHeld(OwnedId page, uint64_t owner) const {
  if (owner == 0) {
    return absl::InternalError(
        absl::StrCat("page ", page.id, ": sequence id 0 holds nothing"));
  }
  if (page.id == 0) {
    return absl::InternalError(
        absl::StrCat("page 0 is the sink of padding rows; sequence ", owner,
                     " cannot hold it"));
  }
  if (page.id < 0 || page.id > total()) {
    return absl::InternalError(absl::StrCat(
        "page ", page.id, " does not exist; the last one is ", total()));
  }
  const Tag& tag = tags_[page.id];
  if (tag.holders == 0 || tag.generation != page.generation ||
      (tag.writer != 0 && tag.writer != owner)) {
    return absl::InternalError(absl::StrCat(
        "page ", page.id, " is at writer ", tag.writer, " generation ",
        tag.generation, " with ", tag.holders, " holders; sequence ", owner,
        " expected to hold generation ", page.generation));
  }
  return absl::OkStatus();
}

absl::Status PagePool::CheckWritable(OwnedId page, uint64_t owner) const {
  RECURVE_RETURN_IF_ERROR(CheckHeld(page, owner));
  const Tag& tag = tags_[page.id];
  if (tag.writer == owner && tag.holders == 1) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("page ", page.id, " has ", tag.holders, " holders and ",
                   tag.writer == 0 ? "no writer" : "a writer", "; sequence ",
                   owner, " must not write to it"));
}

absl::Status PagePool::CheckList(const FreeList& list, bool bound,
                                 std::vector<bool>* is_free) const {
  int32_t count = 0;
  int32_t previous = 0;
  for (int32_t page = list.first; page != 0; page = tags_[page].next) {
    if (page < 0 || page > total()) {
      return absl::InternalError(absl::StrCat(
          "page ", page, " is on a free list; pages are 1 to ", total()));
    }
    if ((*is_free)[page]) {
      return absl::InternalError(
          absl::StrCat("page ", page, " is on the free lists twice"));
    }
    (*is_free)[page] = true;
    if (tags_[page].previous != previous ||
        (tags_[page].block.id != 0) != bound) {
      return absl::InternalError(
          absl::StrCat("page ", page, " is at the wrong place of a free list"));
    }
    previous = page;
    ++count;
  }
  if (previous == list.last && count == list.size) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a free list of ", list.size,
                                          " pages that ends with page ",
                                          list.last, " has ", count));
}

absl::Status PagePool::CheckTag(int32_t page, bool is_free) const {
  const Tag& tag = tags_[page];
  if (tag.holders < 0 || (tag.holders == 0) != is_free) {
    return absl::InternalError(
        absl::StrCat("page ", page, " has ", tag.holders, " holders and is ",
                     is_free ? "on" : "not on", " a free list"));
  }
  if (tag.writer != 0 && (tag.holders != 1 || tag.block.id != 0)) {
    return absl::InternalError(absl::StrCat(
        "page ", page, " has writer ", tag.writer, ", but ", tag.holders,
        " holders and the bytes of block ", tag.block.id));
  }
  const auto blocks = static_cast<int32_t>(page_of_block_.size()) - 1;
  if (tag.block.id != 0 && (tag.block.id < 0 || tag.block.id > blocks ||
                            page_of_block_[tag.block.id] != page)) {
    return absl::InternalError(absl::StrCat("page ", page,
                                            " is bound to block ", tag.block.id,
                                            ", which is not bound to it"));
  }
  return absl::OkStatus();
}

absl::Status PagePool::CheckInvariants() const {
  std::vector<bool> is_free(tags_.size(), false);
  RECURVE_RETURN_IF_ERROR(CheckList(unbound_, false, &is_free));
  RECURVE_RETURN_IF_ERROR(CheckList(bound_, true, &is_free));
  const Tag& sink = tags_[0];
  if (sink.holders != 0 || sink.writer != 0 || sink.generation != 0 ||
      sink.block.id != 0) {
    return absl::InternalError("page 0, the sink, was handed out");
  }
  for (int32_t page = 1; page <= total(); ++page) {
    RECURVE_RETURN_IF_ERROR(CheckTag(page, is_free[page]));
  }
  for (size_t block = 0; block < page_of_block_.size(); ++block) {
    const int32_t page = page_of_block_[block];
    if (page == 0) continue;
    if (page >= 1 && page <= total() && tags_[page].block.id != 0 &&
        static_cast<size_t>(tags_[page].block.id) == block) {
      continue;
    }
    return absl::InternalError(absl::StrCat("block ", block,
                                            " is bound to page ", page,
                                            ", which is not bound to it"));
  }
  return absl::OkStatus();
}

absl::Status PagePool::CheckIdle() const {
  for (int32_t page = 1; page <= total(); ++page) {
    if (tags_[page].holders != 0) {
      return absl::InternalError(
          absl::StrCat(used(), " of ", total(), " pages in use, page ", page,
                       " by ", tags_[page].holders, " sequences"));
    }
  }
  return absl::OkStatus();
}

}  // namespace recurve
