// Measures the products of a decode step, with a reference kernel in double: a
// thread an output.
// Shapes: w [O, I] bfloat16, x [T, I], y [T, O] double.
// Floor: compute bound: 2 · T · O · I double flops.
#include <cuda_bf16.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bench/cuda/matmul_bench.h"
#include "bench/cuda/step_products.h"
#include "kernels/common/device_math.cuh"
#include "kernels/matmul/decode_matmul_cuda.h"

namespace recurve {
namespace bench {
namespace {

using Product = StepProduct;
constexpr const auto& kLayer = kT6Xl.layer;
constexpr int kProducts = kStepProducts;
constexpr int kLayers = kT6Xl.layers;
constexpr Product kHead = kT6Xl.head;

__device__ float ReadRow(const DecodeMatmulParams& p, int64_t row, int64_t c) {
  if (p.x_is_float) return static_cast<const float*>(p.x)[row * p.x_stride + c];
  return __bfloat162float(
      static_cast<const __nv_bfloat16*>(p.x)[row * p.x_stride + c]);
}

// The same in double, a thread an output.
__global__ void Reference(const __grid_constant__ DecodeMatmulParams p,
                          double* y) {
  const int64_t outputs = p.gate ? p.outputs / 2 : p.outputs;
  const int64_t o = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row = blockIdx.y;
  if (o >= outputs) return;
  double scale = 1.0;
  if (p.norm) {
    double squares = 0.0;
    for (int64_t c = 0; c < p.x_cols; ++c) {
      const double x = ReadRow(p, row, c);
      squares += x * x;
    }
    scale = 1.0 / sqrt(squares / p.x_cols + p.norm_eps);
  }
  const auto dot = [&](int64_t output) {
    double sum = 0.0;
    for (int64_t c = 0; c < p.x_cols; ++c) {
      float x = ReadRow(p, row, c);
      if (p.norm) x = static_cast<float>(x * scale * p.norm_weight[c]);
      sum +=
          static_cast<double>(__bfloat162float(__float2bfloat16_rn(x))) *
          static_cast<double>(__bfloat162float(
              static_cast<const __nv_bfloat16*>(p.w)[output * p.inputs + c]));
    }
    return sum;
  };
  double value = dot(o);
  if (p.gate) value = value / (1.0 + exp(-value)) * dot(outputs + o);
  y[row * outputs + o] = value + (p.add ? p.y[row * p.y_stride + o] : 0.0f);
}

// Ends the program if the kernel is wrong.
void Check(DecodeMatmulParams p, const char* name) {
  const int64_t outputs = p.gate ? p.outputs / 2 : p.outputs;
  double* want = nullptr;
  RECURVE_CUDA_OK(cudaMalloc(&want, p.rows * outputs * sizeof(double)));
  Reference<<<dim3(static_cast<unsigned>((outputs + 127) / 128),
                   static_cast<unsigned>(p.rows)),
              128>>>(p, want);
  RECURVE_CUDA_OK(cudaGetLastError());
  RECURVE_CUDA_OK(LaunchDecodeMatmul(p, nullptr));
  std::vector<double> a(p.rows * outputs);
  std::vector<float> b(p.rows * p.y_stride);
  RECURVE_CUDA_OK(cudaMemcpy(a.data(), want, a.size() * sizeof(double),
                             cudaMemcpyDeviceToHost));
  RECURVE_CUDA_OK(cudaMemcpy(b.data(), p.y, b.size() * sizeof(float),
                             cudaMemcpyDeviceToHost));
  double error = 0, norm = 0;
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      const double x = a[r * outputs + o];
      error += (b[r * p.y_stride + o] - x) * (b[r * p.y_stride + o] - x);
      norm += x * x;
    }
  }
  // A norm rounded the other way counts 2^-9 of one input.
  const double relative = std::sqrt(error / norm);
  if (!(relative < 2e-4)) {
    std::fprintf(stderr, "matmul %s, %lld rows: relative error %g\n", name,
                 static_cast<long long>(p.rows), relative);
    std::exit(1);
  }
  RECURVE_CUDA_OK(cudaFree(want));
}

}  // namespace

