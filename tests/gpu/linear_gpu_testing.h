// A batch of sequences for the linear-attention step on the GPU, in slots full
// of traps, and the float64 reference recurrence.
#ifndef RECURVE_TESTS_GPU_LINEAR_GPU_TESTING_H_
#define RECURVE_TESTS_GPU_LINEAR_GPU_TESTING_H_

#include <cstdint>
#include <vector>

#include "kernels/seeds/linear_step/linear_step_cuda.h"
#include "tests/gpu/device_buffer.h"

namespace recurve {

struct LinearGpuConfig {
  int64_t heads = 3;
  int64_t head_dim = 64;
  int64_t value_dim = 64;
  ElementType io = ElementType::kFloat32;
  ElementType state = ElementType::kFloat32;
  Activation q_activation = Activation::kSilu;
  Activation k_activation = Activation::kSilu;
  Activation v_activation = Activation::kNone;
  LrpeType position = LrpeType::kNone;
  float scale = 1.0f;
  bool angles_by_head = false;
  int64_t first_position = 0;
  uint64_t rounding_seed = 99;
  std::vector<float> decay;  // [heads], or empty

  int64_t key_dim() const { return LrpeOutputDim(position, head_dim); }
  int64_t state_elements() const { return heads * key_dim() * value_dim; }
  int64_t token_elements() const { return heads * (2 * head_dim + value_dim); }
  double base(int64_t head) const {
    return angles_by_head ? 10000.0 + 1000.0 * static_cast<double>(head)
                          : 10000.0;
  }
  // `decay`, or if it is empty, a value below 1 for each head but the first.
  std::vector<float> Decay() const;
};

// LinearStepParams::phase_steps: [heads or 1, angles]; a single 0 without
// position.
std::vector<uint64_t> LinearPhases(const LinearGpuConfig& config);

// q, k and v of one token of one sequence, adjacent: a pure function of both,
// with a ramp, so that tokens and features differ.
std::vector<float> LinearToken(const LinearGpuConfig& config, int64_t sequence,
                               int64_t step);
std::vector<float> LinearFirstState(const LinearGpuConfig& config,
                                    int64_t sequence);

// The recurrence of one sequence in float64.
class LinearGpuOracle {
 public:
  LinearGpuOracle(const LinearGpuConfig& config, int64_t sequence);
  void Step();

  const std::vector<double>& out() const { return out_; }      // [H, E]
  const std::vector<double>& state() const { return state_; }  // [H, Dk, E]
  // Σ |S q| of each head, to which rounding errors are proportional.
  const std::vector<double>& scale() const { return scale_; }

 private:
  LinearGpuConfig config_;
  int64_t sequence_;
  int64_t steps_ = 0;
  std::vector<double> out_, state_, scale_;
};

// Some sequences on the device. Row r is sequence ids[r]; the rows after them
// are padding in the sink, and the last one lies beyond the number of rows.
class LinearGpuBatch {
 public:
  static constexpr int64_t kPadding = 2;
  static constexpr int64_t kGap = 8;  // elements between rows

  LinearGpuBatch(const LinearGpuConfig& config, std::vector<int64_t> ids);

  // Runs the next token of each sequence. Checks that other memory is
  // unchanged.
  void Step();
  std::vector<float> Out(int64_t row) const;    // [H, E]
  std::vector<float> State(int64_t row) const;  // [H, Dk, E]

  LinearStepParams Params();

 private:
  int64_t Slot(int64_t row) const { return 2 * (live() - row); }
  int64_t live() const { return static_cast<int64_t>(ids_.size()); }
  int64_t max_rows() const { return live() + kPadding + 1; }
  int64_t slots() const { return 2 * live() + 2; }
  std::vector<float> States() const;
  std::vector<float> Tokens() const;
  std::vector<int32_t> SlotIndices() const;
  std::vector<int64_t> Positions() const;

  LinearGpuConfig config_;
  std::vector<int64_t> ids_;
  int64_t steps_ = 0;
  int64_t in_stride_, out_stride_, slot_stride_;
  DeviceTensor tokens_, out_, states_;
  DeviceBuffer<int32_t> rows_, slots_;
  DeviceBuffer<int64_t> positions_;
  DeviceBuffer<uint64_t> phases_;
  DeviceBuffer<float> decay_;
};

}  // namespace recurve

#endif  // RECURVE_TESTS_GPU_LINEAR_GPU_TESTING_H_
