// state and handoff: what a client does with states of sequences.

#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/output_file.h"
#include "base/status_macros.h"
#include "client/cli/cmd_generate.h"
#include "client/cli/command.h"
#include "client/cli/interrupt.h"
#include "client/cli/proto_json.h"
#include "client/lib/recurve_client.h"

namespace recurve {
namespace {

struct StateFlags {
  ServerFlags server;
  GenerateFlags generate;  // prompt, sampling and stopping
  double timeout_seconds = 600;
  bool json = false;
  std::string state;
  std::string name;
  std::optional<double> ttl_seconds;
  bool pin = false;
  uint32_t count = 1;
  std::optional<uint64_t> seed;
  std::optional<uint64_t> at;
  std::string file;
  std::string from;  // servers of a hand-off
  std::string to;
};

using StateCall = std::function<absl::Status(RecurveClient*, const CallOptions&,
                                             const StateFlags&)>;

v1::StateOptions KeepOf(const StateFlags& flags) {
  v1::StateOptions keep;
  keep.set_name(flags.name);
  if (flags.ttl_seconds) keep.set_ttl_seconds(*flags.ttl_seconds);
  keep.set_pinned(flags.pin);
  return keep;
}

void Print(const v1::StateInfo& info, bool json) {
  if (json) {
    absl::PrintF("%s\n", ProtoToJson(info).dump());
    return;
  }
  absl::PrintF("%s  %6d tokens  %11d bytes  %s%s%s\n", info.id(), info.tokens(),
               info.bytes(),
               info.pinned()
                   ? std::string("pinned")
                   : absl::StrFormat("for %.0f s", info.ttl_seconds()),
               info.stored() ? ", on disk" : "",
               info.name().empty() ? "" : absl::StrCat("  ", info.name()));
}

// The command that appends the prompt.
absl::StatusOr<v1::DecodeRequest> PromptOf(const StateFlags& flags) {
  RECURVE_ASSIGN_OR_RETURN(const v1::GenerateRequest request,
                           MakeGenerateRequest(flags.generate));
  v1::DecodeRequest first;
  if (request.has_prompt_text()) {
    first.set_append_text(request.prompt_text());
  } else {
    *first.mutable_append_ids() = request.prompt_ids();
  }
  return first;
}

absl::Status Make(RecurveClient* client, const CallOptions& options,
                  const StateFlags& flags) {
  RECURVE_ASSIGN_OR_RETURN(const v1::DecodeRequest first, PromptOf(flags));
  RECURVE_ASSIGN_OR_RETURN(const v1::StateInfo info,
                           client->MakeState(first, KeepOf(flags), options));
  Print(info, flags.json);
  return absl::OkStatus();
}

absl::Status List(RecurveClient* client, const CallOptions& options,
                  const StateFlags& flags) {
  RECURVE_ASSIGN_OR_RETURN(const v1::ListStatesResponse response,
                           client->ListStates(options));
  if (flags.json) {
    absl::PrintF("%s\n", ProtoToJson(response).dump());
    return absl::OkStatus();
  }
  for (const v1::StateInfo& info : response.states()) Print(info, false);
  absl::PrintF("%d states, %d of %d bytes\n", response.states_size(),
               response.bytes(), response.max_bytes());
  return absl::OkStatus();
}

absl::Status Get(RecurveClient* client, const CallOptions& options,
                 const StateFlags& flags) {
  RECURVE_ASSIGN_OR_RETURN(const v1::StateInfo info,
                           client->GetState(flags.state, options));
  Print(info, flags.json);
  return absl::OkStatus();
}

absl::Status Fork(RecurveClient* client, const CallOptions& options,
                  const StateFlags& flags) {
  v1::ForkRequest request;
  request.set_state(flags.state);
  request.set_count(flags.count);
  if (flags.seed) request.set_seed(*flags.seed);
  if (flags.at) request.set_at(*flags.at);
  *request.mutable_options() = KeepOf(flags);
  RECURVE_ASSIGN_OR_RETURN(const v1::ForkResponse response,
                           client->ForkState(request, options));
  for (const v1::StateInfo& info : response.states()) Print(info, flags.json);
  return absl::OkStatus();
}

absl::Status Pin(RecurveClient* client, const CallOptions& options,
                 const StateFlags& flags) {
  v1::PinStateRequest request;
  request.set_state(flags.state);
  *request.mutable_options() = KeepOf(flags);
  request.mutable_options()->set_pinned(!flags.ttl_seconds.has_value());
  RECURVE_ASSIGN_OR_RETURN(const v1::StateInfo info,
                           client->PinState(request, options));
  Print(info, flags.json);
  return absl::OkStatus();
}

absl::Status Release(RecurveClient* client, const CallOptions& options,
                     const StateFlags& flags) {
  RECURVE_RETURN_IF_ERROR(client->ReleaseState(flags.state, options));
  absl::PrintF("released %s\n", flags.state);
  return absl::OkStatus();
}

absl::Status FileError(const std::string& file, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(file, " cannot be ", what));
}

absl::Status Export(RecurveClient* client, const CallOptions& options,
                    const StateFlags& flags) {
  // Complete, or not there.
  const std::string part = flags.file + ".part";
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  int64_t bytes = 0;
  absl::Status status = client->ExportState(
      flags.state,
      [&](absl::string_view data) -> absl::Status {
        out.write(data.data(), static_cast<std::streamsize>(data.size()));
        bytes += static_cast<int64_t>(data.size());
        return out ? absl::OkStatus() : FileError(part, "written");
      },
      options);
  out.close();
  if (status.ok() && !out) status = FileError(part, "written");
  if (status.ok() && std::rename(part.c_str(), flags.file.c_str()) != 0) {
    status = FileError(flags.file, "written");
  }
  if (!status.ok()) {
    std::remove(part.c_str());
    return status;
  }
  absl::PrintF("%d bytes in %s\n", bytes, flags.file);
  return absl::OkStatus();
}

absl::Status Import(RecurveClient* client, const CallOptions& options,
                    const StateFlags& flags) {
  std::ifstream in(flags.file, std::ios::binary);
  if (!in) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.file, " cannot be read"));
  }
  RECURVE_ASSIGN_OR_RETURN(
      const v1::StateInfo info,
      client->ImportState(
          KeepOf(flags),
          [&]() -> absl::StatusOr<std::string> {
            std::string piece(size_t{1} << 20, '\0');
            in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
            if (in.bad()) return FileError(flags.file, "read");
            piece.resize(in.gcount());
            return piece;
          },
          options));
  Print(info, flags.json);
  return absl::OkStatus();
}

