#ifndef RECURVE_ENGINE_MODELS_NORM_DEFINITION_H_
#define RECURVE_ENGINE_MODELS_NORM_DEFINITION_H_

#include <cstdint>
#include <vector>

#include "engine/program/builder.h"
#include "engine/program/program.h"

namespace recurve {

// NormWeights with their values.
struct NormDefinition {
  NormKind kind = NormKind::kRms;
  int64_t groups = 1;         // 1 for kLayer
  double eps = 0;             // added to the mean square, or to the variance
  std::vector<float> weight;  // [cols], or empty
  std::vector<float> bias;    // [cols], or empty; kLayer only
};

// Adds its vectors to `program`.
inline NormWeights EmitNorm(const NormDefinition& norm,
                            ProgramBuilder& program) {
  NormWeights weights = {norm.kind, norm.groups, norm.eps, {}, {}};
  if (!norm.weight.empty()) weights.weight = program.AddVector(norm.weight);
  if (!norm.bias.empty()) weights.bias = program.AddVector(norm.bias);
  return weights;
}

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_NORM_DEFINITION_H_
