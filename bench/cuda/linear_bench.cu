// Measures the linear-attention step.
#include <algorithm>
#include <cmath>

#include "bench/cuda/linear_bench.h"
#include "kernels/seeds/linear_step/linear_step_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int64_t kColdBytes = int64_t{320} << 20;  // several times the L2

constexpr int64_t kFirstPosition = 16000;  // a multiple of every ring

struct Case {
  int64_t batch, heads, dim;
  ElementType state;
  LrpeType position;
  Activation activation;
  int64_t ring;  // tokens between writes of the state; 0: in place
  bool overlap = false;
};

std::string Name(const Case& c) {
  std::string name = "B" + std::to_string(c.batch) + " H" +
                     std::to_string(c.heads) + " D" + std::to_string(c.dim);
  name += c.state == ElementType::kFloat32 ? " f32" : " bf16";
  if (c.activation == Activation::kSilu) name += " silu";
  if (c.position == LrpeType::kRotate) name += " rotate";
  if (c.position == LrpeType::kCosine) name += " cosine";
  if (c.ring > 0) name += " ring " + std::to_string(c.ring);
  if (c.overlap) name += " overlap";
  return name;
}

class LinearBench {
 public:
  explicit LinearBench(const Case& c)
      : case_(c),
        state_elements_(c.heads * LrpeOutputDim(c.position, c.dim) * c.dim),
        state_bytes_(state_elements_ *
                     (c.state == ElementType::kFloat32 ? 4 : 2)),
        sets_(std::max<int64_t>(1, kColdBytes / (c.batch * state_bytes_))) {
    const int64_t row = 4 * c.heads * c.dim;  // q, k, v and out
    const int64_t slots = sets_ * c.batch + 1;
    token_ = static_cast<char*>(RandomMemory(sets_ * c.batch * row * 2, true));
    LinearStepParams& p = params_.step;
    p.num_heads = c.heads;
    p.head_dim = p.value_dim = c.dim;
    p.io_type = ElementType::kBFloat16;
    p.stride = p.out_stride = row;
    p.max_rows = c.batch;
    p.rows = DeviceCopy<int32_t>({static_cast<int32_t>(c.batch)});
    p.q_activation = p.k_activation = c.activation;
    p.v_activation = Activation::kNone;
    p.position = c.position;
    std::vector<uint64_t> phases(c.dim);
    for (int64_t i = 0; i < c.dim; ++i) {
      phases[i] = static_cast<uint64_t>(std::pow(10000.0, -2.0 * i / c.dim) *
                                        0.15915494309 * 0x1p63) *
                  2;
    }
    p.phase_steps = DeviceCopy(phases);
    p.scale = 1.0f;
    p.decay = DeviceCopy(std::vector<float>(c.heads, 0.99f));
    p.state_type = c.state;
    p.states =
        RandomMemory(slots * state_bytes_, c.state == ElementType::kBFloat16);
    p.slot_stride = state_elements_;
    slots_ = Slots();
    positions_ = DeviceCopy(Positions());
    p.overlap_previous = c.overlap;
    if (c.ring == 0) return;
    const int64_t key_dim = LrpeOutputDim(c.position, c.dim);
    params_.ring_length = case_.ring;
    params_.ring_slot_stride = c.heads * case_.ring * (key_dim + c.dim);
    params_.ring = static_cast<float*>(
        RandomMemory(slots * params_.ring_slot_stride * 4, false));
    params_.ring_start =
        DeviceCopy(std::vector<int64_t>(c.batch, kFirstPosition));
  }
  ~LinearBench() {
    for (const void* memory :
         {static_cast<const void*>(token_),
          static_cast<const void*>(params_.step.rows),
          static_cast<const void*>(params_.step.phase_steps),
          static_cast<const void*>(params_.step.decay),
          static_cast<const void*>(params_.step.states),
          static_cast<const void*>(slots_),
          static_cast<const void*>(positions_),
          static_cast<const void*>(params_.ring),
          static_cast<const void*>(params_.ring_start)}) {
      cudaFree(const_cast<void*>(memory));
    }
  }

