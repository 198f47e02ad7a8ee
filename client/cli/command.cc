#include "client/cli/command.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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

void AddServerFlags(CLI::App* command, ServerFlags* flags) {
  flags->address = "127.0.0.1:50051";
  command
      ->add_option("--server", flags->address,
                   "Address of the server, HOST:PORT")
      ->envname("RECURVE_SERVER")
      ->capture_default_str();
  command->add_flag("--tls", flags->tls.enabled, "Connect over TLS")
      ->envname("RECURVE_TLS");
  command
      ->add_option("--tls-ca", flags->tls.ca,
                   "PEM file of who may sign the server's certificate "
                   "(default: the system's)")
      ->envname("RECURVE_TLS_CA");
  command
      ->add_option("--tls-cert", flags->tls.cert,
                   "PEM file of a certificate to show the server")
      ->envname("RECURVE_TLS_CERT");
  command->add_option("--tls-key", flags->tls.key, "PEM file of its key")
      ->envname("RECURVE_TLS_KEY");
  command
      ->add_option("--api-key", flags->api_key,
                   "API key, for a server that asks for one; better in the "
                   "variable, which other users do not see")
      ->envname("RECURVE_API_KEY");
}

ClientOptions MakeClientOptions(const ServerFlags& flags) {
  const bool loopback = absl::StartsWith(flags.address, "127.") ||
                        absl::StartsWith(flags.address, "localhost:") ||
                        absl::StartsWith(flags.address, "[::1]:");
  if (!flags.api_key.empty() && !flags.tls.enabled && !loopback) {
    WriteLine("warning: the API key is sent in plaintext; use --tls");
  }
  ClientOptions options;
  options.tls = flags.tls;
  options.api_key = flags.api_key;
  return options;
}

CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("is empty") : std::string();
      },
      "");
}

CLI::Validator Decimal(uint64_t most) {
  return CLI::Validator(
      [most](std::string& text) {
        uint64_t value = 0;
        if (text.find_first_not_of("0123456789") != std::string::npos ||
            !absl::SimpleAtoi(text, &value) || value > most) {
          return absl::StrCat("'", text, "' is not a whole number from 0 to ",
                              most);
        }
        text = absl::StrCat(value);  // without leading zeros
        return std::string();
      },
      "");
}

int ReportError(const absl::Status& status) {
  WriteLine(absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                         status.message()));
  return kExitFailure;
}

absl::Status FlushStdout() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError("standard output cannot be written");
}

int ReportUsage(absl::string_view message) {
  WriteLine(message);
  return kExitUsage;
}

int ReportNoClient(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? ReportUsage(status.message())
                                         : ReportError(status);
}

absl::StatusOr<absl::Duration> PositiveSeconds(absl::string_view flag,
                                               double value) {
  // Written so that a NaN fails.
  if (!(value > 0 && value <= kMostSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": ", value, " is not a number of seconds above 0, at most ",
        kMostSeconds));
  }
  return absl::Seconds(value);
}

absl::StatusOr<absl::Duration> SecondsFromZero(absl::string_view flag,
                                               double value) {
  // Written so that a NaN fails.
  if (!(value >= 0 && value <= kMostSeconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", value,
                     " is not a number of seconds from 0 to ", kMostSeconds));
  }
  return absl::Seconds(value);
}

}  // namespace recurve
