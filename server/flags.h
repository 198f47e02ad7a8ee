#ifndef RECURVE_SERVER_FLAGS_H_
#define RECURVE_SERVER_FLAGS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "server/server.h"

namespace recurve {

struct FlagsResult {
  // Present: exit the program with this status (--help, --version, bad usage).
  std::optional<int> exit_code;
  ServerOptions options;
  // For the log: variables that a flag overrides, or that no flag reads.
  std::vector<std::string> warnings;
  // Flags that got their value from a variable ("--model"), and its name.
  std::map<std::string, std::string> variables;
};

// Reads the command line; flags not given come from RECURVE_… variables. Bad
// usage prints one line to stderr.
FlagsResult ParseFlags(int argc, const char* const* argv);

// Adds to an error that may begin with a flag ("--model is …") the variable
// that set the flag, if one did.
std::string WithVariable(const FlagsResult& flags, const std::string& message);

}  // namespace recurve

#endif  // RECURVE_SERVER_FLAGS_H_
