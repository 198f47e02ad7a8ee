#include "kernels/matmul/cublas_matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 32;

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

uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return static_cast<uint32_t>(
      std::min<uintptr_t>(address & (~address + 1), 16));
}

}  // namespace

struct CublasMatmul::Impl {
  // All that an algorithm may depend on, but for the rows.
  using Key = std::tuple<WeightType, int64_t, int64_t, int64_t, int64_t,
                         int64_t, uint32_t, uint32_t, uint32_t>;

  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms;

  ~Impl() {
    if (workspace != nullptr) cudaFree(workspace);
    if (handle != nullptr) cublasLtDestroy(handle);
  }

  absl::StatusOr<cublasLtMatmulAlgo_t> Choose(const Params& p);
};

// The first that cuBLASLt recommends for kTunedRows rows and that takes every
// number of rows.
absl::StatusOr<cublasLtMatmulAlgo_t> CublasMatmul::Impl::Choose(
    const Params& p) {
  Product tuned;
  RECURVE_RETURN_IF_ERROR(tuned.Init(p, kTunedRows));
  cublasLtMatmulPreference_t preference = nullptr;
  RECURVE_RETURN_IF_ERROR(
      ToStatus(cublasLtMatmulPreferenceCreate(&preference), "preference"));
  const uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  const uint32_t w_alignment = AlignmentOf(p.w);
  const uint32_t x_alignment = AlignmentOf(p.x);
  const uint32_t y_alignment = AlignmentOf(p.y);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                       const auto& value) {
    return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                                sizeof(value));
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
      handle, tuned.desc_, tuned.w_, tuned.x_, tuned.y_, tuned.y_, preference,
      kCandidates, found.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  RECURVE_RETURN_IF_ERROR(ToStatus(status, "choosing an algorithm"));
  for (int i = 0; i < count; ++i) {
    int32_t split = 1;
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&found[i].algo,
                                         CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                         &split, sizeof(split), &written);
    bool takes_all = found[i].state == CUBLAS_STATUS_SUCCESS && split <= 1;
    for (const int64_t rows : {1, 7, 64, 300, 8192}) {
      if (!takes_all) break;
      Product product;
      RECURVE_RETURN_IF_ERROR(product.Init(p, rows));
      cublasLtMatmulHeuristicResult_t checked;
      takes_all =
          cublasLtMatmulAlgoCheck(handle, product.desc_, product.w_, product.x_,
                                  product.y_, product.y_, &found[i].algo,
                                  &checked) == CUBLAS_STATUS_SUCCESS &&
          checked.workspaceSize <= kWorkspaceBytes;
    }
    if (takes_all) return found[i].algo;
  }
  return absl::InternalError(absl::StrCat(
      "cuBLASLt has no algorithm for every number of rows of a matrix [",
      p.outputs, ", ", p.inputs, "]"));
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
    return absl::ResourceExhaustedError(
        absl::StrCat("no device memory for the workspace of cuBLASLt: ",
                     cudaGetErrorString(error)));
  }
  return std::unique_ptr<CublasMatmul>(new CublasMatmul(std::move(impl)));
}

absl::Status CublasMatmul::Multiply(const Params& p, cudaStream_t stream) {
  if (p.rows == 0) return absl::OkStatus();
  const Impl::Key key = {p.type,           p.outputs,        p.inputs,
                         p.w_stride,       p.x_stride,       p.y_stride,
                         AlignmentOf(p.w), AlignmentOf(p.x), AlignmentOf(p.y)};
  auto it = impl_->algorithms.find(key);
  if (it == impl_->algorithms.end()) {
    RECURVE_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm,
                             impl_->Choose(p));
    it = impl_->algorithms.emplace(key, algorithm).first;
  }
  Product product;
  RECURVE_RETURN_IF_ERROR(product.Init(p, p.rows));
  const float alpha = 1;
  const float beta = p.add ? 1 : 0;
  return ToStatus(
      cublasLtMatmul(impl_->handle, product.desc_, &alpha, p.w, product.w_, p.x,
                     product.x_, &beta, p.y, product.y_, p.y, product.y_,
                     &it->second, impl_->workspace, kWorkspaceBytes, stream),
      "product");
}

}  // namespace recurve
