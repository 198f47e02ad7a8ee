#ifndef RECURVE_TOOLS_RECURVE_MODEL_COMMAND_H_
#define RECURVE_TOOLS_RECURVE_MODEL_COMMAND_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/models/registry.h"

namespace recurve {

// Exit statuses of recurve-model.
inline constexpr int kModelExitOk = 0;
inline constexpr int kModelExitFailure = 1;
inline constexpr int kModelExitUsage = 2;

// Each declares its subcommand on `app`. Parsing a command line that names it
// runs it and sets *exit_code.
void RegisterModelInfo(CLI::App* app, int* exit_code);
void RegisterModelCheck(CLI::App* app, int* exit_code);
void RegisterModelRandom(CLI::App* app, int* exit_code);

// --model-family, --model-variant and --tokenizer, as in the server.
void AddModelFlags(CLI::App* command, FamilyOptions* family,
                   std::string* tokenizer);

// For 64-bit flags: CLI11 would let a negative number wrap around and truncate
// one that is too large. Accepts decimal digits only.
CLI::Validator WholeNumber(
    uint64_t largest = std::numeric_limits<int64_t>::max());

// Writes "recurve-model: CODE: message" as one line to stderr. Returns
// kModelExitFailure.
int ReportModelError(const absl::Status& status);

// Writes "recurve-model: message" as one line to stderr. Returns
// kModelExitUsage.
int ReportModelUsage(absl::string_view message);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_COMMAND_H_
