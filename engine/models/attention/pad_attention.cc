#include <utility>
#include <vector>

#include "engine/models/attention/attention_layer.h"
#include "engine/models/pad_heads.h"

namespace recurve {
namespace {

// What kernels of all devices take.
constexpr int64_t kMultiple = 16;

std::vector<float> PadWeight(const std::vector<float>& weight,
                             const PaddedHeads& heads, float factor) {
  std::vector<float> padded = PadValues(weight, 1, {heads});
  for (float& w : padded) w *= factor;
  return padded;
}

}  // namespace

AttentionDefinition PadAttention(AttentionDefinition definition) {
  AttentionConfig& c = definition.config;
  AttentionTensors& t = definition.tensors;
  AttentionShape& s = c.shape;
  const bool rotates = c.position.type == LrpeType::kRotate;
  const PaddedFeatures keys = rotates ? PadHalves(s.head_dim, kMultiple)
                                      : PadAtEnd(s.head_dim, kMultiple);
  const PaddedFeatures values = PadAtEnd(s.value_dim, kMultiple);
  const auto key_dim = static_cast<int64_t>(keys.size());
  const auto value_dim = static_cast<int64_t>(values.size());
  if (key_dim == s.head_dim && value_dim == s.value_dim) return definition;

  const PaddedHeads q = {s.num_heads, s.head_dim, keys};
  const PaddedHeads k = {s.num_kv_heads, s.head_dim, keys};
  const PaddedHeads v = {s.num_kv_heads, s.value_dim, values};
  const PaddedHeads out = {s.num_heads, s.value_dim, values};
  t.q = PadRows(std::move(t.q),
                t.gate_in_q ? std::vector{q, out} : std::vector{q});
  t.k = PadRows(std::move(t.k), {k});
  t.v = PadRows(std::move(t.v), {v});
  if (t.gate) t.gate = PadRows(*std::move(t.gate), {out});
  t.out = PadCols(std::move(t.out), {out});
  if (rotates) c.position.theta.resize(key_dim / 2, 0.0);
  if (c.norm) {
    const PaddedNorm norm = PadNorm(s.head_dim, key_dim);
    c.norm->eps *= norm.eps;
    const PaddedHeads one = {1, s.head_dim, keys};
    c.norm->q = PadWeight(c.norm->q, c.norm->of_heads ? one : q, norm.weight);
    c.norm->k = PadWeight(c.norm->k, c.norm->of_heads ? one : k, norm.weight);
  }
  s.head_dim = key_dim;
  s.value_dim = value_dim;
  return definition;
}

}  // namespace recurve
