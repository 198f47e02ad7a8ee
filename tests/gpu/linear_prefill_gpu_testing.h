// A batch of prompts for the linear-attention prefill on the GPU, in memory
// full of traps, and the float64 reference recurrence.
#ifndef RECURVE_TESTS_GPU_LINEAR_PREFILL_GPU_TESTING_H_
#define RECURVE_TESTS_GPU_LINEAR_PREFILL_GPU_TESTING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/linear_attn/causal/linear_prefill_cuda.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/linear_gpu_testing.h"

namespace recurve {

// Tokens [first, first + count) of a sequence, whose token 0 is at
// LinearGpuConfig::first_position.
struct PromptPart {
  int64_t sequence = 0;
  int64_t first = 0;
  int64_t count = 0;
};

// The results of a prompt in float64, token by token.
struct PrefillOracle {
  PrefillOracle(const LinearGpuConfig& config, const PromptPart& part,
                bool fresh);

  std::vector<double> out;    // [count, H, E]
  std::vector<double> state;  // [H, Dk, E]
};

// ‖got − want‖ / ‖want‖, the largest over all heads, for contiguous [.., heads,
// inner] elements. Infinite if there is a NaN.
double WorstHeadError(const std::vector<float>& got,
                      const std::vector<double>& want, int64_t heads,
                      int64_t inner);

// Prompts on the device. After `parts` come a row in the sink and one beyond
// the number of rows, whose tokens are NaN.
class LinearPrefillBatch {
 public:
  struct Options {
    bool fresh = false;      // the slots hold NaN
    bool no_decay = false;   // decay is null
    bool float_out = false;  // for any type of q, k and v
  };

  LinearPrefillBatch(const LinearGpuConfig& config,
                     std::vector<PromptPart> parts, Options options);

  // Continues with other parts of the same sequences, from their current
  // states.
  void Next(std::vector<PromptPart> parts);
  // Launches, and checks that other memory is unchanged.
  void Run();

  std::vector<float> Out(int64_t part) const;    // [count, H, E]
  std::vector<float> State(int64_t part) const;  // [H, Dk, E]

  // Valid until the next call of Next().
  LinearPrefillParams Params();
  float* States() { return states_.data(); }
  int32_t Slot(int64_t part) const {
    return static_cast<int32_t>(2 * (parts() - part));
  }

 private:
  static constexpr int64_t kGap = 8;         // elements between tokens
  static constexpr int64_t kTrapTokens = 9;  // of each row outside the parts

  int64_t parts() const { return static_cast<int64_t>(parts_.size()); }
  int64_t tokens() const;
  ElementType out_type() const {
    return options_.float_out ? ElementType::kFloat32 : config_.io;
  }
  void Upload();

  LinearGpuConfig config_;
  std::vector<PromptPart> parts_;
  Options options_;
  int64_t in_stride_, out_stride_, slot_stride_;
  DeviceBuffer<float> states_, decay_;
  DeviceBuffer<uint64_t> phases_;
  std::unique_ptr<DeviceTensor> tokens_, out_;
  std::unique_ptr<DeviceBuffer<int32_t>> query_start_, rows_, slots_, fresh_;
  std::unique_ptr<DeviceBuffer<int64_t>> positions_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_LINEAR_PREFILL_GPU_TESTING_H_
