// Cost of the fixed order of sums of a decode step's products: each product of
// a model by decode_matmul_cuda.h, and by cuBLASLt's fastest recommendation for
// any order (split inputs, stream-K, 32 MB of workspace), possibly another one
// for each number of rows. Fused norms and gates are separate kernels for
// cuBLASLt. Weights are cold, in a chain.
//
// `recurve-exact-bench [--preset NAME] [--json FILE] [--rows N,N...]`

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "bench/cuda/gpu_timer.h"
#include "bench/cuda/step_products.h"
#include "kernels/glu/glu_cuda.h"
#include "kernels/matmul/decode_matmul_cuda.h"
#include "kernels/norm/norm_cuda.h"

namespace recurve {
namespace bench {
namespace {

constexpr int64_t kMaxRows = 4096;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 16;

void Ok(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "cuBLASLt: %s: %s\n", what,
               cublasLtGetStatusString(status));
  std::exit(1);
}

// As the engine pads a matrix, so that all of cuBLASLt's kernels apply.
int64_t PaddedOutputs(const StepProduct& product) {
  return (product.outputs + 15) / 16 * 16;
}

// The products' data, random.
struct Data {
  const StepModel& model;
  int64_t half_stride;               // of the gate's results, in 16 bits
  std::vector<const void*> weights;  // of layers, one after the other
  const void* head;
  const void* floats;  // rows of float32
  void* halves;        // rows of 16 bits
  float* norm;
  void* x;  // rows that a norm wrote
  float* y;
  void* workspace;

