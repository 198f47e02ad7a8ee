#include "tools/recurve_model/cli.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "tools/recurve_model/command.h"

namespace recurve {

int RunModelTool(int argc, const char* const* argv) {
  CLI::App app("Looks at checkpoints, checks them, and makes random ones.",
               "recurve-model");
  app.set_version_flag("--version",
                       absl::StrCat("recurve-model ", RECURVE_VERSION));
  app.require_subcommand(1);
  app.footer(
      "recurve-model COMMAND --help describes a command.\n"
      "Exit status: 0 done, 1 the checkpoint or the disk is at fault, 2 bad "
      "usage.");
  int exit_code = kModelExitOk;
  RegisterModelInfo(&app, &exit_code);
  RegisterModelCheck(&app, &exit_code);
  RegisterModelRandom(&app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Requests for help or the version end parsing as errors of status 0.
    if (error.get_exit_code() == 0) return app.exit(error);
    if (app.get_subcommands().empty() && app.remaining_size() > 0) {
      return ReportModelUsage(absl::StrCat(
          "unknown command '", app.remaining().front(), "' (see --help)"));
    }
    return ReportModelUsage(absl::StrCat(error.what(), " (see --help)"));
  }
  return exit_code;
}

}  // namespace recurve
