#ifndef RECURVE_ENGINE_SERVING_FAIR_PLACES_H_
#define RECURVE_ENGINE_SERVING_FAIR_PLACES_H_

#include <cstdint>
#include <map>

#include "engine/serving/request.h"

namespace recurve {

// Shares a limited number of places between flows. Half of them are reserved:
// each flow's part of this half, rounded down, is not lent to others. The other
// half is first come, first served. So no flow shuts out another.
//
// Not thread-safe.
class FairPlaces {
 public:
  explicit FairPlaces(int64_t limit) : limit_(limit) {}

  // How many more places the flow may take; 0 or less: none.
  int64_t Left(const Flow& flow) const;
  // Takes the places even if fewer are left.
  void Take(const Flow& flow, int64_t count);
  // REQUIRES: the flow holds that many.
  void Give(const Flow& flow, int64_t count);

  int64_t limit() const { return limit_; }
  int64_t used() const { return used_; }
  int64_t used_by(uint32_t flow) const;

 private:
  struct Use {
    double part;
    int64_t count = 0;
  };

  // The places reserved for a flow with this part.
  int64_t KeptFor(double part) const;

  const int64_t limit_;
  int64_t used_ = 0;
  std::map<uint32_t, Use> uses_;  // for flows that hold places
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_FAIR_PLACES_H_
