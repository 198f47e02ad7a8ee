#ifndef RECURVE_CLIENT_CLI_CLI_H_
#define RECURVE_CLIENT_CLI_CLI_H_

namespace recurve {

// The program recurve-client: parses the command line, runs the subcommand and
// returns the exit status. Bad usage is one line on stderr.
int RunClient(int argc, const char* const* argv);

}  // namespace recurve

#endif  // RECURVE_CLIENT_CLI_CLI_H_
