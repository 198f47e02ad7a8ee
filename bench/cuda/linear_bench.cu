// Measures the linear-attention step: that of prior work, and the two forms of
// the server.
#include <algorithm>
#include <cmath>

#include "bench/cuda/linear_bench.h"
#include "kernels/linear_attn/scan/linear_scan_cuda.h"
#include "kernels/linear_attn/step/linear_deferred_cuda.h"
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
  bool overlap = false;
};

std::string Name(const Case& c) {
  std::string name = "B" + std::to_string(c.batch) + " H" +
                     std::to_string(c.heads) + " D" + std::to_string(c.dim);
  name += c.state == ElementType::kFloat32 ? " f32" : " bf16";
  if (c.activation == Activation::kSilu) name += " silu";
  if (c.position == LrpeType::kRotate) name += " rotate";
  if (c.position == LrpeType::kCosine) name += " cosine";
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
    LinearStepParams& p = params_;
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
    positions_ = DeviceCopy(std::vector<int64_t>(c.batch, kFirstPosition));
    p.positions = positions_;
    p.overlap_previous = c.overlap;
  }
  ~LinearBench() {
    for (const void* memory : {static_cast<const void*>(token_),
                               static_cast<const void*>(params_.rows),
                               static_cast<const void*>(params_.phase_steps),
                               static_cast<const void*>(params_.decay),
                               static_cast<const void*>(params_.states),
                               static_cast<const void*>(slots_),
                               static_cast<const void*>(positions_)}) {
      cudaFree(const_cast<void*>(memory));
    }
  }

  // Each call on another set of slots.
  Result Run() {
    const Case& c = case_;
    const Timing timing = Measure(
        [this](cudaStream_t stream, int call) { return Launch(stream, call); },
        static_cast<int>(std::max<int64_t>(sets_, 4)), sets_ > 1);
    const double row = 2.0 * state_bytes_ + 4.0 * c.heads * c.dim * 2;
    return {"linear_step", Name(c), timing, row * c.batch};
  }

 private:
  cudaError_t Launch(cudaStream_t stream, int call) {
    // Consecutive calls use different sets, so that the cache does not help.
    const int64_t set = call % sets_;
    LinearStepParams p = params_;
    const int64_t width = 2 * case_.heads * case_.dim;  // bytes of one of four
    char* token = token_ + set * case_.batch * 4 * width;
    p.q = token;
    p.k = token + width;
    p.v = token + 2 * width;
    p.out = token + 3 * width;
    p.slots = slots_ + set * case_.batch;
    return LaunchLinearStep(p, stream);
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

  Case case_;
  int64_t state_elements_, state_bytes_, sets_;
  char* token_ = nullptr;
  const int32_t* slots_ = nullptr;
  const int64_t* positions_ = nullptr;
  LinearStepParams params_ = {};
};

// The forms that the server uses, in float32, with tables of angles.
struct ServedCase {
  int64_t batch, heads, dim;
  LrpeType position;
  bool deferred;  // else the scan
};

std::string Name(const ServedCase& c) {
  return Name(Case{c.batch, c.heads, c.dim, ElementType::kFloat32, c.position,
                   Activation::kSilu});
}

// Deferred: rows are at all places of the ring, as they are in the server, and
// each pass over the sets is one token later.
class ServedBench {
 public:
  explicit ServedBench(const ServedCase& c)
      : case_(c),
        key_dim_(LrpeOutputDim(c.position, c.dim)),
        slot_(c.heads * key_dim_ * c.dim +
              (c.deferred ? LinearRingElements(c.heads, key_dim_, c.dim) : 0)),
        sets_(std::max<int64_t>(1, kColdBytes / (c.batch * slot_ * 4))) {
    const int64_t row = 4 * c.heads * c.dim;  // q, k, v and out
    rows_ = static_cast<float*>(RandomMemory(sets_ * c.batch * row * 4, false));
    states_ = static_cast<float*>(
        RandomMemory((sets_ * c.batch + 1) * slot_ * 4, false));
    const int64_t angles = std::max<int64_t>(1, LrpeAngles(c.position, c.dim));
    table_ = DeviceCopy(std::vector<float>(c.batch * angles, 0.7f));
    decay_ = DeviceCopy(std::vector<float>(c.heads, 0.99f));
    std::vector<int32_t> slots, starts;
    for (int64_t i = 0; i < sets_ * c.batch; ++i) {
      slots.push_back(static_cast<int32_t>(1 + i));
    }
    for (int64_t i = 0; i <= c.batch; ++i) {
      starts.push_back(static_cast<int32_t>(i));
    }
    slots_ = DeviceCopy(slots);
    starts_ = DeviceCopy(starts);
    std::vector<int64_t> positions;
    for (int64_t phase = 0; phase < kLinearRing; ++phase) {
      for (int64_t i = 0; i < c.batch; ++i) {
        positions.push_back(kFirstPosition + i + phase);
      }
    }
    positions_ = DeviceCopy(positions);
    ends_ = DeviceCopy(std::vector<int64_t>(c.batch, 0));
  }
  ~ServedBench() {
    for (const void* memory :
         {static_cast<const void*>(rows_), static_cast<const void*>(states_),
          static_cast<const void*>(table_), static_cast<const void*>(decay_),
          static_cast<const void*>(slots_), static_cast<const void*>(starts_),
          static_cast<const void*>(positions_),
          static_cast<const void*>(ends_)}) {
      cudaFree(const_cast<void*>(memory));
    }
  }