  // In place: each call on another set of slots. Deferred: a cycle of the ring,
  // each call one token later, on one set after the other.
  Result Run() {
    const Case& c = case_;
    const int nodes = static_cast<int>(
        c.ring > 0 ? sets_ * case_.ring : std::max<int64_t>(sets_, 4));
    const Timing timing = Measure(
        [this](cudaStream_t stream, int call) { return Launch(stream, call); },
        nodes, sets_ > 1);
    const double row = 2.0 * state_bytes_ + 4.0 * c.heads * c.dim * 2;
    return {c.ring > 0 ? "linear_deferred_step" : "linear_step", Name(c),
            timing, row * c.batch};
  }

 private:
  cudaError_t Launch(cudaStream_t stream, int call) {
    // Consecutive calls use different sets, so that the cache does not help.
    const int64_t set = call % sets_;
    const int64_t phase = case_.ring > 0 ? call / sets_ % case_.ring : 0;
    LinearDeferredParams params = params_;
    LinearStepParams& p = params.step;
    const int64_t width = 2 * case_.heads * case_.dim;  // bytes of one of four
    char* token = token_ + set * case_.batch * 4 * width;
    p.q = token;
    p.k = token + width;
    p.v = token + 2 * width;
    p.out = token + 3 * width;
    p.slots = slots_ + set * case_.batch;
    p.positions = positions_ + phase * case_.batch;
    return case_.ring > 0 ? LaunchLinearDeferredStep(params, stream)
                          : LaunchLinearStep(p, stream);
  }

  // Each slot but the sink once, not in memory order.
  const int32_t* Slots() const {
    const int64_t count = sets_ * case_.batch;
    std::vector<int32_t> slots(count);
    for (int64_t i = 0; i < count; ++i) {
      slots[i] = static_cast<int32_t>(1 + i);
    }
    for (int64_t i = 0; i + 1 < count; i += 2)
      std::swap(slots[i], slots[i + 1]);
    return DeviceCopy(slots);
  }
  std::vector<int64_t> Positions() const {
    std::vector<int64_t> positions;
    for (int64_t phase = 0; phase < std::max<int64_t>(1, case_.ring); ++phase) {
      positions.insert(positions.end(), case_.batch, kFirstPosition + phase);
    }
    return positions;
  }

  Case case_;
  int64_t state_elements_, state_bytes_, sets_;
  char* token_ = nullptr;
  const int32_t* slots_ = nullptr;
  const int64_t* positions_ = nullptr;
  LinearDeferredParams params_ = {};
};

}  // namespace

std::vector<Result> BenchLinear(const BenchOptions& options) {
  constexpr ElementType f32 = ElementType::kFloat32;
  constexpr ElementType bf16 = ElementType::kBFloat16;
  std::vector<Case> cases;
  const auto add = [&](int64_t batch, ElementType state, LrpeType position,
                       Activation activation, int64_t ring,
                       bool overlap = false) {
    cases.push_back(
        {batch, 32, 128, state, position, activation, ring, overlap});
  };
  for (int64_t batch : {1, 8, 32, 128, 256, 512}) {
    add(batch, f32, LrpeType::kRotate, Activation::kSilu, 0);
  }
  for (int64_t batch : {1, 8, 32}) {
    add(batch, f32, LrpeType::kRotate, Activation::kSilu, 0, true);
  }
  for (int64_t batch : {1, 32, 128, 512}) {
    for (int64_t ring : {4, 8, 16}) {
      add(batch, f32, LrpeType::kRotate, Activation::kSilu, ring);
    }
    if (options.quick) continue;
    add(batch, f32, LrpeType::kNone, Activation::kNone, 0);
    add(batch, f32, LrpeType::kCosine, Activation::kSilu, 0);
    add(batch, f32, LrpeType::kCosine, Activation::kSilu, 8);
    add(batch, bf16, LrpeType::kRotate, Activation::kSilu, 0);
    add(batch, bf16, LrpeType::kRotate, Activation::kSilu, 8);
  }
  if (!options.quick) {
    for (int64_t batch : {32, 128}) {
      cases.push_back(
          {batch, 12, 64, f32, LrpeType::kRotate, Activation::kSilu, 0});
    }
  }
  std::vector<Result> results;
  for (const Case& c : cases) {
    if (!options.Wants(Name(c))) continue;
    results.push_back(LinearBench(c).Run());
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
