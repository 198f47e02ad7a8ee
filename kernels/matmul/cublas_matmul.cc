#include "kernels/matmul/cublas_matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/device_attribute.h"
#include "kernels/common/read_memory_cuda.h"

namespace recurve {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 16;
// Row counts that Tune measures; counts between two use the larger one's
// algorithm.
constexpr std::array<int64_t, 6> kTrialRows = {64, 128, 256, 512, 2048, 8192};
constexpr int kTrials = 5;

absl::Status ToStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(status)));
}

cudaDataType_t DataType(WeightType type) {
  switch (type) {
    case WeightType::kFloat32:
      return CUDA_R_32F;
    case WeightType::kBFloat16:
      return CUDA_R_16BF;
    case WeightType::kFloat16:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

// cuBLASLt's view: column-major yᵀ [outputs, rows] = w · xᵀ.
class Product {
 public:
  Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;
  ~Product() {
    if (desc_ != nullptr) cublasLtMatmulDescDestroy(desc_);
    for (cublasLtMatrixLayout_t layout : {w_, x_, y_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }

  absl::Status Init(const CublasMatmul::Params& p, int64_t rows) {
    const cudaDataType_t type = DataType(p.type);
    RECURVE_RETURN_IF_ERROR(ToStatus(
        cublasLtMatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "descriptor"));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    RECURVE_RETURN_IF_ERROR(ToStatus(
        cublasLtMatmulDescSetAttribute(desc_, CUBLASLT_MATMUL_DESC_TRANSA,
                                       &transposed, sizeof(transposed)),
        "transposition"));
    RECURVE_RETURN_IF_ERROR(ToStatus(
        cublasLtMatrixLayoutCreate(&w_, type, p.inputs, p.outputs, p.w_stride),
        "layout"));
    RECURVE_RETURN_IF_ERROR(ToStatus(
        cublasLtMatrixLayoutCreate(&x_, type, p.inputs, rows, p.x_stride),
        "layout"));
    return ToStatus(cublasLtMatrixLayoutCreate(&y_, CUDA_R_32F, p.outputs, rows,
                                               p.y_stride),
                    "layout");
  }

  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t y_ = nullptr;
};

constexpr uint32_t kAligned = 16;

uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(
      std::min<uintptr_t>(address & (~address + 1), kAligned));
}

absl::Status CudaToStatus(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("measuring algorithms of cuBLASLt: ",
                                          cudaGetErrorString(error)));
}

// Rows to multiply and memory for the results, for measuring algorithms.
class Trial {
 public:
  Trial() = default;
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    cudaFree(x_);
    cudaFree(y_);
    cudaFree(evicting_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }

  absl::Status Allocate(const CublasMatmul::Params& p, int64_t rows) {
    const int64_t count = rows * p.x_stride;
    int cache_bytes = 0;
    RECURVE_RETURN_IF_ERROR(
        CudaToStatus(DeviceAttribute(cudaDevAttrL2CacheSize, &cache_bytes)));
    for (const auto& [memory, bytes] :
         {std::pair(&x_, 2 * count), std::pair(&y_, 4 * rows * p.y_stride)}) {
      if (cudaMalloc(memory, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return absl::ResourceExhaustedError(absl::StrCat(
            "no device memory to measure products of ", rows, " rows: ", bytes,
            " bytes (lower --max-num-batched-tokens)"));
      }
    }
    // If memory is short, the measured weights may be cached.
    evicting_bytes_ = int64_t{2} * cache_bytes;
    if (evicting_bytes_ > 0 &&
        cudaMalloc(&evicting_, evicting_bytes_) != cudaSuccess) {
      (void)cudaGetLastError();
      evicting_ = nullptr;
      evicting_bytes_ = 0;
    }
    // Bits of [1, 2) and [-2, -1), in either 16-bit type.
    const uint16_t one = p.type == WeightType::kBFloat16 ? 0x3f80 : 0x3c00;
    const uint16_t fraction = p.type == WeightType::kBFloat16 ? 0x7f : 0x3ff;
    std::vector<uint16_t> random(
        static_cast<size_t>(std::min<int64_t>(count, kRandom)));
    uint64_t state = 1;
    for (uint16_t& bits : random) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      bits = static_cast<uint16_t>(one | (state >> 48 & fraction) |
                                   (state >> 63) << 15);
    }
    for (int64_t first = 0; first < count; first += kRandom) {
      RECURVE_RETURN_IF_ERROR(CudaToStatus(cudaMemcpy(
          static_cast<uint16_t*>(x_) + first, random.data(),
          2 * std::min(count - first, kRandom), cudaMemcpyHostToDevice)));
    }
    RECURVE_RETURN_IF_ERROR(CudaToStatus(cudaEventCreate(&begin_)));
    return CudaToStatus(cudaEventCreate(&end_));
  }
  const void* x() const { return x_; }
  float* y() const { return static_cast<float*>(y_); }

  // The time between Begin and End is measured, in milliseconds. The weights
  // come from memory, as in a model.
  absl::Status Begin(const CublasMatmul::Params& p, cudaStream_t stream) {
    // Every byte 0x3c: an ordinary float.
    RECURVE_RETURN_IF_ERROR(CudaToStatus(
        cudaMemsetAsync(y_, 0x3c, 4 * p.rows * p.y_stride, stream)));
    if (evicting_bytes_ > 0) {
      RECURVE_RETURN_IF_ERROR(
          CudaToStatus(LaunchReadMemory(evicting_, evicting_bytes_, stream)));
    }
    return CudaToStatus(cudaEventRecord(begin_, stream));
  }
  absl::StatusOr<float> End(cudaStream_t stream) {
    float time = 0;
    RECURVE_RETURN_IF_ERROR(CudaToStatus(cudaEventRecord(end_, stream)));
    RECURVE_RETURN_IF_ERROR(CudaToStatus(cudaEventSynchronize(end_)));
    RECURVE_RETURN_IF_ERROR(
        CudaToStatus(cudaEventElapsedTime(&time, begin_, end_)));
    return time;
  }

  // Sampled rows of the results, including the first and the last.
  absl::StatusOr<std::vector<float>> Sample(
      const CublasMatmul::Params& p) const {
    const int64_t count = std::min<int64_t>(p.rows, kSampledRows);
    std::vector<float> rows(count * p.outputs);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row =
          count == 1 ? 0 : i * (p.rows - 1) / (count - 1);  // 0 ... rows - 1
      RECURVE_RETURN_IF_ERROR(CudaToStatus(
          cudaMemcpy(rows.data() + i * p.outputs,
                     static_cast<const float*>(y_) + row * p.y_stride,
                     p.outputs * sizeof(float), cudaMemcpyDeviceToHost)));
    }
    return rows;
  }

 private:
  static constexpr int64_t kRandom = 1000003;  // not a multiple of a row
  static constexpr int64_t kSampledRows = 32;

  void* x_ = nullptr;
  void* y_ = nullptr;
  void* evicting_ = nullptr;  // unused data, read to evict the caches
  int64_t evicting_bytes_ = 0;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

struct CublasMatmul::Impl {
  // An algorithm, and the most rows it is used for.
  struct Choice {
    int64_t rows;
    cublasLtMatmulAlgo_t algorithm;
  };
  // All that an algorithm may depend on, except the rows.
  using Key = std::tuple<WeightType, int64_t, int64_t, int64_t, int64_t,
                         int64_t, uint32_t, uint32_t, uint32_t>;
  using Shape = std::tuple<WeightType, int64_t, int64_t>;

  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  // Sorted by rows; the last entry serves all larger counts.
  std::map<Key, std::vector<Choice>> algorithms;
  std::map<Shape, std::vector<Choice>> tuned;

  ~Impl() {
    if (workspace != nullptr) cudaFree(workspace);
    if (handle != nullptr) cublasLtDestroy(handle);
  }

  // cuBLASLt's recommendations for `rows` rows, best first, without splitting
  // the inputs.
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Recommended(const Params& p,
                                                                int64_t rows);
  absl::StatusOr<bool> Takes(const Params& p, int64_t rows,
                             const cublasLtMatmulAlgo_t& algorithm);
  // Whether it supports row counts from `least` to `most`, tested on some of
  // them, and on more. (Support of one count does not imply that of odd ones.)
  absl::StatusOr<bool> TakesAll(const Params& p, int64_t least, int64_t most,
                                const cublasLtMatmulAlgo_t& algorithm);
  absl::StatusOr<cublasLtMatmulAlgo_t> Choose(const Params& p);
  absl::StatusOr<std::vector<Choice>> ChooseAll(const Params& p);
  absl::Status Enqueue(const Params& p, const cublasLtMatmulAlgo_t& algorithm,
                       cudaStream_t stream);
};

absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>>
CublasMatmul::Impl::Recommended(const Params& p, int64_t rows) {
  Product product;
  RECURVE_RETURN_IF_ERROR(product.Init(p, rows));
  cublasLtMatmulPreference_t created = nullptr;
  RECURVE_RETURN_IF_ERROR(
      ToStatus(cublasLtMatmulPreferenceCreate(&created), "preference"));
  const std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                        decltype(&cublasLtMatmulPreferenceDestroy)>
      preference(created, &cublasLtMatmulPreferenceDestroy);
  const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  const uint32_t w_alignment = AlignmentOf(p.w);
  const uint32_t x_alignment = AlignmentOf(p.x);
  const uint32_t y_alignment = AlignmentOf(p.y);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                       const auto& value) {
    return cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute,
                                                &value, sizeof(value));
  };
  for (const cublasStatus_t status :
       {set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes),
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reduction),
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, w_alignment),
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x_alignment),
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_alignment),
        set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_alignment)}) {
    RECURVE_RETURN_IF_ERROR(ToStatus(status, "preference"));
  }
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found;
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, product.desc_, product.w_, product.x_, product.y_, product.y_,
      preference.get(), kCandidates, found.data(), &count);
  RECURVE_RETURN_IF_ERROR(ToStatus(status, "choosing an algorithm"));
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < count; ++i) {
    int32_t split = 1;
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo,
                                         CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                         &split, sizeof(split), &written);
    if (found[i].state == CUBLAS_STATUS_SUCCESS && split <= 1) {
      algorithms.push_back(found[i].algo);
    }
  }
  return algorithms;
}