std::vector<Result> BenchMatmul(const BenchOptions& options) {
  constexpr int64_t kMaxRows = 256;
  constexpr int64_t kMaxCols = 8576;
  const void* weights[kLayers * kProducts];
  for (int i = 0; i < kLayers * kProducts; ++i) {
    const Product& product = kLayer[i % kProducts];
    weights[i] = RandomMemory(product.outputs * product.inputs * 2, true);
  }
  const void* const head = RandomMemory(kHead.outputs * kHead.inputs * 2, true);
  const void* const halves = RandomMemory(kMaxRows * kMaxCols * 2, true);
  const void* const floats = RandomMemory(kMaxRows * kMaxCols * 4, false);
  auto* const norm = static_cast<float*>(RandomMemory(kMaxCols * 4, false));
  auto* const y =
      static_cast<float*>(RandomMemory(kMaxRows * kHead.outputs * 4, false));
  const bool fuses = DecodeMatmulFuses();
  const auto params = [&](const Product& product, const void* w, int64_t rows) {
    DecodeMatmulParams p = {};
    p.type = WeightType::kBFloat16;
    p.w = w;
    p.outputs = product.outputs;
    p.inputs = product.inputs;
    p.x_is_float = rows <= kDecodeMatmulFloatRows;
    p.x = p.x_is_float ? floats : halves;
    p.x_cols = product.cols;
    p.x_stride = product.inputs;
    p.y = y;
    p.y_stride = product.gate && fuses ? 4288 : (product.outputs + 3) / 4 * 4;
    p.rows = rows;
    p.add = product.add;
    if (fuses && product.norm && p.x_is_float) {
      p.norm = true;
      p.norm_weight = norm;
      p.norm_eps = 1e-5f;
    }
    if (fuses && product.gate) {
      p.gate = true;
      p.activation = Activation::kSilu;
    }
    return p;
  };
  std::vector<Result> results;
  const auto shape_of = [](const Product& product, int64_t rows) {
    return "[" + std::to_string(product.outputs) + ", " +
           std::to_string(product.cols) + "] x " + std::to_string(rows);
  };
  const auto bytes_of = [](const Product& product) {
    return 2.0 * static_cast<double>(product.outputs * product.inputs);
  };
  std::vector<int64_t> all_rows = {1, 8, 32, 256};
  if (!options.quick) all_rows = {1, 2, 4, 8, 9, 16, 32, 64, 128, 256};
  for (const int64_t rows : all_rows) {
    double bytes = 0, flops = 0;
    for (int i = 0; i < kProducts; ++i) {
      const Product& product = kLayer[i];
      bytes += bytes_of(product);
      flops += static_cast<double>(rows) * bytes_of(product);
      const std::string shape = shape_of(product, rows);
      if (!options.Wants(shape)) continue;
      Check(params(product, weights[i], rows), product.name);
      results.push_back(
          {"matmul", shape,
           Measure(
               [&](cudaStream_t stream, int call) {
                 return LaunchDecodeMatmul(
                     params(product, weights[i + call % kLayers * kProducts],
                            rows),
                     stream);
               },
               kLayers, true),
           bytes_of(product), static_cast<double>(rows) * bytes_of(product)});
    }
    if (options.Wants(shape_of(kHead, rows))) {
      Check(params(kHead, head, rows), kHead.name);
      results.push_back(
          {"matmul", shape_of(kHead, rows),
           Measure(
               [&](cudaStream_t stream, int) {
                 return LaunchDecodeMatmul(params(kHead, head, rows), stream);
               },
               2, false),
           bytes_of(kHead), static_cast<double>(rows) * bytes_of(kHead)});
    }
    // A call is a layer's products.
    const std::string shape = "layer x " + std::to_string(rows);
    if (!options.Wants(shape)) continue;
    results.push_back(
        {"matmul", shape,
         Measure(
             [&](cudaStream_t stream, int call) {
               for (int i = 0; i < kProducts; ++i) {
                 const cudaError_t error = LaunchDecodeMatmul(
                     params(kLayer[i], weights[call % kLayers * kProducts + i],
                            rows),
                     stream);
                 if (error != cudaSuccess) return error;
               }
               return cudaSuccess;
             },
             kLayers, true),
         bytes, flops});
  }
  for (const void* w : weights) RECURVE_CUDA_OK(cudaFree(const_cast<void*>(w)));
  for (const void* m : {head, halves, floats})
    RECURVE_CUDA_OK(cudaFree(const_cast<void*>(m)));
  RECURVE_CUDA_OK(cudaFree(norm));
  RECURVE_CUDA_OK(cudaFree(y));
  return results;
}

}  // namespace bench
}  // namespace recurve
