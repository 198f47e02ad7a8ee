#include "engine/models/emit.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/tpa/tpa_layout.h"
#include "kv_cache/cache_spec.h"

namespace recurve {

// kv_cache's pages have the layout of the kernels' pages. The two folders do
// not depend on each other, so the check is here.
static_assert(kPageTokens == kTpaPageTokens);

namespace {

std::string PlaceOf(size_t layer) { return absl::StrCat("layer ", layer); }

std::vector<float> Zeros(const ModelDefinition& model) {
  return std::vector<float>(model.hidden_size, 0.0f);
}

// residual += norm(part(residual)). The part adds to `branch`.
void EmitWithNormAfter(const LayerPart& part, const NormDefinition& norm,
                       VectorId zeros, ValueId residual, ValueId branch,
                       ProgramBuilder& program) {
  program.Add(FillOp{zeros, {branch}});
  part.Emit(residual, branch, program);
  program.Add(NormOp{{branch}, EmitNorm(norm, program), {branch}});
  program.Add(AddOp{{branch}, {residual}});
}

}  // namespace

Program Emit(const ModelDefinition& model) {
  ProgramBuilder program(model.vocab_size, model.hidden_size);
  const ValueId residual = program.AddLasting("residual", model.hidden_size);
  const ValueId normed = program.AddLasting("normed", model.hidden_size);
  program.BeginRegion("embedding");
  const TableId table = program.AddTable(model.embedding);
  if (model.tpe == nullptr) {
    program.Add(EmbedOp{table, model.embedding_scale, {residual}});
  } else {
    // It adds to a residual; there is none yet.
    program.Add(EmbedOp{table, model.embedding_scale, {normed}});
    program.Add(FillOp{program.AddVector(Zeros(model)), {residual}});
    model.tpe->Emit(normed, residual, program);
  }
  VectorId zeros;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerDefinition& layer = model.layers[i];
    for (const auto& [norm, part] :
         {std::pair(&layer.token_norm, layer.mixer.get()),
          std::pair(&layer.channel_norm, layer.feed_forward.get())}) {
      program.BeginRegion(PlaceOf(i));
      if (layer.norms_after) {
        if (zeros.value < 0) zeros = program.AddVector(Zeros(model));
        EmitWithNormAfter(*part, *norm, zeros, residual, normed, program);
      } else {
        program.Add(NormOp{{residual}, EmitNorm(*norm, program), {normed}});
        part->Emit(normed, residual, program);
      }
    }
  }
  program.BeginRegion("head");
  program.Add(HeadOp{{residual},
                     EmitNorm(model.final_norm, program),
                     program.AddMatrix({model.head})});
  return program.Build();
}

absl::Status CheckGpu(const ModelDefinition& model) {
  if (model.tpe != nullptr) {
    RECURVE_RETURN_IF_ERROR(model.tpe->CheckGpu("the token position encoding"));
  }
  for (size_t i = 0; i < model.layers.size(); ++i) {
    RECURVE_RETURN_IF_ERROR(model.layers[i].mixer->CheckGpu(PlaceOf(i)));
    RECURVE_RETURN_IF_ERROR(model.layers[i].feed_forward->CheckGpu(PlaceOf(i)));
  }
  return absl::OkStatus();
}

bool TakesFloatPages(const ModelDefinition& model) {
  return std::all_of(model.layers.begin(), model.layers.end(),
                     [](const LayerDefinition& layer) {
                       return layer.mixer->TakesFloatPages();
                     });
}

DType GpuPagesFor(const ModelDefinition& model,
                  const std::optional<DType>& weights) {
  const DType held = weights.value_or(model.embedding.dtype);
  return held == DType::kFloat32 && !TakesFloatPages(model) ? DType::kFloat16
                                                            : held;
}

}  // namespace recurve
