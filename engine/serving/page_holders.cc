#include "engine/serving/page_holders.h"

#include <algorithm>
#include <utility>

namespace recurve {

void PageHolders::Count() {
  counted_ = true;
  int32_t last = 0;
  for (const SequenceView& s : resident_) {
    for (const int32_t page : s.page_ids) last = std::max(last, page);
  }
  holders_.resize(static_cast<size_t>(last) + 1);
  for (const SequenceView& s : resident_) {
    for (const int32_t page : s.page_ids) ++holders_[page];
  }
  for (const SequenceView& s : resident_) {
    std::vector<int32_t> shared;
    for (const int32_t page : s.page_ids) {
      if (holders_[page] > 1) shared.push_back(page);
    }
    if (!shared.empty()) shared_.emplace(s.id, std::move(shared));
  }
}

const std::vector<int32_t>& PageHolders::SharedOf(const SequenceView& s) const {
  static const auto& none = *new std::vector<int32_t>();
  const auto found = shared_.find(s.id);
  return found != shared_.end() ? found->second : none;
}

int64_t PageHolders::Drop(const SequenceView& s) {
  if (!counted_) Count();
  const std::vector<int32_t>& shared = SharedOf(s);
  int64_t freed = s.pages - static_cast<int64_t>(shared.size());
  for (const int32_t page : shared) freed += --holders_[page] == 0;
  return freed;
}

void PageHolders::Undrop(const SequenceView& s) {
  for (const int32_t page : SharedOf(s)) ++holders_[page];
}

}  // namespace recurve
