// Recurrent states in slots full of traps, and the reference for the
// linear-attention kernel.
#ifndef RECURVE_TESTS_KERNELS_LINEAR_ATTN_TESTING_H_
#define RECURVE_TESTS_KERNELS_LINEAR_ATTN_TESTING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/thread_pool.h"
#include "kernels/linear_attn/linear_attn.h"

namespace recurve {

struct LinearTestConfig {
  int64_t num_heads = 3;
  int64_t head_dim = 64;
  int64_t value_dim = 64;
  Activation q_activation = Activation::kSilu;
  Activation k_activation = Activation::kSilu;
  Activation v_activation = Activation::kNone;
  LrpeType position = LrpeType::kNone;
  bool decays = true;
  int64_t whole = 0;  // first tokens, which see each other
  double base = 10000.0;

  int64_t key_dim() const { return LrpeOutputDim(position, head_dim); }
  int64_t state_elements() const { return num_heads * key_dim() * value_dim; }
  // λ of each head: from slow to fast, or 1.
  std::vector<float> Decay() const;
};

// q, k and v of all tokens of one sequence, adjacent in a row, with NaN between
// rows; and the sequence's initial state.
struct LinearTokens {
  LinearTokens(const LinearTestConfig& config, int64_t length, uint64_t seed);

  const float* Row(int64_t token) const { return data.data() + token * stride; }

  LinearTestConfig config;
  int64_t length;
  int64_t first_position = 0;
  // Offsets within a row.
  int64_t q, k, v;
  int64_t stride;
  std::vector<float> data;   // [length, stride]
  std::vector<float> state;  // [H, Dk, E]
};

// The recurrence in float64, with the sums of magnitudes to which the rounding
// errors of each value are proportional.
struct LinearOracle {
  explicit LinearOracle(const LinearTokens& tokens);

  // Compares `out` and `state` with the reference, to `tolerance`.
  void Expect(absl::Span<const float> out, absl::Span<const float> state,
              double tolerance) const;

  LinearTestConfig config;
  std::vector<double> out;        // [length, H, E]
  std::vector<double> out_scale;  // [length, H]
  std::vector<double> state;      // [H, Dk, E]
};

// A step: the number of tokens of each sequence.
using LinearCut = std::vector<int64_t>;

struct LinearResult {
  std::vector<std::vector<float>> out;    // by sequence: [length, H, E]
  std::vector<std::vector<float>> state;  // by sequence: [H, Dk, E]
};

// Runs sequences of one config in the steps of `cuts`. Checks that gaps, other
// slots and states of sequences without tokens in a step keep their bits.
LinearResult RunLinear(absl::Span<const LinearTokens* const> sequences,
                       absl::Span<const LinearCut> cuts, ThreadPool& pool);

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_LINEAR_ATTN_TESTING_H_
