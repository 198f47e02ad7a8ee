// A paged cache of tensor product attention full of traps, and the reference
// for its kernels.
#ifndef RECURVE_TESTS_KERNELS_TPA_TESTING_H_
#define RECURVE_TESTS_KERNELS_TPA_TESTING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/thread_pool.h"
#include "kernels/tpa/tpa.h"

namespace recurve {

struct TpaTestConfig {
  TpaShape shape;
  LrpeType position = LrpeType::kRotate;
  double base = 10000.0;
  Activation activation = Activation::kNone;  // of A_k and A_v
};

// The factors of all tokens of one sequence, adjacent in a row as one product
// writes them; NaN between rows.
struct TpaTokens {
  // Uniform factors in [-1, 1).
  TpaTokens(const TpaTestConfig& config, int64_t length, uint64_t seed);

  // Adds `from` ... `to`, a ramp over the tokens, to each score before position
  // encoding; REQUIRES: length >= 1. The queries must be factored.
  void Ramp(double from, double to);

  float* Row(int64_t token) { return data.data() + token * stride; }
  const float* Row(int64_t token) const { return data.data() + token * stride; }

  TpaTestConfig config;
  int64_t length;
  // Offsets within a row.
  int64_t a_q, b_q, a_k, b_k, a_v, b_v;
  int64_t stride;
  std::vector<float> data;  // [length, stride]
};

// Attention in float64 by its definition: k and v of every token and head in
// full. Returns [H, E] for each of `rows`.
std::vector<std::vector<double>> TpaOracle(const TpaTokens& tokens,
                                           absl::Span<const int64_t> rows);

// A token of one of the sequences that a cache holds.
struct TpaRow {
  int64_t sequence;
  int64_t position;
};

// The cache. Pages are scattered over the sequences and full of NaN, with a gap
// between pages; entries of the page table beyond the known tokens are invalid.
class TpaTestCache {
 public:
  // `sequences` must outlive the cache and be of one config.
  explicit TpaTestCache(absl::Span<const TpaTokens* const> sequences);

  // Appends these tokens and attends from them, as one step. Returns [rows, H,
  // E].
  std::vector<float> Step(absl::Span<const TpaRow> rows, ThreadPool& pool);
  // Runs sequence 0 in steps of the given sizes.
  std::vector<float> Run(absl::Span<const int64_t> cuts, ThreadPool& pool);

  const std::vector<float>& pages() const { return pages_; }
  int64_t page_stride() const { return page_stride_; }
  int32_t page_of(int64_t sequence, int64_t index) const {
    return owned_[sequence][index];
  }

 private:
  std::vector<int32_t> PageTable(absl::Span<const TpaRow> rows);

  const std::vector<const TpaTokens*> sequences_;
  const TpaTestConfig config_;
  int64_t page_stride_;
  int64_t table_stride_ = 3;
  std::vector<std::vector<int32_t>> owned_;  // pages by sequence, in order
  std::vector<int64_t> known_;               // tokens seen, by sequence
  std::vector<float> pages_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_TPA_TESTING_H_
