#include "tools/recurve_model/presets.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/recurve_model/hybrid_plan.h"

namespace recurve {
namespace {

struct T6Preset {
  Preset preset;
  T6Sizes sizes;
};
struct DeltaPreset {
  Preset preset;
  CheckpointPlan (*plan)(const DeltaSizes& sizes);
  DeltaSizes sizes;
};
struct SalaPreset {
  Preset preset;
  SalaSizes sizes;
};
struct RecurvePreset {
  Preset preset;
  RecurveSizes sizes;
};

// The sizes that the authors of T6 trained, from their configuration files:
// query rank 6, key and value rank 2, head dimension 64, GPT-2's vocabulary.
const T6Preset kT6Presets[] = {
    {{"t6-medium", "T6, 24 layers, 1024 wide, 47 heads of 64"},
     {24, 1024, 47, 64, 6, 2, 50304, 1024}},
    {{"t6-large", "T6, 36 layers, 1280 wide, 61 heads of 64"},
     {36, 1280, 61, 64, 6, 2, 50304, 1024}},
    {{"t6-xl", "T6, 48 layers, 1600 wide, 78 heads of 64"},
     {48, 1600, 78, 64, 6, 2, 50304, 1024}},
};

const RecurvePreset kRecurvePresets[] = {
    {{"hybrid-1b", "recurve, 18 layers, 2048 wide, every third TPA"},
     {.layers = 18,
      .hidden = 2048,
      .inner = 5632,
      .head_dim = 128,
      .linear_heads = 16,
      .tpa_every = 3,
      .tpa_heads = 32,
      .q_rank = 6,
      .kv_rank = 2,
      .gate_rank = 128,
      .vocab = 32000,
      .max_positions = 131072}},
    {{"linear-1b", "recurve, 18 layers, 2048 wide, linear attention only"},
     {.layers = 18,
      .hidden = 2048,
      .inner = 5632,
      .head_dim = 128,
      .linear_heads = 16,
      .tpa_every = 0,
      .tpa_heads = 0,
      .q_rank = 0,
      .kv_rank = 0,
      .gate_rank = 128,
      .vocab = 32000,
      .max_positions = 1048576}},
};

// The sizes of published checkpoints.
const DeltaPreset kDeltaPresets[] = {
    {{"qwen3.5-0.8b", "Qwen3.5, 24 layers, 1024 wide"},
     PlanQwen35,
     {24, 1024, 3584, 8, 2, 256, 16, 16, 128, 128, 248320, true, 262144}},
    {{"qwen3.5-4b", "Qwen3.5, 32 layers, 2560 wide"},
     PlanQwen35,
     {32, 2560, 9216, 16, 4, 256, 16, 32, 128, 128, 248320, true, 262144}},
    {{"qwen3.5-9b", "Qwen3.5, 32 layers, 4096 wide"},
     PlanQwen35,
     {32, 4096, 12288, 16, 4, 256, 16, 32, 128, 128, 248320, false, 262144}},
    {{"qwen3.5-27b", "Qwen3.5, 64 layers, 5120 wide"},
     PlanQwen35,
     {64, 5120, 17408, 24, 4, 256, 16, 48, 128, 128, 248320, false, 262144}},
    {{"olmo-hybrid-7b", "OLMo Hybrid, 32 layers, 3840 wide"},
     PlanOlmoHybrid,
     {32, 3840, 11008, 30, 30, 128, 30, 30, 96, 192, 100352, false, 65536}},
};
const SalaPreset kSalaPresets[] = {
    {{"minicpm-sala", "MiniCPM-SALA, 32 layers, 4096 wide"},
     {32, 4096, 16384, 32, 2, 128, 73448, 524288}},
};

absl::Status CheckRange(absl::string_view flag, std::optional<int64_t> value,
                        int64_t max) {
  if (!value || (*value >= 1 && *value <= max)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", *value, "; expected 1 to ", max));
}

template <typename Sizes>
Sizes Resized(Sizes sizes, const PresetOptions& options) {
  sizes.layers = options.layers.value_or(sizes.layers);
  sizes.max_positions = options.max_positions.value_or(sizes.max_positions);
  return sizes;
}

}  // namespace

const std::vector<Preset>& Presets() {
  static const auto* const presets = [] {
    auto* all = new std::vector<Preset>;
    for (const T6Preset& row : kT6Presets) all->push_back(row.preset);
    for (const RecurvePreset& row : kRecurvePresets) all->push_back(row.preset);
    for (const DeltaPreset& row : kDeltaPresets) all->push_back(row.preset);
    for (const SalaPreset& row : kSalaPresets) all->push_back(row.preset);
    return all;
  }();
  return *presets;
}

absl::StatusOr<CheckpointPlan> PlanPreset(absl::string_view name,
                                          const PresetOptions& options) {
  RECURVE_RETURN_IF_ERROR(CheckRange("--layers", options.layers, 1024));
  RECURVE_RETURN_IF_ERROR(
      CheckRange("--max-positions", options.max_positions, int64_t{1} << 31));
  for (const T6Preset& row : kT6Presets) {
    if (name == row.preset.name) return PlanT6(Resized(row.sizes, options));
  }
  for (const RecurvePreset& row : kRecurvePresets) {
    if (name == row.preset.name) {
      return PlanRecurve(Resized(row.sizes, options));
    }
  }
  for (const DeltaPreset& row : kDeltaPresets) {
    if (name == row.preset.name) return row.plan(Resized(row.sizes, options));
  }
  for (const SalaPreset& row : kSalaPresets) {
    if (name == row.preset.name) {
      return PlanMiniCpmSala(Resized(row.sizes, options));
    }
  }
  std::string known;
  for (const Preset& preset : Presets())
    absl::StrAppend(&known, known.empty() ? "" : ", ", preset.name);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown preset '", name, "'; known: ", known));
}

}  // namespace recurve
