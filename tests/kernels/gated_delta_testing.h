// Inputs of the gated delta rule, and its float64 reference.
#ifndef RECURVE_TESTS_KERNELS_GATED_DELTA_TESTING_H_
#define RECURVE_TESTS_KERNELS_GATED_DELTA_TESTING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/linear_attn/gated_delta/gated_delta.h"

namespace recurve {

enum class DeltaTestGates {
  kUsual,
  kOpen,       // g = 0, β = 1
  kForgetful,  // g so low that e^g is 0 for every third token
  kStill,      // β = 0 for all but every third token
};

struct DeltaTestConfig {
  int64_t key_heads = 2;
  int64_t value_heads = 4;
  int64_t head_dim = 32;
  int64_t value_dim = 48;
  ElementType type = ElementType::kFloat32;
  DeltaDecay decay = DeltaDecay::kSoftplus;
  bool by_channel = false;
  float bound = -5.0f;
  float beta_scale = 1.0f;
  bool biased = true;
  DeltaTestGates gates = DeltaTestGates::kUsual;

  int64_t decays() const {
    return by_channel ? value_heads * head_dim : value_heads;
  }
  int64_t state_elements() const { return value_heads * head_dim * value_dim; }
  int64_t out_elements() const { return value_heads * value_dim; }
};

// q, k, v, a and b of one sequence's tokens, adjacent in a row, exact in the
// type, with NaN between rows; and the sequence's first state. Keys follow a
// ramp, so that neighbours are alike and the rule has much to correct.
struct DeltaTokens {
  DeltaTokens(const DeltaTestConfig& config, int64_t length, uint64_t seed);

  const float* Row(int64_t token) const { return data.data() + token * stride; }

  DeltaTestConfig config;
  int64_t length;
  int64_t q, k, v, a, b;     // offsets within a row
  int64_t stride;            // a multiple of 8
  std::vector<float> data;   // [length, stride]
  std::vector<float> state;  // [Hv, D, E]
  std::vector<float> a_log;  // [Hv], of the config alone, as bias
  std::vector<float> bias;   // [Hv] or [Hv, D]
};

// All of the params that the tokens' config decides; pointers are null but
// those of the gate, which point into `tokens`.
GatedDeltaParams DeltaParams(const DeltaTokens& tokens);

// The recurrence in float64.
struct DeltaOracle {
  explicit DeltaOracle(const DeltaTokens& tokens);

  // Compares with the reference by ‖error‖ / ‖value‖ of a token's head, or of a
  // head's state.
  void Expect(absl::Span<const float> out, absl::Span<const float> state,
              double tolerance) const;

  DeltaTestConfig config;
  std::vector<double> out;    // [length, Hv, E]
  std::vector<double> state;  // [Hv, D, E]
};

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_GATED_DELTA_TESTING_H_
