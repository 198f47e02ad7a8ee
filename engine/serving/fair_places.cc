#include "engine/serving/fair_places.h"

#include <algorithm>

#include "base/check.h"

namespace recurve {

int64_t FairPlaces::KeptFor(double part) const {
  constexpr double kRounding = 1e-9;  // error of a sum of parts
  const int64_t half = limit_ / 2;
  return static_cast<int64_t>(static_cast<double>(half) * part + kRounding);
}

int64_t FairPlaces::Left(const Flow& flow) const {
  int64_t unused = 0;             // reserved for others
  double absent = 1 - flow.part;  // sum of the parts of flows without places
  for (const auto& [id, use] : uses_) {
    if (id == flow.id) continue;
    absent -= use.part;
    unused += std::max<int64_t>(0, KeptFor(use.part) - use.count);
  }
  unused += KeptFor(std::max(0.0, absent));
  return std::max(KeptFor(flow.part) - used_by(flow.id),
                  limit_ - used_ - unused);
}

void FairPlaces::Take(const Flow& flow, int64_t count) {
  Use& use = uses_[flow.id];
  use.part = flow.part;
  use.count += count;
  used_ += count;
}

void FairPlaces::Give(const Flow& flow, int64_t count) {
  const auto found = uses_.find(flow.id);
  RECURVE_CHECK(found != uses_.end() && found->second.count >= count);
  found->second.count -= count;
  used_ -= count;
  if (found->second.count == 0) uses_.erase(found);
}

int64_t FairPlaces::used_by(uint32_t flow) const {
  const auto found = uses_.find(flow);
  return found == uses_.end() ? 0 : found->second.count;
}

}  // namespace recurve
