#ifndef RECURVE_TOOLS_RECURVE_MODEL_CLI_H_
#define RECURVE_TOOLS_RECURVE_MODEL_CLI_H_

namespace recurve {

// The program recurve-model: parses the command line, runs the subcommand and
// returns the exit status. Bad usage is one line on stderr.
int RunModelTool(int argc, const char* const* argv);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_CLI_H_
