// A cache of tensor product attention on the GPU, full of traps, and the
// reference for decoding from it.
#ifndef RECURVE_TESTS_GPU_TPA_GPU_TESTING_H_
#define RECURVE_TESTS_GPU_TPA_GPU_TESTING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tpa/decode/tpa_schedule.h"
#include "kernels/tpa/tpa_cuda.h"
#include "tests/gpu/device_buffer.h"

namespace recurve {

// A float as the cache's 16-bit type, and back.
uint16_t ToBits(TpaElement element, float value);
float FromBits(TpaElement element, uint16_t bits);

struct TpaGpuConfig {
  TpaShape shape;
  TpaElement element = TpaElement::kBFloat16;
  LrpeType position = LrpeType::kRotate;
};

// For messages.
std::string Describe(const TpaGpuConfig& config);

// Queries and factors of one sequence, the latter already rounded to the
// cache's type.
struct TpaSequence {
  // Uniform in [-1, 1). Queries of the last `queries` tokens.
  TpaSequence(const TpaGpuConfig& config, int length, int queries,
              uint64_t seed);
  // Makes scores rise from about `from` to about `to` over the tokens.
  void Ramp(const TpaGpuConfig& config, float from, float to);
  // Multiplies scores by `by`.
  void ScaleKeys(const TpaGpuConfig& config, float by);
  // Calls `change` with each factor of keys and values, and rounds the result:
  // 0 A_k, 1 B_k, 2 A_v, 3 B_v.
  void Change(const TpaGpuConfig& config,
              const std::function<float(int, float)>& change);

  int length;
  int queries;
  std::vector<float> a_k, b_k, a_v, b_v;  // [length, R, ...]
  std::vector<float> a_q, b_q;            // [queries, Rq, ...], or direct
                                          // queries b_q [queries, H, D]
  std::vector<float> cos, sin;            // [queries, D/2]
};

// [queries, H, E] in float64; query t sees the first length - queries + 1 + t
// tokens.
std::vector<double> TpaGpuOracle(const TpaGpuConfig& config,
                                 const TpaSequence& sequence);

// As TpaGpuOracle, for one query: [H, E].
std::vector<double> TpaGpuOracleOf(const TpaGpuConfig& config,
                                   const TpaSequence& sequence, int query);

// The first `length` tokens of a sequence.
struct TpaCached {
  const TpaSequence* sequence;
  int length;
};
// A cache of these, with a row of the page table for each. Pages are scattered,
// filled with NaN outside tokens, with a gap between them; the page table has
// invalid entries beyond a sequence's pages.
struct TpaHostCache {
  std::vector<uint16_t> pages;
  std::vector<int32_t> table;
  int64_t page_stride;
  int64_t table_stride;
};
TpaHostCache MakeTpaHostCache(const TpaGpuConfig& config,
                              const std::vector<TpaCached>& rows);

// A decode step over such a cache.
class TpaGpuBatch {
 public:
  TpaGpuBatch(const TpaGpuConfig& config,
              const std::vector<const TpaSequence*>& sequences);

  // [rows, queries, H, E], compact.
  std::vector<float> Decode(TpaDecodeForm form);
  std::vector<float> Decode(const TpaDecodePlan& plan);
  // kMany: heads are rows where possible.
  TpaDecodePlan Plan(TpaDecodeForm form,
                     TpaContexts contexts = TpaContexts::kMany) const;

  // Plans from now on are for a GPU without Hopper's instructions.
  void UsePortableKernel() { portable_ = true; }

  // Decodes from now on also prefetch this memory, for the launch after them.
  void AskFor(const void* next, int64_t bytes) {
    next_ = next;
    next_bytes_ = bytes;
  }

  // For tests that launch themselves.
  TpaCudaDecodeParams Params(const TpaDecodePlan& plan);
  // Launches the queries and the step.
  cudaError_t Launch(const TpaCudaDecodeParams& params,
                     const TpaDecodePlan& plan, cudaStream_t stream);
  std::vector<float> Compact() const;
  // Params use these lengths from now on; existing ones after Share is called.
  void SetLengths(const std::vector<int32_t>& lengths);
  void Share(const TpaDecodePlan& plan);

 private:
  TpaCudaQueryParams QueryParams();

  const TpaGpuConfig config_;
  const int rows_;
  const int queries_;
  int64_t page_stride_;
  int64_t table_stride_;
  int64_t query_stride_;
  int64_t out_stride_;
  std::optional<DeviceBuffer<uint16_t>> pages_;
  std::optional<DeviceBuffer<int32_t>> table_;
  std::vector<int32_t> host_table_;
  std::vector<int32_t> lengths_;
  std::optional<DeviceBuffer<float>> queries_buffer_;
  std::optional<DeviceBuffer<float>> cos_;
  std::optional<DeviceBuffer<float>> sin_;
  std::optional<DeviceBuffer<float>> out_;
  std::optional<DeviceBuffer<uint8_t>> queries_formed_;
  std::optional<DeviceBuffer<uint8_t>> scratch_;
  std::optional<DeviceBuffer<uint8_t>> schedule_;
  bool portable_ = false;
  const void* next_ = nullptr;
  int64_t next_bytes_ = 0;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_TPA_GPU_TESTING_H_