// The prompt is computed at one server, and what follows at the other.
absl::Status HandOff(RecurveClient* from, RecurveClient* to,
                     const CallOptions& options, const StateFlags& flags) {
  RECURVE_ASSIGN_OR_RETURN(const v1::DecodeRequest first, PromptOf(flags));
  RECURVE_ASSIGN_OR_RETURN(v1::GenerateRequest request,
                           MakeGenerateRequest(flags.generate));
  v1::StateOptions keep;
  keep.set_ttl_seconds(60);  // if this client dies
  RECURVE_ASSIGN_OR_RETURN(const v1::StateInfo state,
                           from->MakeState(first, keep, options));
  const absl::StatusOr<v1::StateInfo> copy =
      from->CopyState(state.id(), keep, to, options);
  const absl::Status released = from->ReleaseState(state.id(), options);
  RECURVE_RETURN_IF_ERROR(copy.status());
  RECURVE_RETURN_IF_ERROR(released);
  absl::FPrintF(stderr, "%d tokens computed at %s, %d bytes moved to %s\n",
                state.computed_tokens(), flags.from, state.bytes(), flags.to);
  request.clear_prompt();
  request.set_from_state(copy->id());
  const absl::Status status =
      GenerateAndPrint(to, flags.generate, request, options);
  // Not with the caller's canceller, which may have cancelled.
  absl::Status forgotten = to->ReleaseState(copy->id());
  RECURVE_RETURN_IF_ERROR(status);
  return forgotten;
}

absl::StatusOr<CallOptions> OptionsOf(const StateFlags& flags,
                                      Canceller* canceller) {
  CallOptions options;
  options.canceller = canceller;
  RECURVE_ASSIGN_OR_RETURN(options.timeout,
                           PositiveSeconds("--timeout", flags.timeout_seconds));
  return options;
}

int Run(const StateFlags& flags,
        const std::function<absl::Status(const CallOptions&)>& call) {
  Canceller canceller;
  const auto options = OptionsOf(flags, &canceller);
  if (!options.ok()) return ReportUsage(options.status().message());
  absl::Status status;
  {
    const Interrupt interrupt([&] { canceller.Cancel(); });
    status = call(*options);
  }
  if (status.ok()) return kExitOk;
  ReportError(status);
  return canceller.cancelled() ? kExitInterrupted : kExitFailure;
}

// `usage`: what is wrong with the flags, before anything is sent.
int RunState(const StateFlags& flags, const StateCall& call,
             const absl::Status& usage) {
  if (!usage.ok()) return ReportUsage(usage.message());
  const auto client = RecurveClient::Create(flags.server.address,
                                            MakeClientOptions(flags.server));
  if (!client.ok()) return ReportNoClient(client.status());
  return Run(flags, [&](const CallOptions& options) {
    return call(client->get(), options, flags);
  });
}

int RunHandOff(const StateFlags& flags) {
  // Bad usage before anything is computed.
  if (const auto request = MakeGenerateRequest(flags.generate); !request.ok()) {
    return ReportUsage(request.status().message());
  }
  const ClientOptions client_options = MakeClientOptions(flags.server);
  const auto from = RecurveClient::Create(flags.from, client_options);
  if (!from.ok()) return ReportNoClient(from.status());
  const auto to = RecurveClient::Create(flags.to, client_options);
  if (!to.ok()) return ReportNoClient(to.status());
  return Run(flags, [&](const CallOptions& options) {
    return HandOff(from->get(), to->get(), options, flags);
  });
}