  Data(const StepModel& step_model, int64_t rows)
      : model(step_model), half_stride(model.layer[3].inputs) {
    for (int i = 0; i < model.layers * kStepProducts; ++i) {
      const StepProduct& product = model.layer[i % kStepProducts];
      weights.push_back(
          RandomMemory(PaddedOutputs(product) * product.inputs * 2, true));
    }
    const int64_t cols = model.most_cols;
    head = RandomMemory(model.head.outputs * model.head.inputs * 2, true);
    floats = RandomMemory(rows * cols * 4, false);
    halves = RandomMemory(rows * cols * 2, true);
    norm = static_cast<float*>(RandomMemory(cols * 4, false));
    x = RandomMemory(rows * cols * 2, true);
    y = static_cast<float*>(RandomMemory(rows * model.head.outputs * 4, false));
    RECURVE_CUDA_OK(cudaMalloc(&workspace, kWorkspaceBytes));
  }
  // Weights of product `i` of a layer, or of the head.
  const void* Weights(int i, int call) const {
    return i == kStepProducts
               ? head
               : weights[call % model.layers * kStepProducts + i];
  }
  const StepProduct& Product(int i) const {
    return i == kStepProducts ? model.head : model.layer[i];
  }
};

cudaError_t Norm(const Data& data, int64_t rows, cudaStream_t stream) {
  const int64_t width = data.model.layer[0].inputs;
  return LaunchRoundedRmsNorm(
      {ElementType::kFloat32, data.floats, width, data.norm, data.x, width,
       rows, nullptr, width, 1, 1e-5f},
      WeightType::kBFloat16, stream);
}

// As in the engine: with one row, the norm is the product's.
cudaError_t Exact(const Data& data, int i, int call, int64_t rows,
                  cudaStream_t stream) {
  const StepProduct& product = data.Product(i);
  DecodeMatmulParams p = {};
  p.type = WeightType::kBFloat16;
  p.w = data.Weights(i, call);
  p.outputs = product.outputs;
  p.inputs = product.inputs;
  p.x = product.norm ? data.x : data.halves;
  p.x_cols = product.cols;
  p.x_stride = product.inputs;
  p.y = data.y;
  p.y_stride = (product.outputs + 63) / 64 * 64;
  p.rows = rows;
  p.add = product.add;
  if (product.norm && rows == 1) {
    p.x_is_float = true;
    p.x = data.floats;
    p.norm = true;
    p.norm_weight = data.norm;
    p.norm_eps = 1e-5f;
  }
  if (product.gate) {
    p.gate = true;
    p.activation = Activation::kSilu;
    p.y = reinterpret_cast<float*>(data.halves);
    p.y_stride = data.half_stride;
    p.y_is_half = true;
  }
  return LaunchDecodeMatmul(p, stream);
}

// A product by cuBLASLt, and its recommendations.
class Library {
 public:
  Library(cublasLtHandle_t handle, const StepProduct& product, int64_t rows)
      : handle_(handle), product_(product), rows_(rows) {
    Ok(cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
       "descriptor");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    Ok(cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA,
                                      &transposed, sizeof(transposed)),
       "descriptor");
    const int64_t outputs = PaddedOutputs(product);
    Ok(cublasLtMatrixLayoutCreate(&w_, CUDA_R_16BF, product.inputs, outputs,
                                  product.inputs),
       "layout");
    Ok(cublasLtMatrixLayoutCreate(&x_, CUDA_R_16BF, product.inputs, rows,
                                  product.inputs),
       "layout");
    Ok(cublasLtMatrixLayoutCreate(&y_, CUDA_R_32F, outputs, rows,
                                  (product.outputs + 63) / 64 * 64),
       "layout");
    cublasLtMatmulPreference_t preference = nullptr;
    Ok(cublasLtMatmulPreferenceCreate(&preference), "preference");
    Ok(cublasLtMatmulPreferenceSetAttribute(
           preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
           &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
       "preference");
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found;
    int count = 0;
    Ok(cublasLtMatmulAlgoGetHeuristic(handle_, desc_, w_, x_, y_, y_,
                                      preference, kCandidates, found.data(),
                                      &count),
       "algorithms");
    cublasLtMatmulPreferenceDestroy(preference);
    for (int a = 0; a < count; ++a) {
      if (found[a].state == CUBLAS_STATUS_SUCCESS)
        algorithms_.push_back(found[a].algo);
    }
    if (algorithms_.empty()) Ok(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm");
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    cublasLtMatmulDescDestroy(desc_);
    for (cublasLtMatrixLayout_t layout : {w_, x_, y_})
      cublasLtMatrixLayoutDestroy(layout);
  }

  int count() const { return static_cast<int>(algorithms_.size()); }
  void Choose(int algorithm) { chosen_ = algorithm; }

  // With the gate, if there is one.
  cudaError_t Enqueue(const Data& data, int i, int call,
                      cudaStream_t stream) const {
    const float alpha = 1;
    const float beta = product_.add ? 1 : 0;
    const void* const x = product_.norm ? data.x : data.halves;
    if (cublasLtMatmul(handle_, desc_, &alpha, data.Weights(i, call), w_, x, x_,
                       &beta, data.y, y_, data.y, y_, &algorithms_[chosen_],
                       data.workspace, kWorkspaceBytes,
                       stream) != CUBLAS_STATUS_SUCCESS) {
      return cudaErrorUnknown;
    }
    if (!product_.gate) return cudaSuccess;
    return LaunchRoundedGlu(
        {ElementType::kFloat32, data.y, (product_.outputs + 63) / 64 * 64,
         data.halves, data.half_stride, rows_, nullptr, product_.outputs / 2,
         Activation::kSilu},
        WeightType::kBFloat16, stream);
  }

  // The chosen algorithm, as text.
  std::string Describe() const {
    const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
      int32_t value = 0;
      size_t written = 0;
      cublasLtMatmulAlgoConfigGetAttribute(&algorithms_[chosen_], attribute,
                                           &value, sizeof(value), &written);
      return value;
    };
    return "id " + std::to_string(read(CUBLASLT_ALGO_CONFIG_ID)) + " tile " +
           std::to_string(read(CUBLASLT_ALGO_CONFIG_TILE_ID)) + " split " +
           std::to_string(read(CUBLASLT_ALGO_CONFIG_SPLITK_NUM)) +
           " reduction " +
           std::to_string(read(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME));
  }

