#include "client/command.h"

#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace recurve {
namespace {

void WriteLine(absl::string_view text) {
  const std::string line =
      absl::StrReplaceAll(text, {{"\n", " "}, {"\r", " "}});
  std::fprintf(stderr, "recurve-client: %s\n", line.c_str());
}

}  // namespace

void AddServerFlag(CLI::App* command, std::string* server) {
  *server = "127.0.0.1:50051";
  command->add_option("--server", *server, "Address of the server, HOST:PORT")
      ->envname("RECURVE_SERVER")
      ->capture_default_str();
}

const CLI::Validator& Decimal() {
  static const CLI::Validator* const decimal = new CLI::Validator(
      [](std::string& text) {
        return text.find_first_not_of("0123456789") == std::string::npos
                   ? std::string()
                   : absl::StrCat("'", text, "' is not a whole number");
      },
      "");
  return *decimal;
}

int ReportError(const absl::Status& status) {
  WriteLine(absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                         status.message()));
  return kExitFailure;
}

int ReportUsage(absl::string_view message) {
  WriteLine(message);
  return kExitUsage;
}

absl::StatusOr<absl::Duration> PositiveSeconds(absl::string_view flag,
                                               double value) {
  if (!std::isfinite(value) || value <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", value, " is not a number of seconds above 0"));
  }
  return absl::Seconds(value);
}

}  // namespace recurve
