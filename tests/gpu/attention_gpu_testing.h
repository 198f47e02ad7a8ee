// A cache of softmax attention on the GPU, full of traps, and the reference for
// attending to it.
#ifndef RECURVE_TESTS_GPU_ATTENTION_GPU_TESTING_H_
#define RECURVE_TESTS_GPU_ATTENTION_GPU_TESTING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention/attention_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/kernels/attention_testing.h"

namespace recurve {

struct AttentionGpuConfig {
  AttentionTestConfig of;
  WeightType element = WeightType::kBFloat16;
};
std::string Describe(const AttentionGpuConfig& config);

// Relative error of one rounding to `type`.
double AttentionRounding(WeightType type);

// A value as `type`, and back.
float RoundedTo(WeightType type, float value);

// A token that attends: the one at `length` - 1 of its sequence, or none.
struct AttentionGpuRow {
  int sequence;
  int length;
};

// Sequences of one config, of which the first tokens are appended. Pages are
// scattered, of NaN outside tokens, with a gap between them; the page table has
// invalid entries beyond a sequence's pages.
class AttentionGpuCache {
 public:
  // `sequences` must outlive it.
  AttentionGpuCache(const AttentionGpuConfig& config,
                    const std::vector<const AttentionTokens*>& sequences);

  // Appends tokens [begin, end) of a sequence.
  void Append(int sequence, int begin, int end);
  // Appends all.
  void AppendAll();

  // One decode step of these rows, whose tokens have been appended; if
  // `append`, the same launch as that of the queries appends them. [rows, H,
  // E].
  std::vector<float> Decode(const std::vector<AttentionGpuRow>& rows,
                            bool append = false);

  // The same with append, by a graph that was captured for the rows `captured`,
  // as many, and is launched twice.
  std::vector<float> Replay(const std::vector<AttentionGpuRow>& captured,
                            const std::vector<AttentionGpuRow>& rows);
  // The queries of `count` rows of these, from row `first` on, as memory.
  std::vector<uint8_t> FormQueries(const std::vector<AttentionGpuRow>& rows,
                                   int first, int count);
  // The result of launching a step of one row that `change` has changed.
  cudaError_t TryDecode(const std::function<void(AttentionCudaDecodeParams*,
                                                 AttentionPlan*)>& change);

  // Prefill of these chunks: tokens [begin, end) of each sequence, all of which
  // have been appended. [new tokens, H, E] of all, compact.
  struct Chunk {
    int sequence;
    int begin;
    int end;
  };
  std::vector<float> Prefill(const std::vector<Chunk>& chunks);

  // [H, E] in float64, of the pages as they are and queries in float64.
  std::vector<double> Oracle(const AttentionGpuRow& row) const;

  // Element i of a token's key or value.
  float Key(int sequence, int token, int64_t g, int64_t i) const;
  float Value(int sequence, int token, int64_t g, int64_t i) const;

  // The raw elements of all pages, and which of them hold tokens.
  std::vector<uint8_t> RawPages() const { return pages_->Read(); }
  std::vector<bool> Used() const;

  // For tests that change the plan or how results are written.
  AttentionPlan plan;
  WeightType out_type = WeightType::kFloat32;
  int fresh_tokens = 1;
  bool host_pages = true;  // the schedule has page numbers
  bool aligned = true;     // rows of inputs begin at 16 bytes

 private:
  struct Step;
  AttentionCudaCache View() const;
  int64_t Place(int sequence, int token) const;  // of its page, in elements
  void Refresh() const;
  std::unique_ptr<Step> MakeStep(
      const std::vector<AttentionGpuRow>& rows) const;
  AttentionCudaAppendParams AppendParams(const Step& step) const;
  AttentionCudaDecodeParams DecodeParams(const Step& step) const;
  void Share(Step* step) const;
  void Note(const std::vector<AttentionGpuRow>& rows);
  std::vector<float> Compact(const Step& step) const;

  const AttentionGpuConfig config_;
  const std::vector<const AttentionTokens*> sequences_;
  const AttentionPageLayout layout_;
  int64_t page_stride_;
  int64_t table_stride_ = 2;
  std::vector<std::vector<int32_t>> owned_;
  std::vector<int> appended_;
  std::unique_ptr<DeviceBuffer<uint8_t>> pages_;
  std::vector<int32_t> host_table_;
  std::unique_ptr<DeviceBuffer<int32_t>> table_;
  std::unique_ptr<DeviceBuffer<float>> q_weight_;
  std::unique_ptr<DeviceBuffer<float>> k_weight_;
  mutable std::vector<uint8_t> host_pages_;  // as last read
  mutable bool stale_ = true;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_ATTENTION_GPU_TESTING_H_