void AddTimeout(CLI::App* command, StateFlags* flags) {
  command
      ->add_option("--timeout", flags->timeout_seconds,
                   "Give up after this many seconds")
      ->capture_default_str();
}

struct Command {
  CLI::App* app;
  std::shared_ptr<StateFlags> flags;
};

absl::Status Any(const StateFlags& /*flags*/) { return absl::OkStatus(); }

absl::Status CanBeWritten(const StateFlags& flags) {
  const std::string why = WhyNotWritable(flags.file);
  if (why.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--output: cannot write ", flags.file, ": ", why));
}

absl::Status HasPrompt(const StateFlags& flags) {
  return MakeGenerateRequest(flags.generate).status();
}

Command Add(CLI::App* parent, int* exit_code, const char* name,
            const char* description, const StateCall& call,
            absl::Status (*usage)(const StateFlags&) = Any) {
  auto flags = std::make_shared<StateFlags>();
  CLI::App* const command = parent->add_subcommand(name, description);
  AddServerFlags(command, &flags->server);
  AddTimeout(command, flags.get());
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags, call, usage, exit_code] {
    *exit_code = RunState(*flags, call, usage(*flags));
  });
  return {command, flags};
}

void AddState(const Command& command) {
  command.app->add_option("STATE", command.flags->state, "An id or a name")
      ->required()
      ->check(NotEmpty());
}

void AddTtl(const Command& command) {
  command.app->add_option("--ttl", command.flags->ttl_seconds,
                          "Seconds without use after which it is released");
}

void AddKeep(const Command& command) {
  command.app->add_option("--name", command.flags->name,
                          "A name for it, to be used in place of the id");
  AddTtl(command);
  command.app->add_flag("--pin", command.flags->pin, "Keep it without an end");
}

}  // namespace

void RegisterState(CLI::App* app, int* exit_code) {
  CLI::App* const state = app->add_subcommand(
      "state", "Make, list, move and release states of sequences");
  state->require_subcommand(1);

  Command command = Add(state, exit_code, "make",
                        "Compute a prompt and keep its state", Make, HasPrompt);
  AddPromptFlags(command.app, &command.flags->generate);
  AddKeep(command);

  Add(state, exit_code, "list", "List the states, the latest first", List);

  command = Add(state, exit_code, "get", "Describe a state", Get);
  AddState(command);

  command = Add(state, exit_code, "fork",
                "Make states of one, each with a seed of its own", Fork);
  AddState(command);
  command.app->add_option("--count", command.flags->count, "How many, 1 to 16")
      ->transform(Decimal(UINT32_MAX))
      ->required();
  command.app
      ->add_option("--seed", command.flags->seed, "Their seeds derive from it")
      ->transform(Decimal());
  command.app
      ->add_option("--at", command.flags->at,
                   "Of its first tokens only, as many as this")
      ->transform(Decimal());
  AddTtl(command);

  command = Add(state, exit_code, "pin",
                "Keep a state without an end, or with --ttl for a time", Pin);
  AddState(command);
  command.app->add_option("--name", command.flags->name, "A name for it");
  AddTtl(command);

  command = Add(state, exit_code, "release", "Forget a state", Release);
  AddState(command);

  command = Add(state, exit_code, "export", "Write a state to a file", Export,
                CanBeWritten);
  AddState(command);
  command.app->add_option("--output", command.flags->file, "The file")
      ->required()
      ->check(NotEmpty());

  command = Add(state, exit_code, "import", "Read a state from a file", Import);
  command.app->add_option("FILE", command.flags->file, "The file")
      ->required()
      ->check(NotEmpty());
  AddKeep(command);

  auto flags = std::make_shared<StateFlags>();
  CLI::App* const hand_off = app->add_subcommand(
      "handoff", "Compute a prompt at one server and generate at another");
  hand_off
      ->add_option("FROM", flags->from, "HOST:PORT that computes the prompt")
      ->required();
  hand_off->add_option("TO", flags->to, "HOST:PORT that generates")->required();
  AddServerFlags(hand_off, &flags->server);
  AddTimeout(hand_off, flags.get());
  AddPromptFlags(hand_off, &flags->generate);
  AddSamplingFlags(hand_off, &flags->generate);
  AddStoppingFlags(hand_off, &flags->generate);
  hand_off->add_flag("--json", flags->generate.json,
                     "Print one JSON object at the end instead of text");
  hand_off->footer(
      "Both servers have the same model, build and kind of processor. "
      "--server\n"
      "is not used; the other flags of servers are for both.");
  hand_off->callback([flags, exit_code] { *exit_code = RunHandOff(*flags); });
}

}  // namespace recurve
