#include "engine/program/print_plan.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace recurve {
namespace {

std::string ShapeOf(const Plan& plan, MatrixId id) {
  const Plan::Matrix& matrix = plan.matrices[id.value];
  return absl::StrCat("[", matrix.outputs, ", ", matrix.inputs, "] ",
                      Name(matrix.type));
}

std::string SliceOf(const Program& program, const Plan& plan,
                    const Slice& slice) {
  const Value& value = program.values[slice.value.value];
  const int64_t cols = plan.PlaceOf(slice).cols;
  if (slice.cols == Slice::kAll)
    return absl::StrCat(value.name, "[", cols, "]");
  return absl::StrCat(value.name, "[", slice.first, ":", slice.first + cols,
                      "]");
}

// "project residual += mixed[128] · [64, 128]"
std::string OperationOf(const Program& program, const Plan& plan,
                        const Operation& operation) {
  std::vector<std::string> reads;
  for (const Slice& slice : ReadsOf(operation)) {
    if (slice.cols != 0) reads.push_back(SliceOf(program, plan, slice));
  }
  std::string text = NameOf(operation);
  if (const auto* const project = std::get_if<ProjectOp>(&operation)) {
    return absl::StrCat(text, " ", SliceOf(program, plan, project->out),
                        project->add ? " += " : " = ",
                        SliceOf(program, plan, project->in), " x ",
                        ShapeOf(plan, project->matrix));
  }
  if (const auto* const head = std::get_if<HeadOp>(&operation)) {
    return absl::StrCat(text, " ", reads[0], " x ",
                        ShapeOf(plan, head->matrix));
  }
  const std::string source =
      std::holds_alternative<EmbedOp>(operation) ? "tokens" : "a constant";
  return absl::StrCat(text, " ", SliceOf(program, plan, OutputOf(operation)),
                      " = ",
                      reads.empty() ? source : absl::StrJoin(reads, ", "));
}

const char* FormOf(const Launch& launch) {
  switch (launch.form) {
    case Launch::Form::kOne:
      return "";
    case Launch::Form::kNormed:
      return "one product with its norm";
    case Launch::Form::kGatedUnit:
      return "gated unit";
    case Launch::Form::kChain:
      return "one chain of products";
  }
  return "";
}

// The lines of a launch, without its layer's number.
std::string LinesOf(const Program& program, const Plan& plan,
                    const Launch& launch) {
  std::string text;
  std::string notes;
  if (launch.reads_rounded) notes += ", reads 16-bit values";
  if (launch.writes_rounded) notes += ", writes 16-bit values";
  if (launch.fuses_norm && launch.form != Launch::Form::kNormed)
    notes += ", a product computes the norm";
  if (launch.prefetch.value >= 0)
    absl::StrAppend(&notes, ", fetches ", ShapeOf(plan, launch.prefetch));
  if (launch.form != Launch::Form::kOne) {
    absl::StrAppend(&text, "  ", FormOf(launch), notes, ":\n");
    notes.clear();
  }
  for (int32_t i = launch.first; i < launch.first + launch.count; ++i) {
    absl::StrAppend(&text, launch.form == Launch::Form::kOne ? "  " : "    ",
                    OperationOf(program, plan, program.operations[i]), notes,
                    "\n");
  }
  return text;
}

}  // namespace

std::string NameOf(const Program& program, const Plan& plan,
                   const Launch& launch) {
  const Operation& first = program.operations[launch.first];
  if (launch.form != Launch::Form::kOne) return FormOf(launch);
  if (const auto* const project = std::get_if<ProjectOp>(&first)) {
    return absl::StrCat("project ", ShapeOf(plan, project->matrix));
  }
  return NameOf(first);
}

std::string PrintPlan(const Program& program, const Plan& plan,
                      const StepForm& form) {
  // Places in order, each with its lines; neighbours with equal lines are one.
  std::vector<std::pair<std::vector<std::string>, std::string>> groups;
  for (const Launch& launch : PlanLaunches(program, plan, form)) {
    const std::string& place = program.places[launch.first];
    const std::string lines = LinesOf(program, plan, launch);
    if (groups.empty() || groups.back().first.back() != place) {
      groups.push_back({{place}, ""});
    }
    groups.back().second += lines;
  }
  std::string text;
  for (size_t i = 0; i < groups.size();) {
    size_t end = i + 1;
    while (end < groups.size() && groups[end].second == groups[i].second) ++end;
    const std::string& first = groups[i].first.front();
    const std::string& last = groups[end - 1].first.front();
    absl::StrAppend(&text, first, end - i > 1 ? absl::StrCat(" to ", last) : "",
                    ":\n", groups[i].second);
    i = end;
  }
  return text;
}

std::string PrintForms(const Program& program, const Plan& plan) {
  std::string text = absl::StrCat(
      "weights ", plan.weight_bytes, " bytes, a page ", plan.page_bytes,
      ", a slot ", plan.slot_bytes, ", activations ", plan.row_bytes(),
      " for each row of a step\n");
  if (plan.chunk_multiple > 1) {
    absl::StrAppend(&text, "chunks of prompts end at multiples of ",
                    plan.chunk_multiple, " tokens\n");
  }
  if (!plan.device.gpu) {
    return absl::StrCat(text, "\nEvery step\n", PrintPlan(program, plan, {}));
  }
  std::string previous;
  const auto add = [&](const std::string& what, const StepForm& form) {
    const std::string lines = PrintPlan(program, plan, form);
    absl::StrAppend(&text, "\n", what, lines == previous ? ": the same" : "",
                    "\n");
    if (lines != previous) text += lines;
    previous = lines;
  };
  for (const int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    add(absl::StrCat("Decode, ", rows, rows == 1 ? " row" : " rows"),
        {.decode = true, .rows = rows});
  }
  add("Steps with short prompts only", {.all_steps = true});
  add("Other steps with prompts", {});
  return text;
}

}  // namespace recurve
