// Measures the gated delta rule: generated tokens and prompts.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "bench/cuda/gated_delta_bench.h"
#include "kernels/linear_attn/gated_delta/gated_delta_prefill_cuda.h"
#include "kernels/linear_attn/gated_delta/gated_delta_step_cuda.h"
#include "kernels/short_conv/short_conv_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int64_t kDeltaColdBytes = int64_t{320} << 20;  // several times the L2
constexpr int64_t kKeyHeads = 16;
constexpr int64_t kValueHeads = 32;
constexpr int64_t kDim = 128;
constexpr int64_t kKeys = kKeyHeads * kDim;
constexpr int64_t kValues = kValueHeads * kDim;
constexpr int64_t kChannels = 2 * kKeys + kValues;
// A row: q, k, v, z, then a and b.
constexpr int64_t kStride = kChannels + kValues + 2 * kValueHeads;
constexpr int64_t kState = kValueHeads * kDim * kDim;
constexpr int64_t kConvWidth = 4;
constexpr int64_t kLast = (kConvWidth - 1) * kChannels;
// Workspace of prompts, for rounds: a chunk of 64 tokens takes 2.3 MiB.
constexpr int64_t kWorkspaceBytes = int64_t{768} << 20;

// What steps and prompts share: heads of 128 as in Qwen3.5's 9B.
GatedDeltaParams Params(const void* rows, int64_t batch, int64_t length) {
  const auto at = [rows](int64_t element) -> const void* {
    return static_cast<const char*>(rows) + 2 * element;
  };
  std::vector<int32_t> starts;
  for (int64_t b = 0; b <= batch; ++b) {
    starts.push_back(static_cast<int32_t>(b * length));
  }
  GatedDeltaParams p = {};
  p.key_heads = kKeyHeads;
  p.value_heads = kValueHeads;
  p.head_dim = p.value_dim = kDim;
  p.type = p.out_type = ElementType::kBFloat16;
  p.q = at(0);
  p.k = at(kKeys);
  p.v = at(2 * kKeys);
  p.a = at(kChannels + kValues);
  p.b = at(kChannels + kValues + kValueHeads);
  p.stride = p.a_stride = p.b_stride = kStride;
  p.out_stride = kValues;
  p.query_start = DeviceCopy(starts);
  p.sequences = batch;
  p.gate.decay = DeltaDecay::kSoftplus;
  p.gate.a_log = DeviceCopy(std::vector<float>(kValueHeads, -1.0f));
  p.gate.bias = DeviceCopy(std::vector<float>(kValueHeads, -1.0f));
  p.gate.beta_scale = 1.0f;
  p.unit_eps = 1e-6f;
  p.scale = 0.08838834764f;
  p.slot_stride = kState;
  return p;
}

void Release(const std::vector<const void*>& memory) {
  for (const void* data : memory) cudaFree(const_cast<void*>(data));
}

Result BenchStep(int64_t batch, bool fused) {
  // Each call has slots of its own; slot 0 is the sink.
  const int64_t sets =
      std::max<int64_t>(2, kDeltaColdBytes / (batch * kState * 4));
  std::vector<int32_t> slots;
  for (int64_t i = 0; i < sets * batch; ++i) {
    slots.push_back(static_cast<int32_t>(1 + i));
  }
  const int64_t count = sets * batch + 1;
  void* const rows = RandomMemory(batch * kStride * 2, true);
  void* const out = RandomMemory(batch * kValues * 2, true);
  void* const states = RandomMemory(count * kState * 4, false);
  void* const last = RandomMemory(count * kLast * 2, true);
  void* const weight = RandomMemory(kChannels * kConvWidth * 4, false);
  void* const norm = RandomMemory(kDim * 4, false);
  const int32_t* const slot = DeviceCopy(slots);
  GatedDeltaStepParams p = {};
  p.of = Params(rows, batch, 1);
  p.of.out = out;
  p.of.states = static_cast<float*>(states);
  if (fused) {
    p.conv_weight = static_cast<const float*>(weight);
    p.conv_width = kConvWidth;
    p.conv_states = last;
    p.conv_slot_stride = kLast;
    p.norm_weight = static_cast<const float*>(norm);
    p.norm_eps = 1e-6f;
    p.z = static_cast<const char*>(rows) + 2 * kChannels;
    p.z_stride = kStride;
    p.activation = Activation::kSilu;
  }
  const Timing timing = Measure(
      [&](cudaStream_t stream, int call) {
        p.of.slots = slot + call % sets * batch;
        return LaunchGatedDeltaStep(p, true, stream);
      },
      static_cast<int>(std::max<int64_t>(sets, 4)), true);
  Release({rows, out, states, last, weight, norm, slot, p.of.query_start,
           p.of.gate.a_log, p.of.gate.bias});
  double bytes = 8.0 * batch * kState + 2.0 * batch * (kStride + kValues);
  if (fused) bytes += 4.0 * batch * kLast;
  return {"gated_delta",
          "step B" + std::to_string(batch) + (fused ? " conv norm" : ""),
          timing, bytes};
}

