#ifndef RECURVE_BASE_CHECK_H_
#define RECURVE_BASE_CHECK_H_

// Ends the process when an invariant of this program is broken. On in every
// build. Never for bad input: that is an absl::Status.
#define RECURVE_CHECK(condition)                                       \
  do {                                                                 \
    if (!(condition))                                                  \
      ::recurve::EndAtBrokenInvariant(__FILE__, __LINE__, #condition); \
  } while (false)

namespace recurve {

// Writes a line to standard error, unless its reader hangs, and aborts.
[[noreturn]] void EndAtBrokenInvariant(const char* file, int line,
                                       const char* condition);

}  // namespace recurve

#endif  // RECURVE_BASE_CHECK_H_