  // Bytes as of a step in place, so that the two compare.
  Result Run() {
    const ServedCase& c = case_;
    const int64_t passes = c.deferred ? kLinearRing : 1;
    const Timing timing = Measure(
        [this](cudaStream_t stream, int call) { return Launch(stream, call); },
        static_cast<int>(std::max<int64_t>(sets_ * passes, 4)), sets_ > 1);
    const double row =
        8.0 * c.heads * key_dim_ * c.dim + 16.0 * c.heads * c.dim;
    return {c.deferred ? "linear_deferred_step" : "linear_scan_step", Name(c),
            timing, row * c.batch};
  }

 private:
  cudaError_t Launch(cudaStream_t stream, int call) {
    const ServedCase& c = case_;
    const int64_t set = call % sets_;
    const int64_t phase = call / sets_ % kLinearRing;
    const int64_t width = c.heads * c.dim;
    LinearDeferredParams params = {};
    LinearAttentionParams& p = params.of;
    p.num_heads = c.heads;
    p.head_dim = p.value_dim = c.dim;
    float* rows = rows_ + set * c.batch * 4 * width;
    p.q = rows;
    p.k = rows + width;
    p.v = rows + 2 * width;
    p.out = rows + 3 * width;
    p.stride = p.v_stride = p.out_stride = 4 * width;
    p.query_start = starts_;
    p.sequences = c.batch;
    p.q_activation = p.k_activation = Activation::kSilu;
    p.position = c.position;
    p.cos = p.sin = table_;
    p.decay = decay_;
    p.states = states_;
    p.slot_stride = slot_;
    p.slots = slots_ + set * c.batch;
    params.positions = positions_ + phase * c.batch;
    params.prompt_ends = ends_;
    params.rings = states_ + c.heads * key_dim_ * c.dim;
    return c.deferred ? LaunchLinearDeferred(params, true, stream)
                      : LaunchLinearScan(p, true, stream);
  }

  const ServedCase case_;
  const int64_t key_dim_, slot_, sets_;
  float* rows_ = nullptr;
  float* states_ = nullptr;
  const float* table_ = nullptr;
  const float* decay_ = nullptr;
  const int32_t* slots_ = nullptr;
  const int32_t* starts_ = nullptr;
  const int64_t* positions_ = nullptr;
  const int64_t* ends_ = nullptr;
};

}  // namespace

std::vector<Result> BenchLinear(const BenchOptions& options) {
  constexpr ElementType f32 = ElementType::kFloat32;
  constexpr ElementType bf16 = ElementType::kBFloat16;
  std::vector<Case> cases;
  const auto add = [&](int64_t batch, ElementType state, LrpeType position,
                       Activation activation, bool overlap = false) {
    cases.push_back({batch, 32, 128, state, position, activation, overlap});
  };
  for (int64_t batch : {1, 8, 32, 128, 256, 512}) {
    add(batch, f32, LrpeType::kRotate, Activation::kSilu);
  }
  for (int64_t batch : {1, 8, 32}) {
    add(batch, f32, LrpeType::kRotate, Activation::kSilu, true);
  }
  for (int64_t batch : {1, 32, 128, 512}) {
    if (options.quick) break;
    add(batch, f32, LrpeType::kNone, Activation::kNone);
    add(batch, f32, LrpeType::kCosine, Activation::kSilu);
    add(batch, bf16, LrpeType::kRotate, Activation::kSilu);
  }
  if (!options.quick) {
    for (int64_t batch : {32, 128}) {
      cases.push_back(
          {batch, 12, 64, f32, LrpeType::kRotate, Activation::kSilu});
    }
  }
  std::vector<ServedCase> served;
  for (int64_t batch : {1, 8, 32, 128, 256, 512}) {
    for (bool deferred : {false, true}) {
      served.push_back({batch, 32, 128, LrpeType::kRotate, deferred});
      if (options.quick || batch % 32 != 0) continue;
      served.push_back({batch, 32, 128, LrpeType::kCosine, deferred});
      served.push_back({batch, 12, 64, LrpeType::kRotate, deferred});
    }
  }
  std::vector<Result> results;
  for (const Case& c : cases) {
    if (!options.Wants(Name(c))) continue;
    results.push_back(LinearBench(c).Run());
  }
  for (const ServedCase& c : served) {
    if (!options.Wants(Name(c))) continue;
    results.push_back(ServedBench(c).Run());
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
