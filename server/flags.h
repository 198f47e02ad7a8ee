#ifndef RECURVE_SERVER_FLAGS_H_
#define RECURVE_SERVER_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "server/server.h"

namespace recurve {

struct FlagsResult {
  // Present: leave the program with this code (--help, --version, bad usage).
  std::optional<int> exit_code;
  ServerOptions options;
  // For the log: variables whose value a flag took the place of, or that no
  // flag has.
  std::vector<std::string> warnings;
};

// Reads the command line; flags not given come from RECURVE_… variables. Bad
// usage prints one line to stderr.
FlagsResult ParseFlags(int argc, const char* const* argv);

}  // namespace recurve

#endif  // RECURVE_SERVER_FLAGS_H_
