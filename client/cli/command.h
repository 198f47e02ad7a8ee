#ifndef RECURVE_CLIENT_CLI_COMMAND_H_
#define RECURVE_CLIENT_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/lib/recurve_client.h"

namespace recurve {

// Exit statuses of recurve-client.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
// The status by which shells report a program ended by SIGINT.
inline constexpr int kExitInterrupted = 130;

// Each declares its subcommands on `app`. Parsing a command line that names one
// runs it and sets *exit_code.
void RegisterGenerate(CLI::App* app, int* exit_code);
void RegisterBench(CLI::App* app, int* exit_code);
void RegisterAdmin(CLI::App* app, int* exit_code);
void RegisterState(CLI::App* app, int* exit_code);

// Address and credentials of the server.
struct ServerFlags {
  std::string address;
  TlsOptions tls;
  std::string api_key;
};
// Declares --server, --tls, --tls-ca, --tls-cert, --tls-key and --api-key (or
// RECURVE_SERVER and so on).
void AddServerFlags(CLI::App* command, ServerFlags* flags);
// The options for RecurveClient::Create. Warns on stderr if an API key would
// leave this machine in plaintext.
ClientOptions MakeClientOptions(const ServerFlags& flags);

// For integer flags (`transform`). Accepts decimal digits only: CLI11 would let
// a negative number wrap around, saturate one above 64 bits, and read 010 as
// octal.
CLI::Validator Decimal(uint64_t most = UINT64_MAX);

// Refuses an empty text, such as an unset shell variable.
CLI::Validator NotEmpty();

// Writes "recurve-client: CODE: message" as one line to stderr. Returns
// kExitFailure.
int ReportError(const absl::Status& status);

// DataLoss when anything printed to stdout could not be written, now or before.
absl::Status FlushStdout();

// Writes "recurve-client: message" as one line to stderr. Returns kExitUsage.
int ReportUsage(absl::string_view message);

// Reports an error of RecurveClient::Create: flags that cannot work are bad
// usage, missing system resources are an error.
int ReportNoClient(const absl::Status& status);

// `value` as seconds; InvalidArgument, naming `flag`, unless above 0 and at
// most kMostSeconds.
inline constexpr double kMostSeconds = 1e9;
absl::StatusOr<absl::Duration> PositiveSeconds(absl::string_view flag,
                                               double value);
// As above, but 0 is allowed.
absl::StatusOr<absl::Duration> SecondsFromZero(absl::string_view flag,
                                               double value);

}  // namespace recurve

#endif  // RECURVE_CLIENT_CLI_COMMAND_H_
