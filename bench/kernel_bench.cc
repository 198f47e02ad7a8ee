// Speed of the CPU kernels at the sizes of the demo model, one thread. Next to
// the time stand the bytes that must be read and the operations that must be
// done: how near a kernel is to the machine's limits, not just how long it
// took.
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "benchmark/benchmark.h"
#include "kernels/linear_attn/gated_delta/gated_delta.h"
#include "kernels/linear_attn/linear_attn.h"
#include "kernels/matmul/matmul.h"
#include "kernels/tpa/tpa.h"

namespace recurve {
namespace {

// Uniform in [-1, 1); zeros would flatter what is timed.
std::vector<float> Random(int64_t count) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = 2.0f * UniformFloat(Philox4x32(1, i, 0)[0]) - 1.0f;
  }
  return values;
}

// Work of one iteration.
void SetRates(benchmark::State& state, double flops, double bytes) {
  using benchmark::Counter;
  constexpr auto kRate = Counter::kIsIterationInvariantRate;
  state.counters["FLOP/s"] = Counter(flops, kRate);
  state.counters["B/s"] = Counter(bytes, kRate);
}

// Args: rows, inputs, outputs, 1 for bfloat16 weights. Bytes are of weights.
void BM_Matmul(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const int64_t inputs = state.range(1);
  const int64_t outputs = state.range(2);
  const DType storage =
      state.range(3) != 0 ? DType::kBFloat16 : DType::kFloat32;
  ThreadPool pool(1);
  const std::vector<float> weights = Random(outputs * inputs);
  const TensorView view = {weights.data(), DType::kFloat32, {outputs, inputs}};
  const absl::StatusOr<PackedMatrix> packed =
      PackedMatrix::Pack({view}, storage);
  if (!packed.ok()) {
    state.SkipWithError(packed.status().ToString().c_str());
    return;
  }
  const std::vector<float> x = Random(rows * inputs);
  std::vector<float> y(rows * outputs);
  for (auto _ : state) {
    Matmul({x.data(), inputs, &*packed, y.data(), outputs, rows, false}, pool);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  SetRates(state, 2.0 * static_cast<double>(rows * inputs * outputs),
           static_cast<double>(packed->bytes()));
}
BENCHMARK(BM_Matmul)
    ->ArgNames({"rows", "inputs", "outputs", "bf16"})
    // Factors of TPA; q, k, v and gate of linear attention; output of both;
    // the two products of the feed-forward, the first in both types; head.
    ->ArgsProduct({{1, 16, 512}, {256}, {680}, {1}})
    ->ArgsProduct({{1, 16, 512}, {256}, {832}, {1}})
    ->ArgsProduct({{1, 16, 512}, {256}, {256}, {1}})
    ->ArgsProduct({{1, 16, 512}, {256}, {1536}, {0, 1}})
    ->ArgsProduct({{1, 16, 512}, {768}, {256}, {1}})
    ->ArgsProduct({{1, 16, 512}, {256}, {258}, {1}});

// One decoded token of one sequence. Args: tokens in its context. Bytes are of
// the cached factors, read once.
void BM_TpaAttend(benchmark::State& state) {
  const int64_t length = state.range(0);
  const TpaShape shape = {4, 64, 64, 6, 2};
  const TpaPageLayout layout(shape);
  ThreadPool pool(1);
  const int64_t num_pages = (length + kTpaPageTokens - 1) / kTpaPageTokens;
  std::vector<float> pages = Random(num_pages * layout.page_elements);
  std::vector<int32_t> table(num_pages);
  for (int64_t i = 0; i < num_pages; ++i) table[i] = static_cast<int32_t>(i);
  const int32_t sequence = 0;
  const int64_t position = length - 1;
  const std::vector<float> a_q = Random(shape.q_rank * shape.num_heads);
  const std::vector<float> b_q = Random(shape.q_rank * shape.head_dim);
  const std::vector<float> angles = Random(shape.head_dim / 2);
  const int64_t width = shape.num_heads * shape.value_dim;
  std::vector<float> out(width);
  const TpaAttendParams params = {
      shape,
      {pages.data(), layout.page_elements, table.data(), num_pages, &sequence,
       &position, 1},
      a_q.data(),
      b_q.data(),
      0,
      LrpeType::kRotate,
      angles.data(),
      angles.data(),
      out.data(),
      width};
  for (auto _ : state) {
    TpaAttend(params, pool);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  const double elements = static_cast<double>(
      length * shape.kv_rank *
      (2 * shape.num_heads + shape.head_dim + shape.value_dim));
  const double flops =
      2.0 * static_cast<double>(length * shape.kv_rank * shape.num_heads *
                                (shape.head_dim + shape.value_dim));
  SetRates(state, flops, 4.0 * elements);
}
BENCHMARK(BM_TpaAttend)->ArgName("length")->Arg(64)->Arg(1024)->Arg(8192);

// Args: sequences, tokens of each, 1 for LRPE cosine. Bytes are of the states,
// once in and once out a step.
void BM_LinearAttention(benchmark::State& state) {
  const int64_t sequences = state.range(0);
  const int64_t tokens = state.range(1);
  LinearAttentionParams p = {};
  p.num_heads = 4;
  p.head_dim = 64;
  p.value_dim = 64;
  p.position = state.range(2) != 0 ? LrpeType::kCosine : LrpeType::kNone;
  p.q_activation = p.k_activation = Activation::kSilu;
  p.v_activation = Activation::kNone;
  const int64_t rows = sequences * tokens;
  const int64_t width = p.num_heads * p.head_dim;
  const int64_t key_dim = LrpeOutputDim(p.position, p.head_dim);
  const int64_t state_elements = p.num_heads * key_dim * p.value_dim;
  ThreadPool pool(1);
  const std::vector<float> qkv = Random(rows * 3 * width);
  const std::vector<float> angles = Random(rows * p.head_dim);
  // Far enough from 1 that the state stays bounded over many iterations.
  const std::vector<float> decay(p.num_heads, 0.99f);
  std::vector<float> states((sequences + 1) * state_elements);
  std::vector<float> out(rows * width);
  std::vector<int32_t> starts = {0};
  std::vector<int32_t> slots;
  for (int64_t b = 0; b < sequences; ++b) {
    starts.push_back(static_cast<int32_t>((b + 1) * tokens));
    slots.push_back(static_cast<int32_t>(b + 1));
  }
  p.q = qkv.data();
  p.k = qkv.data() + width;
  p.v = qkv.data() + 2 * width;
  p.stride = 3 * width;
  p.v_stride = p.stride;
  p.out = out.data();
  p.out_stride = width;
  p.query_start = starts.data();
  p.sequences = sequences;
  p.cos = p.sin = angles.data();
  p.decay = decay.data();
  p.states = states.data();
  p.slot_stride = state_elements;
  p.slots = slots.data();
  for (auto _ : state) {
    LinearAttention(p, pool);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  // Per cell of a state and token: decay, product and sum, product and sum.
  SetRates(state, 5.0 * static_cast<double>(rows * state_elements),
           8.0 * static_cast<double>(sequences * state_elements));
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(rows), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_LinearAttention)
    ->ArgNames({"sequences", "tokens", "cosine"})
    ->ArgsProduct({{1, 16}, {1}, {0, 1}})  // decode
    ->ArgsProduct({{1}, {512}, {0, 1}});   // prefill

// Args: sequences, tokens of each, 1 for decay by channel. Bytes as above.
void BM_GatedDelta(benchmark::State& state) {
  const int64_t sequences = state.range(0);
  const int64_t tokens = state.range(1);
  GatedDeltaParams p = {};
  p.key_heads = 2;
  p.value_heads = 4;
  p.head_dim = p.value_dim = 128;
  const int64_t rows = sequences * tokens;
  const int64_t keys = p.key_heads * p.head_dim;
  const int64_t width = p.value_heads * p.value_dim;
  const int64_t state_elements = width * p.head_dim;
  ThreadPool pool(1);
  p.stride = 2 * keys + width;
  const std::vector<float> qkv = Random(rows * p.stride);
  p.gate.by_channel = state.range(2) != 0;
  p.gate.decay = DeltaDecay::kSoftplus;
  p.gate.beta_scale = 1.0f;
  p.a_stride = p.gate.by_channel ? width : p.value_heads;
  p.b_stride = p.value_heads;
  const std::vector<float> a = Random(rows * p.a_stride);
  const std::vector<float> b = Random(rows * p.b_stride);
  const std::vector<float> a_log(p.value_heads, -1.0f);
  std::vector<float> states((sequences + 1) * state_elements);
  std::vector<float> out(rows * width);
  std::vector<int32_t> starts = {0};
  std::vector<int32_t> slots;
  for (int64_t i = 0; i < sequences; ++i) {
    starts.push_back(static_cast<int32_t>((i + 1) * tokens));
    slots.push_back(static_cast<int32_t>(i + 1));
  }
  p.q = qkv.data();
  p.k = qkv.data() + keys;
  p.v = qkv.data() + 2 * keys;
  p.a = a.data();
  p.b = b.data();
  p.out = out.data();
  p.out_stride = width;
  p.query_start = starts.data();
  p.sequences = sequences;
  p.gate.a_log = a_log.data();
  p.unit_eps = 1e-6f;
  p.scale = 0.0884f;
  p.states = states.data();
  p.slot_stride = state_elements;
  p.slots = slots.data();
  for (auto _ : state) {
    GatedDelta(p, pool);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  // Per cell of a state and token: three products and sums, and decay.
  SetRates(state, 7.0 * static_cast<double>(rows * state_elements),
           8.0 * static_cast<double>(sequences * state_elements));
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(rows), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_GatedDelta)
    ->ArgNames({"sequences", "tokens", "channel"})
    ->ArgsProduct({{1, 16}, {1}, {0, 1}})  // decode
    ->ArgsProduct({{1}, {512}, {0, 1}});   // prefill

}  // namespace
}  // namespace recurve

BENCHMARK_MAIN();
