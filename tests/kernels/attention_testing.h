// A paged cache of softmax attention full of traps, and the reference for its
// kernels.
#ifndef RECURVE_TESTS_KERNELS_ATTENTION_TESTING_H_
#define RECURVE_TESTS_KERNELS_ATTENTION_TESTING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/thread_pool.h"
#include "kernels/attention/attention.h"

namespace recurve {

struct AttentionTestConfig {
  AttentionShape shape;
  LrpeType position = LrpeType::kRotate;
  bool norms = false;  // of queries and of keys
  bool gate = false;
  double scale = 0.0;  // 0: D^-1/2
  double base = 10000.0;
};

// What all tokens of one sequence bring, adjacent in a row as one product
// writes it; NaN between rows.
struct AttentionTokens {
  // Uniform in [-1, 1).
  AttentionTokens(const AttentionTestConfig& config, int64_t length,
                  uint64_t seed);

  // Adds `from` ... `to`, a ramp over the tokens, to each score before position
  // encoding and norms; REQUIRES: length >= 1.
  void Ramp(double from, double to);

  float* Row(int64_t token) { return data.data() + token * stride; }
  const float* Row(int64_t token) const { return data.data() + token * stride; }
  float Scale() const;

  AttentionTestConfig config;
  int64_t length;
  int64_t q, k, v, gate;  // offsets within a row
  int64_t stride;
  std::vector<float> data;                // [length, stride]
  std::vector<float> q_weight, k_weight;  // [D], of the norms
  float eps = 1e-6f;
};

// Attention in float64 by its definition. Returns [H, E] for each of `rows`.
std::vector<std::vector<double>> AttentionOracle(
    const AttentionTokens& tokens, absl::Span<const int64_t> rows);

// A key of kv head g with its norm and position, in float64.
std::vector<double> AttentionKeyOracle(const AttentionTokens& tokens,
                                       int64_t token, int64_t g);

// A token of one of the sequences that a cache holds.
struct AttentionRow {
  int64_t sequence;
  int64_t position;  // -1: sees nothing, and is not appended
};

// The cache. Pages are scattered over the sequences and full of NaN, with a gap
// between pages; entries of the page table beyond the known tokens are invalid.
class AttentionTestCache {
 public:
  // `sequences` must outlive the cache and be of one config.
  explicit AttentionTestCache(
      absl::Span<const AttentionTokens* const> sequences);

  // Appends these tokens and attends from them, as one step. Returns [rows, H,
  // E].
  std::vector<float> Step(absl::Span<const AttentionRow> rows,
                          ThreadPool& pool);
  // Attends alone.
  std::vector<float> Attend(absl::Span<const AttentionRow> rows,
                            ThreadPool& pool);
  // Runs sequence 0 in steps of the given sizes.
  std::vector<float> Run(absl::Span<const int64_t> cuts, ThreadPool& pool);

  const std::vector<float>& pages() const { return pages_; }
  int64_t page_stride() const { return page_stride_; }
  int32_t page_of(int64_t sequence, int64_t index) const {
    return owned_[sequence][index];
  }

 private:
  std::vector<int32_t> PageTable(absl::Span<const AttentionRow> rows);
  std::vector<float> Launch(absl::Span<const AttentionRow> rows, bool append,
                            ThreadPool& pool);

  const std::vector<const AttentionTokens*> sequences_;
  const AttentionTestConfig config_;
  int64_t page_stride_;
  int64_t table_stride_ = 3;
  std::vector<std::vector<int32_t>> owned_;  // pages by sequence, in order
  std::vector<int64_t> known_;               // tokens seen, by sequence
  std::vector<float> pages_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_KERNELS_ATTENTION_TESTING_H_
