#include "engine/cuda/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace recurve {
namespace {

constexpr int64_t kPieceBytes = int64_t{32} << 20;

// Converts row `row` of `inputs` elements of `tensor` (-1: zeros).
void ConvertRow(const TensorView& tensor, int64_t row, int64_t inputs,
                WeightType type, char* to) {
  const DType dtype = ToDType(type);
  if (row < 0) {
    std::memset(to, 0, inputs * SizeOf(dtype));
    return;
  }
  if (tensor.dtype == dtype) {
    std::memcpy(
        to,
        static_cast<const char*>(tensor.data) + row * inputs * SizeOf(dtype),
        inputs * SizeOf(dtype));
    return;
  }
  for (int64_t i = 0; i < inputs; ++i) {
    const float value = tensor.Element(row * inputs + i);
    if (type == WeightType::kFloat32) {
      std::memcpy(to + i * 4, &value, 4);
    } else {
      const uint16_t bits = type == WeightType::kBFloat16
                                ? FloatToBFloat16(value)
                                : FloatToFloat16(value);
      std::memcpy(to + i * 2, &bits, 2);
    }
  }
}

// The same for a part whose columns have another order. For small models: each
// row goes through a buffer.
void ConvertColumns(const MatrixPart& part, int64_t row, WeightType type,
                    char* to) {
  const int64_t size = WeightBytes(type);
  std::vector<char> stored(part.tensor.shape[1] * size);
  ConvertRow(part.tensor, row, part.tensor.shape[1], type, stored.data());
  for (const int32_t column : part.col_order) {
    if (column < 0) {
      std::memset(to, 0, size);
    } else {
      std::memcpy(to, stored.data() + column * size, size);
    }
    to += size;
  }
}

}  // namespace

WeightType ToWeightType(DType type) {
  switch (type) {
    case DType::kBFloat16:
      return WeightType::kBFloat16;
    case DType::kFloat16:
      return WeightType::kFloat16;
    default:
      return WeightType::kFloat32;
  }
}

DType ToDType(WeightType type) {
  switch (type) {
    case WeightType::kFloat32:
      return DType::kFloat32;
    case WeightType::kBFloat16:
      return DType::kBFloat16;
    case WeightType::kFloat16:
      return DType::kFloat16;
  }
  return DType::kFloat32;
}

absl::StatusOr<std::unique_ptr<CudaWeightLoader>> CudaWeightLoader::Create(
    ThreadPool* pool, cudaStream_t stream) {
  auto loader =
      std::unique_ptr<CudaWeightLoader>(new CudaWeightLoader(pool, stream));
  for (Piece& piece : loader->pieces_) {
    RECURVE_ASSIGN_OR_RETURN(
        piece.memory, CudaMemory::Allocate(CudaMemory::Kind::kHost, kPieceBytes,
                                           "buffers to load weights"));
    RECURVE_RETURN_IF_ERROR(CudaStatus(
        cudaEventCreateWithFlags(&piece.copied, cudaEventDisableTiming),
        "event"));
  }
  return loader;
}

CudaWeightLoader::~CudaWeightLoader() {
  for (Piece& piece : pieces_) {
    if (piece.copied == nullptr) continue;
    cudaEventSynchronize(piece.copied);  // the memory is freed below
    cudaEventDestroy(piece.copied);
  }
}

absl::Status CudaWeightLoader::Load(absl::Span<const MatrixPart> parts,
                                    WeightType type, int64_t row_elements,
                                    void* to) {
  const int64_t inputs = parts.empty() ? 0 : parts[0].cols();
  const int64_t row_bytes = row_elements * WeightBytes(type);
  const int64_t filled = inputs * WeightBytes(type);
  if (row_bytes > kPieceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a matrix has rows of ", inputs, " elements; at most ",
                     kPieceBytes / WeightBytes(type), " are supported"));
  }
  const int64_t rows_a_piece = kPieceBytes / row_bytes;
  char* target = static_cast<char*>(to);
  for (const MatrixPart& part : parts) {
    if (part.tensor.shape.size() != 2 || part.cols() != inputs) {
      return absl::InvalidArgumentError(
          absl::StrCat("a part of a matrix does not have ", inputs, " inputs"));
    }
    for (int64_t first = 0; first < part.rows(); first += rows_a_piece) {
      const int64_t count = std::min(rows_a_piece, part.rows() - first);
      Piece& piece = pieces_[next_];
      next_ = 1 - next_;
      RECURVE_RETURN_IF_ERROR(
          CudaStatus(cudaEventSynchronize(piece.copied), "copying weights"));
      // Sixteen rows per item, because a row may be short.
      constexpr int64_t kRows = 16;
      pool_->ParallelFor((count + kRows - 1) / kRows, [&](int64_t item) {
        for (int64_t i = item * kRows; i < std::min(count, (item + 1) * kRows);
             ++i) {
          char* row = piece.memory.data() + i * row_bytes;
          const int64_t from =
              part.row_order.empty() ? first + i : part.row_order[first + i];
          if (part.col_order.empty()) {
            ConvertRow(part.tensor, from, inputs, type, row);
          } else {
            ConvertColumns(part, from, type, row);
          }
          std::memset(row + filled, 0, row_bytes - filled);
        }
      });
      RECURVE_RETURN_IF_ERROR(CudaStatus(
          cudaMemcpyAsync(target, piece.memory.data(), count * row_bytes,
                          cudaMemcpyHostToDevice, stream_),
          "copying weights"));
      RECURVE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(piece.copied, stream_),
                                         "copying weights"));
      target += count * row_bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status CudaWeightLoader::Finish() {
  return CudaStatus(cudaStreamSynchronize(stream_), "copying weights");
}

}  // namespace recurve
