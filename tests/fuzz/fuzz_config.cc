// Input: a whole checkpoint, as text. Three parts with a line "---" between:
//
//   config.json
//   generation_config.json, or nothing
//   one line for each tensor: dtype, name, dimensions, separated by blanks
//
// so that a mutation may change the model and its tensors together, and the
// readers of all families are reached. All weights are zero. What the readers
// accept is then loaded and computes two tokens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/cpu/cpu_executor.h"
#include "engine/models/decoder.h"
#include "engine/models/emit.h"
#include "engine/models/registry.h"
#include "engine/program/step_runs.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/scratch.h"

namespace recurve {
namespace {

// What one input may use: enough for every way through the readers.
constexpr int64_t kMaxWeightBytes = 1 << 18;
constexpr int64_t kMaxMemoryBytes = 1 << 20;

// The header for the tensors that `listing` names, and the bytes it promises.
std::string SafetensorsHeader(absl::string_view listing, int64_t* payload) {
  nlohmann::json header = nlohmann::json::object();
  *payload = 0;
  for (const absl::string_view line : absl::StrSplit(listing, '\n')) {
    const std::vector<std::string> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 2) continue;
    std::vector<int64_t> shape;
    int64_t bytes = words[0] == "F32" || words[0] == "I32" ? 4 : 2;
    for (size_t i = 2; i < words.size(); ++i) {
      int64_t dim = 0;
      if (!absl::SimpleAtoi(words[i], &dim) || dim < 0 ||
          dim > kMaxWeightBytes) {
        dim = 1;
      }
      shape.push_back(dim);
      bytes = std::min(bytes * dim, kMaxWeightBytes + 1);
    }
    if (*payload + bytes > kMaxWeightBytes) break;
    header[words[1]] = {{"dtype", words[0]},
                        {"shape", shape},
                        {"data_offsets", {*payload, *payload + bytes}}};
    *payload += bytes;
  }
  // Invalid UTF-8 in a name is for the reader to refuse, not for this to throw.
  const std::string text =
      header.dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
  const uint64_t length = text.size();
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(&length), 8), text);
}

// A sequence of two tokens, one a step.
void RunTwoTokens(const ModelDefinition& model, Program program, Plan plan) {
  const auto decoder =
      Decoder::Load(model,
                    std::make_unique<CpuExecutor>(
                        std::move(program), std::move(plan),
                        /*max_tokens=*/1, std::make_unique<ThreadPool>(1)),
                    1, 1);
  if (!decoder.ok()) return;
  for (int64_t position = 0; position < 2; ++position) {
    StepBatch batch;
    batch.tokens = {static_cast<int32_t>(position % model.vocab_size)};
    batch.positions = {position};
    batch.row_sequence = {0};
    batch.query_start = {0, 1};
    batch.page_table = {1};
    batch.page_table_stride = 1;
    batch.slots = {1};
    batch.logit_rows = {0};
    CutRuns(&batch);
    StepOutput output;
    (*decoder)->Run(batch, &output).IgnoreError();
  }
}

void Try() {
  const absl::StatusOr<Checkpoint> checkpoint =
      Checkpoint::Open(ScratchFolder());
  if (!checkpoint.ok()) return;
  const absl::StatusOr<ModelDefinition> model = ReadModel(*checkpoint);
  if (!model.ok()) return;
  Program program = Emit(*model);
  Plan plan = Lower(program, {});
  RECURVE_CHECK(plan.page_bytes >= 0 && plan.slot_bytes >= 0);
  if (2 * (plan.page_bytes + plan.slot_bytes) <= kMaxMemoryBytes) {
    RunTwoTokens(*model, std::move(program), std::move(plan));
  }
}

}  // namespace
}  // namespace recurve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const std::vector<absl::string_view> parts =
      absl::StrSplit(input, absl::MaxSplits("\n---\n", 2));
  if (parts.size() != 3) return 0;
  int64_t payload = 0;
  const std::string header = recurve::SafetensorsHeader(parts[2], &payload);
  const recurve::MemoryFile config(parts[0]);
  const recurve::MemoryFile generation(parts[1]);
  const recurve::MemoryFile weights(header, payload);
  recurve::Link("config.json", config.path());
  recurve::Link("generation_config.json",
                parts[1].empty() ? "" : generation.path());
  recurve::Link("model.safetensors", weights.path());
  recurve::Try();
  return 0;
}
