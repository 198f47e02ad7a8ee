#ifndef RECURVE_TOOLS_RECURVE_MODEL_PRESETS_H_
#define RECURVE_TOOLS_RECURVE_MODEL_PRESETS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/recurve_model/checkpoint_plan.h"

namespace recurve {

// A checkpoint of a useful size, generated from random weights.
struct Preset {
  std::string name;
  std::string description;
};

const std::vector<Preset>& Presets();

struct PresetOptions {
  std::optional<int64_t> layers = std::nullopt;  // instead of the preset's
  std::optional<int64_t> max_positions = std::nullopt;  // likewise
};

// InvalidArgument for an unknown name, with a list of the known ones, and for
// options out of range.
absl::StatusOr<CheckpointPlan> PlanPreset(absl::string_view name,
                                          const PresetOptions& options);

}  // namespace recurve

#endif  // RECURVE_TOOLS_RECURVE_MODEL_PRESETS_H_