absl::StatusOr<bool> CublasMatmul::Impl::Takes(
    const Params& p, int64_t rows, const cublasLtMatmulAlgo_t& algorithm) {
  Product product;
  RECURVE_RETURN_IF_ERROR(product.Init(p, rows));
  cublasLtMatmulHeuristicResult_t checked;
  return cublasLtMatmulAlgoCheck(handle, product.desc_, product.w_, product.x_,
                                 product.y_, product.y_, &algorithm,
                                 &checked) == CUBLAS_STATUS_SUCCESS &&
         checked.workspaceSize <= kWorkspaceBytes;
}

absl::StatusOr<bool> CublasMatmul::Impl::TakesAll(
    const Params& p, int64_t least, int64_t most,
    const cublasLtMatmulAlgo_t& algorithm) {
  for (const int64_t rows : {least, (least + most) / 2 | 1, most, most + 1}) {
    RECURVE_ASSIGN_OR_RETURN(const bool takes, Takes(p, rows, algorithm));
    if (!takes) return false;
  }
  return true;
}

// The first recommendation for kTunedRows rows that supports every row count.
absl::StatusOr<cublasLtMatmulAlgo_t> CublasMatmul::Impl::Choose(
    const Params& p) {
  RECURVE_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> found,
                           Recommended(p, kTunedRows));
  for (const cublasLtMatmulAlgo_t& algorithm : found) {
    bool takes_all = true;
    for (const int64_t rows : {1, 7, 64, 300, 8192}) {
      if (!takes_all) break;
      RECURVE_ASSIGN_OR_RETURN(takes_all, Takes(p, rows, algorithm));
    }
    if (takes_all) return algorithm;
  }
  return absl::InternalError(absl::StrCat(
      "cuBLASLt has no algorithm for every number of rows of a matrix [",
      p.outputs, ", ", p.inputs, "]"));
}

