#include "client/cli/cli.h"

#include <CLI/CLI.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/command.h"

namespace recurve {

namespace {

// CLI11 reads an empty text as the number 0.
void RefuseEmptyNumbers(CLI::App* app) {
  for (CLI::Option* const option : app->get_options()) {
    const std::string type = option->get_type_name();
    if (!absl::StartsWith(type, "INT") && !absl::StartsWith(type, "UINT") &&
        !absl::StartsWith(type, "FLOAT")) {
      continue;
    }
    option->check([](const std::string& text) {
      return text.empty() ? std::string("'' is not a number") : std::string();
    });
  }
  for (CLI::App* const command : app->get_subcommands({})) {
    RefuseEmptyNumbers(command);
  }
}

int Parse(int argc, const char* const* argv) {
  CLI::App app("Talks to a Recurve inference server over gRPC.",
               "recurve-client");
  app.set_version_flag("--version",
                       absl::StrCat("recurve-client ", RECURVE_VERSION));
  app.require_subcommand(1);
  app.footer(
      "recurve-client COMMAND --help describes a command.\n"
      "Exit status: 0 done, 1 the call failed or the answer is no, 2 bad "
      "usage, "
      "130 interrupted.");
  int exit_code = kExitOk;
  RegisterGenerate(&app, &exit_code);
  RegisterBench(&app, &exit_code);
  RegisterAdmin(&app, &exit_code);
  RegisterState(&app, &exit_code);
  RefuseEmptyNumbers(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Requests for help or the version end parsing as errors of status 0.
    if (error.get_exit_code() == 0) return app.exit(error);
    const bool named_command = !app.get_subcommands().empty();
    if (!named_command && app.remaining_size() > 0) {
      return ReportUsage(absl::StrCat(
          "unknown command '", app.remaining().front(), "' (see --help)"));
    }
    return ReportUsage(absl::StrCat(error.what(), " (see --help)"));
  }
  return exit_code;
}

}  // namespace

int RunClient(int argc, const char* const* argv) {
  const int exit_code = Parse(argc, argv);
  const absl::Status printed = FlushStdout();
  if (printed.ok() || exit_code != kExitOk) return exit_code;
  return ReportError(printed);
}

}  // namespace recurve
