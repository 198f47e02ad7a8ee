// Measures LRPE, norms and gates.
#include <cmath>

#include "bench/cuda/small_ops_bench.h"
#include "kernels/glu/glu_cuda.h"
#include "kernels/norm/norm_cuda.h"
#include "kernels/seeds/lrpe/lrpe_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int64_t kBatch = 12, kHeads = 12, kLength = 8192, kDim = 128;

struct Named {
  const char* name;
  Activation activation;
  bool over_sequence;
};
constexpr Named kActivations[] = {
    {"none", Activation::kNone, false},
    {"silu", Activation::kSilu, false},
    {"softmax over features", Activation::kSoftmax, false},
    {"softmax over the sequence", Activation::kNone, true}};

std::string ShapeName(const Named& activation, bool heads_first) {
  return std::string(activation.name) + (heads_first ? " bhnd" : " bnhd");
}

Result BenchOneLrpe(CudaLrpeParams p, const Named& activation,
                    bool heads_first) {
  const int64_t out_dim = LrpeOutputDim(p.position, kDim);
  const auto strides = [&](int64_t dim, int64_t* batch, int64_t* token,
                           int64_t* head) {
    *batch = kLength * kHeads * dim;
    *token = heads_first ? dim : kHeads * dim;
    *head = heads_first ? kLength * dim : dim;
  };
  strides(kDim, &p.x_batch_stride, &p.x_token_stride, &p.x_head_stride);
  strides(out_dim, &p.y_batch_stride, &p.y_token_stride, &p.y_head_stride);
  p.activation = activation.activation;
  void* workspace = nullptr;
  const int64_t workspace_bytes = LrpeSequenceWorkspaceBytes(p);
  RECURVE_CUDA_OK(cudaMalloc(&workspace, workspace_bytes));
  RECURVE_CUDA_OK(cudaMemset(workspace, 0, workspace_bytes));
  const bool over_sequence = activation.over_sequence;
  const Timing timing = Measure(
      [=](cudaStream_t stream, int) {
        return over_sequence ? LaunchLrpeSequenceSoftmax(p, workspace, stream)
                             : LaunchLrpe(p, stream);
      },
      4, false);
  RECURVE_CUDA_OK(cudaFree(workspace));
  return {
      p.position == LrpeType::kRotate ? "lrpe_rotate" : "lrpe_cosine",
      ShapeName(activation, heads_first), timing,
      2.0 * kBatch * kLength * kHeads * static_cast<double>(kDim + out_dim)};
}

}  // namespace

std::vector<Result> BenchLrpe(const BenchOptions& options) {
  const int64_t elements = kBatch * kLength * kHeads * kDim;
  CudaLrpeParams p = {};
  p.type = ElementType::kBFloat16;
  p.batch = kBatch;
  p.length = kLength;
  p.num_heads = kHeads;
  p.dim = kDim;
  void* x = RandomMemory(2 * elements, true);
  void* y = RandomMemory(4 * elements, true);
  p.x = x;
  p.y = y;
  std::vector<uint64_t> steps(kDim);
  for (int64_t i = 0; i < kDim; ++i) {
    steps[i] = static_cast<uint64_t>(std::pow(10000.0, -2.0 * i / kDim) *
                                     0.15915494309 * 0x1p63) *
               2;
  }
  p.phase_steps = DeviceCopy(steps);
  p.offsets = DeviceCopy(std::vector<int64_t>(kBatch, 1000000));
  std::vector<Result> results;
  for (LrpeType position : {LrpeType::kCosine, LrpeType::kRotate}) {
    p.position = position;
    for (bool heads_first : {false, true}) {
      for (const Named& activation : kActivations) {
        if (!options.Wants(ShapeName(activation, heads_first))) continue;
        results.push_back(BenchOneLrpe(p, activation, heads_first));
      }
    }
  }
  RECURVE_CUDA_OK(cudaFree(x));
  RECURVE_CUDA_OK(cudaFree(y));
  return results;
}

std::vector<Result> BenchNorm(const BenchOptions& options) {
  constexpr int64_t kCols = 4096;
  std::vector<Result> results;
  for (int64_t rows : {1, 32, 256, 8192}) {
    const int64_t elements = rows * kCols;
    void* x = RandomMemory(4 * elements, true);
    void* gate = RandomMemory(2 * elements, true);
    void* y = RandomMemory(2 * elements, true);
    void* weight = RandomMemory(4 * kCols, false);
    CudaGatedNormParams p = {};
    p.norm.type = ElementType::kBFloat16;
    p.norm.x = x;
    p.norm.y = y;
    p.norm.x_stride = p.norm.y_stride = p.gate_stride = p.norm.cols = kCols;
    p.norm.weight = static_cast<const float*>(weight);
    p.norm.rows = rows;
    p.norm.groups = 1;
    p.norm.eps = 1e-5f;
    p.gate = gate;
    p.activation = Activation::kSilu;
    const std::string shape =
        std::to_string(rows) + " x " + std::to_string(kCols) + " bf16";
    const double row_bytes = 2.0 * elements;
    const auto add = [&](const char* op, const Enqueue& enqueue, int moved,
                         const char* detail) {
      if (!options.Wants(shape + detail)) return;
      results.push_back(
          {op, shape + detail, Measure(enqueue, 32, false), moved * row_bytes});
    };
    add(
        "rms_norm",
        [p](cudaStream_t s, int) { return LaunchRmsNorm(p.norm, s); }, 2, "");
    p.norm.groups = 32;
    add(
        "gated_norm",
        [p](cudaStream_t s, int) { return LaunchGatedNorm(p, s); }, 3,
        " before, 32 groups");
    p.gate_after_norm = true;
    add(
        "gated_norm",
        [p](cudaStream_t s, int) { return LaunchGatedNorm(p, s); }, 3,
        " after, 32 groups");
    CudaGluParams glu = {};
    glu.type = ElementType::kBFloat16;
    glu.x = x;
    glu.x_stride = 2 * kCols;
    glu.y = y;
    glu.y_stride = glu.cols = kCols;
    glu.rows = rows;
    glu.activation = Activation::kSilu;
    add(
        "glu", [glu](cudaStream_t s, int) { return LaunchGlu(glu, s); }, 3, "");
    for (void* memory : {x, gate, y, weight}) RECURVE_CUDA_OK(cudaFree(memory));
  }
  return results;
}

}  // namespace bench
}  // namespace recurve
