// info, health, abort and drain: one unary call each (info: three).

#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/cli/command.h"
#include "client/cli/proto_json.h"
#include "client/lib/recurve_client.h"

namespace recurve {
namespace {

using grpc::health::v1::HealthCheckResponse;

struct AdminFlags {
  ServerFlags server;
  double timeout_seconds = 10;
  bool json = false;
  std::string service;
  std::string request_id;
};

// Runs one command against the server. The exit status, or the error to report.
using AdminCall = std::function<absl::StatusOr<int>(
    RecurveClient*, const CallOptions&, const AdminFlags&)>;

void PrintTable(const nlohmann::ordered_json& object) {
  for (const auto& [key, value] : object.items()) {
    const std::string text =
        value.is_string() ? value.get<std::string>() : value.dump();
    absl::PrintF("  %-26s%s\n", key, text);
  }
}

absl::StatusOr<int> Info(RecurveClient* client, const CallOptions& options,
                         const AdminFlags& flags) {
  RECURVE_ASSIGN_OR_RETURN(const v1::ModelInfo model,
                           client->GetModelInfo(options));
  RECURVE_ASSIGN_OR_RETURN(const v1::ServerInfo server,
                           client->GetServerInfo(options));
  RECURVE_ASSIGN_OR_RETURN(const v1::Load load, client->GetLoad(options));
  nlohmann::ordered_json info;
  info["model"] = ProtoToJson(model);
  info["server"] = ProtoToJson(server);
  info["load"] = ProtoToJson(load);
  if (flags.json) {
    absl::PrintF("%s\n", info.dump());
    return kExitOk;
  }
  for (const auto& [name, section] : info.items()) {
    absl::PrintF("%s\n", name);
    PrintTable(section);
  }
  return kExitOk;
}

absl::StatusOr<int> Health(RecurveClient* client, const CallOptions& options,
                           const AdminFlags& flags) {
  RECURVE_ASSIGN_OR_RETURN(const HealthCheckResponse response,
                           client->CheckHealth(flags.service, options));
  absl::PrintF("%s\n",
               HealthCheckResponse::ServingStatus_Name(response.status()));
  return response.status() == HealthCheckResponse::SERVING ? kExitOk
                                                           : kExitFailure;
}

absl::StatusOr<int> Abort(RecurveClient* client, const CallOptions& options,
                          const AdminFlags& flags) {
  RECURVE_RETURN_IF_ERROR(client->Abort(flags.request_id, options));
  absl::PrintF("aborted %s\n", flags.request_id);
  return kExitOk;
}

absl::StatusOr<int> Drain(RecurveClient* client, const CallOptions& options,
                          const AdminFlags&) {
  RECURVE_ASSIGN_OR_RETURN(const v1::DrainResponse response,
                           client->Drain(options));
  absl::PrintF("draining, %d requests remain\n", response.remaining());
  return kExitOk;
}

int Run(const AdminFlags& flags, const AdminCall& call) {
  CallOptions options;
  const auto timeout = PositiveSeconds("--timeout", flags.timeout_seconds);
  if (!timeout.ok()) return ReportUsage(timeout.status().message());
  options.timeout = *timeout;
  const auto client = RecurveClient::Create(flags.server.address,
                                            MakeClientOptions(flags.server));
  if (!client.ok()) return ReportNoClient(client.status());
  const absl::StatusOr<int> exit_code = call(client->get(), options, flags);
  if (!exit_code.ok()) return ReportError(exit_code.status());
  return *exit_code;
}

CLI::App* Register(CLI::App* app, int* exit_code, const char* name,
                   const char* description,
                   const std::shared_ptr<AdminFlags>& flags,
                   const AdminCall& call) {
  CLI::App* const command = app->add_subcommand(name, description);
  AddServerFlags(command, &flags->server);
  command
      ->add_option("--timeout", flags->timeout_seconds,
                   "Give up after this many seconds")
      ->capture_default_str();
  command->callback(
      [flags, call, exit_code] { *exit_code = Run(*flags, call); });
  return command;
}

}  // namespace

void RegisterAdmin(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<AdminFlags>();
  CLI::App* command =
      Register(app, exit_code, "info",
               "Print what the server runs and how busy it is", flags, Info);
  command->add_flag("--json", flags->json, "Print one JSON object");

  flags = std::make_shared<AdminFlags>();
  command = Register(app, exit_code, "health",
                     "Print SERVING (exit status 0) or NOT_SERVING (1)", flags,
                     Health);
  command->add_option("--service", flags->service,
                      "Ask for one service, e.g. recurve.v1.Inference");

  flags = std::make_shared<AdminFlags>();
  command = Register(app, exit_code, "abort", "End one request", flags, Abort);
  command->add_option("--request-id", flags->request_id, "Its id")->required();

  flags = std::make_shared<AdminFlags>();
  Register(app, exit_code, "drain",
           "Let the server finish its requests, admit no more, and exit", flags,
           Drain);
}

}  // namespace recurve