// Both kernels, then each alone.
std::vector<Result> BenchPrompts(int64_t batch, int64_t length) {
  const int64_t tokens = batch * length;
  const int64_t sets = std::max<int64_t>(
      1, kDeltaColdBytes / (tokens * (kStride + kValues) * 2));
  std::vector<int32_t> slots;
  for (int64_t b = 0; b < batch; ++b) {
    slots.push_back(static_cast<int32_t>(1 + b));
  }
  void* const rows = RandomMemory(sets * tokens * kStride * 2, true);
  void* const out = RandomMemory(sets * tokens * kValues * 2, true);
  void* const states = RandomMemory((batch + 1) * kState * 4, false);
  GatedDeltaPrefillParams p = {};
  p.of = Params(rows, batch, length);
  p.of.states = static_cast<float*>(states);
  p.of.slots = DeviceCopy(slots);
  p.tokens = tokens;
  p.positions = DeviceCopy(std::vector<int64_t>(batch, 0));
  p.fresh = DeviceCopy(std::vector<int32_t>(batch, 1));
  p.precision = DeltaPrecision::kBFloat16;
  p.workspace_bytes = std::min(
      kWorkspaceBytes, GatedDeltaPrefillWorkspace(tokens, batch, kValueHeads,
                                                  kDim, p.precision));
  RECURVE_CUDA_OK(cudaMalloc(&p.workspace, p.workspace_bytes));
  const GatedDeltaParams first = p.of;
  const auto time = [&](DeltaHalves halves) {
    return Measure(
        [&](cudaStream_t stream, int call) {
          const auto set = [&](const void* x) -> const void* {
            return static_cast<const char*>(x) +
                   call % sets * tokens * kStride * 2;
          };
          p.of.q = set(first.q);
          p.of.k = set(first.k);
          p.of.v = set(first.v);
          p.of.a = set(first.a);
          p.of.b = set(first.b);
          p.of.out =
              static_cast<char*>(out) + call % sets * tokens * kValues * 2;
          return LaunchGatedDeltaPrefill(p, stream, halves);
        },
        static_cast<int>(std::max<int64_t>(sets, 2)), sets > 1);
  };
  const std::string shape =
      "prompts B" + std::to_string(batch) + " N" + std::to_string(length);
  const double in = 2.0 * tokens * kChannels;
  const double out_bytes = 2.0 * tokens * kValues;
  const double between =
      1.0 * (tokens / kDeltaChunk) * DeltaChunkBytes(kValueHeads, kDim, 1);
  const std::vector<Result> results = {
      {"gated_delta", shape, time(DeltaHalves::kBoth),
       in + out_bytes + 4.0 * batch * kState},
      {"gated_delta", shape + " prepare", time(DeltaHalves::kPrepare),
       in + between},
      {"gated_delta", shape + " chunks", time(DeltaHalves::kChunks),
       between + out_bytes + 4.0 * batch * kState}};
  Release({rows, out, states, p.of.slots, p.positions, p.fresh, p.workspace,
           p.of.query_start, p.of.gate.a_log, p.of.gate.bias});
  return results;
}

Result BenchShortConv(int64_t tokens) {
  const int64_t sets =
      std::max<int64_t>(1, kDeltaColdBytes / (tokens * kChannels * 4));
  void* const x = RandomMemory(sets * tokens * kChannels * 2, true);
  void* const y = RandomMemory(sets * tokens * kChannels * 2, true);
  void* const weight = RandomMemory(kChannels * kConvWidth * 4, false);
  void* const states = RandomMemory(2 * kLast * 2, true);
  CudaShortConvParams p = {};
  p.of.channels = kChannels;
  p.of.width = kConvWidth;
  p.of.type = ElementType::kBFloat16;
  p.of.x_stride = p.of.y_stride = kChannels;
  p.of.query_start =
      DeviceCopy(std::vector<int32_t>{0, static_cast<int32_t>(tokens)});
  p.of.sequences = 1;
  p.of.weight = static_cast<const float*>(weight);
  p.of.states = states;
  p.of.slot_stride = kLast;
  p.of.slots = DeviceCopy(std::vector<int32_t>{1});
  p.rows = tokens;
  const Timing timing = Measure(
      [&](cudaStream_t stream, int call) {
        const int64_t offset = call % sets * tokens * kChannels * 2;
        p.of.x = static_cast<const char*>(x) + offset;
        p.of.y = static_cast<char*>(y) + offset;
        return LaunchShortConv(p, stream);
      },
      static_cast<int>(std::max<int64_t>(sets, 2)), sets > 1);
  Release({x, y, weight, states, p.of.query_start, p.of.slots});
  return {"gated_delta", "conv C8192 N" + std::to_string(tokens), timing,
          4.0 * tokens * kChannels};
}

}  // namespace

std::vector<Result> BenchGatedDelta(const BenchOptions& options) {
  std::vector<Result> results;
  for (int64_t batch : {1, 2, 4, 8, 32, 128, 256}) {
    for (bool fused : {false, true}) {
      if (options.Wants("step")) results.push_back(BenchStep(batch, fused));
    }
  }
  const auto prompts = [&](int64_t batch, int64_t length) {
    if (!options.Wants("prompts")) return;
    for (Result& result : BenchPrompts(batch, length)) {
      results.push_back(std::move(result));
    }
  };
  for (int64_t length : {2048, 8192, 32768}) prompts(1, length);
  if (!options.quick) prompts(8, 1024);
  for (int64_t tokens : {2048, 8192}) {
    if (options.Wants("conv")) results.push_back(BenchShortConv(tokens));
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