 private:
  cublasLtHandle_t handle_;
  const StepProduct product_;
  const int64_t rows_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, y_ = nullptr;
  std::vector<cublasLtMatmulAlgo_t> algorithms_;
  int chosen_ = 0;
};

// Ends the program unless both results nearly agree. The gate is left out; of
// `down` the library also reads the last, padded inputs, which are small next
// to a gate's results in the others.
void Compare(const Data& data, int i, int64_t rows, const Library& library) {
  const StepProduct& product = data.Product(i);
  if (product.gate) return;  // 16 bits, and other inputs
  const int64_t stride = (product.outputs + 63) / 64 * 64;
  std::vector<float> results[2];
  for (int way = 0; way < 2; ++way) {
    RECURVE_CUDA_OK(cudaMemset(data.y, 0, rows * stride * sizeof(float)));
    RECURVE_CUDA_OK(Norm(data, rows, nullptr));
    RECURVE_CUDA_OK(way == 0 ? Exact(data, i, 0, rows, nullptr)
                             : library.Enqueue(data, i, 0, nullptr));
    results[way].resize(rows * stride);
    RECURVE_CUDA_OK(cudaMemcpy(results[way].data(), data.y,
                               rows * stride * sizeof(float),
                               cudaMemcpyDeviceToHost));
  }
  double error = 0, norm = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < product.outputs; ++o) {
      const double a = results[0][r * stride + o];
      const double b = results[1][r * stride + o];
      error += (a - b) * (a - b);
      norm += a * a;
    }
  }
  if (!(std::sqrt(error / norm) < 1e-3)) {
    std::fprintf(stderr, "%s, %lld rows: results differ by %g\n", product.name,
                 static_cast<long long>(rows), std::sqrt(error / norm));
    std::exit(1);
  }
}

struct Row {
  std::string what;
  int64_t rows;
  double exact_us, other_us;
  std::string algorithm;
};

void Bench(const StepModel& model, const std::vector<int64_t>& all_rows,
           std::vector<Row>* out) {
  const Data data(model, *std::max_element(all_rows.begin(), all_rows.end()));
  cublasLtHandle_t handle = nullptr;
  Ok(cublasLtCreate(&handle), "initialisation");
  for (const int64_t rows : all_rows) {
    std::vector<std::unique_ptr<Library>> libraries;
    bool faster[kStepProducts + 1];  // whether the library is faster
    for (int i = 0; i <= kStepProducts; ++i) {
      const StepProduct& product = data.Product(i);
      libraries.push_back(std::make_unique<Library>(handle, product, rows));
      Library& library = *libraries.back();
      const int nodes = i == kStepProducts ? 2 : model.layers;
      const double exact = MeasureChain(
          [&](cudaStream_t stream, int call) {
            return Exact(data, i, call, rows, stream);
          },
          nodes);
      double best = INFINITY;
      int best_algorithm = 0;
      for (int a = 0; a < library.count(); ++a) {
        library.Choose(a);
        const double time = MeasureChain(
            [&](cudaStream_t stream, int call) {
              if (product.norm && rows == 1) {
                if (const cudaError_t error = Norm(data, rows, stream);
                    error != cudaSuccess) {
                  return error;
                }
              }
              return library.Enqueue(data, i, call, stream);
            },
            nodes);
        if (time < best) {
          best = time;
          best_algorithm = a;
        }
      }
      library.Choose(best_algorithm);
      Compare(data, i, rows, library);
      faster[i] = best < exact;
      out->push_back({product.name, rows, exact, best, library.Describe()});
    }
    // The four products of a layer with its two norms; with any_order, by the
    // library where it is faster.
    const auto layer = [&](bool any_order) {
      return MeasureChain(
          [&](cudaStream_t stream, int call) {
            for (int i = 0; i < kStepProducts; ++i) {
              const bool library = any_order && faster[i];
              cudaError_t error = cudaSuccess;
              if (data.Product(i).norm && (rows > 1 || library))
                error = Norm(data, rows, stream);
              if (error == cudaSuccess) {
                error = library ? libraries[i]->Enqueue(data, i, call, stream)
                                : Exact(data, i, call, rows, stream);
              }
              if (error != cudaSuccess) return error;
            }
            return cudaSuccess;
          },
          model.layers);
    };
    std::string mix;
    for (int i = 0; i < kStepProducts; ++i) {
      if (faster[i])
        mix += (mix.empty() ? "" : ", ") + std::string(data.Product(i).name);
    }
    out->push_back({"layer", rows, layer(false), layer(true),
                    mix.empty() ? "none by cuBLASLt" : "by cuBLASLt: " + mix});
  }
  cublasLtDestroy(handle);
}

