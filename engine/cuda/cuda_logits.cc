#include "engine/cuda/cuda_logits.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "kernels/rows/rows_cuda.h"

namespace recurve {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kBytes = 64 << 20;  // on the device, approximately

int64_t Capacity(int64_t min_rows, int64_t max_rows, int64_t vocab) {
  return std::clamp(kBytes / (kFloatBytes * vocab), min_rows, max_rows);
}

}  // namespace

int64_t CudaLogits::DeviceBytes(int64_t min_rows, int64_t max_rows,
                                int64_t hidden, int64_t vocab) {
  return Capacity(min_rows, max_rows, vocab) *
         (Stride(hidden) + Stride(vocab)) * kFloatBytes;
}

absl::Status CudaLogits::Allocate(int64_t min_rows, int64_t max_rows,
                                  int64_t hidden, int64_t vocab) {
  constexpr char kWhat[] = "logits; lower --max-num-seqs";
  capacity_ = Capacity(min_rows, max_rows, vocab);
  RECURVE_ASSIGN_OR_RETURN(
      inputs_, CudaMemory::Allocate(
                   kDevice, capacity_ * Stride(hidden) * kFloatBytes, kWhat));
  RECURVE_ASSIGN_OR_RETURN(
      logits_, CudaMemory::Allocate(
                   kDevice, capacity_ * Stride(vocab) * kFloatBytes, kWhat));
  RECURVE_ASSIGN_OR_RETURN(
      kept_,
      CudaMemory::Allocate(CudaMemory::Kind::kHost,
                           2 * kMaxKeptRows * Stride(vocab) * kFloatBytes,
                           "logits of prompts"));
  return absl::OkStatus();
}

absl::Status CudaLogits::ReserveHost(int64_t rows, int64_t vocab) {
  const int64_t row_bytes = vocab * kFloatBytes;
  if (rows * row_bytes <= host_.bytes()) return absl::OkStatus();
  int64_t room = 1;  // powers of two, so that it grows rarely
  while (room < rows) room *= 2;
  constexpr auto kHost = CudaMemory::Kind::kHost;
  absl::StatusOr<CudaMemory> memory =
      CudaMemory::Allocate(kHost, room * row_bytes, "logits");
  if (absl::IsResourceExhausted(memory.status()) && room > rows)
    memory = CudaMemory::Allocate(kHost, rows * row_bytes, "logits");
  RECURVE_RETURN_IF_ERROR(memory.status());
  host_ = *std::move(memory);
  return absl::OkStatus();
}

absl::Status CudaLogits::Keep(int64_t device_row, int64_t step, int64_t index,
                              int64_t vocab, cudaStream_t stream) const {
  // Not by a copy engine, where it might wait behind a snapshot.
  return CudaStatus(
      LaunchCopy({data() + device_row * Stride(vocab),
                  KeptRow(step, index, vocab), Stride(vocab) * kFloatBytes},
                 stream),
      "copying logits of a prompt");
}

absl::Status CudaLogits::CopyToHost(int64_t device_row, int64_t host_row,
                                    int64_t count, int64_t vocab,
                                    cudaStream_t stream) const {
  const int64_t row_bytes = vocab * kFloatBytes;
  return CudaStatus(
      cudaMemcpy2DAsync(host_.as<float>() + host_row * vocab, row_bytes,
                        data() + device_row * Stride(vocab),
                        Stride(vocab) * kFloatBytes, row_bytes, count,
                        cudaMemcpyDeviceToHost, stream),
      "copying logits");
}

}  // namespace recurve
