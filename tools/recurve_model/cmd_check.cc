// check: tests whether a checkpoint can be served.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "tools/recurve_model/command.h"
#include "tools/recurve_model/self_check.h"

namespace recurve {
namespace {

struct CheckFlags {
  std::string dir;
  FamilyOptions family;
  std::string tokenizer = "auto";
};

int Run(const CheckFlags& flags) {
  const absl::Status status =
      CheckCheckpoint(flags.dir, flags.family, flags.tokenizer,
                      [](absl::string_view stage, absl::string_view found) {
                        absl::PrintF("%-8s %s\n", stage, found);
                        std::fflush(stdout);  // the next stage may take minutes
                      });
  if (!status.ok()) return ReportModelError(status);
  absl::PrintF("OK\n");
  return kModelExitOk;
}

}  // namespace

void RegisterModelCheck(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<CheckFlags>();
  CLI::App* const command = app->add_subcommand(
      "check",
      "Check every tensor, load the model on the CPU and compare a prompt in "
      "one chunk with the same token by token");
  command->add_option("DIR", flags->dir, "Folder of the checkpoint")
      ->required();
  AddModelFlags(command, &flags->family, &flags->tokenizer);
  command->callback([flags, exit_code] { *exit_code = Run(*flags); });
}

}  // namespace recurve
