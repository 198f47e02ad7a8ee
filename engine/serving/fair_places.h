#ifndef RECURVE_ENGINE_SERVING_FAIR_PLACES_H_
#define RECURVE_ENGINE_SERVING_FAIR_PLACES_H_

#include <cstdint>
#include <map>

#include "engine/serving/request.h"

namespace recurve {

// A number of places that flows share, of whatever is limited. Half of them are
// kept: of these each flow has its part, rounded down, which is not lent to
// others. Whoever comes first has the rest. So no flow shuts out another.
//
// Not thread-safe.
class FairPlaces {
 public:
  explicit FairPlaces(int64_t limit) : limit_(limit) {}

  // How many more the flow may take; 0 or less: none.
  int64_t Left(const Flow& flow) const;
  // Whether or not there are as many left.
  void Take(const Flow& flow, int64_t count);
  // REQUIRES: the flow has as many.
  void Give(const Flow& flow, int64_t count);

  int64_t limit() const { return limit_; }
  int64_t used() const { return used_; }
  int64_t used_by(uint32_t flow) const;

 private:
  struct Use {
    double part;
    int64_t count = 0;
  };

  // The places that are kept for a flow with this part.
  int64_t KeptFor(double part) const;

  const int64_t limit_;
  int64_t used_ = 0;
  std::map<uint32_t, Use> uses_;  // of flows that have places
};

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_FAIR_PLACES_H_
