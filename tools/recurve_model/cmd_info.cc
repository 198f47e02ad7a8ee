// info: describes a checkpoint, and how many sequences fit.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/loading/model_loader.h"
#include "engine/models/emit.h"
#include "engine/models/registry.h"
#include "engine/program/print_plan.h"
#include "tools/recurve_model/command.h"
#include "tools/recurve_model/describe.h"

namespace recurve {
namespace {

struct InfoFlags {
  std::string dir;
  FamilyOptions family;
  std::string tokenizer = "auto";
  std::optional<std::string> memory;
  int64_t length = 0;
  bool json = false;
  std::string plan;  // device, or empty
};

// An H100 or H200 for "gpu".
Device PlanDevice(const std::string& name, const ModelDefinition& model) {
  Device device;
  device.gpu = name != "cpu";
  if (!device.gpu) return device;
  device.hopper = name == "gpu";
  device.multiprocessors = 132;
  device.pages = GpuPagesFor(model, device.weights);
  return device;
}

absl::Status Print(const InfoFlags& flags, int64_t memory) {
  RECURVE_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                           Checkpoint::Open(flags.dir));
  RECURVE_ASSIGN_OR_RETURN(ModelDefinition model,
                           ReadModel(checkpoint, flags.family));
  RECURVE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Tokenizer> tokenizer,
      LoadModelTokenizer(flags.dir, flags.tokenizer, &model));
  const CheckpointFacts facts = Describe(checkpoint, model);
  std::optional<CapacityFacts> capacity;
  if (memory > 0) {
    RECURVE_ASSIGN_OR_RETURN(capacity,
                             PlanCapacity(facts, memory, flags.length));
  }
  if (flags.json) {
    nlohmann::ordered_json json = FactsJson(facts);
    if (capacity) json["capacity"] = CapacityJson(*capacity);
    absl::PrintF("%s\n", json.dump());
    return absl::OkStatus();
  }
  absl::PrintF("%s", FactsText(facts));
  if (capacity) absl::PrintF("%s", CapacityText(facts, *capacity));
  if (!flags.plan.empty()) {
    const Device device = PlanDevice(flags.plan, model);
    if (device.gpu) RECURVE_RETURN_IF_ERROR(CheckGpu(model));
    const Program program = Emit(model);
    absl::PrintF("\n%s", PrintForms(program, Lower(program, device)));
  }
  return absl::OkStatus();
}

int Run(const InfoFlags& flags) {
  int64_t memory = 0;
  if (flags.memory) {
    const absl::StatusOr<int64_t> parsed = ParseByteSize(*flags.memory);
    if (!parsed.ok()) {
      return ReportModelUsage(
          absl::StrCat("--memory: ", parsed.status().message()));
    }
    memory = *parsed;
    if (flags.length < 1) {
      return ReportModelUsage(
          absl::StrCat("--length is ", flags.length, "; expected at least 1"));
    }
  }
  const absl::Status status = Print(flags, memory);
  return status.ok() ? kModelExitOk : ReportModelError(status);
}

}  // namespace

void RegisterModelInfo(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<InfoFlags>();
  CLI::App* const command = app->add_subcommand(
      "info", "Print what a checkpoint is and what it needs");
  command->add_option("DIR", flags->dir, "Folder of the checkpoint")
      ->required();
  AddModelFlags(command, &flags->family, &flags->tokenizer);
  CLI::Option* const memory = command->add_option(
      "--memory", flags->memory,
      "Also print how many sequences fit this, in bytes or as 24GiB");
  CLI::Option* const length =
      command
          ->add_option("--length", flags->length,
                       "… of this many tokens each, prompt and output together")
          ->check(WholeNumber());
  memory->needs(length);
  length->needs(memory);
  CLI::Option* const json =
      command->add_flag("--json", flags->json, "Print one JSON object");
  command
      ->add_option("--plan", flags->plan,
                   "Also print what a step launches there: cpu, gpu (compute "
                   "capability 9.0) or older-gpu")
      ->check(CLI::IsMember({"cpu", "gpu", "older-gpu"}))
      ->excludes(json);
  command->callback([flags, exit_code] { *exit_code = Run(*flags); });
}

}  // namespace recurve