// Tune's result, if it suits these strides and alignments, too.
absl::StatusOr<std::vector<CublasMatmul::Impl::Choice>>
CublasMatmul::Impl::ChooseAll(const Params& p) {
  const auto it = tuned.find({p.type, p.outputs, p.inputs});
  bool suits = it != tuned.end();
  for (const void* data : {p.w, p.x, static_cast<const void*>(p.y)}) {
    suits = suits && AlignmentOf(data) == kAligned;
  }
  if (suits) {
    int64_t least = 1;
    for (const Choice& choice : it->second) {
      if (!suits) break;
      RECURVE_ASSIGN_OR_RETURN(
          suits, TakesAll(p, least, choice.rows, choice.algorithm));
      least = choice.rows + 1;
    }
  }
  if (suits) return it->second;
  RECURVE_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm, Choose(p));
  return std::vector<Choice>{{kTunedRows, algorithm}};
}

absl::Status CublasMatmul::Impl::Enqueue(const Params& p,
                                         const cublasLtMatmulAlgo_t& algorithm,
                                         cudaStream_t stream) {
  Product product;
  RECURVE_RETURN_IF_ERROR(product.Init(p, p.rows));
  const float alpha = 1;
  const float beta = p.add ? 1 : 0;
  return ToStatus(
      cublasLtMatmul(handle, product.desc_, &alpha, p.w, product.w_, p.x,
                     product.x_, &beta, p.y, product.y_, p.y, product.y_,
                     &algorithm, workspace, kWorkspaceBytes, stream),
      "product");
}

