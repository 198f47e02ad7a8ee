#include "base/check.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace recurve {

void EndAtBrokenInvariant(const char* file, int line, const char* condition) {
  pollfd writable = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&writable, 1, 0) > 0 && (writable.revents & POLLOUT) != 0) {
    std::fprintf(stderr, "%s:%d: invariant broken: %s\n", file, line,
                 condition);
  }
  std::abort();
}

}  // namespace recurve
