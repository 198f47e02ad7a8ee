#include "engine/serving/snapshot_policy.h"

#include <algorithm>

#include "base/check.h"

namespace recurve {

std::vector<int64_t> PlanSnapshots(const SnapshotRequest& request) {
  RECURVE_CHECK(request.chunk_multiple >= 1);
  RECURVE_CHECK(request.named.size() <= kMaxNamedSnapshots);
  std::vector<int64_t> places;
  const auto add = [&](int64_t position) {
    // Named places may be beyond the prompt. With recurrent state one token at
    // least remains; without, the snapshot gives any number of its tokens.
    const int64_t most =
        std::min(position, request.tokens - (request.has_state ? 1 : 0));
    const int64_t place = most - most % request.chunk_multiple;
    if (place > request.cached && place >= request.min_tokens) {
      places.push_back(place);
    }
  };
  add(request.tokens);
  if (request.has_state) {
    if (request.parted_at.has_value()) add(*request.parted_at);
    for (const int64_t position : request.named) add(position);
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

}  // namespace recurve