CublasMatmul::CublasMatmul(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
CublasMatmul::~CublasMatmul() = default;

absl::StatusOr<std::unique_ptr<CublasMatmul>> CublasMatmul::Create() {
  auto impl = std::make_unique<Impl>();
  RECURVE_RETURN_IF_ERROR(
      ToStatus(cublasLtCreate(&impl->handle), "initialisation"));
  if (const cudaError_t error = cudaMalloc(&impl->workspace, kWorkspaceBytes);
      error != cudaSuccess) {
    impl->workspace = nullptr;
    (void)cudaGetLastError();  // clears the error for later callers
    return absl::ResourceExhaustedError(
        absl::StrCat("no device memory for the workspace of cuBLASLt: ",
                     cudaGetErrorString(error)));
  }
  return std::unique_ptr<CublasMatmul>(new CublasMatmul(std::move(impl)));
}

absl::Status CublasMatmul::Tune(const Params& params, int64_t max_rows,
                                cudaStream_t stream) {
  const Impl::Shape shape = {params.type, params.outputs, params.inputs};
  if (params.type == WeightType::kFloat32 || impl_->tuned.count(shape) > 0) {
    return absl::OkStatus();
  }
  max_rows = std::min(max_rows, kTuneBytes / (4 * params.y_stride));
  if (max_rows < 1) return absl::OkStatus();
  // With fewer rows if memory is scarce.
  auto room = std::make_unique<Trial>();
  absl::Status allocated = room->Allocate(params, max_rows);
  while (absl::IsResourceExhausted(allocated) && max_rows > kTunedRows) {
    max_rows /= 2;
    room = std::make_unique<Trial>();
    allocated = room->Allocate(params, max_rows);
  }
  RECURVE_RETURN_IF_ERROR(allocated);
  Trial& trial = *room;
  Params p = params;
  p.x = trial.x();
  p.y = trial.y();
  RECURVE_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t base, impl_->Choose(p));
  const auto run =
      [&](const cublasLtMatmulAlgo_t& algorithm) -> absl::StatusOr<float> {
    RECURVE_RETURN_IF_ERROR(trial.Begin(p, stream));
    RECURVE_RETURN_IF_ERROR(impl_->Enqueue(p, algorithm, stream));
    return trial.End(stream);
  };
  const auto best_of =
      [&](const cublasLtMatmulAlgo_t& algorithm) -> absl::StatusOr<float> {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < kTrials; ++i) {
      RECURVE_ASSIGN_OR_RETURN(const float time, run(algorithm));
      best = std::min(best, time);
    }
    return best;
  };
  // For p.rows: the fastest algorithm with the bits of `base` that supports all
  // counts from `least` to `most`.
  const auto fastest =
      [&](const std::vector<cublasLtMatmulAlgo_t>& found, int64_t least,
          int64_t most) -> absl::StatusOr<cublasLtMatmulAlgo_t> {
    RECURVE_RETURN_IF_ERROR(run(base).status());
    RECURVE_ASSIGN_OR_RETURN(const std::vector<float> want, trial.Sample(p));
    RECURVE_ASSIGN_OR_RETURN(float best, best_of(base));
    cublasLtMatmulAlgo_t choice = base;
    for (const cublasLtMatmulAlgo_t& algorithm : found) {
      RECURVE_ASSIGN_OR_RETURN(const bool takes,
                               impl_->TakesAll(p, least, most, algorithm));
      if (!takes) continue;
      RECURVE_RETURN_IF_ERROR(run(algorithm).status());
      RECURVE_ASSIGN_OR_RETURN(const std::vector<float> got, trial.Sample(p));
      if (std::memcmp(got.data(), want.data(), want.size() * sizeof(float)) !=
          0) {
        continue;
      }
      RECURVE_ASSIGN_OR_RETURN(const float time, best_of(algorithm));
      if (time < best) {
        best = time;
        choice = algorithm;
      }
    }
    return choice;
  };
  std::vector<int64_t> trial_rows;
  for (const int64_t rows : kTrialRows) {
    trial_rows.push_back(rows);
    if (rows >= max_rows) break;
  }
  std::vector<cublasLtMatmulAlgo_t> winners;
  int64_t least = 1;
  for (const int64_t rows : trial_rows) {
    p.rows = std::min(rows, max_rows);
    RECURVE_ASSIGN_OR_RETURN(const std::vector<cublasLtMatmulAlgo_t> found,
                             impl_->Recommended(p, p.rows));
    RECURVE_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t winner,
                             fastest(found, least, rows));
    winners.push_back(winner);
    least = rows + 1;
  }
  // Recommendations for other row counts may be faster.
  std::vector<Impl::Choice> choices;
  least = 1;
  for (const int64_t rows : trial_rows) {
    p.rows = std::min(rows, max_rows);
    RECURVE_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t winner,
                             fastest(winners, least, rows));
    choices.push_back({rows, winner});
    least = rows + 1;
  }
  impl_->tuned.emplace(shape, std::move(choices));
  return absl::OkStatus();
}

absl::Status CublasMatmul::Multiply(const Params& p, cudaStream_t stream) {
  if (p.rows == 0) return absl::OkStatus();
  const Impl::Key key = {p.type,           p.outputs,        p.inputs,
                         p.w_stride,       p.x_stride,       p.y_stride,
                         AlignmentOf(p.w), AlignmentOf(p.x), AlignmentOf(p.y)};
  auto it = impl_->algorithms.find(key);
  if (it == impl_->algorithms.end()) {
    RECURVE_ASSIGN_OR_RETURN(std::vector<Impl::Choice> choices,
                             impl_->ChooseAll(p));
    it = impl_->algorithms.emplace(key, std::move(choices)).first;
  }
  const std::vector<Impl::Choice>& choices = it->second;
  size_t i = 0;
  while (i + 1 < choices.size() && p.rows > choices[i].rows) ++i;
  return impl_->Enqueue(p, choices[i].algorithm, stream);
}

}  // namespace recurve
