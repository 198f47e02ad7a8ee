#include <utility>
#include <vector>

#include "engine/models/gated_delta/gated_delta_layer.h"
#include "engine/models/pad_heads.h"

namespace recurve {
namespace {

// What kernels of all devices take.
constexpr int64_t kMultiple = 8;

}  // namespace

GatedDeltaDefinition PadGatedDelta(GatedDeltaDefinition definition) {
  GatedDeltaConfig& c = definition.config;
  GatedDeltaTensors& t = definition.tensors;
  const PaddedFeatures keys = PadAtEnd(c.head_dim, kMultiple);
  const PaddedFeatures values = PadAtEnd(c.value_dim, kMultiple);
  const auto key_dim = static_cast<int64_t>(keys.size());
  const auto value_dim = static_cast<int64_t>(values.size());
  if (key_dim == c.head_dim && value_dim == c.value_dim) return definition;

  const PaddedHeads q = {c.key_heads, c.head_dim, keys};
  const PaddedHeads v = {c.value_heads, c.value_dim, values};
  if (t.qkv.size() == 1) {
    t.qkv[0] = PadRows(std::move(t.qkv[0]), {q, q, v});
  } else {
    t.qkv[0] = PadRows(std::move(t.qkv[0]), {q});
    t.qkv[1] = PadRows(std::move(t.qkv[1]), {q});
    t.qkv[2] = PadRows(std::move(t.qkv[2]), {v});
  }
  t.z = PadRows(std::move(t.z), {v});
  t.out = PadCols(std::move(t.out), {v});
  t.conv_weight = PadValues(t.conv_weight, c.conv_width, {q, q, v});
  const PaddedNorm norm = PadNorm(c.value_dim, value_dim);
  c.norm_eps *= norm.eps;
  t.norm_weight = PadValues(t.norm_weight, 1, {{1, c.value_dim, values}});
  for (float& w : t.norm_weight) w *= norm.weight;
  c.head_dim = key_dim;
  c.value_dim = value_dim;
  return definition;
}

}  // namespace recurve
