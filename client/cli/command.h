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
// As shells report a program ended by SIGINT.
inline constexpr int kExitInterrupted = 130;

// Each declares its subcommands on `app`. Parsing a command line that names one
// runs it and sets *exit_code.
void RegisterGenerate(CLI::App* app, int* exit_code);
void RegisterBench(CLI::App* app, int* exit_code);
void RegisterAdmin(CLI::App* app, int* exit_code);

// Which server, and how to reach it.
struct ServerFlags {
  std::string address;
  TlsOptions tls;
  std::string api_key;
};
// Declares --server, --tls, --tls-ca, --tls-cert, --tls-key and --api-key (or
// RECURVE_SERVER and so on).
void AddServerFlags(CLI::App* command, ServerFlags* flags);
// The options for RecurveClient::Create. Warns on stderr where an API key would
// leave the machine in plaintext.
ClientOptions MakeClientOptions(const ServerFlags& flags);

// For flags of whole numbers (`transform`). Takes decimal digits alone, where
// CLI11 would let a negative number wrap around, make one above 64 bits the
// largest, and read 010 as 8.
CLI::Validator Decimal(uint64_t most = UINT64_MAX);

// Refuses an empty text, as that of a variable of a shell which was not set.
CLI::Validator NotEmpty();

// Writes "recurve-client: CODE: message" as one line to stderr. Returns
// kExitFailure.
int ReportError(const absl::Status& status);

// DataLoss when anything printed to stdout could not be written, now or before.
absl::Status FlushStdout();

// Writes "recurve-client: message" as one line to stderr. Returns kExitUsage.
int ReportUsage(absl::string_view message);

// Of RecurveClient::Create: flags that cannot work are bad usage, what the
// system does not give is an error.
int ReportNoClient(const absl::Status& status);

// `value` as seconds; InvalidArgument, naming `flag`, unless above 0 and at
// most kMostSeconds.
inline constexpr double kMostSeconds = 1e9;
absl::StatusOr<absl::Duration> PositiveSeconds(absl::string_view flag,
                                               double value);
// The same, but 0 is one too.
absl::StatusOr<absl::Duration> SecondsFromZero(absl::string_view flag,
                                               double value);

}  // namespace recurve

#endif  // RECURVE_CLIENT_CLI_COMMAND_H_
