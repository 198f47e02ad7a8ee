// random: writes a checkpoint of random weights, for load tests.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/recurve_model/command.h"
#include "tools/recurve_model/presets.h"
#include "tools/recurve_model/random_checkpoint.h"

namespace recurve {
namespace {

struct RandomFlags {
  bool list = false;
  std::string preset;
  std::string dir;
  std::string dtype = "bfloat16";
  uint64_t seed = 0;
  std::optional<int64_t> layers;
  std::optional<int64_t> max_positions;
  std::string shard_bytes = "4GiB";
};

absl::Status List() {
  absl::PrintF("%-14s %12s  %-10s %s\n", "preset", "parameters", "bfloat16",
               "what");
  for (const Preset& preset : Presets()) {
    RECURVE_ASSIGN_OR_RETURN(const CheckpointPlan plan,
                             PlanPreset(preset.name, {}));
    absl::PrintF("%-14s %12d  %-10s %s\n", preset.name, plan.parameters(),
                 HumanBytes(2 * plan.parameters()), preset.description);
  }
  return absl::OkStatus();
}

// One line with a rising count, on a terminal only.
class ProgressLine {
 public:
  void operator()(int64_t done, int64_t total) {
    const int64_t percent = done * 100 / std::max<int64_t>(total, 1);
    if (isatty(STDERR_FILENO) == 0 || percent == last_) return;
    last_ = percent;
    std::fprintf(stderr, "\rwriting %s: %3d %%%s", HumanBytes(total).c_str(),
                 static_cast<int>(percent), done == total ? "\n" : "");
  }

 private:
  int64_t last_ = -1;
};

absl::Status Write(const RandomFlags& flags, const CheckpointPlan& plan,
                   const RandomCheckpointOptions& options) {
  RECURVE_ASSIGN_OR_RETURN(
      const WrittenCheckpoint written,
      WriteRandomCheckpoint(plan, flags.dir, options, ProgressLine()));
  absl::PrintF("%s: %s, %d parameters, %s in %d %s\n", flags.dir, flags.preset,
               plan.parameters(), ExactBytes(written.bytes), written.files,
               written.files == 1 ? "file" : "files");
  return absl::OkStatus();
}

int Run(const RandomFlags& flags) {
  if (flags.list) {
    const absl::Status status = List();
    return status.ok() ? kModelExitOk : ReportModelError(status);
  }
  if (flags.preset.empty() || flags.dir.empty()) {
    return ReportModelUsage(
        "random needs a preset and a folder (random --list names the presets)");
  }
  RandomCheckpointOptions options;
  options.dtype = ParseDType(flags.dtype).value();  // one of the choices
  options.seed = flags.seed;
  const absl::StatusOr<int64_t> shard_bytes = ParseByteSize(flags.shard_bytes);
  if (!shard_bytes.ok()) {
    return ReportModelUsage(
        absl::StrCat("--shard-bytes: ", shard_bytes.status().message()));
  }
  options.shard_bytes = *shard_bytes;
  options.num_threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
  const absl::StatusOr<CheckpointPlan> plan =
      PlanPreset(flags.preset, {flags.layers, flags.max_positions});
  if (!plan.ok()) return ReportModelUsage(plan.status().message());
  const absl::Status status = Write(flags, *plan, options);
  return status.ok() ? kModelExitOk : ReportModelError(status);
}

}  // namespace

void RegisterModelRandom(CLI::App* app, int* exit_code) {
  auto flags = std::make_shared<RandomFlags>();
  CLI::App* const command = app->add_subcommand(
      "random", "Write a checkpoint of random weights, for load tests");
  command->add_flag("--list", flags->list, "Print the presets");
  command->add_option("PRESET", flags->preset, "What to write");
  command->add_option("DIR", flags->dir, "Folder to make, or an empty one");
  command->add_option("--dtype", flags->dtype, "Type of every tensor")
      ->check(CLI::IsMember({"bfloat16", "float16", "float32"}))
      ->capture_default_str();
  command->add_option("--seed", flags->seed, "Of the values")
      ->check(WholeNumber(std::numeric_limits<uint64_t>::max()))
      ->capture_default_str();
  command->add_option("--layers", flags->layers, "Instead of the preset's")
      ->check(WholeNumber());
  command
      ->add_option("--max-positions", flags->max_positions,
                   "Longest sequence, instead of the preset's")
      ->check(WholeNumber());
  command
      ->add_option("--shard-bytes", flags->shard_bytes,
                   "Start another file beyond this, in bytes or as 4GiB")
      ->capture_default_str();
  command->callback([flags, exit_code] { *exit_code = Run(*flags); });
}

}  // namespace recurve
