#ifndef RECURVE_ENGINE_MODELS_DESCRIBE_PARTS_H_
#define RECURVE_ENGINE_MODELS_DESCRIBE_PARTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "engine/models/norm_definition.h"
#include "engine/program/position.h"
#include "kernels/common/activation.h"

namespace recurve {

// Pieces of LayerPart::Describe.

// As config.json spells it.
const char* Name(Activation activation);
// "8 heads of 64 (values 128)"
std::string DescribeHeads(int64_t num_heads, int64_t head_dim,
                          int64_t value_dim);
// ", rotated in part with decay"
std::string DescribePosition(const PositionConfig& position);
// ", RMS norm of each head"
std::string DescribeNorm(const std::optional<NormDefinition>& norm);

}  // namespace recurve

#endif  // RECURVE_ENGINE_MODELS_DESCRIBE_PARTS_H_