int Main(int argc, char** argv) {
  std::string json;
  const StepModel* model = &kT6Xl;
  std::vector<int64_t> rows = {1, 2, 8, 16, 32, 64, 128, 256};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = argv[i + 1];
    } else if (std::strcmp(argv[i], "--preset") == 0) {
      const auto* const found =
          std::find_if(std::begin(kStepModels), std::end(kStepModels),
                       [&](const StepModel* m) {
                         return std::strcmp(m->name, argv[i + 1]) == 0;
                       });
      if (found == std::end(kStepModels)) {
        std::fprintf(stderr, "--preset: '%s' is not t6-xl or qwen3.5-9b\n",
                     argv[i + 1]);
        return 2;
      }
      model = *found;
    } else if (std::strcmp(argv[i], "--rows") == 0) {
      rows.clear();
      for (const char* at = argv[i + 1]; *at != '\0';) {
        char* end = nullptr;
        rows.push_back(std::strtol(at, &end, 10));
        if (end == at || rows.back() < 1 || rows.back() > kMaxRows) {
          std::fprintf(stderr, "--rows: numbers from 1 to %lld\n",
                       static_cast<long long>(kMaxRows));
          return 2;
        }
        at = *end == ',' ? end + 1 : end;
      }
    } else {
      argc = 0;  // prints the message below
    }
  }
  if (argc % 2 == 0 || rows.empty()) {
    std::fputs(
        "usage: recurve-exact-bench [--preset NAME] [--json FILE] "
        "[--rows N,N...]\n",
        stderr);
    return 2;
  }
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fputs("no CUDA device on this machine\n", stderr);
    return 1;
  }
  if (!DecodeMatmulFuses()) {
    std::fputs("this needs a GPU of compute capability 9.0\n", stderr);
    return 1;
  }
  const std::string why = json.empty() ? "" : WhyNotWritable(json);
  if (!why.empty()) {
    std::fprintf(stderr, "cannot write %s: %s\n", json.c_str(), why.c_str());
    return 1;
  }
  std::vector<Row> results;
  Bench(*model, rows, &results);
  std::printf("%-14s %5s %9s %9s %7s  %s\n", "product", "rows", "exact us",
              "other us", "saved", "fastest other");
  for (const Row& r : results) {
    std::printf("%-14s %5lld %9.2f %9.2f %6.1f%%  %s\n", r.what.c_str(),
                static_cast<long long>(r.rows), r.exact_us, r.other_us,
                100.0 * (r.exact_us - r.other_us) / r.exact_us,
                r.algorithm.c_str());
  }
  if (json.empty()) return 0;
  std::FILE* out = std::fopen(json.c_str(), "w");
  if (out == nullptr) {
    std::fprintf(stderr, "cannot write %s\n", json.c_str());
    return 1;
  }
  cudaDeviceProp device;
  RECURVE_CUDA_OK(cudaGetDeviceProperties(&device, 0));
  std::fprintf(out,
               "{\n  \"gpu\": \"%s\",\n  \"cublaslt\": %zu,\n"
               "  \"exact\": [",
               device.name, cublasLtGetVersion());
  const char* separator = "";
  for (const Row& r : results) {
    std::fprintf(out,
                 "%s\n    {\"what\": \"%s\", \"rows\": %lld, "
                 "\"exact_us\": %.2f, \"other_us\": %.2f, \"other\": \"%s\"}",
                 separator, r.what.c_str(), static_cast<long long>(r.rows),
                 r.exact_us, r.other_us, r.algorithm.c_str());
    separator = ",";
  }
  std::fprintf(out, "\n  ]\n}\n");
  if (!CloseWritten(out)) {
    std::fprintf(stderr, "cannot write all of %s\n", json.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace bench
}  // namespace recurve

int main(int argc, char** argv) { return recurve::bench::Main(argc, argv); }
