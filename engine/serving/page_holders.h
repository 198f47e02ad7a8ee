#ifndef RECURVE_ENGINE_SERVING_PAGE_HOLDERS_H_
#define RECURVE_ENGINE_SERVING_PAGE_HOLDERS_H_

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "engine/serving/scheduler.h"

namespace recurve {

// The pages that become free when sequences lose their memory: those that no
// other resident sequence holds. Exact, because a plan that counts too many
// could not be applied, and one that counts too few might be empty.
class PageHolders {
 public:
  // `resident` outlives the object, as do its page_ids. No work is done before
  // the first Drop.
  explicit PageHolders(absl::Span<const SequenceView> resident)
      : resident_(resident) {}

  // `s`, one of the residents, loses its memory. Returns the number of pages
  // that become free, of the s.pages that it has now.
  int64_t Drop(const SequenceView& s);

  // Undoes a Drop.
  void Undrop(const SequenceView& s);

 private:
  void Count();
  // The pages of `s` that others held at first.
  const std::vector<int32_t>& SharedOf(const SequenceView& s) const;

  const absl::Span<const SequenceView> resident_;
  bool counted_ = false;
  std::vector<int32_t> holders_;  // by page, residents that have memory
  // By sequence; those without shared pages have none.
  std::unordered_map<uint64_t, std::vector<int32_t>> shared_;
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_PAGE_HOLDERS_H_
