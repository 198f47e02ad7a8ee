#ifndef RECURVE_SERVER_FLAGS_H_
#define RECURVE_SERVER_FLAGS_H_

#include <map>
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
  // Flags whose value is that of a variable ("--model"), and these.
  std::map<std::string, std::string> variables;
};

// Reads the command line; flags not given come from RECURVE_… variables. Bad
// usage prints one line to stderr.
FlagsResult ParseFlags(int argc, const char* const* argv);

// An error that may begin with a flag ("--model is …"), with the variable that
// the value came from, if one did.
std::string WithVariable(const FlagsResult& flags, const std::string& message);

}  // namespace recurve

#endif  // RECURVE_SERVER_FLAGS_H_
