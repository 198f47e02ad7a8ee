#ifndef RECURVE_ENGINE_SERVING_SECONDS_BETWEEN_H_
#define RECURVE_ENGINE_SERVING_SECONDS_BETWEEN_H_

#include <chrono>

namespace recurve {

inline double SecondsBetween(std::chrono::steady_clock::time_point from,
                             std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_SERVING_SECONDS_BETWEEN_H_
