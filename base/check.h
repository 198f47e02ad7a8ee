#ifndef RECURVE_BASE_CHECK_H_
#define RECURVE_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

// Ends the process when an invariant of this program is broken. On in every
// build. Never for bad input: that is an absl::Status.
#define RECURVE_CHECK(condition)                                      \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: invariant broken: %s\n", __FILE__, \
                   __LINE__, #condition);                             \
      std::abort();                                                   \
    }                                                                 \
  } while (false)

#endif  // RECURVE_BASE_CHECK_H_
